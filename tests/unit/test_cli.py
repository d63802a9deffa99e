"""The command line as a person and a script meet it: help, errors, exit codes, output."""

from __future__ import annotations

import csv
import json
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from swarm.certificates import plain_hint
from swarm.cli.base import run
from swarm.cli.profile import Profile
from swarm.cli.swarm import COMMANDS, cli
from tests.fake_door import KEY, FakeDoor

#: What a person notices as slow, CPU seconds; the guard leaves room for a machine five times slower than that.
HELP_CPU_S = 0.3
SLOW_MACHINE = 5


@attrs.frozen(kw_only=True)
class Said:
    code: int
    out: str
    err: str


Swarm = Callable[..., Said]


@pytest.fixture
def door() -> FakeDoor:
    return FakeDoor()


@pytest.fixture
def url(door: FakeDoor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The address of a door that answers, in the environment with alice's key; files go to the test's directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with door.served() as served:
        monkeypatch.setenv("SWARM_URL", served)
        monkeypatch.setenv("SWARM_KEY", KEY)
        yield served


@pytest.fixture
def swarm(url: str, capsys: pytest.CaptureFixture[str]) -> Swarm:
    def call(*arguments: str) -> Said:
        code = run(cli, arguments, program="swarm")
        said = capsys.readouterr()
        return Said(code=code, out=said.out, err=said.err)

    return call


# ── help ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_a_command_the_help_is_shown_and_no_error(swarm: Swarm) -> None:
    said = swarm()

    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("Usage: swarm ")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(swarm: Swarm, command: str) -> None:
    said = swarm(command, "--help")

    assert said.code == 0
    assert "Examples:" in said.out
    assert f"swarm {command}" in said.out.split("Examples:")[1]


def test_help_is_quick() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    program = "import sys; from swarm.cli.swarm import main; sys.argv = ['swarm', 'submit', '--help']; main()"
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)

    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"swarm submit --help took {cpu_s:.2f} s of CPU; {HELP_CPU_S} s is the aim")
    assert cpu_s < SLOW_MACHINE * HELP_CPU_S


def test_help_imports_nothing_slow() -> None:
    program = (
        "import sys; from swarm.cli.base import run; from swarm.cli.swarm import cli, COMMANDS\n"
        "for command in COMMANDS: run(cli, [command, '--help'], program='swarm')\n"
        "sys.exit(str({'httpx', 'rich', 'libp2p', 'trio', 'eth_account', 'parsel'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)

    assert ran.stderr.strip() == "set()"


def test_an_unknown_command_names_the_nearest(swarm: Swarm) -> None:
    said = swarm("sumbit", "urls.txt")

    assert said.code == 2
    assert "sumbit" in said.err
    assert "submit" in said.err


def test_an_unknown_option_names_the_nearest(swarm: Swarm) -> None:
    said = swarm("submit", "urls.txt", "--extrct", "a=b")

    assert said.code == 2
    assert "--extract" in said.err
    assert "swarm submit --help" in said.err


# ── login ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_login_keeps_door_and_key_for_its_owner_alone(
    swarm: Swarm, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    monkeypatch.delenv("SWARM_URL")
    monkeypatch.delenv("SWARM_KEY")
    assert swarm("ls").code == 2

    said = swarm("login", url + "/", "--key-file", "key")

    profile = tmp_path / "config" / "swarm" / "profile.json"
    assert said.code == 0
    assert KEY not in said.out + said.err
    assert stat.S_IMODE(profile.stat().st_mode) == 0o600
    assert json.loads(profile.read_text()) == {"url": url, "key": KEY}
    assert swarm("ls").code == 0


def test_login_with_a_key_that_the_door_refuses_keeps_nothing(swarm: Swarm, url: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("stolen")

    said = swarm("login", url, "--key-file", "key")

    assert said.code == 5
    assert "ask the operator for a key" in said.err
    assert not (tmp_path / "config").exists()


def test_login_without_a_key_or_a_terminal_says_how_to_give_one(
    swarm: Swarm, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SWARM_KEY")

    said = swarm("login", url)

    assert said.code == 2
    assert "--key-file" in said.err


@pytest.fixture
def other() -> Iterator[tuple[FakeDoor, str]]:
    """Another door, and its address."""
    door = FakeDoor()
    with door.served() as served:
        yield door, served


def test_the_key_of_the_profile_goes_to_its_own_door_alone(
    swarm: Swarm, url: str, other: tuple[FakeDoor, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text(KEY)
    monkeypatch.delenv("SWARM_KEY")
    assert swarm("login", url, "--key-file", "key").code == 0
    stranger, elsewhere = other
    monkeypatch.setenv("SWARM_URL", elsewhere)

    said = swarm("ls")

    assert said.code == 2
    assert stranger.requests == []
    assert said.err.startswith(f"error: SWARM_KEY isn't set: the key in {tmp_path}")
    assert f"is for {url}, not for {elsewhere}" in said.err
    monkeypatch.setenv("SWARM_URL", url.upper().replace("HTTP", "Http") + "/")  # another spelling of its own
    assert swarm("ls").code == 0


def test_the_key_of_the_environment_does_not_go_to_the_door_of_the_profile(
    swarm: Swarm, url: str, door: FakeDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text(KEY)
    assert swarm("login", url, "--key-file", "key").code == 0
    monkeypatch.delenv("SWARM_URL")
    assert swarm("ls").code == 0  # it is the profile's key, said twice
    door.requests.clear()
    monkeypatch.setenv("SWARM_KEY", "another-doors")

    said = swarm("ls")

    assert said.code == 2
    assert door.requests == []
    assert said.err.startswith("error: SWARM_KEY is set without SWARM_URL, and isn't the key in")
    assert f"for {url}; nothing was sent" in said.err


def test_login_gives_the_key_of_the_environment_to_no_other_door_than_the_environments(
    swarm: Swarm, url: str, other: tuple[FakeDoor, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger, elsewhere = other

    said = swarm("login", elsewhere)

    assert said.code == 2
    assert stranger.requests == []
    assert f"SWARM_KEY is for SWARM_URL, {url}, not for {elsewhere}" in said.err
    assert swarm("login", url).code == 0
    monkeypatch.delenv("SWARM_URL")
    assert swarm("login", elsewhere).code == 0


def test_a_join_link_is_told_from_a_door(swarm: Swarm, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY)

    said = swarm("login", "https://root.example/join#INVITE.KEY", "--key-file", "key")

    assert said.code == 2
    assert "swarm-worker" in said.err


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("127.0.0.1:8765", "http://127.0.0.1:8765"),
        ("localhost:8765", "http://localhost:8765"),
        ("ftp://[::1]:8765", "http://[::1]:8765"),
        ("root.example", "https://root.example"),
        ("10.0.0.1:8765/door", "https://10.0.0.1:8765/door"),
    ],
)
def test_a_door_without_a_scheme_is_guessed(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch, given: str, meant: str
) -> None:
    monkeypatch.setenv("SWARM_URL", given)

    said = swarm("ls")

    assert said.code == 2
    assert said.err.splitlines()[1].strip() == f"did you mean {meant}?"


def test_a_door_that_speaks_plain_http_is_told_from_one_that_is_away(
    swarm: Swarm, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    https = url.replace("http://", "https://")
    monkeypatch.setenv("SWARM_URL", https)

    said = swarm("ls")

    assert said.code == 3
    assert said.err == f"error: {https}: it speaks plain HTTP, not HTTPS\n       try {url}\n"


def test_beyond_this_machine_plain_http_is_no_advice_without_a_warning() -> None:
    assert "isn't encrypted" in plain_hint("https://root.example:8765/x")


def test_the_key_is_in_no_repr() -> None:
    assert KEY not in repr(Profile(url="http://door", key=KEY))


def test_a_door_that_does_not_answer_is_exit_code_3(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWARM_URL", "http://127.0.0.1:1")

    said = swarm("status")

    assert said.code == 3
    assert said.err.startswith("error: http://127.0.0.1:1: ")
    assert "Traceback" not in said.err


# ── submit ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_submit_reads_files_and_urls_and_prints_the_jobs_id(swarm: Swarm, door: FakeDoor, tmp_path: Path) -> None:
    (tmp_path / "urls.txt").write_text("# mine\n\nhttp://site/1\n  HTTP://Site:80/2  \n")

    said = swarm(
        *("submit", "urls.txt", "http://site/3", "--extract", "title=h1::text", "--extract", "rows=//tr"),
        *("--each", "table", "--require", "title", "--priority", "9", "--label", "eu", "--meta", "run=7"),
    )

    assert said.code == 0
    assert said.out.strip() in door.jobs
    assert [task["urls"] for task in door.tasks.values()] == [["http://site/1"], ["http://site/2"], ["http://site/3"]]
    task = next(iter(door.tasks.values()))
    assert task["kind"] == "scrape"
    assert task["spec"] == {"extract": {"title": "h1::text", "rows": "//tr"}, "each": "table", "require": ["title"]}
    assert (task["priority"], task["requires"], task["meta"]) == (9, {"labels": ["eu"]}, {"run": "7"})
    assert next(iter(door.jobs.values()))["name"] == "urls.txt"


def test_submit_reads_stdin(swarm: Swarm, door: FakeDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").write_text("http://site/1\nhttp://site/2\n")
    with (tmp_path / "in").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        said = swarm("submit", "-", "--json")

    assert json.loads(said.out)["created"] == 2
    assert next(iter(door.tasks.values()))["kind"] == "fetch"


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["urls.txt"], "urls.txt:2: 'site/2' can't be fetched"),
        (["missing.txt"], "there is no file missing.txt"),
        (["empty.txt"], "empty.txt holds no URL"),
        (["ftp://site/1"], "argument: 'ftp://site/1' can't be fetched"),
        (["http://site/1", "--extract", "h1::text"], "--extract h1::text isn't NAME=VALUE"),
        (["http://site/1", "--extract", "a=b", "--extract", "a=c"], "--extract names a twice"),
        (["http://site/1", "--extract", "_url=a::attr(href)"], "--extract _url: names that begin with _ are"),
        (["http://site/1", "--extract", "title=h1[["], "--extract: "),
        (["http://site/1", "--extract", "title=h1::tex"], "--extract: "),
        (["http://site/1", "--each", "tr"], "--each needs --extract"),
        (["http://site/1", "--extract", "a=b", "--require", "c"], "--require c isn't one of the fields"),
        (["http://site/1", "--spec", "{"], "--spec isn't JSON"),
        (["http://site/1", "--spec", "[]"], "--spec is JSON, but no object"),
        (["http://site/1", "--kind", "scrape"], "the kind scrape: Object missing required field `extract`"),
        (
            ["http://site/1", "--kind", "scrape", "--spec", '{"extract": {"a": "h1[["}}'],
            "the kind scrape: selector 'a'",
        ),
        (["http://site/1", "--kind", "fetch", "--extract", "a=b"], "the kind fetch: Object contains unknown field"),
        (["http://site/1", "--spec", '{"extract": {"a": "h1"}}'], "the kind fetch: Object contains unknown field"),
        (
            ["http://site/1", "--kind", "noop", "--spec", '{"sleep_s": "x"}'],
            "the kind noop: Expected `float`, got `str`",
        ),
        (["http://site/1", "--priority", "10"], "invalid value for '--priority'"),
        ([], "missing argument"),
    ],
)
def test_submit_refuses_what_makes_no_sense_before_it_sends_anything(
    swarm: Swarm, door: FakeDoor, tmp_path: Path, arguments: list[str], what: str
) -> None:
    (tmp_path / "urls.txt").write_text("http://site/1\nsite/2\n")
    (tmp_path / "empty.txt").write_text("# nothing\n")

    said = swarm("submit", *arguments)

    assert said.code == 2
    assert said.err.startswith(f"error: {what}")
    assert len(said.err.splitlines()) <= 3
    assert door.requests == []


@pytest.mark.parametrize(("kind", "spec"), [("noop", '{"sleep": 1}'), ("fetch", '{"ok": [200]}')])
def test_what_a_newer_worker_may_know_of_a_spec_is_a_warning(
    swarm: Swarm, door: FakeDoor, kind: str, spec: str
) -> None:
    said = swarm("submit", "http://site/1", "--kind", kind, "--spec", spec)

    assert said.code == 0
    assert f"warning: the kind {kind} of this version doesn't know all of that: " in said.err
    assert next(iter(door.tasks.values()))["spec"] == json.loads(spec)


def test_a_plugins_kind_takes_any_spec(swarm: Swarm, door: FakeDoor) -> None:
    assert swarm("submit", "http://site/1", "--kind", "crawl", "--spec", '{"depth": 2}').code == 0
    assert next(iter(door.tasks.values()))["spec"] == {"depth": 2}


def test_a_submission_that_was_cut_off_goes_on_when_given_again(swarm: Swarm, door: FakeDoor, tmp_path: Path) -> None:
    (tmp_path / "urls.txt").write_text("".join(f"http://site/{number}\n" for number in range(1_500)))
    gone = (403, {"code": "forbidden", "message": "the allowance is used up"})
    door.on_submit = lambda count: door.faults.append(gone) if count == 1_000 else None

    first = swarm("submit", "urls.txt")
    door.on_submit = lambda count: None
    second = swarm("submit", "urls.txt")
    third = swarm("submit", "urls.txt")

    assert first.code == 1
    assert "going on with the submission that was cut off" in second.err
    assert second.code == third.code == 0
    assert "going on" not in third.err
    assert [door.answer_job(job)["total"] for job in door.jobs] == [1_500, 1_500]


# ── watch, look, change ───────────────────────────────────────────────────────────────────────────────────────────


def test_watch_tells_each_change_and_ends_with_the_job(swarm: Swarm, door: FakeDoor) -> None:
    swarm("submit", "http://site/1", "http://site/2")
    one, two = door.tasks
    ends: list[Callable[[], object]] = [lambda: None, lambda: door.finish(one), lambda: door.fail(two, "http_4xx")]
    door.on_look = lambda job: ends.pop(0)() if ends else None

    said = swarm("watch")

    assert said.code == 0
    assert said.err.splitlines()[:3] == ["2 pending", "1 completed, 1 pending", "1 completed, 1 failed"]
    assert "swarm results" in said.err


def test_without_a_job_watch_says_how_to_make_one(swarm: Swarm) -> None:
    said = swarm("watch")

    assert said.code == 2
    assert "swarm submit" in said.err


def test_ls_lists_jobs_and_tasks_for_people_and_scripts(swarm: Swarm, door: FakeDoor) -> None:
    job = swarm("submit", "http://site/1", "http://site/" + "long" * 50, "--name", "pages").out.strip()
    door.fail(next(iter(door.tasks)), "dns")

    assert f"{job}  pages" in swarm("ls").out
    assert "long" * 50 in swarm("ls", job).out
    (failed,) = swarm("ls", job, "--status", "failed", "--json").out.splitlines()
    assert json.loads(failed)["reason"] == "dns"
    assert len(swarm("ls", job, "-n", "1", "--json").out.splitlines()) == 1


def test_show_takes_a_job_or_a_task(swarm: Swarm, door: FakeDoor) -> None:
    job = swarm("submit", "http://site/1").out.strip()
    task = next(iter(door.tasks))

    assert "1 pending" in swarm("show", job).out
    shown = swarm("show", task)
    assert "http://site/1" in shown.out
    assert "submitted" in shown.out
    assert json.loads(swarm("show", task, "--json").out)["history"][0]["move"] == "submitted"
    unknown = swarm("show", "0192")
    assert unknown.code == 1
    assert "swarm ls lists your jobs" in unknown.err


def test_cancel_and_replay_take_a_job_or_a_task(swarm: Swarm, door: FakeDoor) -> None:
    job = swarm("submit", "http://site/1", "http://site/2", "http://site/3").out.strip()
    one, two, _ = door.tasks
    door.fail(one, "dns")

    assert swarm("cancel", two).out == f"task {two} is cancelled\n"
    assert swarm("cancel", job).out == "1 task cancelled\n"
    assert swarm("replay", job).out == "1 task replayed\n"
    assert json.loads(swarm("cancel", job, "--json").out) == {"job": job, "changed": 1}
    assert swarm("cancel", "0192").code == 1


def test_why_says_what_each_worker_lacks(swarm: Swarm, door: FakeDoor) -> None:
    swarm("submit", "http://site/1")

    said = swarm("why", next(iter(door.tasks)))

    assert "a live worker may have it" in said.out
    assert "host_paced: site takes 1 request/s; in 3 s" in said.out


def test_a_task_without_a_receipt_is_told_by_the_doors_reason(swarm: Swarm, door: FakeDoor) -> None:
    swarm("submit", "http://site/1")
    task = next(iter(door.tasks))

    said = swarm("receipt", task)

    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("error: there is no /v1/tasks/")
    assert f"swarm show {task}" in said.err
    assert "swarm ls" not in said.err


def test_an_id_that_is_unknown_or_of_the_other_sort_is_told(swarm: Swarm, door: FakeDoor) -> None:
    job = swarm("submit", "http://site/1").out.strip()
    task = next(iter(door.tasks))

    for command in ("why", "receipt"):
        said = swarm(command, job)
        assert (said.code, said.out) == (1, "")
        assert f"{job} is a job" in said.err
        assert f"swarm ls {job}" in said.err
    for command in ("ls", "watch", "results"):
        said = swarm(command, task)
        assert (said.code, said.out) == (1, "")
        assert f"{task} is a task, of the job {job}" in said.err
    for command in ("why", "receipt", "ls", "watch", "results"):
        said = swarm(command, "nope")
        assert (said.code, said.out) == (1, "")
        assert "isn't yours" in said.err


# ── results ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def finished(swarm: Swarm, door: FakeDoor) -> list[str]:
    """A job of three: two records, a failure, one record with other fields."""
    swarm("submit", "http://site/1", "http://site/2", "http://site/3", "--extract", "title=h1::text")
    tasks = list(door.tasks)
    door.finish(tasks[0], {"title": "one"}, {"title": "zwei, drei"}, body=b"<h1>one</h1>")
    door.fail(tasks[1], "http_4xx")
    door.finish(tasks[2], {"title": "four", "tags": ["a", "b"]})
    return tasks


def test_results_are_json_lines_unless_told_otherwise(swarm: Swarm, finished: list[str]) -> None:
    said = swarm("results")

    rows = [json.loads(line) for line in said.out.splitlines()]
    assert [row["title"] for row in rows] == ["one", "zwei, drei", "four"]
    assert rows[0]["_url"] == "http://site/1"
    assert said.code == 0
    assert "1 task failed; --failed shows why" in said.err


def test_results_name_what_failed_when_asked(swarm: Swarm, finished: list[str]) -> None:
    rows = [json.loads(line) for line in swarm("results", "--failed").out.splitlines()]

    assert [row.get("_reason") for row in rows] == [None, None, "http_4xx", None]


def test_results_as_csv_have_every_column(swarm: Swarm, finished: list[str], tmp_path: Path) -> None:
    said = swarm("results", "-o", "out.csv")

    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["title"] for row in rows] == ["one", "zwei, drei", "four"]
    assert rows[2]["tags"] == '["a","b"]'
    assert "3 rows in out.csv" in said.err
    assert sorted(os.listdir(tmp_path)) == ["out.csv", "state"]


def test_results_into_a_file_wait_for_the_jobs_end(swarm: Swarm, door: FakeDoor, tmp_path: Path) -> None:
    swarm("submit", "http://site/1", "http://site/2", "--extract", "title=h1::text")
    one, two = door.tasks
    door.finish(one, {"title": "one"})
    assert swarm("results").out.count("\n") == 1  # by now

    ends: list[Callable[[], object]] = [lambda: None, lambda: None, lambda: door.finish(two, {"title": "two"})]
    door.on_look = lambda job: ends.pop(0)() if ends else None
    said = swarm("results", "-o", "out.csv")

    assert said.code == 0
    assert said.err.splitlines() == [
        "out.csv is written once the job has ended; Ctrl-C stops waiting, never the job",
        "1 completed, 1 pending",
        "2 completed",
        "2 rows in out.csv",
    ]
    with (tmp_path / "out.csv").open(newline="") as file:
        assert [row["title"] for row in csv.DictReader(file)] == ["one", "two"]


def test_who_stops_waiting_for_results_is_told_that_nothing_was_written(
    swarm: Swarm, door: FakeDoor, tmp_path: Path
) -> None:
    swarm("submit", "http://site/1")

    looks: list[Callable[[], object]] = [lambda: None, lambda: os.kill(os.getpid(), signal.SIGINT)]
    door.on_look = lambda job: looks.pop(0)()
    said = swarm("results", "-o", "out.csv")

    assert said.code == 130
    assert "nothing was written to out.csv; the job goes on" in said.err
    assert not (tmp_path / "out.csv").exists()


def test_results_into_a_file_show_their_progress_on_a_terminal_alone(
    swarm: Swarm, finished: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "read and checked" not in swarm("results", "-o", "out.csv").err

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    said = swarm("results", "-o", "out.csv")
    assert "3/3" in said.err
    assert "results read and checked" in said.err
    assert "3 rows in out.csv" in said.err

    assert "read and checked" not in swarm("results").err  # the rows themselves are seen coming


def test_results_as_json_are_one_document(swarm: Swarm, finished: list[str]) -> None:
    assert len(json.loads(swarm("results", "--format", "json").out)) == 3


def test_bodies_are_saved_by_cid(swarm: Swarm, finished: list[str], tmp_path: Path) -> None:
    swarm("results", "--bodies", "pages")

    (saved,) = (tmp_path / "pages").iterdir()
    assert saved.read_bytes() == b"<h1>one</h1>"


def test_a_result_that_is_not_its_cid_is_left_out_and_told(swarm: Swarm, door: FakeDoor, finished: list[str]) -> None:
    door.blocks[door.tasks[finished[0]]["result"]] = b"{}"

    said = swarm("results")

    assert said.code == 1
    assert [json.loads(line)["title"] for line in said.out.splitlines()] == ["four"]
    assert finished[0] in said.err
    assert "it isn't in the output" in said.err


def test_results_of_a_kind_without_records_are_urls(swarm: Swarm, door: FakeDoor) -> None:
    swarm("submit", "http://site/1")
    door.finish(next(iter(door.tasks)), body=b"hello")

    (row,) = [json.loads(line) for line in swarm("results").out.splitlines()]
    assert (row["_url"], row["status"], row["size_bytes"]) == ("http://site/1", 200, 5)


def test_fields_of_a_record_never_pass_for_the_results_own(swarm: Swarm, door: FakeDoor) -> None:
    swarm("submit", "http://site/1")
    record = {"_url": "http://elsewhere/", "_reason": "http_4xx", "_task": "1", "_id": 7, "title": "one"}
    door.finish(next(iter(door.tasks)), record)

    (row,) = [json.loads(line) for line in swarm("results").out.splitlines()]
    assert (row["_url"], row["_task"], row["_id"], row["title"]) == ("http://site/1", next(iter(door.tasks)), 7, "one")
    assert "_reason" not in row


def test_results_into_a_directory_that_is_not_there_is_a_usage_error(swarm: Swarm, finished: list[str]) -> None:
    said = swarm("results", "-o", "nowhere/out.jsonl")

    assert said.code == 2
    assert "nowhere/out.jsonl" in said.err


def test_nobody_waits_for_results_that_have_nowhere_to_go(swarm: Swarm) -> None:
    swarm("submit", "http://site/1")

    said = swarm("results", "-o", "nowhere/out.jsonl")

    assert said.code == 2
    assert "nowhere/out.jsonl" in said.err
