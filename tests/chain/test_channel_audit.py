"""What an audit says of channels: paid above what is owed, or funded less often than the ledger believes."""

from __future__ import annotations

from typing import Any

from rendezvous.chain.channels import channel_differences
from rendezvous.chain.escrow import ContractEvent
from rendezvous.ledger.channels import ChannelRow
from rendezvous.ledger.money_ops import Intent, IntentKind, IntentState

PAYER, ALICE = "0x" + "9" * 40, "0x" + "a" * 40


def event(name: str, **args: Any) -> ContractEvent:
    return ContractEvent(name=name, args={"requester": PAYER, "worker": ALICE, **args}, transaction="0x0", block=1)


def fund(nonce: int | None = 1) -> Intent:
    return Intent(
        n=1,
        kind=IntentKind.FUND,
        key="k",
        sender=PAYER,
        amount_wei=5,
        state=IntentState.DONE,
        created_at=0.0,
        payee=ALICE,
        nonce=nonce,
    )


def test_books_that_agree_have_no_difference() -> None:
    row = ChannelRow(payer=PAYER, payee=ALICE, owed_wei=5)
    events = [event("ChannelFunded", amount=9), event("ChannelSettled", paid=5, settled=5, cumulative=5)]
    assert list(channel_differences([row], [fund()], events)) == []


def test_a_payment_above_what_is_owed_is_told() -> None:
    row = ChannelRow(payer=PAYER, payee=ALICE, owed_wei=4)
    (told,) = channel_differences([row], [], [event("ChannelSettled", paid=5, settled=5, cumulative=5)])
    assert "paid 5 wei in all, the ledger owes 4" in told
    (told,) = channel_differences([], [], [event("ChannelSettled", paid=5, settled=5, cumulative=5)])
    assert "the ledger owes 0" in told


def test_a_funding_that_the_chain_never_saw_is_told() -> None:
    (told,) = channel_differences([], [fund()], [])
    assert "funded 1 times by the ledger, 0 times on the chain" in told
    assert list(channel_differences([], [fund(nonce=None)], [])) == []  # it was true without us
