"""The door as HTTP: the shape of every answer, probes, docs, limits, slow clients; and all of it by its own OpenAPI."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from rendezvous.door import app as app_module
from rendezvous.door.call import ANYONE
from rendezvous.door.envelope import STATUS_OF
from rendezvous.door.limits import Limits, RateLimiter
from rendezvous.door.openapi import docs_page, openapi
from rendezvous.door.readiness import GOOD_FOR_S
from rendezvous.door.routes import ROUTES
from swarm.errors import LedgerUnavailable
from swarm.model import Role
from tests.patience import PATIENCE_S
from tests.rendezvous.door_harness import Stage, door

NOOP_TASK = {"kind": "noop", "urls": ["http://h.example/"]}


@contextlib.contextmanager
def no_room_for(directory: Path) -> Iterator[None]:
    """Let the ledger's log not grow by a byte, as on a full disk; what is written can be read."""
    (log,) = directory.rglob("*-wal")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def probes_written(directory: Path) -> int:
    """How often the ledger was tried."""
    with contextlib.closing(sqlite3.connect(next(directory.rglob("ledger.sqlite")))) as ledger:
        return int(ledger.execute("SELECT value FROM counters WHERE name = 'probe'").fetchone()[0])


async def test_probes_answer_without_a_key(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        assert (await stage.anyone.get("/healthz")).data == {"status": "ok"}
        assert (await stage.anyone.get("/readyz")).data == {"status": "ready"}
        for page in ("/", "/docs", "/join"):
            reply = await stage.anyone.get(page)
            assert reply.status == 200
            assert "default-src 'none'" in reply.headers["Content-Security-Policy"]


async def test_a_root_on_a_full_disk_is_not_ready_though_it_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with door(tmp_path) as stage:
        now = 0.0
        readiness = stage.door.readiness
        monkeypatch.setattr(readiness, "_clock", lambda: now)
        assert (await stage.anyone.get("/readyz")).status == 200
        with no_room_for(tmp_path):
            assert (await stage.anyone.get("/readyz")).status == 200  # asked again at once: the last answer
            now += GOOD_FOR_S
            reply = await stage.anyone.get("/readyz")
            assert (reply.status, reply.code) == (503, "ledger_unavailable")
            submitted = await stage.operator.post("/v1/tasks", {"tasks": [NOOP_TASK]})
            assert (submitted.status, submitted.code) == (503, "ledger_unavailable")
            assert (await stage.operator.get("/v1/status")).status == 200
            assert (await stage.anyone.get("/healthz")).status == 200
        now += GOOD_FOR_S
        assert (await stage.anyone.get("/readyz")).data == {"status": "ready"}


async def test_many_who_ask_whether_the_root_is_ready_cost_one_write(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(stage.anyone.get("/readyz")) for _ in range(20)]
        assert {task.result().status for task in asked} == {200}
        assert probes_written(tmp_path) == 1


async def test_settings_may_be_cached_for_half_a_minute(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        reply = await stage.anyone.get("/settings")
        assert reply.headers["Cache-Control"] == "public, max-age=30"
        assert set(reply.body) == {"data", "signature"}


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/v1/tasks/x/y/z", 404, "not_found"),
        ("PATCH", "/v1/tasks", 405, "method_not_allowed"),
        ("DELETE", "/settings", 405, "method_not_allowed"),
    ],
)
async def test_a_wrong_path_or_method_has_the_shape_of_every_refusal(
    tmp_path: Path, method: str, path: str, status: int, code: str
) -> None:
    async with door(tmp_path) as stage:
        reply = await stage.operator.call(method, path)
        assert (reply.status, reply.code) == (status, code)
        assert reply.body["error"]["message"]


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (b"what is this\r\n\r\n", 400, "bad_request"),
        (b"GET /settings HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", 400, "bad_request"),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431, "headers_too_large"),
        (b"GET /settings HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 20_000 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"GET /settings HTTP/1.1\r\nHost: x\r\nExpect: a-pony\r\n\r\n", 417, "expectation_failed"),
        (b"GET /nowhere HTTP/1.1\r\nHost: x\r\nExpect: a-pony\r\n\r\n", 417, "expectation_failed"),
        (b"POST /v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n", 400, "bad_request"),
    ],
    ids=["no http", "no header", "long path", "long header", "expect", "expect nowhere", "length"],
)
async def test_what_never_reaches_a_route_is_refused_in_the_same_shape(
    tmp_path: Path, request_bytes: bytes, status: int, code: str
) -> None:
    async with door(tmp_path) as stage, asyncio.timeout(PATIENCE_S):
        host, port = stage.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request_bytes)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        error = json.loads(await reader.readexactly(length))["error"]
        assert (int(head.split()[1]), error["code"]) == (status, code)
        assert "content-type: application/json" in head
        assert error["message"]
        writer.close()


async def test_a_defect_answers_500_without_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with door(tmp_path) as stage:

        def broken(*_: object) -> None:
            raise RuntimeError("secret detail")

        monkeypatch.setattr(stage.door.fleet, "all", broken)
        reply = await stage.operator.get("/v1/workers")
        assert (reply.status, reply.code) == (500, "internal")
        assert "secret" not in json.dumps(reply.body)


async def test_a_ledger_that_cannot_be_had_is_503_and_says_when_to_ask_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with door(tmp_path) as stage:

        async def away(*_: object) -> None:
            raise LedgerUnavailable("ledger.sqlite", "database or disk is full")

        monkeypatch.setattr(stage.door.ledger, "call", away)
        reply = await stage.operator.post("/v1/tasks", {"tasks": [{"kind": "noop", "urls": ["http://h.example/"]}]})
        assert (reply.status, reply.code) == (503, "ledger_unavailable")
        assert int(reply.headers["Retry-After"]) >= 1


async def test_who_calls_too_often_is_told_when_to_come_back(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        limits = Limits(key_rate_per_s=0.1, key_burst=3, address_rate_per_s=0.1, address_burst=2)
        object.__setattr__(stage.door, "limiter", RateLimiter(limits, clock=lambda: 0.0))
        codes = [(await stage.operator.get("/v1/status")).status for _ in range(4)]
        assert codes == [200, 200, 200, 429]
        guesses = [(await stage.anyone.get("/v1/status")).status for _ in range(3)]
        assert guesses == [401, 401, 429]
        assert (await stage.anyone.get("/healthz")).status == 200


async def test_a_body_that_trickles_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "BODY_TIMEOUT_S", 0.2)
    async with door(tmp_path) as stage:
        host, port = stage.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/tasks HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {stage.operator.key}\r\n"
        writer.write(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
        async with asyncio.timeout(PATIENCE_S):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        writer.close()
        assert head.startswith("HTTP/1.1 400")
        assert "Connection: close" in head


async def test_a_client_that_does_not_read_its_answer_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "SEND_TIMEOUT_S", 0.2)
    async with door(tmp_path) as stage:
        carol = await stage.requester("carol")
        for _ in range(4):
            await stage.submit(carol, 120, spec={"x": "y" * 30_000})
        await stage.asks_and_is_cut("GET /v1/tasks?limit=500", carol.key)


async def test_a_compressed_bomb_is_refused_at_its_size_unpacked(tmp_path: Path) -> None:
    import gzip

    async with door(tmp_path) as stage:
        bomb = gzip.compress(b" " * 50_000_000)
        reply = await stage.operator.post("/v1/tasks", bomb, Content_Encoding="gzip")
        assert (reply.status, reply.code) == (413, "body_too_large")


async def test_metrics_count_what_happened(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        alice, carol = await stage.worker("alice"), await stage.requester("carol")
        await stage.submit(carol, 2)
        await alice.take(want=1)
        text = (await stage.operator.get("/metrics")).body.decode()
        assert 'swarm_tasks{status="pending"} 1' in text
        assert 'swarm_grants_total{via="want"} 1' in text
        assert 'swarm_workers{state="ready"} 1' in text


# ── the description ───────────────────────────────────────────────────────────────────────────────────────────────


def test_every_route_is_described_for_programs_and_for_people() -> None:
    document = json.loads(openapi(ROUTES))
    page = docs_page(ROUTES)
    for route in ROUTES:
        operation = document["paths"][route.path][route.method.lower()]
        assert operation["summary"] == route.summary
        assert ("security" in operation) == (route.who != ANYONE)
        assert f"{route.method}&nbsp;{route.path}" in page
    assert sum(len(methods) for methods in document["paths"].values()) == len(ROUTES)
    for code in STATUS_OF:
        assert code.value in page


def test_no_two_routes_are_the_same() -> None:
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)


async def test_the_served_description_is_that_of_the_table(tmp_path: Path) -> None:
    async with door(tmp_path) as stage:
        assert (await stage.anyone.get("/openapi.json")).body == json.loads(openapi(ROUTES))


# ── schemathesis ──────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Served:
    url: str
    keys: dict[Role, str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A door in a thread of its own, for a client that knows no asyncio."""
    path = tmp_path_factory.mktemp("served")
    up: list[Served] = []
    ready = threading.Event()
    stops: list[Callable[[], object]] = []

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        stops.append(lambda: loop.call_soon_threadsafe(stop.set))
        async with door(path) as stage:
            up.append(await _served(stage))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert ready.wait(PATIENCE_S)
    yield up[0]
    stops[0]()
    thread.join(PATIENCE_S)


async def _served(stage: Stage) -> Served:
    alice, carol = await stage.worker("alice"), await stage.requester("carol")
    await stage.submit(carol, 3)
    assert alice.key
    assert carol.key
    assert stage.operator.key
    keys = {Role.WORKER: alice.key, Role.REQUESTER: carol.key, Role.OPERATOR: stage.operator.key}
    return Served(stage.url, keys)


#: What a generated client can't drive: an upgrade, an endless stream.
_SKIPPED = frozenset({"/v1/session", "/v1/events"})
#: Route by route, so that a failure names its call.
_CALLS = [(route.method, route.path) for route in ROUTES if route.path not in _SKIPPED]


@pytest.mark.parametrize(("method", "path"), _CALLS)
def test_no_generated_call_breaks_the_door(served: Served, method: str, path: str) -> None:
    route = next(route for route in ROUTES if (route.method, route.path) == (method, path))
    headers = {}
    if route.who != ANYONE:
        role = next(role for role in (Role.REQUESTER, Role.WORKER, Role.OPERATOR) if role in route.who)
        headers["Authorization"] = f"Bearer {served.keys[role]}"
    operation = schemathesis.openapi.from_dict(json.loads(openapi(ROUTES)))[path][method]

    @settings(max_examples=20, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def drive(case: Any) -> None:
        _check(served, case, headers)

    drive()


def _check(served: Served, case: Any, headers: dict[str, str]) -> None:
    response = case.call(base_url=served.url, headers=headers, timeout=PATIENCE_S)
    assert response.status_code < 500, (case.as_curl_command(), response.text)
    if response.status_code >= 400:
        error = response.json()["error"]
        assert error["code"] in {code.value for code in STATUS_OF}
        assert " " in error["message"]
    else:
        case.validate_response(response, checks=(response_schema_conformance, content_type_conformance))
