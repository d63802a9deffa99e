"""The worker: hear → choose → (turn) → execute → upload → (turn). Reading ``run`` is reading the flow.

The steps are joined by bounded channels; a full one is backpressure: no slot is free, so nothing is asked for. The
state machine (``turns``) decides what is asked, held, renewed and dropped; ``Dispatch`` carries out its decisions.
"""

from __future__ import annotations

import random
import ssl
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import attrs
import msgspec
import structlog
import trio

import swarm
from swarm.blocks import BlockStore
from swarm.certificates import trust_certificates
from swarm.door_client import DoorClient, open_door
from swarm.errors import ConfigurationError
from swarm.executors.base import Capture, Executor
from swarm.executors.parser import Parser, open_parser
from swarm.executors.registry import Executors, load_executors
from swarm.identity import Identity
from swarm.model import Cid
from swarm.signing import JoinLink
from swarm.turn_wire import CancelPush, CompletionProof, Grant, GrantPush, Nudge, PausePush, Stats
from swarm.wire import Announcement, Hello, Settings
from swarm.worker.channel_watch import watch_channel
from swarm.worker.dispatch import Counters, Dispatch
from swarm.worker.earnings import open_earnings
from swarm.worker.effects import Effect
from swarm.worker.execute import execute
from swarm.worker.ipfs_address import ipfs_address
from swarm.worker.join import Part, peer_config
from swarm.worker.journal import Journal, open_journal
from swarm.worker.leases import Executions, boottime
from swarm.worker.leave import leave
from swarm.worker.results import Result
from swarm.worker.settings import WorkerSettings
from swarm.worker.sign import prove
from swarm.worker.storage import Storage
from swarm.worker.talk import SaysTurns, take_pushes, talk, watch
from swarm.worker.tell import tell_idle, tell_joined
from swarm.worker.tools import fetcher_for, learn_rules, tools_for
from swarm.worker.turns import Turns
from swarm.worker.upload import PutBlocks, Uploads, owed_roots, upload
from swarm.worker.voucher_book import VOUCHERS_FILE
from swarm.worker.wake import Wake

if TYPE_CHECKING:
    from swarm.peer.node import Peer

log = structlog.get_logger()

UPLOAD_TIMEOUT_S: Final = 30.0
#: Grants that were stopped before they began stay in the channel until a slot reads them.
GRANTS_PER_SLOT: Final = 4
#: Results that wait to be taken may use this share of the disk cap.
OWED_SHARE: Final = 0.5
MAX_ADDRS: Final = 16
#: What is being written when we leave may take so long.
LAST_WRITES_S: Final = 1.0

HOLD_UNCOVERED: Final = "the payer's money on the chain doesn't cover its vouchers, or it is taking it back"
HOLD_UNPAID: Final = "what was done isn't paid for by a voucher yet"

JOURNAL_FILE: Final = "journal.db"
BLOCKS_DIRECTORY: Final = "blocks"


class Door(SaysTurns, Protocol):
    """The door, as far as a worker needs it; ``swarm.door_client.DoorClient`` is one."""

    url: str
    settings: Settings
    pushes: trio.MemoryReceiveChannel[Nudge | CancelPush | PausePush | GrantPush]

    @property
    def connected(self) -> bool:
        """Whether turns can be said now."""
        ...


@attrs.frozen(kw_only=True)
class Means:
    """What a worker works with; opened by ``run``, or by a test.

    Args:
        fetch: gets one page under the guard.
        learn: told the rules of robots.txt that came with a grant.
        parser: runs selectors over pages.
        open_uploader: makes an uploader to the IPFS address.
    """

    identity: Identity
    door: Door
    journal: Journal
    blocks: BlockStore
    executors: Executors
    fetch: Callable[[str], Awaitable[Capture]]
    learn: Callable[[Grant], None]
    parser: Parser
    open_uploader: Callable[[], PutBlocks]
    rng: random.Random


async def run(
    settings: WorkerSettings,
    link: JoinLink,
    identity: Identity,
    *,
    stops: trio.MemoryReceiveChannel[None],
    executors: Mapping[str, Executor] | None = None,
    say: Callable[[str], None] = lambda _: None,
    started: Callable[[], None] = lambda: None,
) -> None:
    """Join a swarm and work until told to stop.

    Args:
        settings: the owner's.
        link: where the swarm is.
        identity: of the locked data directory.
        stops: one item for each request to stop; the first drains, the second gives everything back now.
        executors: ready-made ones, which win over the installed.
        say: told what the owner should read, line by line.
        started: told when it works, so that from now on a stop drains.

    Raises:
        DoorUnreachable: no door answers at the first start.
        DoorRefused: the swarm doesn't admit this worker, or turned it away.
        UntrustedSettings: the root isn't the one that was trusted.
        ConfigurationError: a setting can't be used.
    """
    kinds = load_executors(executors)
    rng = random.Random()  # noqa: S311 -- spreads waits, no secrets
    tls = _certificates(settings.ca_file)
    hello = hello_of(settings, identity, kinds)
    blocks = BlockStore(identity.directory / BLOCKS_DIRECTORY, max_bytes=settings.max_disk_bytes)
    async with (
        open_journal(identity.directory / JOURNAL_FILE, clock=time.time) as journal,
        open_door(
            link, identity, hello, directory=identity.directory, payout=settings.payout, tls=tls, rng=rng
        ) as door,
        fetcher_for(settings, identity, door) as fetcher,
        open_parser() as parser,
        trio.open_nursery() as telling,
    ):
        telling.start_soon(partial(tell_joined, door, settings, identity, link_url=link.url, say=say))
        means = Means(
            identity=identity,
            door=door,
            journal=journal,
            blocks=blocks,
            executors=kinds,
            fetch=fetcher.get,
            learn=partial(learn_rules, fetcher),
            parser=parser,
            open_uploader=lambda: _uploader(door),
            rng=rng,
        )
        await work(settings, means, stops=stops, say=say, started=started)
        telling.cancel_scope.cancel()  # it was stopped before a door was found


def hello_of(settings: WorkerSettings, identity: Identity, executors: Executors) -> Hello:
    """What this worker is."""
    return Hello(
        version=swarm.__version__,
        kinds=executors.kinds(),
        slots=settings.slots,
        labels=settings.labels,
        region=settings.region,
        peer_id=identity.peer_id,
    )


async def work(
    settings: WorkerSettings,
    means: Means,
    *,
    stops: trio.MemoryReceiveChannel[None],
    say: Callable[[str], None] = lambda _: None,
    started: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = boottime,
) -> None:
    """Work with what was opened, until told to stop; arguments as in ``run``, ``clock`` is what leases run on."""
    identity, door, journal = means.identity, means.door, means.journal
    storage = Storage(means.blocks, owed=lambda: owed_roots(journal))
    counters, wake, leased, part, executions = Counters(clock), Wake(), Wake(), Part(), Executions()
    hello = hello_of(settings, identity, means.executors)
    turns = Turns(
        boot=uuid.uuid4().hex,
        hello=hello,
        instance=identity.instance,
        now=clock(),
        want_limit=None if settings.want else 0,
    )
    log.info("worker_started", worker=identity.address, instance=identity.instance, slots=settings.slots)

    send_grant, grants = trio.open_memory_channel[Grant](GRANTS_PER_SLOT * settings.slots)
    send_result, results = trio.open_memory_channel[Result](settings.slots)

    def trust(pays: bool, *, why: str = HOLD_UNPAID) -> None:
        """Ask for no more while too much is unpaid, or what was signed isn't covered."""
        if pays:
            turns.resume(why)
            wake.poke()
        else:
            turns.hold(why)

    async with (
        open_earnings(
            door.settings.ethereum,
            identity.directory / VOUCHERS_FILE,
            address=identity.address,
            payout=settings.payout,
            door_url=door.url,
            seen=turns.took_voucher,
            max_unpaid=settings.max_unpaid,
            trust=trust,
        ) as earnings,
        trio.open_nursery() as disk,
        trio.open_nursery() as nursery,
    ):
        dispatch = Dispatch(
            turns, executions, journal, send_grant, counters, wake=wake, leased=leased, clock=clock, nursery=disk
        )
        dispatch.earnings = earnings

        async def sign_for(grant: Grant, cid: Cid) -> CompletionProof | None:
            if earnings is not None:
                await earnings.expect(grant, cid)
            payout, network_id = settings.payout or identity.address, door.settings.swarm.network_id
            return await prove(grant, cid, identity=identity, payout=payout, network_id=network_id)

        uploads = dispatch.uploads = Uploads(
            journal,
            storage,
            dispatch.hooks(),
            open_uploader=means.open_uploader,
            max_owed_bytes=int(settings.max_disk_bytes * OWED_SHARE),
            rng=means.rng,
            prove=sign_for,
            provide=part.provide,
        )
        uploads.recover()

        def heard(announcement: Announcement) -> None:
            turns.hear(announcement, clock())
            wake.poke()

        def opened(peer: Peer) -> None:
            turns.hello = msgspec.structs.replace(hello, addrs=peer.addrs[:MAX_ADDRS])
            turns.reconnected()
            wake.poke()

        def stats() -> Stats:
            return counters.stats(peers=part.peers, blocks_bytes=storage.total_bytes)

        def apply(effects: Iterable[Effect]) -> None:
            part.believe(turns.roots)
            dispatch.apply(effects)

        def stop_overdue() -> None:
            overdue = turns.overdue(clock())
            if overdue:
                apply(overdue)

        async def take_part() -> None:
            config = await peer_config(settings, identity, door.settings, door_url=door.url)
            if config is not None:
                await part.take(config, storage, root=lambda: door.settings.peer, heard=heard, opened=opened)

        slot = partial(
            execute,
            executors=means.executors,
            tools=tools_for(
                means.fetch,
                means.learn,
                means.parser,
                storage,
                counters,
                worker=identity.address,
                max_bytes=settings.max_disk_bytes,
                stop_overdue=stop_overdue,
            ),
            versions={"swarm": swarm.__version__},
            executions=executions,
            begin=turns.started,
            clock=clock,
        )
        for _ in range(settings.slots):
            nursery.start_soon(slot, grants.clone(), send_result.clone())
        for _ in range(settings.slots):  # results that come together are written to the journal together
            nursery.start_soon(upload, results.clone(), uploads)
        nursery.start_soon(uploads.retry)
        nursery.start_soon(partial(take_pushes, door.pushes, turns, apply, wake=wake, clock=clock))
        nursery.start_soon(partial(talk, turns, door, apply, wake=wake, clock=clock, stats=stats))
        nursery.start_soon(partial(watch, turns, apply, leased=leased, clock=clock))
        nursery.start_soon(partial(tell_idle, turns, lambda: door.connected, clock=clock))
        if settings.p2p:
            nursery.start_soon(take_part)
        node = settings.rpc or (earnings.told_rpc if earnings is not None else None)
        if earnings is not None and node is not None:
            nursery.start_soon(
                partial(
                    watch_channel,
                    node,
                    earnings.account,
                    lambda: earnings.last,
                    key=identity.eth_key,
                    trust=partial(trust, why=HOLD_UNCOVERED),
                )
            )

        started()
        await leave(stops, turns, apply, wake=wake, clock=clock, grace_s=settings.grace_s, say=say)
        part.leave()
        nursery.cancel_scope.cancel()
        disk.cancel_scope.deadline = trio.current_time() + LAST_WRITES_S
    uploads.close()


def _certificates(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return trust_certificates(ca_file)
    except OSError as fault:
        raise ConfigurationError(
            f"--ca-file {ca_file}: {fault}", hint="it has to be a PEM file of certificates"
        ) from fault


def _uploader(door: DoorClient) -> PutBlocks:
    from swarm.ipfs import IpfsUploader

    address, is_door = ipfs_address(door.settings, door.url)
    return IpfsUploader(address, api_key=door.api_key if is_door else None, timeout_s=UPLOAD_TIMEOUT_S)
