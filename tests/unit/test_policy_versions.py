"""Which releases meet, and which versions are approved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.policy.versions import WORKER, check_approved, check_release
from swarm.model import RefusalCode


@pytest.mark.parametrize("theirs", ["1.4.0", "1.4.9", "1.3.0", "1.5.2", "1.4.0rc1", "1.4"])
def test_this_release_and_its_neighbours_meet(theirs: str) -> None:
    assert check_release(theirs, "1.4.2") is None


@pytest.mark.parametrize(
    ("theirs", "who"),
    [("1.2.9", "upgrade the worker"), ("0.4.2", "upgrade the worker"), ("1.6.0", "operator"), ("2.4.2", "operator")],
)
def test_a_release_further_away_is_told_who_should_upgrade(theirs: str, who: str) -> None:
    refusal = check_release(theirs, "1.4.2")
    assert refusal is not None
    assert refusal.code is RefusalCode.VERSION_UNSUPPORTED
    assert who in refusal.message
    assert refusal.details == {"root": "1.4.2", "worker": theirs}


def test_what_is_no_release_is_told_what_to_install() -> None:
    refusal = check_release("latest", "1.4.2")
    assert refusal is not None
    assert refusal.code is RefusalCode.VERSION_UNSUPPORTED
    assert refusal.message == "'latest' isn't a release of task-swarm; install one, 1.4.2 is what this root runs"


@given(st.text(max_size=64))
def test_any_text_is_a_release_or_is_refused_with_a_sentence(text: str) -> None:
    refusal = check_release(text, "0.1.0")
    assert refusal is None or refusal.code is RefusalCode.VERSION_UNSUPPORTED


def test_whose_version_is_not_pinned_is_told_which_are() -> None:
    refusal = check_approved("fetch", {WORKER: "1.0", "fetch": "2"}, {"fetch": {"4", "3"}})
    assert refusal is not None
    assert refusal.code is RefusalCode.VERSION_NOT_APPROVED
    assert refusal.message == "fetch 2 isn't approved here; approved: 3, 4"
    assert refusal.details == {"name": "fetch", "version": "2", "approved": ["3", "4"]}


def test_whose_version_is_not_known_is_not_approved_where_one_is_pinned() -> None:
    refusal = check_approved("fetch", {"fetch": "2"}, {WORKER: {"1.0"}})
    assert refusal is not None
    assert refusal.message == "worker of no known version isn't approved here; approved: 1.0"
    assert refusal.details == {"name": WORKER, "version": None, "approved": ["1.0"]}


def test_what_is_not_pinned_or_is_of_another_kind_is_free() -> None:
    assert check_approved("fetch", {WORKER: "1.0", "fetch": "2"}, {"fetch": {"1", "2"}, WORKER: {"1.0"}}) is None
    assert check_approved("fetch", {}, {"fetch": set(), "noop": {"9"}}) is None
    assert check_approved("fetch", {}, {}) is None
