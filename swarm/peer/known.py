"""The peers we met, kept on disk, so that a rejoin works with the door down.

One JSON file, replaced atomically: a crash leaves the old one. What is in it is read as hints; a file that doesn't
parse is as good as none.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
import structlog
from msgspec import Meta

from swarm.errors import MalformedInput
from swarm.wire import MultiaddrText, PeerIdText, decode

__all__ = ["KnownPeer", "KnownPeers"]

log = structlog.get_logger(__name__)

#: Enough to find the swarm again, and a file of some 100 KiB at most. The one met longest ago is forgotten first.
MAX_KNOWN: Final = 256
MAX_ADDRESSES: Final = 8
MAX_FILE_BYTES: Final = 1024 * 1024


class KnownPeer(msgspec.Struct, frozen=True):
    """A peer that we were connected with. ``vouched``: mDNS or a root named these addresses."""

    id: PeerIdText
    addrs: Annotated[tuple[MultiaddrText, ...], Meta(max_length=MAX_ADDRESSES)]
    vouched: bool = False


class KnownPeers:
    """The file and what it holds; iterating begins with the peer met last.

    Args:
        path: where it is kept; None keeps nothing on disk.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._peers: OrderedDict[str, KnownPeer] = OrderedDict()
        self._saved: tuple[KnownPeer, ...] = ()
        if path is not None:
            self._load(path)

    def _load(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
            peers = decode(content, tuple[KnownPeer, ...], max_bytes=MAX_FILE_BYTES)
        except FileNotFoundError:
            return
        except (OSError, MalformedInput) as fault:
            log.warning("known_peers_ignored", path=str(path), reason=str(fault))
            return
        for peer in peers[-MAX_KNOWN:]:
            self._peers[peer.id] = peer
        self._saved = tuple(self._peers.values())

    def __iter__(self) -> Iterator[KnownPeer]:
        return iter(tuple(reversed(self._peers.values())))

    def note(self, peer_id: str, addresses: tuple[str, ...], *, vouched: bool) -> None:
        """Remember a peer that we are connected with."""
        if not addresses:
            return
        self._peers[peer_id] = KnownPeer(id=peer_id, addrs=addresses[:MAX_ADDRESSES], vouched=vouched)
        self._peers.move_to_end(peer_id)
        if len(self._peers) > MAX_KNOWN:
            self._peers.popitem(last=False)

    def save(self) -> None:
        """Write the file where something changed. Blocks; a disk that can't be written is logged, not raised."""
        peers = tuple(self._peers.values())
        if self._path is None or peers == self._saved:
            return
        temporary = self._path.with_name(f".{self._path.name}.new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(msgspec.json.encode(peers))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
        except OSError as fault:
            log.warning("known_peers_not_saved", path=str(self._path), reason=str(fault))
        else:
            self._saved = peers
