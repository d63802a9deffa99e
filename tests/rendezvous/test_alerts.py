"""Alerts: what begins and ends them, who is told; a webhook is told each state once and keeps nobody waiting."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from structlog.testing import capture_logs

from rendezvous import watch as watch_module
from rendezvous.alerts import Alert, Alerts
from rendezvous.settings import RootSettings
from rendezvous.watch import BLOCKED, LEASES_EXPIRED, QUEUE_OLD, SUCCESS_LOW, Tally
from rendezvous.webhook import MAX_WAITING, Webhook, read_secret
from rendezvous.wiring import webhook_of
from swarm.errors import ConfigurationError
from tests.patience import PATIENCE_S
from tests.rendezvous.door_harness import Stage, Worker, door

SECRET = b"a secret of the tests"


# ── the list of alerts ────────────────────────────────────────────────────────────────────────────────────────────


def _alerts(now: float = 100.0) -> tuple[Alerts, list[tuple[str, str, bool]]]:
    alerts, told = Alerts(wall=lambda: now), []
    alerts.subscribe(lambda alert, begins: told.append((alert.code, alert.subject, begins)))
    return alerts, told


def test_only_the_two_ends_of_an_alert_are_told() -> None:
    alerts, told = _alerts()
    for sentence in ("bad", "worse"):
        alerts.begin("disk", sentence, hint="delete something", since=90.0)
    assert [(alert.message, alert.since) for alert in alerts.active] == [("worse", 90.0)]
    alerts.end("disk")
    alerts.end("disk")
    assert told == [("disk", "", True), ("disk", "", False)]
    assert alerts.active == ()


def test_alerts_of_one_code_are_apart_by_their_subject() -> None:
    alerts, told = _alerts()
    for host in ("a", "b", "c"):
        alerts.begin("blocks", "x", hint="y", subject=host)
    alerts.keep("blocks", ["b"])
    assert [alert.subject for alert in alerts.active] == ["b"]
    assert sorted(subject for _, subject, begins in told if not begins) == ["a", "c"]


def test_alerts_of_somebody_else_begin_and_end_with_theirs() -> None:
    alerts, told = _alerts()
    theirs = Alert(code="chain_dear", message="x", hint="y", since=1.0)
    alerts.follow([theirs])
    alerts.follow([theirs])
    alerts.begin("mine", "x", hint="y")
    alerts.follow([])
    assert told == [("chain_dear", "", True), ("mine", "", True), ("chain_dear", "", False)]


def test_a_burning_fleet_fills_no_list_without_end() -> None:
    alerts, told = _alerts()
    with capture_logs() as logs:
        for _ in range(3):  # whoever sees a trouble says so again and again
            for number in range(300):
                alerts.begin("low", "x", hint="y", subject=str(number))
    assert len(alerts.active) == len(told) == 200
    assert [line["active"] for line in logs if line["event"] == "alerts_not_listed"] == [200]
    alerts.end("low", "0")
    with capture_logs() as logs:
        for number in range(300, 310):
            alerts.begin("low", "x", hint="y", subject=str(number))
    assert [line["event"] for line in logs] == ["alert_began", "alerts_not_listed"]


def test_a_tally_forgets_what_is_older_than_its_window() -> None:
    tally = Tally()
    for at in (0.0, 30.0, 61.0):
        tally.add("a", at=at)
    tally.add("b", at=599.0)
    assert tally.counts(now=599.0) == {"a": 3, "b": 1}
    assert tally.counts(now=601.0) == {"a": 1, "b": 1}
    assert tally.counts(now=1e6) == {}


# ── what raises them ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "LOOK_S", 0.02)


async def _lasting(stage: Stage) -> dict[str, dict[str, Any]]:
    return {alert["code"]: alert for alert in (await stage.operator.get("/v1/alerts")).data["items"]}


async def _until(probe: Callable[[], Any]) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await probe()
            if found:
                return found
            await asyncio.sleep(0.01)


async def _fail(worker: Worker, number: int, reason: str) -> None:
    for _ in range(0, number, 8):
        grants = (await worker.take(want=8)).get("grants", [])
        failed = [{"task": one["task"]["id"], "fence": one["fence"], "reason": reason} for one in grants]
        await worker.take(free=0, failed=failed)


async def test_a_worker_whose_success_dips_is_told_of_by_name_and_no_other(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, bob, carol = await stage.worker("alice"), await stage.worker("bob"), await stage.requester("carol")
        await stage.submit(carol, 32)
        grants = (await bob.take(want=8))["grants"]
        await bob.take(free=0, done=[bob.done(grant) for grant in grants])
        await _fail(alice, 24, "http_4xx")
        alert = await _until(lambda: _code(stage, SUCCESS_LOW))
        assert alert["subject"] == alice.address
        assert "0 of the last 24" in alert["message"]
        assert "swarm-root revoke" in alert["hint"]
        (shown,) = (await stage.operator.get("/v1/status")).data["alerts"]
        assert shown["code"] == SUCCESS_LOW
        assert 'swarm_alerts{code="worker_success_low"} 1' in (await stage.operator.get("/metrics")).body.decode()


async def _code(stage: Stage, code: str) -> dict[str, Any] | None:
    return (await _lasting(stage)).get(code)


async def test_a_site_that_blocks_is_told_of(tmp_path: Path) -> None:
    async with door(tmp_path, alert_blocks=2, host_rate=0.0) as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        made = [{"kind": "noop", "urls": [f"http://strict.example/{number}"]} for number in range(3)]
        await carol.post("/v1/tasks", {"tasks": made})
        await _fail(alice, 3, "blocked")
        alert = await _until(lambda: _code(stage, BLOCKED))
        assert alert["subject"] == "strict.example"
        assert "swarm-root pause --host strict.example" in alert["hint"]


async def test_an_old_queue_is_told_of_until_it_is_empty(tmp_path: Path) -> None:
    async with door(tmp_path, alert_queue_age=0.05) as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        await stage.submit(carol, 1)
        alert = await _until(lambda: _code(stage, QUEUE_OLD))
        assert alert["lasts_s"] >= 0.05  # it began when the task began to wait
        await alice.take(want=1)

        async def over() -> bool:
            return await _code(stage, QUEUE_OLD) is None

        assert await _until(over)


async def test_leases_that_run_out_are_told_of(tmp_path: Path) -> None:
    async with door(tmp_path, alert_expiries=2, first_lease=0.1) as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        await stage.submit(carol, 2)
        await alice.take(want=2)
        alert = await _until(lambda: _code(stage, LEASES_EXPIRED))
        assert alert["message"].startswith("2 leases ran out")


# ── the webhook ───────────────────────────────────────────────────────────────────────────────────────────────────


class Receiver:
    """Whoever is called; answers what it is told to."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.got: list[tuple[dict[str, Any], str | None]] = []
        self.came = asyncio.Event()
        self.held: asyncio.Event | None = None

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        header = request.headers.get("X-Swarm-Signature")
        if header is not None:
            stamp, digest = (part.split("=", 1)[1] for part in header.split(","))
            assert digest == hmac.new(SECRET, f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
        self.got.append((json.loads(body), header))
        self.came.set()
        if self.held is not None:
            await self.held.wait()
        return web.Response(status=self.statuses.pop(0) if self.statuses else 204, headers={"Location": "/elsewhere"})

    async def tries(self, number: int) -> list[dict[str, Any]]:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.got) < number:
                self.came.clear()
                await self.came.wait()
        return [body for body, _ in self.got]


@contextlib.asynccontextmanager
async def _receiving() -> AsyncIterator[tuple[Receiver, str]]:
    receiver, app = Receiver(), web.Application()
    app.router.add_post("/hook", receiver.take)
    async with TestServer(app) as server:
        yield receiver, str(server.make_url("/hook"))


@contextlib.asynccontextmanager
async def _posting(url: str, *, secret: bytes | None = SECRET) -> AsyncIterator[Webhook]:
    hook = Webhook(
        url,
        secret=secret,
        swarm="tests",
        network_id="net",
        wall=lambda: 1_000.0,
        rng=random.Random(1),
        waits_s=(0.01, 0.01),
    )
    running = asyncio.create_task(hook.run())
    try:
        yield hook
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


ALERT = Alert(code="disk", message="full", hint="delete something", since=900.0, subject="root")


async def test_both_ends_of_an_alert_are_posted_signed_and_in_order() -> None:
    async with _receiving() as (receiver, url), _posting(url) as hook:
        hook.tell(ALERT, True)
        hook.tell(ALERT, False)
        began, ended = await receiver.tries(2)
    assert (began["state"], ended["state"]) == ("began", "ended")
    assert (began["swarm"], began["network_id"], began["at"]) == ("tests", "net", 1_000.0)
    assert began["alert"] == {
        "code": "disk", "subject": "root", "message": "full", "hint": "delete something", "since": 900.0
    }  # fmt: skip
    assert receiver.got[0][1] is not None


async def test_a_message_that_fails_is_tried_again_under_the_same_id_and_then_given_up() -> None:
    async with _receiving() as (receiver, url), _posting(url, secret=None) as hook:
        receiver.statuses = [500, 429, 503, 204]
        hook.tell(ALERT, True)
        hook.tell(ALERT, False)
        tried = await receiver.tries(4)
    assert [body["state"] for body in tried] == ["began"] * 3 + ["ended"]
    assert len({body["id"] for body in tried}) == 2
    assert receiver.got[0][1] is None


@pytest.mark.parametrize("status", [400, 404, 302])
async def test_an_answer_that_trying_again_does_not_change_is_taken_at_its_word(status: int) -> None:
    async with _receiving() as (receiver, url), _posting(url) as hook:
        receiver.statuses = [status]
        hook.tell(ALERT, True)
        hook.tell(ALERT, False)
        assert [body["state"] for body in await receiver.tries(2)] == ["began", "ended"]


async def test_nobody_there_or_nobody_answering_keeps_nobody_waiting() -> None:
    async with _receiving() as (receiver, url), _posting(url) as hook:
        receiver.held = asyncio.Event()
        for _ in range(2 * MAX_WAITING):
            hook.tell(ALERT, True)  # doesn't wait, and is bounded
        await receiver.tries(1)
        assert len(hook) <= MAX_WAITING
        receiver.held.set()
    async with _posting("http://127.0.0.1:9/hook") as hook:
        hook.tell(ALERT, True)

        async def given_up() -> bool:
            return not len(hook)

        assert await _until(given_up)


async def test_a_root_posts_to_an_address_of_this_machine_that_its_operator_named(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET + b"\n")
    secret.chmod(0o600)
    async with (
        _receiving() as (receiver, url),
        door(tmp_path, alert_webhook=url, alert_secret_file=secret, alert_queue_age=0.05) as stage,
    ):
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        await stage.submit(carol, 1)
        (began,) = await receiver.tries(1)
        assert (began["alert"]["code"], began["state"]) == (QUEUE_OLD, "began")
        await alice.take(want=1)
        assert [body["state"] for body in await receiver.tries(2)] == ["began", "ended"]


@pytest.mark.parametrize(("holds", "posted"), [(True, ["queue_old", "wallet_empty"]), (False, ["wallet_empty"])])
async def test_what_all_roots_of_a_ledger_see_is_posted_by_one_of_them(holds: bool, posted: list[str]) -> None:
    alerts, _ = _alerts()
    charter = SimpleNamespace(name="tests", network_id="net")
    this_root: Any = SimpleNamespace(
        alerts=alerts,
        ledger=SimpleNamespace(neighbours=SimpleNamespace(holds=lambda office: holds)),
        site=SimpleNamespace(charter=charter),
        wall=lambda: 1.0,
    )
    async with _receiving() as (receiver, url):
        hook = webhook_of(RootSettings(alert_webhook=url), this_root)
        assert hook is not None
        running = asyncio.create_task(hook.run())
        alerts.begin(QUEUE_OLD, "x", hint="y")
        alerts.begin("wallet_empty", "x", hint="y")  # of the pay desk: only the root that pays has it
        got = await receiver.tries(len(posted))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert [body["alert"]["code"] for body in got] == posted


def test_a_secret_must_be_one_and_needs_a_webhook(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with pytest.raises(ConfigurationError, match="there is no"):
        read_secret(path)
    path.write_text("short")
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="16 characters"):
        read_secret(path)
    path.write_text("long enough for a secret")
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="readable by others"):
        read_secret(path)
    with pytest.raises(ConfigurationError, match="--alert-webhook"):
        RootSettings(alert_secret_file=path).check()
