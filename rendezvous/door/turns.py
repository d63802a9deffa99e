"""The turn: the one thing that a worker says, and what it is answered (DESIGN §4).

One worker's turns are taken one after another. Repeating (boot, n) gives the answer that was given, from memory, so a
lost answer costs nothing. Results are verified before the ledger hears of them; one that can't be verified yet counts
as held. That a late turn of an earlier boot gets nothing is the ledger's rule.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import attrs
import msgspec

import swarm
from rendezvous.door.envelope import error_body, outcome_of
from rendezvous.door.metrics import Metrics
from rendezvous.door.verify import verify_all
from rendezvous.door.vouchers import Vouchers
from rendezvous.fleet import Fleet, Worker
from rendezvous.ledger.ops import DoneItem, Ended, FailedItem, Granted, LeaseRef, SeeWorkers, TakeTurn, TurnResult
from rendezvous.ledger.values import WorkerRef
from rendezvous.policy.versions import check_release
from rendezvous.store import RootStore
from swarm.model import Address, Refusal, RefusalCode, TaskId
from swarm.turn_wire import Grant, Outcome, Renewed, SignedVoucher, Turn, TurnAnswer

if TYPE_CHECKING:
    from rendezvous.ledger.ledger import Ledger

__all__ = ["Turns"]

#: Boots of one worker whose last answer is remembered: the present one, and one that a late turn may come from.
BOOTS_KEPT: Final = 2


@attrs.define(eq=False)
class _Talk:
    """What is remembered of one worker's turns: the last number and answer of each boot."""

    lock: asyncio.Lock = attrs.field(factory=asyncio.Lock)
    answered: dict[str, tuple[int, TurnAnswer]] = attrs.field(factory=dict)


class Turns:
    """Takes turns.

    Args:
        rules_of: the rules of robots.txt for a URL, where they are at hand.
        hungry: told when a worker wanted more than there was.
        assigns: told when a worker with a session has free slots, where tasks are pushed to it; then its turns ask for
            nothing. None: they do.
        roots: the peer ids whose gossip workers should believe.
        network_id: of this swarm.
        vouchers: signs what is owed; None in an unpaid swarm.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        store: RootStore,
        fleet: Fleet,
        metrics: Metrics,
        rules_of: Callable[[str], str | None],
        hungry: Callable[[], None],
        assigns: Callable[[], None] | None = None,
        roots: Callable[[], tuple[str, ...]],
        network_id: str,
        vouchers: Vouchers | None = None,
    ) -> None:
        self._vouchers = vouchers
        self._ledger = ledger
        self._store = store
        self._fleet = fleet
        self._metrics = metrics
        self._rules_of = rules_of
        self._hungry = hungry
        self._assigns = assigns
        self._roots = roots
        self._network_id = network_id
        self._talks: dict[WorkerRef, _Talk] = {}

    async def take(
        self, ref: WorkerRef, payout: Address, turn: Turn, *, seen_at: float, way: str
    ) -> TurnAnswer | Refusal:
        """Take one turn, or answer a repeated one as before.

        Args:
            ref: whose turn it is.
            payout: who is paid for this worker's work.
            turn: what it says.
            seen_at: Unix seconds, for the list of workers.
            way: ``session`` or ``http``, for the metrics.

        Raises:
            LedgerUnavailable: nothing was changed; the worker repeats the turn.
        """
        talk = self._talks.setdefault(ref, _Talk())
        async with talk.lock:
            last = talk.answered.get(turn.boot)
            if last is not None and turn.n == last[0]:
                self._metrics.count("swarm_turns_repeated_total")
                return last[1]
            if last is not None and turn.n < last[0]:
                return Refusal(
                    RefusalCode.STALE_TURN,
                    f"turn {turn.n} comes after turn {last[0]} of the same boot; number turns upwards",
                    details={"n": last[0]},
                )
            unfit = check_release(turn.hello.version, swarm.__version__) if turn.hello is not None else None
            if unfit is not None:
                return unfit
            worker = await self._fleet.met(ref, payout)
            if turn.hello is not None:
                self._fleet.introduce(worker, turn.hello)
            if turn.stats is not None:
                worker.stats = turn.stats
            worker.boot, worker.turn_n = turn.boot, turn.n
            if self._assigns is not None and way == "session":
                turn = msgspec.structs.replace(turn, offers=(), want=0)
            self._fleet.heard(worker, free=turn.free, gossip=turn.gossip, seen_at=seen_at)
            answer = await self._take(worker, turn)
            if turn.boot not in talk.answered and len(talk.answered) >= BOOTS_KEPT:
                del talk.answered[next(iter(talk.answered))]
            talk.answered[turn.boot] = (turn.n, answer)
            self._metrics.count("swarm_turns_total", way=way)
            return answer

    def __len__(self) -> int:
        """Of how many workers answers are remembered."""
        return len(self._talks)

    def forget_silent(self) -> None:
        """Forget the answers to workers that the fleet has forgotten; the ledger still knows what is counted."""
        for ref in [ref for ref, talk in self._talks.items() if ref not in self._fleet and not talk.lock.locked()]:
            del self._talks[ref]

    async def _take(self, worker: Worker, turn: Turn) -> TurnAnswer:
        checked = await verify_all(
            turn.done,
            worker=worker.ref,
            payout=worker.payout,
            network_id=self._network_id,
            store=self._store,
            ledger=self._ledger,
        )
        verified = tuple(item for item in checked if isinstance(item, DoneItem))
        refused = [
            Ended(task=done.task, fence=done.fence, outcome=item)
            for done, item in zip(turn.done, checked, strict=True)
            if isinstance(item, Refusal)
        ]
        if turn.hello is not None:
            # At once: a worker says it once a boot, and the root may be killed at any time.
            await self._ledger.call(SeeWorkers(seen=self._fleet.take_unsaved()))
        if turn.voucher is not None and self._vouchers is not None:
            await self._vouchers.adopt(worker.payout, turn.voucher)  # before anything is earned on top of it
        result: TurnResult = await self._ledger.call(
            TakeTurn(
                worker=worker.ref,
                boot=turn.boot,
                facts=worker.facts,
                done=verified,
                failed=tuple(
                    FailedItem(
                        task=failed.task,
                        fence=failed.fence,
                        reason=failed.reason,
                        detail=failed.detail,
                        retryable=failed.retryable,
                        retry_after_s=failed.retry_after_s,
                        ran_s=failed.ran_s,
                    )
                    for failed in turn.failed
                ),
                released=tuple(LeaseRef(one.task, one.fence) for one in turn.released),
                # What couldn't be verified is still in the worker's hands: its lease mustn't be granted again.
                held=(
                    *(LeaseRef(one.task, one.fence) for one in turn.held),
                    *(LeaseRef(one.task, one.fence) for one in refused),
                ),
                renew=tuple(LeaseRef(one.task, one.fence) for one in turn.held if one.renew),
                offers=turn.offers[: turn.free],
                want=turn.want,
                room=turn.free,
            )
        )
        self._fleet.set_free(worker, turn.free - len(result.granted))
        worker.hungry = len(result.granted) < min(turn.free, len(turn.offers) + turn.want)
        if worker.hungry:
            self._hungry()
        if self._assigns is not None and worker.free:
            self._assigns()
        vouchers: tuple[SignedVoucher, ...] = ()
        if self._vouchers is not None:
            vouchers = await self._vouchers.since(
                worker.payout, turn.vouchers_seen, earned=result.earned, news=turn.hello is not None
            )
        return self._answer(turn, result, refused, vouchers)

    def _answer(
        self, turn: Turn, result: TurnResult, refused: list[Ended], vouchers: tuple[SignedVoucher, ...]
    ) -> TurnAnswer:
        for via, number in Counter([grant.via for grant in result.granted]).items():
            self._metrics.count("swarm_grants_total", number, via=via.value)
        if turn.offers:
            self._metrics.count("swarm_asks_total", len(turn.offers))
        ended = {(one.task, one.fence): one for one in (*result.ended, *refused)}
        said = [
            *((one.task, one.fence) for one in turn.done),
            *((one.task, one.fence) for one in turn.failed),
            *((one.task, one.fence) for one in turn.released),
        ]
        return TurnAnswer(
            n=turn.n,
            outcomes=tuple(_outcome(key, ended.get(key)) for key in dict.fromkeys(said)),
            grants=tuple(grant_of(granted, self._rules_of(granted.task.urls[0])) for granted in result.granted),
            renewed=tuple(
                Renewed(task=lease.task, fence=lease.fence, lease_s=lease.lease_s) for lease in result.renewed
            ),
            lost=result.lost,
            cancelled=result.cancelled,
            paused=result.paused,
            retry_after_s=result.retry_after_s,
            outdated=result.outdated,
            live_workers=self._fleet.live_count(),
            spread_s=self._fleet.spread_s(),
            roots=self._roots(),
            vouchers=vouchers,
        )


def grant_of(granted: Granted, rules: str | None = None) -> Grant:
    """A grant as it travels, with the site's rules where they are at hand."""
    return Grant(task=granted.task, fence=granted.fence, lease_s=granted.lease_s, via=granted.via.value, robots=rules)


def _outcome(key: tuple[TaskId, int], ended: Ended | None) -> Outcome:
    if ended is not None:
        return outcome_of(ended)
    unknown = Refusal(RefusalCode.INTERNAL, "the ledger gave no answer for this entry; say it again")
    return Outcome(task=key[0], fence=key[1], error=error_body(unknown))
