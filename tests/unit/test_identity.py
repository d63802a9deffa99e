"""Two keys on disk: private, kept, locked, never half-written."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from swarm import identity as identity_module
from swarm.errors import ConfigurationError, DirectoryLocked
from swarm.identity import open_identity, write_private
from swarm.signing import is_address, peer_id_from_seed


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_first_use_makes_keys_and_a_second_one_finds_them(tmp_path: Path) -> None:
    with open_identity(tmp_path / "alice") as first:
        pass
    with open_identity(tmp_path / "alice") as second:
        pass

    assert first == second
    assert is_address(first.address)
    assert first.peer_id == peer_id_from_seed(first.peer_seed)


def test_two_directories_are_two_members(tmp_path: Path) -> None:
    with open_identity(tmp_path / "alice") as alice, open_identity(tmp_path / "bob") as bob:
        assert len({alice.address, alice.peer_id, alice.instance, bob.address, bob.peer_id, bob.instance}) == 6


def test_the_address_is_that_of_the_key(tmp_path: Path) -> None:
    from eth_account import Account

    with open_identity(tmp_path / "alice") as alice:
        assert Account.from_key(alice.eth_key).address == alice.address


def test_files_are_private_and_so_is_the_directory(tmp_path: Path) -> None:
    (tmp_path / "alice").mkdir(mode=0o755)
    with open_identity(tmp_path / "alice") as alice:
        assert mode(alice.directory) == 0o700
        assert {mode(path) for path in alice.directory.iterdir()} == {0o600}


def test_secrets_do_not_show(tmp_path: Path) -> None:
    with open_identity(tmp_path / "alice") as alice:
        shown = repr(alice)

    assert alice.eth_key.hex() not in shown
    assert repr(alice.eth_key) not in shown
    assert repr(alice.peer_seed) not in shown


def test_a_directory_in_use_is_refused_and_names_the_holder(tmp_path: Path) -> None:
    with (
        open_identity(tmp_path / "alice"),
        pytest.raises(DirectoryLocked, match=str(os.getpid())),
        open_identity(tmp_path / "alice"),
    ):
        pass


def test_a_killed_process_leaves_no_lock_behind(tmp_path: Path) -> None:
    program = (
        "import os, sys, pathlib; from swarm.identity import lock_directory\n"
        "with lock_directory(pathlib.Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path / "alice")], check=False)
    assert ended.returncode == -9

    with open_identity(tmp_path / "alice") as alice:
        assert alice.address


def test_a_directory_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("…")
    before = mode(tmp_path)

    with pytest.raises(ConfigurationError, match="other files"), open_identity(tmp_path):
        pass

    assert mode(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    with open_identity(tmp_path / "alice"):
        pass
    (tmp_path / "alice" / "eth.key").chmod(0o644)

    with pytest.raises(ConfigurationError, match="readable by others"), open_identity(tmp_path / "alice"):
        pass


@pytest.mark.parametrize("name", ["eth.key", "peer.key", "instance"])
@pytest.mark.parametrize("body", [b"", b"{}", b"00", b"\xff\xfe"])
def test_a_damaged_file_is_named_and_never_replaced(tmp_path: Path, name: str, body: bytes) -> None:
    with open_identity(tmp_path / "alice"):
        pass
    (tmp_path / "alice" / name).write_bytes(body)

    with pytest.raises(ConfigurationError, match=name), open_identity(tmp_path / "alice"):
        pass

    assert (tmp_path / "alice" / name).read_bytes() == body


def test_a_write_that_fails_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_private(path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(identity_module.os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            write_private(path, b"new")

    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
