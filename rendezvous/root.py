"""The root: reading ``serve`` is reading what runs, in which order it starts, and in which it stops.

Start: lock the directory, start the peer in its thread (libp2p's import takes most of a second, so it goes first), open
ledger and store, build the door, listen, say so. Stop (facts/skeleton.md §3): no new connections, say goodbye over the
sessions, stop the peer, let requests end, close the ledger.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any, Final

import attrs
import msgspec
import structlog
from aiohttp import web

from rendezvous.announce import Announcer, announce
from rendezvous.chain.keys import open_signer
from rendezvous.chain.outbox import Rules
from rendezvous.chain.reconcile import ChainSettings, PayDesk, open_pay_desk
from rendezvous.chain.sender import Signer
from rendezvous.collect import collect_from
from rendezvous.copies import copy_manifests, waking
from rendezvous.directory import RootDirectory, open_directory
from rendezvous.door.app import build_app
from rendezvous.door.ipfs_rpc import add_ipfs_routes
from rendezvous.door.protocol import DoorRunner
from rendezvous.door.resources import Door
from rendezvous.door.site import Charter
from rendezvous.door.strangers import quieten_strangers
from rendezvous.intake import open_intakes
from rendezvous.ledger.engine import is_shared
from rendezvous.ledger.ledger import open_ledger
from rendezvous.ledger.settings import LedgerSettings
from rendezvous.ledger.shared_pace import open_shared_pace
from rendezvous.peer_thread import PeerPlan, PeerThread
from rendezvous.policy.pacing import HOST_BURST
from rendezvous.room import make_room
from rendezvous.settings import RootSettings
from rendezvous.sockets import claim_bind, listen, peer_address, peer_port, rpc_multiaddr
from rendezvous.store import open_store
from rendezvous.together import follow_neighbours, introduce
from rendezvous.wiring import (
    Place,
    build_door,
    charter_of,
    inline_manifests,
    is_worker,
    join_link,
    keep_operator_key,
    listening,
    save_workers,
    save_workers_often,
    webhook_of,
)
from swarm.errors import ConfigurationError

__all__ = ["Opened", "Ready", "open_door", "serve"]

log = structlog.get_logger()

#: How long the slowest request may take to end at a shutdown, seconds.
SHUTDOWN_TIMEOUT_S: Final = 2.0
#: An idle connection, or one that never sends its request, is cut after this, seconds.
KEEPALIVE_S: Final = 75.0
#: How long the rest of a refused body is read away, so that its sender sees the answer, seconds.
LINGER_S: Final = 2.0
#: Wei of a gwei, the unit of fees.
GWEI: Final = 10**9


class Ready(msgspec.Struct, frozen=True):
    """What is said once the door serves (``--ready-file``)."""

    door: str
    peer_id: str | None
    operator_key_file: str
    join_link: str


@attrs.frozen(kw_only=True)
class Opened:
    """A door with all that it leans on, before it listens."""

    settings: RootSettings
    directory: RootDirectory
    charter: Charter
    door: Door
    app: web.Application
    peer: PeerThread | None
    #: Pays what the ledger owes; None in an unpaid swarm.
    pay_desk: PayDesk | None = None


async def serve(settings: RootSettings, *, ready: Callable[[Ready], None], stop: asyncio.Event) -> None:
    """Run a root until ``stop`` is set.

    Args:
        settings: what the operator set.
        ready: called once the door serves.
        stop: set by a signal.

    Raises:
        ConfigurationError: it can't be started so.
        LedgerUnavailable: the database can't be reached at the start.
    """
    quieten_strangers()
    settings, held = claim_bind(settings)
    async with contextlib.AsyncExitStack() as stack:
        if held is not None:
            stack.enter_context(held)
        opened = await stack.enter_async_context(open_door(settings, stop=stop))
        if opened.peer is not None:
            await opened.peer.ready()
        runner = DoorRunner(
            opened.app,
            access_log=None,
            shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            keepalive_timeout=KEEPALIVE_S,
            lingering_time=LINGER_S,
        )
        await runner.setup()
        try:
            site = await listen(settings, runner, held)
            ready(await _ready(opened))
            log.info("root_started", door=settings.url, admission=opened.charter.admission, p2p=settings.p2p)
            await stop.wait()
            log.info("root_stopping")
            await site.stop()
            opened.door.stream.wake()
            await opened.door.sessions.close_all()
            if opened.peer is not None:
                await opened.peer.stop()
        finally:
            await runner.cleanup()
    log.info("root_stopped")


@contextlib.asynccontextmanager
async def open_door(settings: RootSettings, *, stop: asyncio.Event) -> AsyncIterator[Opened]:
    """Open all that a door leans on, and the door; it doesn't listen yet.

    *Resource handling*: directory lock, peer thread, ledger, store and background tasks are the block's.

    Raises:
        ConfigurationError: the settings contradict each other, or the directory can't be used.
        LedgerUnavailable: the database can't be reached.
        QueueUnreachable: the Redis of an intake or of the pacing can't be reached.
    """
    settings.check()
    async with contextlib.AsyncExitStack() as stack:
        directory = stack.enter_context(open_directory(settings.data, name=settings.name))
        directory = directory.keep(url=settings.url, name=settings.name, p2p_port=_peer_port(settings, directory))
        location = settings.ledger or directory.ledger_url
        charter = charter_of(settings, directory, shared=is_shared(location))
        signer = None
        if settings.rpc is not None:
            settings = _with_contract(settings, directory)
            signer = open_signer(settings.chain_key or directory.wallet, settings.passphrase_file)
        place = Place(charter, ipfs=rpc_multiaddr(settings))
        peer = _peer(settings, directory, charter, place) if settings.p2p else None
        if peer is not None:
            peer.start()
            stack.push_async_callback(peer.stop)
        pace = await stack.enter_async_context(open_shared_pace(settings.pacing))
        ledger = await stack.enter_async_context(open_ledger(location, _ledger_settings(settings, signer), pace=pace))
        pay_desk = None
        if signer is not None:
            pay_desk = await stack.enter_async_context(
                open_pay_desk(ledger, signer, _chain_settings(settings, directory))
            )
            charter = attrs.evolve(charter, ethereum=msgspec.structs.replace(pay_desk.ethereum, rpc=settings.told_rpc))
        store = await stack.enter_async_context(
            open_store(
                directory.blocks, ipfs=settings.ipfs, max_bytes=settings.max_disk, inline=inline_manifests(ledger)
            )
        )
        store = await stack.enter_async_context(make_room(store, partial(collect_from, store, ledger.reader)))
        charter = attrs.evolve(charter, stores=await store.peer_ids())
        await introduce(ledger, charter, has_peer=peer is not None)
        await keep_operator_key(directory, ledger, charter)
        door = await build_door(
            settings,
            charter=charter,
            place=place,
            ledger=ledger,
            store=store,
            stop=stop,
            pay_desk=pay_desk,
            signer=signer,
        )
        stack.push_async_callback(save_workers, door)
        intakes = await stack.enter_async_context(
            open_intakes(
                settings.intake,
                ledger,
                door.metrics,
                network_id=charter.network_id,
                paid=charter.ethereum is not None,
                watch=door.watch,
            )
        )
        app = build_app(door)
        add_ipfs_routes(app, store, authenticate=is_worker(door.keys), identity=place.identity)
        jobs = [save_workers_often(door), door.sessions.recheck(door), door.pacer.run(), follow_neighbours(door, peer)]
        jobs.append(door.watch.run())
        webhook = webhook_of(settings, door)
        if webhook is not None:
            jobs.append(webhook.run())
        if door.assigner is not None:
            jobs.append(door.assigner.run())
        if pay_desk is not None:
            jobs.append(pay_desk.run())
        jobs += [intake.run() for intake in intakes]
        if settings.ipfs is not None:
            completed = asyncio.Event()
            stack.enter_context(waking(ledger, completed))
            kubo = (*charter.stores, settings.ipfs)[0]
            jobs.append(copy_manifests(ledger, store, completed, file=directory.copies, kubo=kubo))
        announcer, woken = None, asyncio.Event()
        if peer is not None:
            announcer = Announcer(door.fleet, root=charter.peer_id, epoch=time.time_ns(), clock=time.monotonic)
            jobs.append(announce(announcer, woken, _publisher(peer, door)))
        # What is assigned isn't announced: gossip then only says that the root lives.
        announced = announcer if door.assigner is None else None
        stack.enter_context(listening(door, announced, woken))
        await stack.enter_async_context(_background(*jobs))
        stack.callback(ledger.leave)  # before what is saved at the end
        yield Opened(
            settings=settings,
            directory=directory,
            charter=charter,
            door=door,
            app=app,
            peer=peer,
            pay_desk=pay_desk,
        )


def _with_contract(settings: RootSettings, directory: RootDirectory) -> RootSettings:
    complete = settings.with_contract(None if settings.contract else directory.contract())
    if complete.contract is None:
        raise ConfigurationError(
            "--rpc is given, but no contract: none was deployed from here",
            hint="swarm-root contract deploy --rpc … makes one; or give --contract",
        )
    return complete


def _chain_settings(settings: RootSettings, directory: RootDirectory) -> ChainSettings:
    return ChainSettings(
        url=settings.rpc or "",
        contract=settings.contract or "",
        holder=f"{socket.gethostname()}:{directory.path}",
        rules=_rules(settings),
    )


def _rules(settings: RootSettings) -> Rules:
    max_fee_wei = int(settings.max_fee * GWEI)
    if settings.finality == "finalized":
        return Rules(finalized_tag=True, max_fee_wei=max_fee_wei)
    return Rules(finality_blocks=settings.finality, max_fee_wei=max_fee_wei)


def _ledger_settings(settings: RootSettings, signer: Signer | None) -> LedgerSettings:
    return LedgerSettings(
        payer=signer.address if signer is not None else None,
        host_rate_per_s=settings.host_rate,
        host_burst=max(HOST_BURST, settings.host_rate),  # at most a second's worth at once
        swarm_rate_per_s=settings.swarm_rate,
        swarm_burst=max(HOST_BURST, settings.swarm_rate),
        region_hours=dict(settings.region_hours),
        newcomer_budget=settings.newcomer_budget,
        tier_shares=settings.tier_shares,
        first_lease_s=settings.first_lease,
        signs_all=settings.receipts == "all",
    )


def _peer_port(settings: RootSettings, directory: RootDirectory) -> int | None:
    if not settings.p2p or settings.p2p_listen:
        return None
    return peer_port(settings.bind, directory.swarm.p2p_port)


def _peer(settings: RootSettings, directory: RootDirectory, charter: Charter, place: Place) -> PeerThread:
    plan = PeerPlan(
        seed=charter.peer_seed or charter.seed,
        topic=charter.topic,
        rendezvous_tag=charter.rendezvous_tag,
        listen=settings.p2p_listen or (peer_address(settings.bind, directory.swarm.p2p_port or 0),),
        roots=frozenset({charter.peer_id}),
        dht=settings.dht,
        mdns=settings.mdns,
        known_peers=directory.known_peers,
        psk=settings.psk,
    )
    return PeerThread(plan, on_addrs=place.moved)


def _publisher(peer: PeerThread, door: Door) -> Callable[[bytes], None]:
    def publish(message: bytes) -> None:
        door.metrics.count("swarm_announcements_total")
        peer.publish(message)

    return publish


async def _ready(opened: Opened) -> Ready:
    return Ready(
        door=opened.settings.url,
        peer_id=opened.charter.peer_id if opened.peer is not None else None,
        operator_key_file=str(opened.directory.operator_key_file),
        join_link=await join_link(opened.settings, opened.charter, opened.door.ledger),
    )


@contextlib.asynccontextmanager
async def _background(*jobs: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run jobs while the block is open; one that fails ends the block with its fault."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(job) for job in jobs]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
    except BaseExceptionGroup as faults:
        if len(faults.exceptions) == 1:  # as it was raised: the group is ours, not the caller's
            raise faults.exceptions[0] from None
        raise
