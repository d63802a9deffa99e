"""The trio peer in a thread of its own: the only place where the two event loops meet.

asyncio → trio: ``TrioToken.run_sync_soon``; trio → asyncio: ``loop.call_soon_threadsafe``. Nothing else crosses. A
message that can't be sent is dropped: gossip is a hint. If the peer dies the door goes on, and the log says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import structlog

from swarm.errors import ClosedError, ConfigurationError

if TYPE_CHECKING:
    import trio

    from swarm.peer.node import Peer

__all__ = ["PeerPlan", "PeerThread"]

log = structlog.get_logger()

#: Messages that wait for the peer; at 20 a second more than enough.
OUTBOX: Final = 256
#: How often our addresses are looked at, seconds.
LOOK_S: Final = 5.0
#: The import of libp2p takes 0.7 s, on a busy machine several.
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 5.0


@attrs.frozen(kw_only=True)
class PeerPlan:
    """What the root's peer is made from; see ``swarm.peer.node.PeerConfig``."""

    seed: bytes = attrs.field(repr=False)
    topic: str
    rendezvous_tag: str
    listen: tuple[str, ...]
    roots: frozenset[str]
    dht: bool
    mdns: bool
    known_peers: Path
    #: The ``swarm.key`` file of a closed network.
    psk: Path | None = None


class PeerThread:
    """Runs the peer. ``await start()``, then ``publish``, then ``await stop()``.

    Args:
        plan: what the peer is made from.
        on_addrs: called on the loop with our addresses, at the start and whenever they change.
    """

    def __init__(self, plan: PeerPlan, *, on_addrs: Callable[[tuple[str, ...]], None]) -> None:
        self._plan = plan
        self._on_addrs = on_addrs
        self._loop = asyncio.get_running_loop()
        self._up: asyncio.Future[None] = self._loop.create_future()
        self._down = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="peer", daemon=True)
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope: trio.CancelScope | None = None
        self._outbox: trio.MemorySendChannel[bytes] | None = None
        self._peer: Peer | None = None
        self._stopping = False

    def start(self) -> None:
        """Start the thread; libp2p is imported in it."""
        self._thread.start()

    async def ready(self) -> None:
        """Wait until the peer listens.

        Raises:
            ConfigurationError: it can't listen where it was told to.
        """
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await asyncio.shield(self._up)
        except TimeoutError:
            raise ConfigurationError(
                f"the peer didn't start within {START_TIMEOUT_S:.0f} s", hint="run with --p2p off to do without it"
            ) from None

    def publish(self, message: bytes) -> None:
        """Hand a message to the peer; dropped where it can't keep up or isn't there."""
        self._in_trio(lambda: self._send(message))

    def believe(self, roots: frozenset[str]) -> None:
        """Let the gossip of these roots pass from now on."""
        self._in_trio(lambda: self._peer.set_roots(roots) if self._peer is not None else None)

    async def stop(self) -> None:
        """Cancel the peer, wait until it has hung up, join the thread."""
        self._stopping = True
        self._in_trio(lambda: self._scope.cancel() if self._scope is not None else None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._down.wait()
        if self._up.done() and not self._up.cancelled():
            self._up.exception()  # seen: start-up faults were told by ready()
        if self._down.is_set():
            self._thread.join()

    # ── in the thread ─────────────────────────────────────────────────────────────────────────────────────────────

    def _send(self, message: bytes) -> None:
        import trio

        if self._outbox is not None:
            with contextlib.suppress(trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
                self._outbox.send_nowait(message)

    def _in_trio(self, call: Callable[[], None]) -> None:
        token = self._token
        if token is None:
            return
        import trio

        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(call)

    def _tell(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(call)

    def _run(self) -> None:
        import trio

        fault: BaseException | None = None
        try:
            trio.run(self._main)
        except BaseException as caught:  # noqa: BLE001 -- supervision boundary: told by ready(), or logged on the loop
            fault = caught
        self._tell(lambda: self._ended(fault))

    def _ended(self, fault: BaseException | None) -> None:
        self._token = None
        if not self._up.done():  # whoever waits for it tells the fault
            self._up.set_exception(fault or ClosedError("the peer was stopped before it was up"))
        elif fault is not None:
            log.error("peer_stopped", error=str(fault), exc_info=fault)
        self._on_addrs(())
        self._down.set()

    async def _main(self) -> None:
        import trio

        from swarm.logs import quieten_libraries
        from swarm.peer.node import PeerConfig, open_peer
        from swarm.peer.psk import read_swarm_key

        quieten_libraries()
        plan = self._plan
        config = PeerConfig(
            seed=plan.seed,
            topic=plan.topic,
            rendezvous_tag=plan.rendezvous_tag,
            listen=plan.listen,
            roots=plan.roots,
            dht=plan.dht,
            mdns=plan.mdns,
            known_peers=plan.known_peers,
            psk=read_swarm_key(plan.psk) if plan.psk is not None else None,
        )
        self._outbox, messages = trio.open_memory_channel[bytes](OUTBOX)
        self._scope = trio.CancelScope()
        self._token = trio.lowlevel.current_trio_token()
        if self._stopping:  # told so during the import
            return
        with self._scope:
            async with open_peer(config) as peer, trio.open_nursery() as nursery:
                self._peer = peer
                nursery.start_soon(self._watch, peer)
                async for message in messages:
                    with contextlib.suppress(ClosedError):  # its node is just being replaced
                        await peer.publish(message)

    async def _watch(self, peer: Peer) -> None:
        """Tell the loop our addresses whenever they change."""
        import trio

        told: tuple[str, ...] | None = None
        while True:
            addrs = peer.addrs
            if addrs and addrs != told:
                told = addrs
                self._tell(lambda addrs=addrs: self._heard(addrs))  # type: ignore[misc]
            await trio.sleep(LOOK_S)

    def _heard(self, addrs: tuple[str, ...]) -> None:
        self._on_addrs(addrs)
        if not self._up.done():
            self._up.set_result(None)
