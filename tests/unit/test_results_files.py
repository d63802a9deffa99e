"""``swarm results -o FILE``: what becomes of the file, and of what was in its place, at every end."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import httpx
import pytest

from swarm.cli.base import run
from swarm.cli.results import rows_of, write_rows
from swarm.cli.swarm import cli
from swarm.client import Client
from swarm.errors import DoorUnreachable
from tests.fake_door import KEY, FakeDoor
from tests.patience import PATIENCE_S

#: A program heeds signals as one started by hand does, also where the tests run in the background.
HEEDING = "import signal as s; s.signal(s.SIGINT, s.default_int_handler); s.signal(s.SIGHUP, s.SIG_DFL)"
PROGRAM = (sys.executable, "-c", f"{HEEDING}; from swarm.cli.swarm import main; main()")
#: More than are fetched ahead of the one that is written next.
MANY = 190


@attrs.frozen(kw_only=True)
class Said:
    code: int
    err: str


Swarm = Callable[..., Said]


@pytest.fixture
def door() -> FakeDoor:
    return FakeDoor()


@pytest.fixture
def swarm(
    door: FakeDoor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Swarm]:
    """The command line in an empty directory, with a door that answers."""
    there = tmp_path / "there"
    there.mkdir()
    monkeypatch.chdir(there)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def call(*arguments: str) -> Said:
        code = run(cli, arguments, program="swarm")
        return Said(code=code, err=capsys.readouterr().err)

    with door.served() as url:
        monkeypatch.setenv("SWARM_URL", url)
        monkeypatch.setenv("SWARM_KEY", KEY)
        yield call


@pytest.fixture
def there(swarm: Swarm, tmp_path: Path) -> Path:
    """Where the files are."""
    return tmp_path / "there"


def finish(swarm: Swarm, door: FakeDoor, count: int = 1, *, title: str = "new") -> None:
    swarm("submit", *(f"http://site/{number}" for number in range(count)), "--extract", "title=h1::text")
    for task in door.tasks:
        door.finish(task, {"title": title})


def titles(written: str) -> list[str]:
    return [json.loads(line)["title"] for line in written.splitlines()]


# ── what is there already ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_pipe_is_written_to(swarm: Swarm, door: FakeDoor, there: Path) -> None:
    finish(swarm, door)
    os.mkfifo(there / "pipe")
    reader = os.open(there / "pipe", os.O_RDONLY | os.O_NONBLOCK)

    said = swarm("results", "-o", "pipe")

    with open(reader) as file:
        assert titles(file.read()) == ["new"]
    assert said.code == 0
    assert stat.S_ISFIFO(os.stat("pipe").st_mode)
    assert os.listdir() == ["pipe"]


def test_a_device_stays_one(swarm: Swarm, door: FakeDoor, there: Path) -> None:
    """A terminal of one's own: to make a null device takes a superuser, and the real one is no place to try."""
    finish(swarm, door)
    controller, terminal = os.openpty()
    try:
        name = os.ttyname(terminal)
        (there / "device").symlink_to(name)

        said = swarm("results", "-o", "device")

        assert said.code == 0
        assert select.select([controller], [], [], PATIENCE_S)[0]
        assert titles(os.read(controller, 65_536).decode()) == ["new"]
        assert stat.S_ISCHR(os.stat(name).st_mode)
        assert os.listdir() == ["device"]
    finally:
        os.close(terminal)
        os.close(controller)


def test_a_symlink_stays_one_and_its_target_has_the_rows(swarm: Swarm, door: FakeDoor, there: Path) -> None:
    finish(swarm, door)
    (there / "elsewhere").mkdir()
    (there / "elsewhere" / "rows").write_text("old\n")
    (there / "link").symlink_to("elsewhere/rows")

    assert swarm("results", "-o", "link").code == 0

    assert os.readlink("link") == "elsewhere/rows"
    assert titles((there / "elsewhere" / "rows").read_text()) == ["new"]
    assert os.listdir("elsewhere") == ["rows"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_a_file_keeps_its_mode(swarm: Swarm, door: FakeDoor, there: Path, mode: int) -> None:
    finish(swarm, door)
    (there / "rows").write_text("old\n")
    (there / "rows").chmod(mode)

    assert swarm("results", "-o", "rows").code == 0

    assert titles((there / "rows").read_text()) == ["new"]
    assert stat.S_IMODE(os.stat("rows").st_mode) == mode


def test_a_new_file_has_the_mode_that_the_umask_leaves(swarm: Swarm, door: FakeDoor, there: Path) -> None:
    finish(swarm, door)
    umask = os.umask(0o027)
    try:
        swarm("results", "-o", "rows")
    finally:
        os.umask(umask)

    assert stat.S_IMODE(os.stat("rows").st_mode) == 0o640


def test_files_of_ones_own_that_end_in_part_are_let_alone(swarm: Swarm, door: FakeDoor, there: Path) -> None:
    finish(swarm, door)
    (there / "a.part").write_text("mine")
    (there / "victim").write_text("mine")
    (there / "b.part").symlink_to("victim")
    os.mkfifo(there / "c.part")

    assert [swarm("results", "-o", name).code for name in "abc"] == [0, 0, 0]

    assert (there / "a.part").read_text() == (there / "victim").read_text() == "mine"
    assert sorted(os.listdir()) == ["a", "a.part", "b", "b.part", "c", "c.part", "victim"]


def test_two_that_write_one_file_do_not_mix(swarm: Swarm, door: FakeDoor, there: Path) -> None:
    finish(swarm, door, MANY)
    commands = [subprocess.Popen([*PROGRAM, "results", "-o", "rows"], stderr=subprocess.PIPE) for _ in range(2)]

    for command in commands:
        _, err = command.communicate(timeout=PATIENCE_S)
        assert command.returncode == 0, err

    assert titles((there / "rows").read_text()) == ["new"] * MANY
    assert os.listdir() == ["rows"]


# ── what can't be written ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("", "has no name"),
        ("directory", "Is a directory"),
        (".", "Is a directory"),
        ("new/", "Is a directory"),
        ("nowhere/rows", "No such file or directory"),
        ("loop", "Too many levels of symbolic links"),
        ("protected", "is write-protected"),
        ("protected/rows", "Not a directory"),
        ("n" * 256, "File name too long"),
    ],
)
def test_what_can_not_be_written_is_refused_before_anybody_waits(
    swarm: Swarm, door: FakeDoor, there: Path, output: str, why: str
) -> None:
    swarm("submit", "http://site/1")
    (there / "directory").mkdir()
    (there / "loop").symlink_to("loop")
    (there / "protected").write_text("mine")
    (there / "protected").chmod(0o444)
    door.requests.clear()
    door.on_look = lambda job: door.fail(next(iter(door.tasks)), "dns")  # who waits nevertheless doesn't for ever

    said = swarm("results", "-o", output)

    assert said.code == 2
    assert said.err.startswith(f"error: {output}")
    assert why in said.err.splitlines()[0]
    assert door.requests == []
    assert (there / "protected").read_text() == "mine"
    assert sorted(os.listdir()) == ["directory", "loop", "protected"]


@pytest.mark.parametrize("shape", ["jsonl", "csv"])
def test_a_full_disk_is_told_in_a_line_and_leaves_what_was_there(
    swarm: Swarm, door: FakeDoor, there: Path, shape: str
) -> None:
    finish(swarm, door, title="x" * 100_000)
    (there / "rows").write_text("old\n")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, limit[1]))
    try:
        said = swarm("results", "-o", "rows", "-f", shape)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)

    assert said.code == 1
    assert said.err.splitlines()[0] == "error: rows can't be written: File too large"
    assert (there / "rows").read_text() == "old\n"
    assert os.listdir() == ["rows"]


def test_a_body_that_the_disk_has_no_room_for_is_told_and_leaves_nothing(
    swarm: Swarm, door: FakeDoor, there: Path
) -> None:
    swarm("submit", "http://site/1")
    door.finish(next(iter(door.tasks)), body=b"x" * 100_000)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, limit[1]))
    try:
        said = swarm("results", "-o", "rows", "--bodies", "pages")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)

    assert said.code == 1
    assert said.err.startswith("error: pages/")
    assert "File too large" in said.err
    assert os.listdir() == ["pages"]
    assert os.listdir("pages") == []


# ── an early end ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=str
)
def test_who_is_told_to_end_ends_though_the_door_is_silent_and_leaves_nothing(
    swarm: Swarm, door: FakeDoor, there: Path, number: signal.Signals, code: int
) -> None:
    finish(swarm, door, MANY)
    (there / "rows").write_text("old\n")
    asked, silent, over = [0], threading.Event(), threading.Event()
    lock = threading.Lock()

    def fall_silent(_: str) -> None:
        with lock:
            asked[0] += 1
            late = asked[0] > MANY
        if late:
            silent.set()
            over.wait()

    door.on_content = fall_silent
    command = subprocess.Popen([*PROGRAM, "results", "-o", "rows"], stderr=subprocess.PIPE, text=True)
    try:
        assert silent.wait(PATIENCE_S)
        command.send_signal(number)
        _, err = command.communicate(timeout=PATIENCE_S)
    finally:
        command.kill()
        over.set()
        command.wait()

    assert command.returncode == code
    assert "Traceback" not in err
    assert (there / "rows").read_text() == "old\n"
    assert os.listdir() == ["rows"]


def test_a_lost_door_leaves_what_was_there(swarm: Swarm, door: FakeDoor, there: Path) -> None:
    finish(swarm, door, MANY)
    (there / "rows").write_text("old\n")

    def lose(_: str) -> None:
        if sum(path.startswith("/v1/content/") for _, path in door.requests) > MANY:
            raise httpx.ConnectError("refused")

    door.on_content = lose
    with Client("http://door", KEY, transport=door.transport(), patience_s=0.0) as client:
        rows = (row for result in client.results(next(iter(door.jobs))) for row in rows_of(result))
        with pytest.raises(DoorUnreachable):  # which is exit code 3
            write_rows(rows, "jsonl", "rows")

    assert (there / "rows").read_text() == "old\n"
    assert os.listdir() == ["rows"]
