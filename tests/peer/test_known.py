"""The peers we met are found again after a restart."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from swarm.peer.known import MAX_ADDRESSES, MAX_KNOWN, KnownPeers

BOB = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"
ADDRESS = "/ip4/127.0.0.1/tcp/4001"


def name(n: int) -> str:
    return f"12D3KooW{n:044d}"


def test_who_was_noted_is_known_after_a_restart(tmp_path: Path) -> None:
    known = KnownPeers(tmp_path / "deep" / "peers.json")
    known.note(BOB, (ADDRESS,), vouched=True)
    known.save()

    (peer,) = KnownPeers(tmp_path / "deep" / "peers.json")
    assert (peer.id, peer.addrs, peer.vouched) == (BOB, (ADDRESS,), True)


def test_the_peer_met_last_comes_first_and_the_oldest_is_forgotten(tmp_path: Path) -> None:
    known = KnownPeers(tmp_path / "peers.json")
    for n in range(MAX_KNOWN + 1):
        known.note(name(n), (ADDRESS,), vouched=False)
    known.save()

    again = [peer.id for peer in KnownPeers(tmp_path / "peers.json")]
    assert len(again) == MAX_KNOWN
    assert again[0] == name(MAX_KNOWN)
    assert name(0) not in again


def test_a_peer_of_many_addresses_is_read_back(tmp_path: Path) -> None:
    known = KnownPeers(tmp_path / "peers.json")
    known.note(BOB, (ADDRESS,) * (MAX_ADDRESSES + 5), vouched=False)
    known.save()

    (peer,) = KnownPeers(tmp_path / "peers.json")
    assert len(peer.addrs) == MAX_ADDRESSES


@pytest.mark.parametrize("content", [b"", b"\xff", b"{}", b'[{"id":1}]', b"[" * 100_000, b" " * 2_000_000])
def test_a_file_that_doesnt_parse_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "peers.json"
    path.write_bytes(content)

    assert list(KnownPeers(path)) == []


def test_a_crash_while_saving_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "peers.json"
    known = KnownPeers(path)
    known.note(BOB, (ADDRESS,), vouched=False)
    known.save()

    def crash(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", crash)
    known.note(name(1), (ADDRESS,), vouched=False)
    known.save()

    assert [peer["id"] for peer in json.loads(path.read_bytes())] == [BOB]
    monkeypatch.undo()
    known.save()
    assert len(json.loads(path.read_bytes())) == 2


def test_without_a_file_nothing_is_written() -> None:
    known = KnownPeers(None)
    known.note(BOB, (ADDRESS,), vouched=False)
    known.save()

    assert [peer.id for peer in known] == [BOB]
