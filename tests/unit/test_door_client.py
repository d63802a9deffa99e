"""The client of the door, against a door on the loopback that is played by the test."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import math
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from swarm.certificates import trust_certificates
from swarm.door_client import DoorClient, open_door
from swarm.errors import DoorRefused, DoorUnreachable, MalformedInput, UntrustedSettings
from swarm.identity import Identity, open_identity
from swarm.queue.door import open_door_queue
from swarm.signing import JoinLink, format_join_link
from swarm.turn_wire import CancelPush, Frame, Nudge, PausePush, Turn, TurnAnswer, TurnRefused
from swarm.wire import Hello, decode
from tests.fake_door import FakeDoor
from tests.patience import PATIENCE_S
from tests.unit.door_server import DoorServer, frame, open_door_server

HELLO = Hello(version="0.1.0", kinds={"noop": "1"})
BUSY = (429, frame(error={"code": "rate_limited", "message": "later", "retry_after_s": 0.01}))
PROXYS = (502, b"<html>Bad Gateway</html>")


@pytest.fixture(scope="module")
def alice(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with open_identity(tmp_path_factory.mktemp("keys") / "alice") as identity:
        yield identity


@pytest.fixture
async def server() -> AsyncIterator[DoorServer]:
    async with open_door_server() as opened:
        yield opened


@asynccontextmanager
async def door_to(
    server: DoorServer, alice: Identity, directory: Path, *, link: JoinLink | None = None, **more: Any
) -> AsyncIterator[DoorClient]:
    async with open_door(
        link or server.link(), alice, HELLO, directory=directory, rng=random.Random(1), **more
    ) as door:
        sped_up = isinstance(trio.lowlevel.current_clock(), MockClock)  # there pytest counts the seconds
        with trio.fail_after(math.inf if sped_up else PATIENCE_S):
            yield door


def turn(n: int = 1) -> Turn:
    return Turn(boot="boot-one", n=n, free=1)


# ── joining ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_newcomer_enrols_with_both_keys_and_its_invite(
    server: DoorServer, alice: Identity, tmp_path: Path
) -> None:
    async with door_to(server, alice, tmp_path) as door:
        assert door.api_key == "key-1"
        assert door.settings.swarm.name == "test"

    (enrolment,) = server.enrolments
    assert server.faults == [None]
    assert (enrolment.invite, enrolment.address, enrolment.payout) == ("sesame", alice.address, alice.address)
    assert enrolment.hello == HELLO


async def test_a_member_does_not_enrol_again(server: DoorServer, alice: Identity, tmp_path: Path) -> None:
    for _ in range(2):
        async with door_to(server, alice, tmp_path) as door:
            await door.turn(turn())
    assert len(server.enrolments) == 1


async def test_the_api_key_is_kept_private(server: DoorServer, alice: Identity, tmp_path: Path) -> None:
    async with door_to(server, alice, tmp_path):
        kept = [path for path in tmp_path.iterdir() if b"key-1" in path.read_bytes()]  # noqa: ASYNC240
    assert [(path.name, path.stat().st_mode & 0o777) for path in kept] == [("membership.json", 0o600)]


async def test_another_payout_address_enrols_anew(server: DoorServer, alice: Identity, tmp_path: Path) -> None:
    payout = "0x71C7656EC7ab88b098defB751B7401B5f6d8976F"
    async with door_to(server, alice, tmp_path):
        pass
    async with door_to(server, alice, tmp_path, payout=payout) as door:
        assert door.api_key == "key-2"
    assert server.enrolments[1].payout == payout


async def test_another_swarm_enrols_anew(server: DoorServer, alice: Identity, tmp_path: Path) -> None:
    async with door_to(server, alice, tmp_path):
        pass
    server.network_id = "network-two"
    async with door_to(server, alice, tmp_path) as door:
        assert door.api_key == "key-2"


async def test_a_swarm_that_does_not_admit_us_says_why(server: DoorServer, alice: Identity, tmp_path: Path) -> None:
    server.refuse["/v1/enrolments"] = (403, "invite_invalid")
    with pytest.raises(DoorRefused, match="invite_invalid") as caught:
        async with door_to(server, alice, tmp_path):
            pass
    assert (caught.value.code, caught.value.status) == ("invite_invalid", 403)


async def test_no_door_at_all_is_said_so(alice: Identity, tmp_path: Path, mock_clock: MockClock) -> None:
    mock_clock.rate = 50.0
    nowhere = JoinLink(url="http://127.0.0.1:9")
    with pytest.raises(DoorUnreachable, match="127\\.0\\.0\\.1:9"):
        async with open_door(nowhere, alice, HELLO, directory=tmp_path):
            pass


async def test_a_door_that_is_slow_to_admit_us_is_waited_for(
    server: DoorServer, alice: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.door_member.START_S", 0.0)  # it is over before the door has answered
    async with door_to(server, alice, tmp_path) as door:
        assert door.api_key == "key-1"


class Once(dict[str, Any]):
    """Answers, each for one request."""

    def __getitem__(self, path: str) -> Any:
        return self.pop(path)


async def test_a_door_that_is_too_busy_for_our_first_attempt_gets_a_second(
    server: DoorServer, alice: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.door_member.START_S", 0.0)
    server.refuse = Once({"/settings": (503, "busy")})
    async with door_to(server, alice, tmp_path) as door:
        assert door.api_key == "key-1"


async def test_a_member_starts_with_the_door_down_and_finds_it_later(
    server: DoorServer, alice: Identity, tmp_path: Path
) -> None:
    async with door_to(server, alice, tmp_path):
        pass
    server.refuse["/settings"] = (503, "shutting_down")
    server.refuse["/v1/session"] = (503, "shutting_down")

    async with door_to(server, alice, tmp_path) as door:
        assert not door.connected
        server.refuse.clear()
        assert await door.turn(turn()) == TurnAnswer(n=1)


# ── trust ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_settings_of_another_key_than_the_links_are_refused(
    server: DoorServer, alice: Identity, tmp_path: Path
) -> None:
    link = server.link()
    server.seed = b"\7" * 32
    with pytest.raises(UntrustedSettings):
        async with door_to(server, alice, tmp_path, link=link):
            pass
    assert server.enrolments == []


@pytest.mark.parametrize("upgrades", [True, False])
@pytest.mark.parametrize("with_key", [True, False])
@pytest.mark.parametrize("repeats", [True, False])
async def test_our_key_goes_to_no_address_that_our_swarm_does_not_name_even_if_it_repeats_its_settings(
    server: DoorServer, alice: Identity, tmp_path: Path, *, upgrades: bool, with_key: bool, repeats: bool
) -> None:
    async with door_to(server, alice, tmp_path):
        pass
    async with open_door_server() as stranger:
        stranger.upgrades = upgrades
        stranger.says["/settings"] = (200, server.settings() if repeats else b"<html>welcome</html>")
        link = JoinLink(url=stranger.url, key_id=server.key_id if with_key else None)
        async with door_to(server, alice, tmp_path, link=link) as door:
            await door.wait_joined()
            assert door.url == server.url
            assert await door.turn(turn()) == TurnAnswer(n=1)
            await door.robots("http://site")

            server.refuse["/v1/session"] = server.refuse["/settings"] = (503, "shutting_down")
            await server.sessions[0].aclose(1001)
            asked = len(stranger.asked)
            await stranger.until(lambda: len(stranger.asked) > asked)  # it is asked who it is, and told nothing
            server.refuse.clear()
            assert await door.turn(turn(2)) == TurnAnswer(n=2)
        assert stranger.heard_keys == set()
        assert set(stranger.asked) == {"/settings"}


async def test_a_door_that_moved_to_where_it_is_not_named_is_enrolled_at_anew_and_known_from_then_on(
    server: DoorServer, alice: Identity, tmp_path: Path
) -> None:
    async with door_to(server, alice, tmp_path):
        pass
    server.refuse["/settings"] = (503, "shutting_down")
    async with open_door_server() as moved:
        moved.seed, moved.keys, moved.enrolments = server.seed, server.keys, server.enrolments
        moved.names_itself, moved.doors = False, (server.url,)
        for n in (1, 2):
            async with door_to(moved, alice, tmp_path) as door:
                assert await door.turn(turn(n)) == TurnAnswer(n=n)
                assert door.url == moved.url
        assert len(moved.enrolments) == 2
        assert moved.heard_keys == {"key-2"}


async def test_the_door_that_gave_our_key_need_not_be_named(
    server: DoorServer, alice: Identity, tmp_path: Path
) -> None:
    server.names_itself = False
    async with door_to(server, alice, tmp_path):
        pass
    server.refuse["/settings"] = (503, "shutting_down")
    async with door_to(server, alice, tmp_path) as door:
        assert await door.turn(turn()) == TurnAnswer(n=1)
    assert len(server.enrolments) == 1


@pytest.mark.parametrize("named", [True, False])
async def test_a_membership_of_an_earlier_version_is_for_named_doors_alone(
    server: DoorServer, alice: Identity, tmp_path: Path, *, named: bool
) -> None:
    async with door_to(server, alice, tmp_path):
        pass
    kept = tmp_path / "membership.json"
    membership = msgspec.json.decode(kept.read_bytes())
    assert membership.pop("url") == server.url
    kept.write_bytes(msgspec.json.encode(membership))
    server.names_itself = named
    server.heard_keys.clear()
    async with door_to(server, alice, tmp_path) as door:
        assert await door.turn(turn()) == TurnAnswer(n=1)
    assert server.heard_keys == ({"key-1"} if named else {"key-2"})


async def test_nothing_was_joined_while_no_door_has_taken_us(
    server: DoorServer, alice: Identity, tmp_path: Path
) -> None:
    async with door_to(server, alice, tmp_path):
        pass
    server.refuse["/settings"] = server.refuse["/v1/session"] = (503, "shutting_down")
    async with door_to(server, alice, tmp_path) as door, trio.open_nursery() as nursery:
        joined: list[str] = []

        async def tell() -> None:
            await door.wait_joined()
            joined.append(door.url)

        nursery.start_soon(tell)
        await server.until(lambda: server.asked.count("/v1/session") > 2)
        assert joined == []
        server.refuse.clear()
    assert joined == [server.url]


async def test_settings_that_were_changed_on_the_way_are_refused(
    server: DoorServer, alice: Identity, tmp_path: Path
) -> None:
    server.tamper = True
    with pytest.raises(UntrustedSettings):
        async with door_to(server, alice, tmp_path):
            pass


async def test_without_a_key_in_the_link_the_first_root_is_trusted_and_a_changed_one_refused(
    server: DoorServer, alice: Identity, tmp_path: Path
) -> None:
    async with door_to(server, alice, tmp_path, link=server.link(with_key=False)):
        pass
    server.seed = b"\7" * 32

    with pytest.raises(UntrustedSettings):
        async with door_to(server, alice, tmp_path, link=server.link(with_key=False)):
            pass
    assert len(server.enrolments) == 1


# ── the session ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_turn_is_answered(server: DoorServer, alice: Identity, tmp_path: Path) -> None:
    async with door_to(server, alice, tmp_path) as door:
        assert await door.turn(turn(1)) == TurnAnswer(n=1)
        assert await door.turn(turn(2)) == TurnAnswer(n=2)
    assert [one.n for one in server.turns] == [1, 2]


async def test_leaving_says_goodbye(server: DoorServer, alice: Identity, tmp_path: Path) -> None:
    async with door_to(server, alice, tmp_path) as door:
        await door.turn(turn())
    await server.until(lambda: server.closed == [1000])


async def test_a_late_answer_is_not_taken_for_another_turns(
    server: DoorServer, alice: Identity, tmp_path: Path
) -> None:
    async def late() -> None:
        await server.until(lambda: bool(server.turns))
        await server.sessions[0].send_message(frame(frame="turn", n=1))
        await server.sessions[0].send_message(frame(frame="turn", n=2, live_workers=7))

    server.answer = lambda _: None
    async with door_to(server, alice, tmp_path) as door, trio.open_nursery() as nursery:
        nursery.start_soon(late)
        assert await door.turn(turn(2)) == TurnAnswer(n=2, live_workers=7)


async def test_a_refused_turn_is_a_value(server: DoorServer, alice: Identity, tmp_path: Path) -> None:
    server.answer = lambda one: frame(frame="refused", n=one.n, error={"code": "rate_limited", "message": "slower"})
    async with door_to(server, alice, tmp_path) as door:
        refused = await door.turn(turn())
    assert isinstance(refused, TurnRefused)
    assert refused.error.code == "rate_limited"


async def test_what_the_door_says_first_arrives(server: DoorServer, alice: Identity, tmp_path: Path) -> None:
    async with door_to(server, alice, tmp_path) as door:
        await door.turn(turn())
        for pushed in (
            frame(frame="nudge", added_in_a_later_version=1),
            frame(frame="cancel", tasks=["a"]),
            frame(frame="pause", reason="why"),
        ):
            await server.sessions[0].send_message(pushed)
        assert [await door.pushes.receive() for _ in range(4)] == [
            Nudge(),  # of our own: a session was opened
            Nudge(),
            CancelPush(tasks=("a",)),
            PausePush(reason="why"),
        ]


async def test_a_flood_of_pushes_costs_no_turn(server: DoorServer, alice: Identity, tmp_path: Path) -> None:
    async with door_to(server, alice, tmp_path) as door:
        await door.turn(turn(1))
        for _ in range(1_000):
            await server.sessions[0].send_message(frame(frame="nudge"))
        assert await door.turn(turn(2)) == TurnAnswer(n=2)


async def test_a_lost_session_is_opened_again_and_the_turn_can_be_repeated(
    server: DoorServer, alice: Identity, tmp_path: Path
) -> None:
    async with door_to(server, alice, tmp_path) as door:
        await door.turn(turn(1))
        server.answer = lambda _: None

        async def cut() -> None:
            await server.until(lambda: len(server.turns) == 2)
            server.answer = lambda one: TurnAnswer(n=one.n)
            await server.sessions[0].aclose(1001)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cut)
            with pytest.raises(DoorUnreachable):
                await door.turn(turn(2))
        assert await door.turn(turn(2)) == TurnAnswer(n=2)
        assert door.sessions == 2


async def test_an_answer_that_cannot_be_understood_ends_the_session_and_not_the_worker(
    server: DoorServer, alice: Identity, tmp_path: Path
) -> None:
    async with door_to(server, alice, tmp_path) as door:
        server.answer = lambda _: b"{nonsense"
        with pytest.raises(DoorUnreachable, match="understood"):
            await door.turn(turn())
        server.answer = lambda one: TurnAnswer(n=one.n)
        assert await door.turn(turn()) == TurnAnswer(n=1)


@pytest.mark.parametrize(
    ("status", "refusal"), [(401, "key_revoked"), (403, "forbidden"), (400, "version_unsupported")]
)
async def test_a_worker_that_is_turned_away_for_good_ends(
    server: DoorServer, alice: Identity, tmp_path: Path, status: int, refusal: str
) -> None:
    server.refuse["/v1/session"] = (status, refusal)
    with pytest.raises(DoorRefused) as caught:
        async with door_to(server, alice, tmp_path) as door:
            await door.turn(turn())
    assert caught.value.code == refusal


async def test_a_key_that_is_revoked_during_a_session_ends_it(
    server: DoorServer, alice: Identity, tmp_path: Path
) -> None:
    with pytest.raises(DoorRefused) as caught:  # noqa: PT012 -- it is raised where the block is left
        async with door_to(server, alice, tmp_path) as door:
            await door.turn(turn())
            await server.sessions[0].aclose(4001, "key_revoked: it sends broken results")
            await trio.sleep_forever()
    assert caught.value.code == "key_revoked"
    assert str(caught.value).endswith("key: it sends broken results")


@pytest.mark.parametrize("upgrades", [True, False])
async def test_a_worker_that_was_revoked_and_admitted_again_enrols_again_when_it_starts(
    server: DoorServer, alice: Identity, tmp_path: Path, *, upgrades: bool
) -> None:
    async with door_to(server, alice, tmp_path):
        pass
    server.upgrades = upgrades
    server.revoke()
    async with door_to(server, alice, tmp_path) as door:
        assert await door.turn(turn()) == TurnAnswer(n=1)
        assert door.api_key == "key-2"
    first, again = server.enrolments
    assert (again.invite, again.address, again.instance) == ("sesame", first.address, first.instance)
    async with door_to(server, alice, tmp_path) as door:  # the new key was kept
        await door.turn(turn(2))
    assert len(server.enrolments) == 2


@pytest.mark.parametrize("upgrades", [True, False])
@pytest.mark.parametrize(
    ("refusal", "said"),
    [((401, "key_revoked"), "no: key_revoked"), ((403, "invite_invalid"), "no: key_revoked.* no: invite_invalid")],
)
async def test_a_revoked_worker_that_is_not_enrolled_again_ends_as_revoked_and_keeps_what_it_has(
    server: DoorServer, alice: Identity, tmp_path: Path, refusal: tuple[int, str], said: str, *, upgrades: bool
) -> None:
    async with door_to(server, alice, tmp_path):
        pass
    kept = (tmp_path / "membership.json").read_bytes()
    server.upgrades = upgrades
    server.revoke()
    server.refuse["/v1/enrolments"] = refusal
    with pytest.raises(DoorRefused, match=said) as caught:
        async with door_to(server, alice, tmp_path):
            await trio.sleep_forever()
    assert caught.value.code == "key_revoked"
    assert (tmp_path / "membership.json").read_bytes() == kept


async def test_a_door_that_admits_us_and_refuses_each_key_is_left_after_one_enrolment(
    server: DoorServer, alice: Identity, tmp_path: Path
) -> None:
    async with door_to(server, alice, tmp_path):
        pass
    server.refuse["/v1/session"] = (401, "key_revoked")
    with pytest.raises(DoorRefused, match="key_revoked"):
        async with door_to(server, alice, tmp_path):
            await trio.sleep_forever()
    assert len(server.enrolments) == 2


async def test_an_enrolment_that_has_to_wait_does_not_end_a_worker_that_was_admitted_again(
    server: DoorServer, alice: Identity, tmp_path: Path
) -> None:
    async with door_to(server, alice, tmp_path):
        pass
    server.revoke()
    server.says = Once({"/v1/enrolments": BUSY})
    async with door_to(server, alice, tmp_path) as door:
        assert await door.turn(turn()) == TurnAnswer(n=1)


@pytest.mark.parametrize("enrolment", [BUSY, PROXYS])
async def test_a_key_that_is_refused_is_not_used_while_no_other_one_is_to_be_had(
    server: DoorServer, alice: Identity, tmp_path: Path, enrolment: tuple[int, bytes]
) -> None:
    async with door_to(server, alice, tmp_path):
        pass
    server.revoke()
    server.upgrades = False
    server.says = Once({"/v1/session": PROXYS, "/v1/enrolments": enrolment})
    async with door_to(server, alice, tmp_path) as door:
        await door.wait_joined()
        assert door.api_key == "key-2"
        assert await door.turn(turn()) == TurnAnswer(n=1)


async def test_a_door_that_is_busy_says_nothing_of_our_key(server: DoorServer, alice: Identity, tmp_path: Path) -> None:
    async with door_to(server, alice, tmp_path):
        pass
    server.revoke()
    server.upgrades = False
    server.says = Once({"/v1/session": PROXYS, "/v1/robots": BUSY})
    async with door_to(server, alice, tmp_path) as door:
        assert await door.turn(turn()) == TurnAnswer(n=1)


def pop_from(server: DoorServer, directory: Path) -> None:
    """Open the door as a queue, ask it for a task once, and close it."""
    with open_door_queue(format_join_link(server.link()), key=None, worker=directory, kinds=["noop"]) as queue:
        assert queue.pop() is None


@pytest.mark.parametrize("enrolment", [BUSY, PROXYS])
async def test_a_queue_whose_worker_has_to_wait_for_another_key_is_opened_with_that(
    server: DoorServer, tmp_path: Path, enrolment: tuple[int, bytes]
) -> None:
    await trio.to_thread.run_sync(pop_from, server, tmp_path / "keys")
    server.revoke()
    server.says = Once({"/v1/enrolments": enrolment})
    await trio.to_thread.run_sync(pop_from, server, tmp_path / "keys")
    assert len(server.enrolments) == 2


async def test_a_queue_whose_worker_gets_no_key_that_is_taken_is_not_opened(server: DoorServer, tmp_path: Path) -> None:
    await trio.to_thread.run_sync(pop_from, server, tmp_path / "keys")
    server.revoke()
    hours = {"code": "rate_limited", "message": "no more today", "retry_after_s": 7200}
    server.says["/v1/enrolments"] = (429, frame(error=hours))
    with trio.fail_after(PATIENCE_S), pytest.raises(DoorUnreachable, match=r"doesn't take .* no more today"):
        await trio.to_thread.run_sync(pop_from, server, tmp_path / "keys")


async def test_the_queue_of_a_member_is_opened_while_its_door_is_away(server: DoorServer, tmp_path: Path) -> None:
    await trio.to_thread.run_sync(pop_from, server, tmp_path / "keys")
    server.refuse["/settings"] = server.refuse["/v1/robots"] = (503, "shutting_down")
    await trio.to_thread.run_sync(pop_from, server, tmp_path / "keys")


@pytest.mark.parametrize("lost", ["revoke", "forget"])
async def test_the_worker_of_a_queue_enrols_again_when_it_is_opened(
    server: DoorServer, tmp_path: Path, lost: str
) -> None:
    await trio.to_thread.run_sync(pop_from, server, tmp_path / "keys")
    if lost == "revoke":
        server.revoke()
    else:
        server.keys.clear()
    for _ in range(2):
        await trio.to_thread.run_sync(pop_from, server, tmp_path / "keys")
    assert len(server.enrolments) == 2


async def test_a_root_that_forgot_our_key_gets_a_new_enrolment(
    server: DoorServer, alice: Identity, tmp_path: Path
) -> None:
    async with door_to(server, alice, tmp_path) as door:
        await door.turn(turn(1))
        server.keys.clear()
        await server.sessions[0].aclose(1001)
        await server.until(lambda: len(server.sessions) == 2)
        assert await door.turn(turn(2)) == TurnAnswer(n=2)
        assert door.api_key == "key-2"


async def test_a_changed_root_is_refused_at_a_reconnection_too(
    server: DoorServer, alice: Identity, tmp_path: Path
) -> None:
    with pytest.raises(UntrustedSettings):  # noqa: PT012 -- it is raised where the block is left
        async with door_to(server, alice, tmp_path, link=server.link(with_key=False)) as door:
            await door.turn(turn())
            server.seed = b"\7" * 32
            await server.sessions[0].aclose(1001)
            await trio.sleep_forever()


async def test_another_door_of_the_settings_is_used_when_the_first_is_down(
    server: DoorServer, alice: Identity, tmp_path: Path
) -> None:
    async with open_door_server() as second:
        second.seed, second.keys = server.seed, server.keys
        server.doors = (second.url,)
        async with door_to(server, alice, tmp_path) as door:
            await door.turn(turn(1))
            for path in ("/v1/session", "/settings"):
                server.refuse[path] = (503, "shutting_down")
            await server.sessions[0].aclose(1001)
            await second.until(lambda: len(second.sessions) == 1)
            assert await door.turn(turn(2)) == TurnAnswer(n=2)
            assert door.url == second.url


async def test_a_frozen_door_is_noticed(alice: Identity, tmp_path: Path, mock_clock: MockClock) -> None:
    mock_clock.rate = 1.0
    async with open_door_server() as server, door_to(server, alice, tmp_path) as door:
        await door.turn(turn(1))
        server.answer = lambda _: None  # its reader goes on answering pings; the turn is what isn't answered
        mock_clock.rate = 100.0
        with pytest.raises(DoorUnreachable, match="in time"):
            await door.turn(turn(2))
        mock_clock.rate = 1.0


async def test_where_websockets_do_not_pass_turns_go_by_post(
    server: DoorServer, alice: Identity, tmp_path: Path
) -> None:
    server.upgrades = False
    async with door_to(server, alice, tmp_path) as door:
        assert await door.turn(turn()) == TurnAnswer(n=1)
        assert door.connected
    assert [one.n for one in server.posted] == [1]


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b""),
        (200, b"<html>welcome</html>"),
        (200, b'{"data":[]}'),
        (200, b'{"data":{"frame":"turn","n":-1}}'),
        (200, b'{"data":{"frame":"turn","n":2,"grants":[{"fence":1e400}]}}'),
        (302, b""),
        (308, b""),
        (500, b'{"error":{"code":7}}'),
    ],
)
async def test_a_posted_turn_whose_answer_makes_no_sense_is_unanswered_and_the_worker_goes_on(
    server: DoorServer, alice: Identity, tmp_path: Path, status: int, body: bytes
) -> None:
    server.upgrades = False
    async with door_to(server, alice, tmp_path) as door:
        assert await door.turn(turn(1)) == TurnAnswer(n=1)
        for path in ("/v1/turns", "/v1/robots"):
            server.says[path] = (status, body)
        with pytest.raises(DoorUnreachable):
            await door.turn(turn(2))
        with pytest.raises(DoorUnreachable):
            await door.robots("http://site")
        server.says.clear()
        assert await door.turn(turn(2)) == TurnAnswer(n=2)


async def test_an_impostor_among_the_doors_keeps_nobody_from_the_root(
    server: DoorServer, alice: Identity, tmp_path: Path
) -> None:
    async with open_door_server() as impostor:
        impostor.network_id = server.network_id
        link = JoinLink(url=impostor.url, invite="sesame", key_id=server.key_id)
        server.doors = ()
        async with door_to(server, alice, tmp_path):
            pass  # a member now, who knows where the root's door is
        async with door_to(server, alice, tmp_path) as door:
            door._link = link
            door.url = impostor.url
            await door.learn_settings()
            assert door.url == server.url
            server.says["/settings"] = (503, b"")  # the root is away for a moment
            with pytest.raises(DoorUnreachable):
                await door.learn_settings()


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_of_a_door_are_a_frame_or_malformed(sent: bytes) -> None:
    with contextlib.suppress(MalformedInput):
        decode(sent, Frame)  # type: ignore[arg-type]


# ── calls ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_robots_are_asked_for_with_the_key(server: DoorServer, alice: Identity, tmp_path: Path) -> None:
    async with door_to(server, alice, tmp_path) as door:
        answer = await door.robots("http://site")
        assert (answer.origin, answer.fresh_s) == ("http://site", 60.0)
        server.refuse["/v1/robots"] = (503, "robots_unavailable")
        with pytest.raises(DoorRefused) as caught:
            await door.robots("http://site")
    assert caught.value.code == "robots_unavailable"


async def test_an_answer_of_something_else_is_no_doors(server: DoorServer, alice: Identity, tmp_path: Path) -> None:
    async with door_to(server, alice, tmp_path) as door:
        door.url = f"{server.url}/elsewhere"
        with pytest.raises(DoorUnreachable, match="404"):
            await door.robots("http://site")


# ── TLS ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def make_certificate(directory: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate for the loopback that signs itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    chain, private = directory / "chain.pem", directory / "key.pem"
    chain.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, private)
    return chain, context


async def test_tls_with_an_own_certificate_works_where_it_is_trusted(alice: Identity, tmp_path: Path) -> None:
    chain, context = make_certificate(tmp_path)
    trusted = trust_certificates(chain)
    async with open_door_server(tls=context) as server, door_to(server, alice, tmp_path, tls=trusted) as door:
        assert await door.turn(turn()) == TurnAnswer(n=1)


async def test_a_certificate_that_is_not_trusted_is_said_so_at_once(alice: Identity, tmp_path: Path) -> None:
    _, context = make_certificate(tmp_path)
    async with open_door_server(tls=context) as server:
        with pytest.raises(DoorUnreachable, match="certificate isn't trusted") as caught:
            async with door_to(server, alice, tmp_path):
                pass
    assert "--ca-file" in (caught.value.hint or "")


async def test_a_door_without_tls_is_said_so_at_once(server: DoorServer, alice: Identity, tmp_path: Path) -> None:
    with FakeDoor().served() as url:
        link = JoinLink(url=url.replace("http://", "https://"))
        with pytest.raises(DoorUnreachable, match="it speaks plain HTTP, not HTTPS") as caught:
            async with door_to(server, alice, tmp_path, link=link):
                pass
    assert caught.value.hint == f"try {url}"


async def test_a_certificate_that_is_not_trusted_any_more_does_not_hang_the_session(
    alice: Identity, tmp_path: Path
) -> None:
    from swarm.door_session import run_session

    _, context = make_certificate(tmp_path)
    async with open_door_server(tls=context) as server:
        with trio.fail_after(PATIENCE_S), pytest.raises(DoorUnreachable, match="certificate isn't trusted"):
            await run_session(server.url, "key", tls=trust_certificates(), push=lambda _: None, opened=lambda _: None)
