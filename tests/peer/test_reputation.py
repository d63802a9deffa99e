"""Who is blocked, and for how long."""

from __future__ import annotations

from swarm.peer.reputation import BLOCK_S, LIMIT, MALFORMED, MAX_REMEMBERED, UNWANTED, Reputation


def test_a_handful_of_malformed_messages_blocks_their_sender() -> None:
    reputation = Reputation()
    blocked = [reputation.note("mallory", MALFORMED, now=0.0) for _ in range(5)]

    assert blocked == [False, False, False, False, True]
    assert reputation.is_blocked("mallory", now=1.0)
    assert reputation.blocked(now=1.0) == {"mallory"}


def test_a_block_ends() -> None:
    reputation = Reputation()
    for _ in range(5):
        reputation.note("mallory", MALFORMED, now=0.0)

    assert not reputation.is_blocked("mallory", now=BLOCK_S + 1)
    assert not reputation.note("mallory", MALFORMED, now=BLOCK_S + 1)


def test_a_peer_that_errs_now_and_then_is_never_blocked() -> None:
    reputation = Reputation()

    assert not any(reputation.note("bob", MALFORMED, now=30.0 * n) for n in range(1000))


def test_a_new_root_that_we_dont_know_yet_blocks_nobody_for_the_time_of_a_turn() -> None:
    reputation = Reputation()
    messages = [reputation.note("bob", UNWANTED, now=n / 20) for n in range(20 * 20)]

    assert not any(messages)


def test_a_flood_of_forgeries_blocks_within_seconds() -> None:
    reputation = Reputation()
    needed = next(n for n in range(5_000) if reputation.note("mallory", UNWANTED, now=n / 500))

    assert needed / 500 < 2


def test_a_root_is_never_blocked() -> None:
    reputation = Reputation(exempt=frozenset({"root"}))

    assert not any(reputation.note("root", LIMIT, now=0.0) for _ in range(10))
    assert not reputation.is_blocked("root", now=0.0)


def test_what_is_remembered_is_bounded() -> None:
    reputation = Reputation()
    for n in range(MAX_REMEMBERED + 10):
        reputation.note(f"peer {n}", LIMIT, now=0.0)

    assert len(reputation.blocked(now=0.0)) == MAX_REMEMBERED
