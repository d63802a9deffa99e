"""A closed network: only who has the key takes part."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from swarm.errors import ConfigurationError
from swarm.peer.node import open_peer
from swarm.peer.psk import hsalsa20, read_swarm_key, xsalsa20
from tests.patience import PATIENCE_S
from tests.peer.harness import announcement, config, eventually, seed_of

KEY = seed_of("a pre-shared key")


def test_the_key_derivation_is_that_of_nacl() -> None:
    # Bernstein, "Cryptography in NaCl", §8: firstkey, nonceprefix and secondkey.
    first = bytes.fromhex("1b27556473e985d462cd51197a9a46c76009549eac6474f206c4ee0844f68389")
    nonce = bytes.fromhex("69696ee955b62b73cd62bda875fc73d6")

    assert hsalsa20(first, nonce).hex() == "dc908dda0b9344a953629b733820778880f3ceb421bb61b91cbd4c3e66256ce4"


def test_the_cipher_is_xsalsa20() -> None:
    # The same paper, §9: the stream of firstkey and the 24-byte nonce begins so.
    first = bytes.fromhex("1b27556473e985d462cd51197a9a46c76009549eac6474f206c4ee0844f68389")
    nonce = bytes.fromhex("69696ee955b62b73cd62bda875fc73d68219e0036b7a0b37")

    assert xsalsa20(first, nonce).encrypt(bytes(32)).hex() == (
        "eea6a7251c1e72916d11c2cb214d3c252539121d8e234e652d651fa4c8cff880"
    )


async def test_peers_with_the_same_key_hear_each_other() -> None:
    async with open_peer(config("root", psk=KEY)) as root:
        changes = {"roots": frozenset({root.id}), "bootstrap": root.addrs, "psk": KEY}
        async with open_peer(config("alice", **changes)) as alice:
            await eventually(lambda: root.mesh_size and alice.mesh_size)
            await root.publish(announcement(root.id, seq=3))
            with trio.fail_after(PATIENCE_S):
                assert (await alice.heard.receive()).seq == 3


@pytest.mark.parametrize("theirs", [None, seed_of("another key")], ids=["no key", "another key"])
async def test_who_lacks_the_key_gets_no_connection(theirs: bytes | None) -> None:
    async with open_peer(config("root", psk=KEY)) as root, open_peer(config("mallory", psk=theirs)) as mallory:
        with trio.fail_after(PATIENCE_S):
            assert not await mallory.dial(root.addrs[0])
        assert not root.peers()


def test_kubos_key_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "swarm.key"
    path.write_text(f"/key/swarm/psk/1.0.0/\n/base16/\n{KEY.hex()}\n")

    assert read_swarm_key(path) == KEY


@pytest.mark.parametrize(
    "text",
    ["", "/key/swarm/psk/1.0.0/\n/base16/\nabc\n", "/key/swarm/psk/2.0.0/\n/base16/\n" + "a" * 64],
    ids=["empty", "short", "of another version"],
)
def test_another_key_file_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "swarm.key"
    path.write_text(text)

    with pytest.raises(ConfigurationError, match=r"can't use the pre-shared key in .*swarm\.key"):
        read_swarm_key(path)
    with pytest.raises(ConfigurationError):
        read_swarm_key(tmp_path / "missing")
