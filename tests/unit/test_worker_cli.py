"""The command line of a worker: what it takes, what it says, how it ends."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from swarm.cli.worker import main
from swarm.errors import DirectoryLocked, DoorRefused, DoorUnreachable, UntrustedSettings
from swarm.identity import lock_directory
from swarm.settings import declared
from swarm.worker.settings import WorkerSettings

#: DESIGN asks for an instant ``--help``.
HELP_CPU_S = 0.3


def test_help_is_quick_and_imports_nothing_slow() -> None:
    program = (
        "import sys\nfrom swarm.cli.worker import main\nmain(['--help'])\n"
        "slow = ('trio', 'libp2p', 'httpx', 'eth_account', 'structlog')\n"
        "print('SLOW', [name for name in slow if name in sys.modules])"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)

    assert "SLOW []" in ended.stdout
    assert after.ru_utime - before.ru_utime < HELP_CPU_S


def test_help_shows_every_setting_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out

    for one in declared(WorkerSettings):
        assert (f"--{one.option}" in shown) is not one.hidden
        assert (one.variable in shown) is not one.hidden
    assert "swarm-worker 'https://root.example/join#INVITE.KEYID'" in shown
    assert "another process uses the data directory" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "error: missing argument 'LINK'"),
        (["http://127.0.0.1:9", "--slot", "3"], "Did you mean '--slots'?"),
        (["http://127.0.0.1:9", "--slots", "0"], "a whole number from 1 to 256"),
        (["http://127.0.0.1:9", "--p2p", "maybe"], "on or off"),
        (["http://127.0.0.1:9", "--payout", "0x123"], "isn't an Ethereum address"),
        (["http://127.0.0.1:9", "--psk", "/nonexist"], "can't use the pre-shared key in /nonexist"),
        (["http://127.0.0.1:9", "--listen", "foo"], "can't listen on foo"),
        (["http://127.0.0.1:9", "--listen", "/ip4/192.0.2.1/tcp/4001"], "can't listen on 192.0.2.1"),
        (["http://127.0.0.1:9", "--serve-to", "bob"], "--serve-to: bob isn't a peer id"),
        (["http://127.0.0.1:9", "--contact", "me;you"], "can't stand in a User-Agent"),
        (["http://127.0.0.1:9", "--rpc", "localhost:8545"], "--rpc isn't the URL of a node"),
        (["root.example"], "a join link begins with https://"),
        (["https://root.example/join#se same.x"], "the invite in the join link is damaged"),
    ],
)
def test_a_wrong_command_line_says_what_is_taken(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], said: str
) -> None:
    assert main([*arguments, *(["--data", str(tmp_path / "data")] if arguments else [])]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "data").exists(), "no door was asked: there are no keys to say who we are"


def test_an_unknown_variable_names_the_nearest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWARM_SLOST", "3")
    assert main(["http://127.0.0.1:9"]) == 2
    assert "did you mean SWARM_SLOTS?" in capsys.readouterr().err


def test_a_locked_directory_ends_with_6(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with lock_directory(tmp_path / "data"):
        assert main(["http://127.0.0.1:9", "--data", str(tmp_path / "data")]) == 6
    shown = capsys.readouterr().err
    assert str(os.getpid()) in shown
    assert "--data" in shown


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (DoorUnreachable("http://root", "refused"), 3),
        (DoorRefused("version_unsupported", "no"), 4),
        (DoorRefused("key_revoked", "no"), 5),
        (DoorRefused("invite_invalid", "no"), 2),
        (DoorRefused("a_code_of_a_later_version", "no"), 2),
        (DirectoryLocked("used"), 6),
        (UntrustedSettings("another key"), 2),
    ],
)
def test_each_end_has_its_code(fault: Exception, code: int) -> None:
    from swarm.cli.worker import exit_code

    assert exit_code(fault) == code  # type: ignore[arg-type]
