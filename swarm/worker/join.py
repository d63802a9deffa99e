"""Take part in the peer-to-peer side: hear gossip, be met, serve results. Beside the turns, never before them.

libp2p takes over half a second to import, so the first turn doesn't wait for it. This is the only module of the worker
that knows the peer.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import ipaddress
import re
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import structlog
import trio

from swarm.errors import ClosedError, ConfigurationError, MalformedInput
from swarm.identity import Identity
from swarm.logs import quieten_libraries
from swarm.model import Cid
from swarm.wire import Announcement, PeerSettings, Settings
from swarm.worker.hear import hear
from swarm.worker.settings import WorkerSettings
from swarm.worker.storage import Storage

if TYPE_CHECKING:
    from swarm.peer.node import Peer, PeerConfig

log = structlog.get_logger()

KNOWN_PEERS_FILE: Final = "peers.json"
#: The hash of a public key in base58, whatever the kind of the key.
PEER_ID: Final = re.compile(r"[1-9A-HJ-NP-Za-km-z]{40,64}")
#: How soon a root at another address is looked for after its connection was lost.
FOLLOW_EVERY_S: Final = 2.0
#: Contents that are remembered until the peer is open, in its first second.
MAX_MADE: Final = 256


class Part:
    """Our part in the swarm, once there is one.

    Attributes:
        peer: None until it is open, and where it is off.
    """

    def __init__(self) -> None:
        self.peer: Peer | None = None
        self._roots: frozenset[str] = frozenset()
        self._leaving = trio.Event()
        self._made: deque[Cid] = deque(maxlen=MAX_MADE)

    @property
    def peers(self) -> int:
        """With how many peers we are connected."""
        return len(self.peer.peers()) if self.peer is not None else 0

    def believe(self, roots: tuple[str, ...]) -> None:
        """Let the gossip of these roots pass from now on; the door names them in each answer."""
        if self.peer is not None and roots and frozenset(roots) != self._roots:
            self._roots = frozenset(roots)
            self.peer.set_roots(self._roots)

    def provide(self, contents: Iterable[Cid]) -> None:
        """Let the swarm find these contents here; what was made before the peer was open is said then."""
        if self.peer is not None:
            self.peer.keep_providing(contents)
        else:
            self._made.extend(contents)

    def leave(self) -> None:
        """Hang up; ``take_part`` returns then."""
        self._leaving.set()

    async def take(
        self,
        config: PeerConfig,
        storage: Storage,
        *,
        root: Callable[[], PeerSettings | None],
        heard: Callable[[Announcement], None],
        opened: Callable[[Peer], None],
    ) -> None:
        """Run the peer until ``leave``.

        Args:
            config: what it is made from.
            storage: whose blocks are served.
            root: where the root's peer is now; it may have moved since ``config`` was made.
            heard: told each announcement.
            opened: told the peer once it listens.

        Raises:
            ConfigurationError: an address can't be listened on.

        *Resource handling*: hangs up before it returns.
        """
        from swarm.peer.node import open_peer

        async with open_peer(config) as peer:
            peer.serve_blocks(storage.get)
            self._roots = config.roots
            self.peer = peer
            self.provide(self._made)
            self._made.clear()
            quieten_libraries()
            log.info("peer_opened", peer_id=peer.id, addrs=peer.addrs)
            opened(peer)
            gc.freeze()  # libp2p stays: searched for garbage with the rest, it stops the worker for 75 ms
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hear, peer.heard, heard)
                nursery.start_soon(_follow, peer, root, frozenset(config.bootstrap))
                await self._leaving.wait()
                nursery.cancel_scope.cancel()
            self.peer = None


async def _follow(peer: Peer, root: Callable[[], PeerSettings | None], redialled: frozenset[str]) -> None:
    """Dial a root that came back at another address; at its old ones the peer redials by itself."""
    while True:
        await trio.sleep(FOLLOW_EVERY_S)
        settings = root()
        if settings is None or settings.id in peer.peers():
            continue
        for address in addresses_of(settings):
            if address in redialled:
                continue
            with contextlib.suppress(ClosedError, MalformedInput):
                if await peer.dial(address, vouched=True):
                    log.info("root_met_again", address=address)
                    break


def addresses_of(root: PeerSettings) -> tuple[str, ...]:
    """The root's multiaddrs, each with its peer id."""
    return tuple(addr if "/p2p/" in addr else f"{addr}/p2p/{root.id}" for addr in root.addrs)


async def peer_config(
    settings: WorkerSettings, identity: Identity, swarm: Settings, *, door_url: str
) -> PeerConfig | None:
    """What our peer is made from; None where the root takes no part in gossip itself."""
    if swarm.peer is None:
        return None
    # An import holds the loop up for half a second; in a thread the turns go on meanwhile.
    node: Any = await trio.to_thread.run_sync(importlib.import_module, "swarm.peer.node")
    config: PeerConfig = node.PeerConfig(
        seed=identity.peer_seed,
        topic=swarm.peer.topic,
        rendezvous_tag=swarm.swarm.rendezvous_tag,
        listen=settings.listen or listen_by_default(door_url),
        roots=frozenset(swarm.swarm.roots) | {swarm.peer.id},
        bootstrap=addresses_of(swarm.peer),
        dht=settings.dht,
        dht_interval_s=swarm.swarm.dht.interval_s,
        mdns=settings.mdns,
        psk=_read_psk(settings.psk),
        known_peers=identity.directory / KNOWN_PEERS_FILE,
        serve_to="any" if "any" in settings.serve_to else frozenset(settings.serve_to) | frozenset(swarm.swarm.stores),
    )
    return config


def check_peer_options(settings: WorkerSettings) -> None:
    """Refuse what a peer can't be made from, before any door is told of this worker. libp2p is asked only where needed.

    Raises:
        ConfigurationError: of ``--psk``, ``--listen`` or ``--serve-to``.
    """
    if not settings.p2p:
        return
    _read_psk(settings.psk)
    if settings.listen:
        from swarm.peer.addresses import expand_listen

        expand_listen(settings.listen)
    for peer in settings.serve_to:
        if peer != "any" and not PEER_ID.fullmatch(peer):
            raise ConfigurationError(
                f"--serve-to: {peer:.80} isn't a peer id", hint="one looks like 12D3KooW…; any serves everybody"
            )


def listen_by_default(door_url: str) -> tuple[str, ...]:
    """A free port of every interface; of the loopback alone where the door is there too."""
    host = urlsplit(door_url).hostname or ""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    return ("/ip4/127.0.0.1/tcp/0",) if loopback else ("/ip4/0.0.0.0/tcp/0",)


def _read_psk(path: Path | None) -> bytes | None:
    if path is None:
        return None
    from swarm.peer.psk import read_swarm_key

    return read_swarm_key(path)
