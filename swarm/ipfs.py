"""Put and get blocks at an IPFS address, over the Kubo RPC; every byte is checked against its CID.

The address is the door's own guarded subset or a Kubo; both are spoken to through ``ipfshttpclient``. Synchronous, for
a thread. ``ipfshttpclient.connect()`` isn't used, since it refuses every Kubo of the last years; nor are ``add`` and
``cat``: Kubo's ``cat`` cuts a content short without saying so when a block is missing (facts/ipfs.md, 2).
"""

from __future__ import annotations

import io
import ipaddress
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

from swarm.content.cid import Codec, parse_cid, verify_block
from swarm.content.walk import FileWalk
from swarm.errors import BlockNotFound, ConfigurationError, ContentMismatch, IpfsUnreachable
from swarm.model import Cid
from swarm.reasons import reason_of

__all__ = ["CODEC_NAMES", "NOT_FOUND", "IpfsUploader", "rpc_url"]

#: What the RPC calls a block's codec.
CODEC_NAMES: Final = {Codec.RAW: "raw", Codec.DAG_PB: "dag-pb"}
#: How Kubo says that it doesn't have a block (there is no code of its own).
NOT_FOUND: Final = "could not find"
#: A block is sent in pieces of this size; the default of 4 KiB costs a third of the speed (facts/ipfs.md).
CHUNK_BYTES: Final = 256 * 1024


class IpfsUploader:
    """One IPFS address. Used by one thread at a time.

    *Resource handling*: holds a connection; ``close`` it, or use it as a context manager.

    Args:
        multiaddr: where the RPC is, such as ``/dns4/root.example/tcp/443/https``.
        api_key: sent as a bearer token; None where none is asked for.
        timeout_s: the longest silence of the other side.

    Raises:
        ConfigurationError: the multiaddr isn't one of an RPC.
    """

    def __init__(self, multiaddr: str, *, api_key: str | None, timeout_s: float = 30.0) -> None:
        import ipfshttpclient

        self.address = multiaddr
        self._timeout_s = timeout_s
        rpc_url(multiaddr)
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._client = ipfshttpclient.Client(
            multiaddr, session=True, headers=headers, timeout=timeout_s, chunk_size=CHUNK_BYTES
        )
        for adapter in self._client._client._session.adapters.values():
            # ipfshttpclient 0.7.0 passes on what urllib3 2 warns of and urllib3 3 refuses.
            adapter.poolmanager.connection_pool_kw.pop("strict", None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def put_blocks(self, blocks: Iterable[tuple[Cid, bytes]]) -> None:
        """Put blocks, one after another.

        Raises:
            IpfsUnreachable: the address doesn't answer or refuses; those before are put, and may be put again.
            ContentMismatch: it says that it stored something else.
        """
        for cid, data in blocks:
            options = {"cid-codec": CODEC_NAMES[parse_cid(cid).codec], "mhtype": "sha2-256", "pin": "false"}
            with self._faults(cid):
                stored = self._client.block.put(io.BytesIO(data), opts=options)["Key"]
            if stored != cid:
                raise ContentMismatch(cid, f"{self.address} stored {str(stored)[:100]} where {cid} was put")

    def get_block(self, cid: Cid) -> bytes:
        """Get one block.

        Raises:
            BlockNotFound: the address doesn't have it, and didn't find it in time.
            IpfsUnreachable: the address doesn't answer or refuses.
            ContentMismatch: it gave other bytes.
        """
        parse_cid(cid)
        with self._faults(cid):
            block: bytes = self._client.block.get(cid, opts={"timeout": f"{self._timeout_s:g}s"})
        verify_block(cid, block)
        return block

    def get(self, cid: Cid, max_bytes: int) -> bytes:
        """Get a content by its root.

        Raises:
            BlockNotFound: a block of it isn't there.
            IpfsUnreachable: the address doesn't answer or refuses.
            ContentMismatch: it gave other bytes.
            MalformedInput: it is longer than ``max_bytes``, or isn't a file.
        """
        walk = FileWalk(cid, max_bytes=max_bytes)
        parts = []
        while (wanted := walk.wanted) is not None:
            parts.append(walk.feed(self.get_block(wanted)))
        return b"".join(parts)

    @contextmanager
    def _faults(self, cid: Cid) -> Iterator[None]:
        """Turn whatever goes wrong on the way into one of our faults."""
        import ipfshttpclient.exceptions
        import requests

        try:
            yield
        except ipfshttpclient.exceptions.TimeoutError as fault:
            raise IpfsUnreachable(self.address, f"no answer within {self._timeout_s:g} s") from fault
        except ipfshttpclient.exceptions.ErrorResponse as fault:
            if NOT_FOUND in str(fault):
                raise BlockNotFound(self.address, cid) from fault
            raise IpfsUnreachable(self.address, str(fault)) from fault
        except (ipfshttpclient.exceptions.Error, requests.RequestException) as fault:
            raise IpfsUnreachable(self.address, reason_of(fault)) from fault
        except (KeyError, TypeError, AssertionError) as fault:  # its ways to find an answer of another shape
            raise IpfsUnreachable(self.address, "it answers, but not as an IPFS RPC does") from fault


def rpc_url(multiaddr: str) -> str:
    """The URL of a Kubo RPC that a multiaddr names.

    Raises:
        ConfigurationError: it isn't of the form ``/ip4|ip6|dns|dns4|dns6/HOST/tcp/PORT[/http|/https]``.
    """
    parts = multiaddr.split("/")
    try:
        _, kind, host, transport, port, *scheme = parts
        if parts[0] or transport != "tcp" or scheme not in ([], ["http"], ["https"]) or not 0 < int(port) < 65536:
            raise ValueError
        if kind == "ip4":
            host = str(ipaddress.IPv4Address(host))
        elif kind == "ip6":
            host = f"[{ipaddress.IPv6Address(host)}]"
        elif kind not in ("dns", "dns4", "dns6") or not host.replace("-", "").replace(".", "").isalnum():
            raise ValueError
    except ValueError as fault:
        raise ConfigurationError(
            f"{multiaddr!r} isn't the multiaddr of an IPFS RPC",
            hint="write /ip4/127.0.0.1/tcp/5001, or /dns4/HOST/tcp/443/https",
        ) from fault
    return f"{scheme[0] if scheme else 'http'}://{host}:{int(port)}"
