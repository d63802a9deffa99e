"""Is this voucher what it should be? Pure: values in, a kept voucher or the reason against it out.

A voucher is only good for what its payer signed, and its payer is who the swarm's own key names in ``/settings``. What
it adds to the last one must be the rewards of tasks that this worker did, each as its grant promised, so that a root
can neither pay less than it said nor put other work into this worker's mouth. Whether the chain's money covers it is
for whoever can see the chain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from swarm.content.cid import parse_cid
from swarm.errors import MalformedInput
from swarm.model import Address, Cid, TaskId, Wei
from swarm.turn_wire import SignedVoucher
from swarm.vouchers import (
    EMPTY_TASKS_ROOT,
    MAX_WEI,
    Escrow,
    Voucher,
    chain_task_id,
    next_tasks_root,
    voucher_signer,
)

__all__ = ["Account", "Expected", "KeptVoucher", "Objection", "check_voucher"]

_BEGINNING: Final = (0, EMPTY_TASKS_ROOT)


@attrs.frozen(kw_only=True)
class Account:
    """Whose vouchers are taken, and for whom.

    Args:
        escrow: the contract that they are good for.
        payer: who must have signed.
        payee: who is paid.
        shared: others work for the same payee, so that tasks are listed which this worker doesn't know.
    """

    escrow: Escrow
    payer: Address
    payee: Address
    shared: bool = False


@attrs.frozen(kw_only=True)
class Expected:
    """What a grant promised for a task that this worker did."""

    result: Cid
    reward_wei: Wei


@attrs.frozen(kw_only=True)
class KeptVoucher:
    """A voucher that was checked: all that anyone needs to have it paid out.

    Args:
        signature: r and vs, 64 bytes.
        tasks: how many tasks it is known to pay for.
    """

    escrow: Escrow
    voucher: Voucher
    signature: bytes
    tasks: int

    @property
    def cumulative_wei(self) -> Wei:
        """All that was ever owed by its payer."""
        return self.voucher.cumulative_wei


@attrs.frozen
class Objection:
    """Why a voucher isn't taken."""

    why: str


def check_voucher(
    told: SignedVoucher,
    account: Account,
    *,
    last: KeptVoucher | None,
    expected: Callable[[TaskId, int], Expected | None],
) -> KeptVoucher | Objection | None:
    """Check a voucher against the last one that was taken.

    Args:
        told: what the root says.
        account: whose vouchers are taken.
        last: the last one that was taken; None where there is none.
        expected: what is known of a task (id, generation); None where it isn't one of this worker's.

    Returns:
        What to keep; an ``Objection``; or None where it is none beyond the last one.
    """
    place = Escrow(chain_id=told.chain_id, address=told.contract)
    if (place, told.payer, told.payee) != (account.escrow, account.payer, account.payee):
        return Objection("it is for another contract, payer or payee than this swarm's settings name")
    cumulative_wei, since_wei = int(told.cumulative_wei), int(told.since_wei)
    if last is not None and cumulative_wei <= last.cumulative_wei:
        return None
    if last is not None and 0 < since_wei < last.cumulative_wei:
        return None  # said before the root could know of the last one: the next turn brings it again
    if last is not None and since_wei == last.cumulative_wei:
        total_wei, root = last.cumulative_wei, last.voucher.tasks_root
    elif since_wei == 0:
        total_wei, root = _BEGINNING
    else:
        return Objection(f"it follows one of {since_wei} wei, which this worker doesn't have")
    # An earlier life of this worker, whose journal is lost, may have done what it doesn't know: paid all the same.
    strange_is_fine = account.shared or (last is None and since_wei == 0)
    try:
        for each in told.tasks:
            known = expected(each.task, each.generation)
            reward_wei = int(each.reward_wei)
            checked_before = last is not None and total_wei < last.cumulative_wei
            if known is None and not strange_is_fine and not checked_before:
                return Objection(f"it lists task {each.task}, which this worker didn't do")
            if known is not None and (known.result, known.reward_wei) != (each.result, reward_wei):
                return Objection(
                    f"it lists task {each.task} with {each.result} for {reward_wei} wei, "
                    f"and it was {known.result} for {known.reward_wei}"
                )
            total_wei += reward_wei
            root = next_tasks_root(
                root,
                chain_task=chain_task_id(each.task, each.generation),
                output=parse_cid(each.result).digest,
                reward_wei=reward_wei,
            )
            reached = checked_before and last is not None and total_wei >= last.cumulative_wei
            if reached and last is not None and (total_wei, root) != (last.cumulative_wei, last.voucher.tasks_root):
                return Objection("its first tasks aren't those that the last one was for")
        if total_wei != cumulative_wei or total_wei > MAX_WEI:
            return Objection(f"its tasks come to {total_wei} wei, and it is of {cumulative_wei}")
        if root != bytes.fromhex(told.tasks_root[2:]):
            return Objection("what it is signed over isn't the tasks that it lists")
        voucher = Voucher(requester=told.payer, worker=told.payee, cumulative_wei=cumulative_wei, tasks_root=root)
        signature = bytes.fromhex(told.signature[2:])
        if voucher_signer(place, voucher, signature) != account.payer:
            return Objection(f"it isn't signed by {account.payer}")
    except MalformedInput as fault:
        return Objection(f"it is malformed: {fault}")
    before = last.tasks if last is not None and since_wei else 0
    return KeptVoucher(escrow=place, voucher=voucher, signature=signature, tasks=before + len(told.tasks))
