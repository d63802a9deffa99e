"""The parts of the door that need no ledger: codes, limits, challenges, forwarded addresses, metrics, the fleet."""

from __future__ import annotations

import ipaddress
import json
import random

import attrs
import pytest
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.door.auth import bearer
from rendezvous.door.envelope import STATUS_OF, refusal_of
from rendezvous.door.limits import Limits, RateLimiter, client_address
from rendezvous.door.metrics import METRICS, Metrics, render
from rendezvous.door.site import CHALLENGE_S, Charter, Site
from rendezvous.door.storable import storable_fault
from rendezvous.fleet import KEPT_S, Fleet
from rendezvous.ledger.memory import LIVE_S
from rendezvous.ledger.ops import SeenWorker
from rendezvous.ledger.values import WorkerFacts, WorkerRef
from swarm.errors import IpfsUnreachable, LedgerUnavailable, MalformedInput, SwarmError
from swarm.model import RefusalCode
from swarm.signing import verify_settings
from swarm.wire import Hello, Requires, check_storable, encode

SEED = bytes(range(32))


@attrs.define
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def site(clock: Clock) -> Site:
    charter = Charter(seed=SEED, name="test", network_id="net", admission="open", doors=("http://127.0.0.1:1",))
    return Site(charter, peer=lambda: None, clock=clock)


def fits(facts: WorkerFacts, kind: str, requires: Requires) -> bool:
    return kind in facts.kinds


@pytest.fixture
def fleet(clock: Clock) -> Fleet:
    return Fleet(clock=clock, fits=fits, rng=random.Random(1))


# ── codes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_refusal_has_an_http_status() -> None:
    assert set(STATUS_OF) == set(RefusalCode)


@pytest.mark.parametrize("code", list(RefusalCode))
def test_a_refusal_is_never_a_success(code: RefusalCode) -> None:
    assert 400 <= STATUS_OF[code] <= 599


def test_a_second_worker_is_told_so_by_the_seeds_own_status() -> None:
    assert STATUS_OF[RefusalCode.INVALID_ASSIGNEE] == 400


def test_faults_of_ours_and_of_the_caller_have_their_codes() -> None:
    assert refusal_of(LedgerUnavailable("db", "is down")).code is RefusalCode.LEDGER_UNAVAILABLE  # type: ignore[union-attr]
    assert refusal_of(IpfsUnreachable("kubo", "is down")).code is RefusalCode.IPFS_UNAVAILABLE  # type: ignore[union-attr]
    assert refusal_of(MalformedInput("no")).code is RefusalCode.BAD_REQUEST  # type: ignore[union-attr]
    assert refusal_of(SwarmError("a defect")) is None


# ── keys, limits ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("Basic abc", None),
        ("Bearer", None),
        ("Bearer " + "x" * 200, None),
        (None, None),
    ],
)
def test_a_key_is_read_from_a_bearer_header_only(header: str | None, key: str | None) -> None:
    assert bearer(header) == key


def test_a_burst_passes_and_what_is_beyond_waits(clock: Clock) -> None:
    limiter = RateLimiter(Limits(key_rate_per_s=2.0, key_burst=3.0), clock=clock)

    assert [limiter.charge_key(b"k") for _ in range(3)] == [None] * 3
    refusal = limiter.charge_key(b"k")
    assert refusal is not None
    assert refusal.code is RefusalCode.RATE_LIMITED
    assert refusal.retry_after_s == pytest.approx(0.5)
    assert limiter.charge_key(b"another") is None
    clock.now += 0.5
    assert limiter.charge_key(b"k") is None


@pytest.mark.parametrize(
    ("forwarded", "trusted", "address"),
    [
        ("9.9.9.9", (), "10.0.0.1"),
        ("9.9.9.9", ("10.0.0.0/8",), "9.9.9.9"),
        ("1.1.1.1, 9.9.9.9", ("10.0.0.0/8",), "9.9.9.9"),
        ("9.9.9.9, 10.0.0.7", ("10.0.0.0/8",), "9.9.9.9"),
        ("nonsense", ("10.0.0.0/8",), "nonsense"),
        ("", ("10.0.0.0/8",), ""),
    ],
)
def test_only_trusted_proxies_say_who_is_behind_them(forwarded: str, trusted: tuple[str, ...], address: str) -> None:
    class Transport:
        def get_extra_info(self, name: str, default: object = None) -> object:
            return ("10.0.0.1", 1) if name == "peername" else default

        def is_closing(self) -> bool:
            return False

    request = make_mocked_request("GET", "/", {"X-Forwarded-For": forwarded}, transport=Transport())
    networks = tuple(ipaddress.ip_network(network) for network in trusted)
    assert client_address(request, networks) == address


# ── settings, challenges ──────────────────────────────────────────────────────────────────────────────────────────


def test_settings_are_signed_by_the_swarms_key(site: Site) -> None:
    settings, key = verify_settings(encode(site.signed()), key_id=site.key_id)

    assert key == site.key_id
    assert settings.ethereum is None
    assert settings.swarm.roots == (site.key_id,)
    assert site.check_challenge(settings.challenge) is None


def test_settings_name_the_kubos_that_keep_the_blocks_apart_from_the_roots() -> None:
    charter = Charter(seed=SEED, name="test", network_id="net", admission="open", doors=(), stores=("12D3Kubo",))
    site = Site(charter, peer=lambda: None, clock=Clock())
    settings, _ = verify_settings(encode(site.signed()), key_id=site.key_id)

    assert settings.swarm.stores == ("12D3Kubo",)
    assert settings.swarm.roots == (site.key_id,)


def test_a_challenge_is_good_for_five_minutes(site: Site, clock: Clock) -> None:
    challenge = site.new_challenge()
    clock.now += CHALLENGE_S
    assert site.check_challenge(challenge) is None
    clock.now += 1
    refusal = site.check_challenge(challenge)
    assert refusal is not None
    assert refusal.code is RefusalCode.CHALLENGE_EXPIRED


def test_two_challenges_are_never_the_same(site: Site) -> None:
    assert site.new_challenge() != site.new_challenge()


@given(st.text(max_size=80))
def test_nobody_makes_up_a_challenge(text: str) -> None:
    charter = Charter(seed=SEED, name="test", network_id="net", admission="open", doors=())
    assert Site(charter, peer=lambda: None, clock=Clock()).check_challenge(text) is not None


def test_another_swarms_challenge_is_refused(site: Site, clock: Clock) -> None:
    charter = Charter(seed=b"\x07" * 32, name="test", network_id="net", admission="open", doors=())
    assert site.check_challenge(Site(charter, peer=lambda: None, clock=clock).new_challenge()) is not None


# ── metrics ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_metrics_are_told_in_prometheus_text() -> None:
    metrics = Metrics()
    metrics.count("swarm_grants_total", via="want")
    metrics.count("swarm_grants_total", 2, via='of"fer')

    text = render(metrics.samples())
    assert 'swarm_grants_total{via="want"} 1' in text
    assert 'swarm_grants_total{via="of\\"fer"} 2' in text
    assert all(f"# TYPE {name} {kind}" in text for name, (kind, _) in METRICS.items())


def test_a_metric_that_was_not_declared_is_a_defect() -> None:
    with pytest.raises(KeyError):
        Metrics().count("swarm_surprises_total")


# ── the fleet ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Pushed:
    def nudge(self) -> None: ...

    def cancel(self, tasks: tuple[str, ...]) -> None: ...

    def close(self, code: int, reason: str) -> None: ...


def join(fleet: Fleet, name: str, *, free: int = 8, gossip: bool = True) -> WorkerRef:
    ref = WorkerRef(name, "one")
    worker = fleet.known(ref, name)
    fleet.introduce(worker, Hello(version="1", kinds={"noop": "1"}, slots=8))
    fleet.heard(worker, free=free, gossip=gossip, seen_at=0.0)
    worker.session = Pushed()
    return ref


def test_a_worker_is_offline_after_thirty_seconds_of_silence(fleet: Fleet, clock: Clock) -> None:
    worker = fleet.get(join(fleet, "alice"))
    assert worker is not None
    assert fleet.state(worker) == "ready"
    fleet.set_free(worker, 0)
    assert fleet.state(worker) == "busy"
    clock.now += LIVE_S + 0.1
    assert fleet.state(worker) == "offline"
    assert fleet.live_count() == 0


@pytest.mark.parametrize(("workers", "spread_s"), [(1, 0.0), (4, 0.0), (10, 0.36), (200, 11.76)])
def test_askers_spread_over_the_lag_of_closed_times_the_workers_beyond_four(
    fleet: Fleet, workers: int, spread_s: float
) -> None:
    for number in range(workers):
        join(fleet, f"worker {number}")
    assert fleet.spread_s() == pytest.approx(spread_s)


def test_only_idle_workers_without_gossip_are_nudged_and_no_more_than_there_are_tasks(fleet: Fleet) -> None:
    join(fleet, "busy", free=0, gossip=False)
    join(fleet, "hears", gossip=True)
    deaf = {join(fleet, f"deaf {number}", gossip=False) for number in range(5)}

    chosen = fleet.deaf_idle("noop", Requires(), 3)
    assert len(chosen) == 3
    assert {worker.ref for worker in chosen} <= deaf
    assert fleet.deaf_idle("fetch", Requires(), 3) == []


def test_what_the_ledger_keeps_of_a_worker_comes_back_after_a_restart(fleet: Fleet, clock: Clock) -> None:
    ref = join(fleet, "alice")
    seen = fleet.take_unsaved()
    assert fleet.take_unsaved() == ()

    again = Fleet(clock=clock, fits=fits, rng=random.Random(1))
    again.load(seen)
    worker = again.get(ref)
    assert worker is not None
    assert worker.facts.kinds == {"noop"}
    assert again.state(worker) == "offline"


async def test_a_worker_silent_for_an_hour_is_forgotten_and_comes_back_from_the_ledger(clock: Clock) -> None:
    kept: dict[WorkerRef, SeenWorker] = {}

    async def recall(ref: WorkerRef) -> SeenWorker | None:
        return kept.get(ref)

    fleet = Fleet(clock=clock, fits=fits, rng=random.Random(1), recall=recall)
    silent, connected, unsaved = (join(fleet, name) for name in ("silent", "connected", "unsaved"))
    for ref in (silent, unsaved):
        fleet.known(ref, ref.address).session = None
    kept.update({seen.worker: seen for seen in fleet.take_unsaved()})
    fleet.known(unsaved, "unsaved").unsaved = True
    clock.now += KEPT_S
    fleet.forget_silent()
    assert silent in fleet
    clock.now += 1
    fleet.forget_silent()
    assert silent not in fleet
    assert {worker.ref for worker in fleet.all()} == {connected, unsaved}

    again = await fleet.met(silent, "silent")
    assert again.facts.kinds == {"noop"}
    assert fleet.state(again) == "offline"
    fleet.forget_silent()
    assert silent in fleet


# ── what a ledger can keep ────────────────────────────────────────────────────────────────────────────────────────


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(value=_JSON, escaped=st.booleans())
def test_the_quick_scan_never_lets_pass_what_the_walk_refuses(value: object, escaped: bool) -> None:
    raw = json.dumps(value, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    assert storable_fault(raw, value) == check_storable(value)


@pytest.mark.parametrize(
    "raw", [b'"\\u0000"', b'"\\uD800"', b'"\\udfff"', b"9223372036854775808", b"1e999", b"-1E+400"]
)
def test_what_no_ledger_keeps_is_found_in_the_bytes(raw: bytes) -> None:
    value = float("inf") if b"e" in raw.lower() and b"u" not in raw else json.loads(raw)
    assert storable_fault(raw, value) is not None
