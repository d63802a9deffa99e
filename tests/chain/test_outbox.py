"""The outbox as the pure function it is: each state, what the chain shows, and the one step that follows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.chain.fees import Fees, first_fees, raised
from rendezvous.chain.outbox import (
    Bump,
    ChainView,
    Fill,
    JudgeForeign,
    JudgeReverted,
    Note,
    Plan,
    Receipt,
    Rules,
    Send,
    Sign,
    WorryCode,
    decide,
)
from rendezvous.ledger.money_ops import (
    Attempt,
    Book,
    Buried,
    Finalized,
    Intent,
    IntentKind,
    IntentState,
    Mined,
    Reorged,
    Sender,
    Sent,
    Stopped,
    Transaction,
    TxState,
)

GWEI = 10**9
RULES = Rules(finality_blocks=3, watch_blocks=5, stuck_blocks=4, linger_s=2.0, doubt_s=10.0, in_flight_most=3)
SENDER = Sender(
    address="0xRoot",
    chain_id=1,
    contract="0xEscrow",
    epoch=1,
    next_nonce=7,
    anchor_number=10,
    anchor_hash="anchor",
    since_number=10,
    since_balance_wei=0,
)
FIRST = Attempt(number=0, hash="h0", raw=b"raw0", max_fee_wei=3 * GWEI, tip_wei=GWEI)
SECOND = Attempt(number=1, hash="h1", raw=b"raw1", max_fee_wei=4 * GWEI, tip_wei=2 * GWEI)
TX = Transaction(
    nonce=7, state=TxState.SIGNED, data=b"", value_wei=0, draw_wei=0, gas=1, signed_at=100.0, signed_block=100,
    attempts=(FIRST,),
)  # fmt: skip
MINED = msgspec.structs.replace(TX, state=TxState.MINED, mined_number=101, mined_hash="b101", mined_tx="h0")
FINAL = msgspec.structs.replace(MINED, state=TxState.FINAL)


def view(**changes: Any) -> ChainView:
    values: dict[str, Any] = {
        "head": 100,
        "timestamp": 1,
        "base_fee_wei": GWEI,
        "tip_wei": GWEI,
        "nonce": 7,
        "final_nonce": 7,
        "wallet_wei": 10**18,
        "escrow_wei": 0,
        "receipts": {},
        "known": frozenset(),
        "hashes": {},
        "anchor_hash": "anchor",
    }
    return ChainView(**{"final": {**values, **changes}["head"] - RULES.finality_blocks, **values, **changes})


def book(*transactions: Transaction, queued: tuple[Intent, ...] = (), **sender: Any) -> Book:
    values = {"next_nonce": 8 if transactions else 7, **sender}
    return Book(sender=msgspec.structs.replace(SENDER, **values), transactions=transactions, queued=queued)


def plan(what: Book, seen: ChainView, *, doubts: dict[int, float] | None = None, now: float = 101.0) -> Plan:
    return decide(what, seen, RULES, doubts=doubts or {}, now=now)


def steps(what: Book, seen: ChainView, **how: Any) -> list[Any]:
    return [step.entry if isinstance(step, Note) else step for step in plan(what, seen, **how).steps]


def intent(n: int, kind: IntentKind = IntentKind.CREATE, **changes: Any) -> Intent:
    values: dict[str, Any] = {
        "n": n,
        "kind": kind,
        "key": f"t{n}:1",
        "sender": "0xRoot",
        "amount_wei": 5,
        "state": IntentState.QUEUED,
        "created_at": 100.0,
        "task": f"t{n}",
        "generation": 1,
    }
    return Intent(**{**values, **changes})


def receipt(ok: bool = True, number: int = 101, block_hash: str = "b101") -> dict[str, Receipt]:
    return {"h0": Receipt(number=number, block_hash=block_hash, ok=ok)}


# ── one transaction ───────────────────────────────────────────────────────────────────────────────────────────────


def test_signed_and_unknown_is_sent() -> None:
    assert steps(book(TX), view()) == [Send(7, FIRST)]


def test_signed_but_known_was_sent_before_a_crash() -> None:
    assert steps(book(TX), view(known=frozenset({"h0"}))) == [Sent(nonce=7)]


def test_sent_and_known_is_waited_for() -> None:
    sent = msgspec.structs.replace(TX, state=TxState.SENT)
    assert steps(book(sent), view(known=frozenset({"h0"}))) == []


def test_sent_and_dropped_is_sent_again_unchanged() -> None:
    sent = msgspec.structs.replace(TX, state=TxState.SENT)
    assert steps(book(sent), view(head=103)) == [Send(7, FIRST)]


def test_the_newest_attempt_is_the_one_that_is_sent_again() -> None:
    sent = msgspec.structs.replace(TX, state=TxState.SENT, attempts=(FIRST, SECOND))
    assert steps(book(sent), view()) == [Send(7, SECOND)]


def test_the_newest_attempt_is_sent_again_where_the_pool_has_only_an_older_one() -> None:
    sent = msgspec.structs.replace(TX, state=TxState.SENT, attempts=(FIRST, SECOND))
    assert steps(book(sent), view(known=frozenset({"h0"}))) == [Send(7, SECOND)]
    assert steps(book(sent), view(known=frozenset({"h1"}))) == []


def test_a_receipt_of_an_older_attempt_counts() -> None:
    sent = msgspec.structs.replace(TX, state=TxState.SENT, attempts=(FIRST, SECOND))
    seen = view(head=101, nonce=8, receipts=receipt(), hashes={101: "b101"})
    assert steps(book(sent), seen) == [Mined(nonce=7, hash="h0", number=101, block_hash="b101")]


def test_a_receipt_of_a_block_that_is_not_canonical_is_no_finding() -> None:
    assert steps(book(TX), view(head=101, nonce=8, receipts=receipt(), hashes={101: "other"})) == []


def test_stuck_for_long_gets_a_replacement_of_the_same_nonce() -> None:
    sent = msgspec.structs.replace(TX, state=TxState.SENT)
    (step,) = steps(book(sent), view(head=104, known=frozenset({"h0"})))
    assert isinstance(step, Bump)
    assert step.transaction.nonce == 7
    assert step.fees == Fees(max_fee_wei=3375 * 10**6, tip_wei=1125 * 10**6)
    assert steps(book(sent), view(head=103, known=frozenset({"h0"}))) == []


def test_only_the_first_in_line_is_replaced() -> None:
    first = msgspec.structs.replace(TX, state=TxState.SENT)
    second = msgspec.structs.replace(first, nonce=8, attempts=(SECOND,))
    found = steps(book(first, second, next_nonce=9), view(head=104, known=frozenset({"h0", "h1"})))
    assert [type(step) for step in found] == [Bump]


def test_mined_is_final_only_when_deep_enough() -> None:
    seen = {"nonce": 8, "receipts": receipt(), "hashes": {101: "b101"}}
    assert steps(book(MINED), view(head=103, **seen)) == []
    assert steps(book(MINED), view(head=104, **seen)) == [Finalized(nonce=7, ok=True)]


def test_a_revert_is_judged_only_when_deep_enough() -> None:
    seen = {"nonce": 8, "receipts": receipt(ok=False), "hashes": {101: "b101"}}
    assert steps(book(MINED), view(head=103, **seen)) == []
    assert steps(book(MINED), view(head=104, **seen)) == [JudgeReverted(MINED)]


@pytest.mark.parametrize("before", [MINED, FINAL])
def test_another_block_at_its_height_takes_it_back(before: Transaction) -> None:
    assert steps(book(before), view(head=103, hashes={101: "other"})) == [Reorged(nonce=7)]


@pytest.mark.parametrize("before", [MINED, FINAL])
def test_mined_in_another_block_is_taken_back_and_noted_anew(before: Transaction) -> None:
    seen = view(head=105, nonce=8, receipts=receipt(number=102, block_hash="b102"), hashes={101: "o", 102: "b102"})
    assert steps(book(before), seen) == [
        Reorged(nonce=7),
        Mined(nonce=7, hash="h0", number=102, block_hash="b102"),
    ]


@pytest.mark.parametrize("before", [MINED, FINAL])
def test_a_node_that_lost_the_receipt_while_the_block_stands_lags(before: Transaction) -> None:
    assert steps(book(before), view(head=103, nonce=8, hashes={101: "b101"})) == []


def test_a_shorter_chain_is_no_verdict_but_mined_bytes_are_sent_again() -> None:
    assert steps(book(MINED), view(head=99, nonce=7, hashes={101: None})) == [Send(7, FIRST)]
    assert steps(book(FINAL), view(head=99, nonce=7, hashes={101: None})) == []


def test_a_final_one_is_buried_after_a_while() -> None:
    seen = {"nonce": 8, "receipts": receipt(), "hashes": {101: "b101"}}
    assert steps(book(FINAL), view(head=108, **seen)) == []
    assert steps(book(FINAL), view(head=109, **seen)) == [Buried(nonce=7, number=101, block_hash="b101")]


# ── others with the key, other chains ─────────────────────────────────────────────────────────────────────────────


def test_a_used_nonce_without_a_receipt_is_doubted_before_it_is_believed() -> None:
    sent = msgspec.structs.replace(TX, state=TxState.SENT)
    first = plan(book(sent, queued=(intent(1),)), view(nonce=8))
    assert (first.steps, first.doubts) == ((), {7: 101.0})  # nothing is signed meanwhile
    assert steps(book(sent), view(nonce=8), doubts={7: 101.0}, now=110.0) == []
    assert steps(book(sent), view(nonce=8), doubts={7: 101.0}, now=111.0) == [JudgeForeign(sent, False)]


def test_a_doubt_ends_when_the_receipt_comes() -> None:
    sent = msgspec.structs.replace(TX, state=TxState.SENT)
    seen = view(head=101, nonce=8, receipts=receipt(), hashes={101: "b101"})
    assert plan(book(sent), seen, doubts={7: 100.0}).doubts == {}


def test_a_foreign_nonce_gives_its_intents_another_only_when_final() -> None:
    foreign = msgspec.structs.replace(TX, state=TxState.FOREIGN)
    stopped = book(foreign, stopped="why")
    assert steps(stopped, view(nonce=8, final_nonce=7)) == []
    assert steps(stopped, view(nonce=8, final_nonce=8)) == [JudgeForeign(foreign, True)]


def test_a_foreign_nonce_whose_receipt_comes_after_all_is_ours() -> None:
    foreign = msgspec.structs.replace(TX, state=TxState.FOREIGN)
    seen = view(head=101, nonce=8, receipts=receipt(), hashes={101: "b101"})
    assert steps(book(foreign, stopped="why"), seen) == [Mined(nonce=7, hash="h0", number=101, block_hash="b101")]


def test_a_nonce_ahead_of_the_ledger_stops_an_idle_sender() -> None:
    assert steps(book(), view(nonce=9)) == []
    (step,) = steps(book(), view(nonce=9), doubts={7: 50.0})
    assert isinstance(step, Stopped)


def test_a_stopped_sender_signs_nothing_and_says_how_to_go_on() -> None:
    found = plan(book(queued=(intent(1),), stopped="its nonce 7 was used"), view())
    assert found.steps == ()
    (worry,) = found.worries
    assert (worry.code, worry.at_once) == (WorryCode.SENDER_STOPPED, True)
    assert "swarm-root wallet resume" in worry.hint


@pytest.mark.parametrize("anchor", [None, "other"])
def test_another_chain_is_left_alone(anchor: str | None) -> None:
    found = plan(book(TX, queued=(intent(1),)), view(anchor_hash=anchor))
    assert found.steps == ()
    assert [worry.code for worry in found.worries] == [WorryCode.CHAIN_LOST]


def test_a_chain_without_the_contract_is_left_alone() -> None:
    found = plan(book(TX, queued=(intent(1),)), view(has_contract=False))
    assert found.steps == ()
    assert [worry.code for worry in found.worries] == [WorryCode.CHAIN_LOST]


# ── batches ───────────────────────────────────────────────────────────────────────────────────────────────────────


def batches(*queued: Intent, under_way: tuple[Transaction, ...] = (), now: float = 101.0) -> list[list[int]]:
    seen = view(known=frozenset({"h0"}))
    found = steps(book(*under_way, queued=queued), seen, now=now)
    return [[each.n for each in step.intents] for step in found if isinstance(step, Sign)]


def test_an_idle_sender_signs_at_once() -> None:
    assert batches(intent(1)) == [[1]]


def test_a_batch_gathers_while_another_is_under_way() -> None:
    sent = msgspec.structs.replace(TX, state=TxState.SENT)
    assert batches(intent(1), under_way=(sent,)) == []
    assert batches(intent(1), under_way=(sent,), now=102.0) == [[1]]
    assert batches(*(intent(n) for n in range(501)), under_way=(sent,)) == [list(range(500))]


def test_no_more_than_so_many_are_under_way() -> None:
    sent = [msgspec.structs.replace(TX, state=TxState.SENT, nonce=7 + n) for n in range(3)]
    assert batches(intent(1), under_way=tuple(sent), now=999.0) == []


def test_a_create_shares_its_batch_with_those_of_its_reward_only() -> None:
    assert batches(intent(1), intent(2, amount_wei=6), intent(3)) == [[1, 3], [2]]


def test_payments_and_refunds_share_a_batch_of_at_most_two_hundred() -> None:
    kinds = (IntentKind.COMPLETE, IntentKind.FAIL)
    (batch,) = batches(*(intent(n, kinds[n % 2]) for n in range(300)))
    assert batch == list(range(200))


def test_a_batch_that_failed_without_a_name_is_halved() -> None:
    once = [intent(n, delays=1) for n in range(300)]
    assert [len(batch) for batch in batches(*once)] == [250]
    alone = [intent(n, IntentKind.COMPLETE, delays=9) for n in range(3)]
    assert [len(batch) for batch in batches(*alone)] == [1]


def test_a_dear_chain_is_waited_for() -> None:
    found = plan(book(queued=(intent(1),)), view(base_fee_wei=101 * GWEI))
    assert found.steps == ()
    assert [worry.code for worry in found.worries] == [WorryCode.CHAIN_DEAR]


# ── fees ──────────────────────────────────────────────────────────────────────────────────────────────────────────

wei = st.integers(1, 10**12)


@given(last=wei, tip=wei, base=wei, suggested=wei, cap=wei)
def test_a_raise_is_one_that_nodes_take_and_never_above_the_cap(
    last: int, tip: int, base: int, suggested: int, cap: int
) -> None:
    before = Fees(max_fee_wei=max(last, tip), tip_wei=tip)
    after = raised(before, base_fee_wei=base, tip_wei=suggested, cap_wei=cap)
    if after is not None:
        assert after.max_fee_wei * 10 >= before.max_fee_wei * 11
        assert after.tip_wei * 10 >= before.tip_wei * 11
        assert after.tip_wei <= after.max_fee_wei <= cap


@given(base=wei, tip=wei, cap=wei)
def test_a_first_offer_covers_the_base_fee_and_stays_below_the_cap(base: int, tip: int, cap: int) -> None:
    fees = first_fees(base_fee_wei=base, tip_wei=tip, cap_wei=cap)
    assert (fees is None) == (base + tip > cap)
    if fees is not None:
        assert base + tip <= fees.max_fee_wei <= cap


# ── freed nonces ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_nonce_that_a_deep_reorg_freed_is_filled_after_a_doubt() -> None:
    waiting = book(msgspec.structs.replace(TX, state=TxState.SENT))
    seen = view(nonce=6, known=frozenset({"h0"}))
    first = plan(waiting, seen)
    assert (first.steps, first.doubts) == ((), {-7: 101.0})
    (step,) = steps(waiting, seen, doubts={-7: 91.0})
    assert isinstance(step, Fill)
    assert step.nonce == 6


def test_a_nonce_that_is_watched_is_no_gap() -> None:
    waiting = book(FINAL, msgspec.structs.replace(TX, state=TxState.SENT, nonce=8, attempts=(SECOND,)))
    seen = view(nonce=7, known=frozenset({"h1"}), hashes={101: None})
    assert steps(waiting, seen, doubts={-8: 0.0}) == []
