"""Who gets in: admission, challenges, signatures, keys, roles."""

from __future__ import annotations

from pathlib import Path

import pytest
from eth_account import Account

from rendezvous.door.auth import digest_of
from rendezvous.ledger.act_ops import Revoke
from rendezvous.wiring import new_invite
from tests.rendezvous.door_harness import Caller, Stage, door


async def test_a_worker_that_proves_both_keys_gets_an_api_key(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")

        assert (await alice.take(want=0))["n"] == 1
        assert alice.key is not None
        assert alice.key.startswith("swk_")


async def test_a_challenge_serves_once_an_address(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        challenge = await stage.challenge()
        alice, _, _ = stage.enrolment("alice", challenge)
        bob, _, _ = stage.enrolment("bob", challenge)

        assert (await stage.anyone.post("/v1/enrolments", alice)).status == 201
        again = await stage.anyone.post("/v1/enrolments", alice)
        assert (again.status, again.code) == (409, "challenge_used")
        assert (await stage.anyone.post("/v1/enrolments", bob)).status == 201


async def test_nobody_is_paid_at_the_zero_address(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        request, _, _ = stage.enrolment("alice", await stage.challenge(), payout="0x" + "0" * 40)
        refused = await stage.anyone.post("/v1/enrolments", request)
        assert (refused.status, refused.code) == (400, "bad_request")
        assert "zero address" in refused.body["error"]["message"]


async def test_enrolling_again_replaces_the_key(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        first = await stage.worker("alice")
        second = await stage.worker("alice")

        refused = await first.post("/v1/turns", first.turn())
        assert (refused.status, refused.code) == (401, "key_revoked")
        assert (await second.post("/v1/turns", second.turn())).status == 200


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"instance": "instance-mallory"}, "signature_invalid"),
        ({"payout": Account.from_key(b"\x22" * 32).address}, "signature_invalid"),
        ({"challenge": "made-up"}, "challenge_expired"),
        ({"address": "0x" + "0" * 40}, "signature_invalid"),
        ({"surprise": 1}, "bad_request"),
        ({"signature": "0x12"}, "bad_request"),
    ],
)
async def test_what_was_not_signed_is_refused(tmp_path: Path, change: dict[str, object], code: str) -> None:
    async with door(tmp_path) as stage:
        request, _, _ = stage.enrolment("alice", await stage.challenge())
        refused = await stage.anyone.post("/v1/enrolments", {**request, **change})
        assert (refused.status, refused.code) == (400, code)


async def test_an_invite_admits_as_often_as_it_says(tmp_path: Path) -> None:
    async with door(tmp_path, admission="invite") as stage:
        secret, op = new_invite(uses=1, expires_in_s=60)
        await stage.door.ledger.call(op)
        without, _, _ = stage.enrolment("alice", stage.door.site.new_challenge())
        alice, _, _ = stage.enrolment("alice", stage.door.site.new_challenge(), invite=secret)
        bob, _, _ = stage.enrolment("bob", stage.door.site.new_challenge(), invite=secret)

        assert (await stage.anyone.post("/v1/enrolments", without)).code == "invite_invalid"
        assert (await stage.anyone.post("/v1/enrolments", alice)).status == 201
        refused = await stage.anyone.post("/v1/enrolments", bob)
        assert (refused.status, refused.code) == (403, "invite_invalid")


async def test_an_allowlist_admits_whom_it_names(tmp_path: Path) -> None:
    async with door(tmp_path) as probe:
        address = probe.enrolment("alice", "x" * 43)[0]["address"]
    async with door(tmp_path, admission="allowlist", allow=(address,)) as stage:
        await stage.worker("alice")
        bob, _, _ = stage.enrolment("bob", stage.door.site.new_challenge())
        refused = await stage.anyone.post("/v1/enrolments", bob)
        assert (refused.status, refused.code) == (403, "forbidden")


async def test_each_role_has_its_own_calls(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        carol = await stage.requester("carol")

        assert (await alice.get("/v1/tasks")).code == "forbidden"
        assert (await carol.post("/v1/turns", alice.turn())).code == "forbidden"
        assert (await carol.get("/v1/workers")).code == "forbidden"
        assert (await carol.get("/metrics")).code == "forbidden"
        assert (await stage.operator.get("/v1/workers")).status == 200


async def _refused(stage: Stage, key: str | None, **headers: str) -> tuple[int, str]:
    reply = await Caller(http=stage.http, url=stage.url, key=key).get("/v1/tasks", **headers)
    assert reply.headers["WWW-Authenticate"] == "Bearer"
    return reply.status, reply.code


async def test_a_call_without_a_good_key_is_unauthorized(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        assert await _refused(stage, None) == (401, "unauthorized")
        assert await _refused(stage, "guess") == (401, "unauthorized")
        assert await _refused(stage, None, Authorization="Basic Zm9v") == (401, "unauthorized")


async def test_a_revoked_key_opens_nothing(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        carol = await stage.requester("carol")
        assert (await carol.get("/v1/tasks")).status == 200
        await stage.door.ledger.call(Revoke(owner="carol", who="operator", why="left"))
        stage.door.keys.forget()

        assert (await carol.get("/v1/tasks")).code == "key_revoked"


async def test_the_ledger_never_holds_a_key_itself(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        assert alice.key is not None
        row = await stage.door.ledger.read(lambda reader: reader.key(digest_of(alice.key or "")))
        assert row is not None
        for file in (tmp_path / "root").glob("ledger.sqlite*"):
            assert alice.key.encode() not in file.read_bytes()


async def test_a_worker_two_releases_away_is_turned_away_at_enrolment_and_in_its_turns(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice = await stage.worker("alice")
        request, _, _ = stage.enrolment("bob", await stage.challenge())
        old = {"version": "0.9.0", "kinds": {"noop": "1"}}

        refused = await stage.anyone.post("/v1/enrolments", {**request, "hello": old})
        assert (refused.status, refused.code) == (400, "version_unsupported")
        refused = await alice.post("/v1/turns", {**alice.turn(), "hello": old})
        assert (refused.status, refused.code) == (400, "version_unsupported")
