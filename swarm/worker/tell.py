"""What the owner of a worker reads: how it was started, and why it is idle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import structlog
import trio

from swarm.door_client import DoorClient
from swarm.identity import Identity
from swarm.wire import Settings
from swarm.worker.settings import WorkerSettings
from swarm.worker.turns import Turns

log = structlog.get_logger()

#: An idle worker says why so often (DESIGN §7).
IDLE_EVERY_S: Final = 60.0


async def tell_joined(
    door: DoorClient, settings: WorkerSettings, identity: Identity, *, link_url: str, say: Callable[[str], None]
) -> None:
    """Say how this worker was started, once a door has taken it; the link's may not be the one that did."""
    await door.wait_joined()
    for line in start_lines(settings, identity, door.settings, url=door.url, link_url=link_url):
        say(line)


def start_lines(
    settings: WorkerSettings, identity: Identity, swarm: Settings, *, url: str, link_url: str
) -> Iterator[str]:
    """Slots, caps, inbound, directories, payout, and how to stop."""
    yield f"Joined {swarm.swarm.name} at {url} as {identity.address}."
    if url != link_url:
        yield f"  door       the swarm named this one; {link_url} didn't answer as its door, or isn't named"
    yield f"  slots      {settings.slots}"
    yield f"  disk       at most {_size(settings.max_disk_bytes)}, in {identity.directory}"
    yield f"  bandwidth  no cap; a page takes at most {_size(settings.max_body_bytes)}"
    if settings.p2p and swarm.peer is not None:
        where = ", ".join(settings.listen) if settings.listen else "a free port"
        others = f" and to {', '.join(settings.serve_to)}" if settings.serve_to else ""
        yield f"  inbound    peers may connect to {where}; results are served to the swarm's own{others}"
    else:
        yield "  inbound    none; everything goes through the door"
    yield f"  private    tasks may {'' if settings.allow_private else 'not '}reach private addresses"
    yield f"  payout     {settings.payout or identity.address}"
    yield f"  stop       Ctrl-C finishes what runs ({settings.grace_s:g} s), once more gives it back now"


def _size(size_bytes: int) -> str:
    value = float(size_bytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:g} TB"


async def tell_idle(turns: Turns, connected: Callable[[], bool], *, clock: Callable[[], float]) -> None:
    """A line a minute while nothing runs, with the reason; runs until it is cancelled."""
    while True:
        await trio.sleep(IDLE_EVERY_S)
        if not turns.working:
            log.info("idle", reason=why_idle(turns, connected=connected(), now=clock()))


def why_idle(turns: Turns, *, connected: bool, now: float) -> str:
    """Why nothing runs, as a clause."""
    if not connected:
        return "the door doesn't answer"
    held = turns.holding(now)
    if held is not None:
        return held
    return "there is no task for this worker"
