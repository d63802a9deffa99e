"""How the root's resources are joined: what the door leans on, and who hears what the ledger commits."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

import structlog
from aiohttp import web

from rendezvous.acceptance import DigestSigner, acceptor
from rendezvous.alerts import Alert, Alerts
from rendezvous.announce import Announcer
from rendezvous.chain.channels import all_channels
from rendezvous.chain.reconcile import PayDesk
from rendezvous.directory import RootDirectory
from rendezvous.door.assigner import Assigner
from rendezvous.door.auth import Keys, bearer, digest_of, new_key
from rendezvous.door.call import Caller
from rendezvous.door.limits import Limits, RateLimiter
from rendezvous.door.metrics import Metrics
from rendezvous.door.notify import Notifier
from rendezvous.door.pacer import Pacer
from rendezvous.door.readiness import Readiness
from rendezvous.door.resources import Door
from rendezvous.door.robots import HostPaces
from rendezvous.door.session import Sessions
from rendezvous.door.site import Charter, Site
from rendezvous.door.stream import EventStream
from rendezvous.door.turns import Turns
from rendezvous.door.vouchers import Vouchers
from rendezvous.fleet import KEPT_S, Fleet
from rendezvous.ledger.act_ops import PutInvite, PutKey
from rendezvous.ledger.ledger import Ledger
from rendezvous.ledger.neighbours import Office
from rendezvous.ledger.ops import LedgerEvent, SeenWorker, SeeWorkers
from rendezvous.ledger.values import WorkerFacts, WorkerRef
from rendezvous.policy.alarms import AlarmRules
from rendezvous.policy.eligibility import Demand, check_demand
from rendezvous.robots import RobotsCache
from rendezvous.settings import RootSettings
from rendezvous.store import RootStore
from rendezvous.watch import SEEN_BY_ALL, Watch
from rendezvous.webhook import Webhook, read_secret
from swarm.errors import SwarmError
from swarm.model import Role
from swarm.signing import JoinLink, format_join_link
from swarm.web.fetcher import trusted_cas, user_agent
from swarm.web.transfer import origin_of
from swarm.wire import EthereumSettings, PeerSettings, Requires

__all__ = [
    "Place",
    "build_door",
    "charter_of",
    "inline_manifests",
    "is_worker",
    "join_link",
    "keep_operator_key",
    "listening",
    "new_invite",
    "save_workers",
    "save_workers_often",
    "webhook_of",
]

log = structlog.get_logger()

OPERATOR: Final = "operator"
#: What the door heard of workers is written this often, seconds; what a restart would miss, at once.
SAVE_S: Final = 5.0
#: Longer rules are asked for once by each worker instead of travelling with each grant.
MAX_GRANTED_RULES_CHARS: Final = 2_048
#: An invite that the root makes at its start serves a small fleet for a day.
START_INVITE_USES: Final = 1_000
START_INVITE_S: Final = 86_400.0


class Place:
    """Where our peer is now; written by the peer thread's reports, read by ``/settings``.

    Args:
        charter: who we are.
        ipfs: the multiaddr that results are uploaded to; None is "at the door that you asked".
    """

    def __init__(self, charter: Charter, *, ipfs: str | None) -> None:
        self._charter = charter
        self._ipfs = ipfs
        self._addrs: tuple[str, ...] = ()

    def moved(self, addrs: tuple[str, ...]) -> None:
        """Note our addresses; none is "no peer"."""
        self._addrs = addrs

    def identity(self) -> tuple[str, tuple[str, ...]] | None:
        """Our peer id and addresses; None while there is no peer."""
        return (self._charter.peer_id, self._addrs) if self._addrs else None

    def settings(self) -> PeerSettings | None:
        """What newcomers are told; None while there is no peer."""
        if not self._addrs:
            return None
        # Results go to the door's own guarded RPC, wherever the blocks are kept: Kubo's own port is never exposed.
        return PeerSettings(id=self._charter.peer_id, addrs=self._addrs, ipfs=self._ipfs, topic=self._charter.topic)


def charter_of(settings: RootSettings, directory: RootDirectory, *, shared: bool) -> Charter:
    """What doesn't change while the root runs.

    Args:
        settings: what the operator set.
        directory: the root's own.
        shared: whether other roots may use the ledger too, with the same swarm's key.
    """
    return Charter(
        seed=directory.seed,
        name=directory.swarm.name,
        network_id=directory.swarm.network_id,
        admission=settings.effective_admission,
        doors=(settings.url,),
        allowed=frozenset(settings.allow),
        peer_seed=directory.own_seed() if shared else None,
    )


async def build_door(
    settings: RootSettings,
    *,
    charter: Charter,
    place: Place,
    ledger: Ledger,
    store: RootStore,
    stop: asyncio.Event,
    pay_desk: PayDesk | None = None,
    signer: DigestSigner | None = None,
) -> Door:
    """Join what the door leans on; the fleet comes back from the ledger."""
    metrics = Metrics()
    rng = random.Random()  # noqa: S311 -- spreads nudges, no secret

    async def recall(ref: WorkerRef) -> SeenWorker | None:
        return await ledger.read(lambda reader: reader.worker(ref))

    fleet = Fleet(clock=time.monotonic, fits=fits, rng=rng, recall=recall)
    fleet.load(await ledger.read(lambda reader: reader.workers(seen_since=ledger.now() - KEPT_S)))
    robots = RobotsCache(
        agent=user_agent(settings.contact, role="root"), tls=trusted_cas(), allow_private=settings.allow_private
    )
    pacer = Pacer(ledger, fleet, metrics, rng=rng)
    alerts = Alerts(wall=ledger.now)
    watch = Watch(
        alerts,
        ledger,
        AlarmRules(
            success=settings.alert_success,
            queue_age_s=settings.alert_queue_age,
            expiries=settings.alert_expiries,
            blocks=settings.alert_blocks,
        ),
        theirs=tuple if pay_desk is None else lambda: pay_desk.alerts.active,
    )
    rules_of, assigner = _rules_at_hand(robots), None
    if settings.mode == "assign":
        assigner = Assigner(ledger, fleet, metrics, rules_of=rules_of, clock=time.monotonic)
    site = Site(charter, peer=place.settings, clock=time.time, neighbours=ledger.neighbours.roots)
    return Door(
        ledger=ledger,
        store=store,
        robots=robots,
        paces=HostPaces(ledger, rate_per_s=settings.host_rate, clock=time.monotonic),
        pacer=pacer,
        fleet=fleet,
        keys=Keys(ledger, clock=time.monotonic),
        site=site,
        turns=Turns(
            ledger=ledger,
            store=store,
            fleet=fleet,
            metrics=metrics,
            rules_of=rules_of,
            hungry=pacer.hungry,
            assigns=None if assigner is None else assigner.wake,
            roots=site.roots,
            network_id=charter.network_id,
            vouchers=await _vouchers(ledger, signer, charter.ethereum),
        ),
        stream=EventStream(await ledger.read(lambda reader: reader.last_event_id())),
        sessions=Sessions(),
        limiter=RateLimiter(Limits(), clock=time.monotonic),
        metrics=metrics,
        readiness=Readiness(ledger, clock=time.monotonic),
        trusted_proxies=settings.trusted_proxy,
        clock=time.monotonic,
        wall=ledger.now,
        is_stopping=stop.is_set,
        started_at=time.monotonic(),
        base_fee_wei=_no_chain if pay_desk is None else pay_desk.base_fee_wei,
        accept=acceptor(charter.seed, signer, charter.ethereum),
        alerts=alerts,
        watch=watch,
        tiers=frozenset(settings.tier_shares),
        assigner=assigner,
    )


async def _vouchers(ledger: Ledger, signer: DigestSigner | None, ethereum: EthereumSettings | None) -> Vouchers | None:
    """Who signs what is owed on channels; None in an unpaid swarm."""
    if signer is None or ethereum is None:
        return None
    payees = [channel.payee for channel in await all_channels(ledger, signer.address)]
    return Vouchers(ledger, signer, ethereum, payees=payees)


async def _no_chain() -> None:
    """What gas costs where there is no chain."""


def fits(facts: WorkerFacts, kind: str, requires: Requires) -> bool:
    """The policy's own rule, as far as it doesn't hang on host and history."""
    return check_demand(Demand(tier="", kind=kind, requires=requires), facts) is None


def _rules_at_hand(robots: RobotsCache) -> Callable[[str], str | None]:
    def rules_of(url: str) -> str | None:
        answer = robots.at_hand(origin_of(url))
        return answer.rules if answer is not None and len(answer.rules) <= MAX_GRANTED_RULES_CHARS else None

    return rules_of


@contextlib.contextmanager
def listening(door: Door, announcer: Announcer | None, woken: asyncio.Event) -> Iterator[None]:
    """Pass what the ledger commits to sessions, streams and gossip while the block is open."""
    assigns = None if door.assigner is None else door.assigner.wake
    notifier = Notifier(fleet=door.fleet, stream=door.stream, metrics=door.metrics, assigns=assigns)

    def listen(events: Sequence[LedgerEvent]) -> None:
        notifier.take(events)
        door.watch.take(events)
        if announcer is not None:
            announcer.take(events)
            woken.set()

    unsubscribe = door.ledger.subscribe(listen)
    try:
        yield
    finally:
        unsubscribe()


def inline_manifests(ledger: Ledger) -> Callable[[str], Awaitable[bytes | None]]:
    """Where the store looks for manifests that came with their completion."""

    async def inline(cid: str) -> bytes | None:
        return await ledger.read(lambda reader: reader.manifest(cid))

    return inline


def is_worker(keys: Keys) -> Callable[[web.Request], Awaitable[bool]]:
    """The check that guards the IPFS RPC: a worker's key."""

    async def check(request: web.Request) -> bool:
        caller = await keys.caller(bearer(request.headers.get("Authorization")))
        return isinstance(caller, Caller) and caller.role is Role.WORKER

    return check


def webhook_of(settings: RootSettings, door: Door) -> Webhook | None:
    """Where alerts are posted to; None where nobody asked for it.

    Raises:
        ConfigurationError: the secret can't be read.
    """
    if settings.alert_webhook is None:
        return None
    charter = door.site.charter
    webhook = Webhook(
        settings.alert_webhook,
        secret=None if settings.alert_secret_file is None else read_secret(settings.alert_secret_file),
        swarm=charter.name,
        network_id=charter.network_id,
        wall=door.wall,
        rng=random.Random(),  # noqa: S311 -- spreads waits, no secret
    )
    neighbours = door.ledger.neighbours

    def tell(alert: Alert, begins: bool) -> None:
        if alert.code not in SEEN_BY_ALL or neighbours.holds(Office.REAPER):
            webhook.tell(alert, begins)

    door.alerts.subscribe(tell)
    return webhook


# ── keys and links ────────────────────────────────────────────────────────────────────────────────────────────────


async def keep_operator_key(directory: RootDirectory, ledger: Ledger, charter: Charter) -> None:
    """The operator's key, made at the first start; written to the ledger again where that is new.

    A name has one key: with other roots on the ledger, each directory's key is another operator's.
    """
    key = directory.operator_key()
    if key is None:
        key = new_key(Role.OPERATOR)
        directory.keep_operator_key(key)
    digest = digest_of(key)
    if await ledger.read(lambda reader: reader.key(digest)) is None:
        owner = OPERATOR if charter.peer_seed is None else f"{OPERATOR}-{charter.peer_id[-8:]}"
        await ledger.call(PutKey(digest=digest, role=Role.OPERATOR, owner=owner))


def new_invite(*, uses: int, expires_in_s: float) -> tuple[str, PutInvite]:
    """A fresh invite: what the link says, and what the ledger stores."""
    secret = secrets.token_urlsafe(16)
    return secret, PutInvite(digest=digest_of(secret), uses=uses, expires_in_s=expires_in_s)


async def join_link(settings: RootSettings, charter: Charter, ledger: Ledger) -> str:
    """A link that admits workers from now on."""
    secret = None
    if charter.admission == "invite":
        secret, op = new_invite(uses=START_INVITE_USES, expires_in_s=START_INVITE_S)
        await ledger.call(op)
    return format_join_link(JoinLink(url=settings.url, invite=secret, key_id=charter.key_id))


# ── what is kept of workers ───────────────────────────────────────────────────────────────────────────────────────


async def save_workers_often(door: Door) -> None:
    """Write what the door heard of workers, and forget the silent ones, until cancelled."""
    while True:
        await asyncio.sleep(SAVE_S)
        await save_workers(door)
        door.fleet.forget_silent()
        door.turns.forget_silent()


async def save_workers(door: Door) -> None:
    """Write what a restart must know of the workers; the ledger may be away for a while."""
    seen = door.fleet.take_unsaved()
    if not seen:
        return
    try:
        await door.ledger.call(SeeWorkers(seen=seen))
    except SwarmError as fault:
        door.fleet.put_back(seen)
        log.warning("workers_not_saved", error=str(fault))
