"""Real processes for the acceptance tests: started here, watched with deadlines, ended by their own pid.

A ``Scene`` owns whatever it started and ends it in reverse order; what was running when a test failed shows the tail of
its log in the report. Nothing here knows what a test is about: the swarm is seen from outside, through the command
lines, the door and the logs.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.acceptance.netns import Namespace
from tests.free_port import free_port
from tests.patience import PATIENCE_S
from tests.tied import tied

T = TypeVar("T")

POLL_S = 0.02
#: What hasn't left by then at the end of a scene is killed.
LEAVE_S = 3.0
TAIL_LINES = 60

MAIN = {"swarm": "swarm.cli.swarm", "swarm-worker": "swarm.cli.worker", "swarm-root": "rendezvous.cli"}
PROJECT = Path(__file__).parents[2]


class NotInTime(AssertionError):
    """What was waited for didn't come before the deadline."""


def until(
    probe: Callable[[], T | None], what: str, *, within_s: float = PATIENCE_S, guard: Sequence[Running] = ()
) -> T:
    """Poll until ``probe`` gives something truthy.

    Args:
        probe: called again and again; what it last gave is in the error.
        what: what is waited for, as a clause.
        within_s: the deadline, seconds; named where the test is about this time, and else a guard.
        guard: processes that have to live meanwhile; the end of one ends the wait.

    Raises:
        NotInTime: the deadline passed, or a guarded process ended.
    """
    deadline = time.monotonic() + within_s
    while True:
        found = probe()
        if found:
            return found
        for process in guard:
            if not process.alive:
                raise NotInTime(f"{process.name} ended with {process.code} while waiting for: {what}")
        if time.monotonic() > deadline:
            raise NotInTime(f"not within {within_s:g} s: {what} (last: {found!r})")
        time.sleep(POLL_S)


def command(program: str) -> list[str]:
    """How to start one of the project's programs from this very checkout."""
    return [sys.executable, "-c", f"import sys; from {MAIN[program]} import main; sys.exit(main())"]


class Running:
    """A process of ours: its pid, its output, its end.

    Args:
        name: what it is called in reports and log files.
        argv: the program and its arguments.
        log: where its standard error goes; standard output goes beside it.
        env: what is added to the environment.
        netns: the network namespace it runs in, None for the machine's own.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        netns: Namespace | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self.out = log.with_suffix(".out")
        prefix = netns.prefix if netns is not None else []
        with self.log.open("ab") as err, self.out.open("ab") as out:
            self._process = subprocess.Popen(
                tied([*prefix, *argv]),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=PROJECT,
                env={**os.environ, **(env or {}), "PYTHONPATH": _python_path(env), "PYTHONUNBUFFERED": "1"},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def signal(self, number: int) -> None:
        """Send a signal to this process alone."""
        if self.alive:
            self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def stop(self, *, within_s: float = PATIENCE_S) -> int:
        """SIGTERM and wait; SIGKILL past the deadline. Returns the exit code."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL

    def wait(self, within_s: float) -> int:
        """Wait for it to end by itself. Returns the exit code."""
        return self._process.wait(within_s)

    def cpu_s(self) -> float:
        """User and system time so far, seconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def events(self, *names: str) -> list[dict[str, Any]]:
        """The JSON log lines so far, those of the named events where names are given."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and (not names or entry.get("event") in names):
                    found.append(entry)
        return found

    def tail(self) -> str:
        """The last lines of what it wrote, for a report."""
        lines = [*_last_lines(self.out), *_last_lines(self.log)]
        state = "running" if self.alive else f"ended with {self.code}"
        return "\n".join([f"── {self.name} (pid {self.pid}, {state})", *lines])


def _last_lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()[-TAIL_LINES:] if path.exists() else []


def _python_path(env: Mapping[str, str] | None) -> str:
    given = (env or {}).get("PYTHONPATH")
    return os.pathsep.join([str(PROJECT), *([given] if given else [])])


class Reply:
    """An answer of the door: the status, and either data or an error."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.raw = response.content
        body = response.json() if "json" in response.headers.get("content-type", "") else {}
        self.data: Any = body.get("data")
        self.error: dict[str, Any] = body.get("error") or {}

    @property
    def code(self) -> str | None:
        return self.error.get("code")

    def ok(self) -> Any:
        """The data of an answer that has to be a yes."""
        assert self.status < 300, f"{self.status} {self.error or self.raw[:500]!r}"
        return self.data


class Door:
    """The door as somebody with a key sees it."""

    def __init__(self, url: str, key: str | None, *, netns: Namespace | None = None, timeout_s: float = 10.0) -> None:
        self.url = url
        self.netns = netns
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout_s, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def call(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None, **params: Any
    ) -> Reply:
        """One request; sockets are made inside the namespace of the door."""
        with self.netns.entered() if self.netns else contextlib.nullcontext():
            return Reply(self._http.request(method, path, json=body, params=params or None, headers=headers))

    def up(self) -> bool:
        """Whether it answers at all."""
        try:
            return self.call("GET", "/settings").status == 200
        except httpx.TransportError:
            return False

    def submit(self, tasks: Sequence[dict[str, Any]], *, job: str | None = None, key: str | None = None) -> Any:
        """Submit tasks; returns ``Submitted`` as a dict."""
        body = {"tasks": list(tasks)} | ({"job": job} if job else {})
        return self.call("POST", "/v1/tasks", body, headers={"Idempotency-Key": key or uuid.uuid4().hex}).ok()

    def task(self, task: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", f"/v1/tasks/{task}").ok()
        return found

    def history(self, task: str) -> list[dict[str, Any]]:
        """The events of a task, oldest first."""
        data = self.call("GET", f"/v1/tasks/{task}/events").ok()
        return list(data["items"] if isinstance(data, dict) else data)

    def job(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", f"/v1/jobs/{job}").ok()
        return found

    def workers(self) -> list[dict[str, Any]]:
        data = self.call("GET", "/v1/workers").ok()
        return list(data["items"] if isinstance(data, dict) else data)

    def tasks_of(self, job: str) -> Iterator[dict[str, Any]]:
        """All tasks of a job, page by page."""
        cursor: str | None = None
        while True:
            page = self.call("GET", "/v1/tasks", job=job, limit=500, **({"cursor": cursor} if cursor else {})).ok()
            yield from page["items"]
            cursor = page.get("next")
            if not cursor:
                return

    def wait_done(self, job: str, *, within_s: float = PATIENCE_S, guard: Sequence[Running] = ()) -> dict[str, Any]:
        """Wait until all tasks of a job have ended; a door that is being restarted is waited for."""

        def done() -> dict[str, Any] | None:
            try:
                view = self.job(job)
            except httpx.TransportError:
                return None
            return view if view["done"] else None

        try:
            return until(done, f"job {job} to be done", within_s=within_s, guard=guard)
        except NotInTime as late:
            left = [
                (task["id"], task["status"], task.get("assignee"), self.call("GET", f"/v1/tasks/{task['id']}/why").data)
                for task in self.tasks_of(job)
                if task["status"] not in {"completed", "failed", "cancelled"}
            ]
            raise NotInTime(f"{late}; {len(left)} left, such as {left[:3]}") from None


_urls = itertools.count(1)


def noop(*, host: str = "noop.invalid", more: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A task that asks no site; no two have the same URL, so none is another's duplicate.

    Args:
        host: of its URL.
        more: further fields of ``NewTask``.
        spec: what the kind takes: ``sleep_s``, ``size``, ``fail``.
    """
    return {"kind": "noop", "urls": [f"http://{host}/{next(_urls)}"], "spec": spec, **(more or {})}


class Scene:
    """All that one test started, and its directory.

    Resource handling: a context manager; leaving it ends every process that is still there, the last one first.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.running: list[Running] = []
        self.closing = contextlib.ExitStack()

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        """End what is left, the last started first: workers leave quickly while their door is there."""
        alive = [process for process in reversed(self.running) if process.alive]
        deadline = time.monotonic() + LEAVE_S
        for process in alive[:-1]:
            process.signal(signal.SIGCONT)
            process.signal(signal.SIGTERM)
        for process in alive:
            process.stop(within_s=max(0.1, deadline - time.monotonic()))
        self.closing.close()

    def start(self, name: str, argv: Sequence[str], **how: Any) -> Running:
        """Start a process under a name; its log is kept below the scene's directory."""
        # A root writes the profile of whoever starts it; that is the scene's, never the tester's own.
        env = {"SWARM_PROFILE": str(self.directory / "profile.json"), **(how.pop("env", None) or {})}
        process = Running(name, argv, log=self.directory / f"{name}.log", env=env, **how)
        self.running.append(process)
        return process

    def root(
        self,
        *options: str,
        netns: Namespace | None = None,
        host: str = "127.0.0.1",
        port: int | None = None,
        name: str = "root",
    ) -> Root:
        """Start a root and wait until its door is open."""
        root = Root(self, options, netns=netns, host=host, port=port or free_port(), name=name)
        root.start()
        return root

    def worker(
        self,
        root: Root,
        *options: str,
        name: str,
        link: str | None = None,
        netns: Namespace | None = None,
        env: Mapping[str, str] | None = None,
        wait: bool = True,
    ) -> Worker:
        """Start a worker; with ``wait``, until the door lists it."""
        worker = Worker(self, root, options, name=name, link=link or root.join_link, netns=netns, env=env)
        worker.start()
        if wait:
            worker.wait_seen()
        return worker

    def workers(self, root: Root, *options: str, names: Sequence[str], **how: Any) -> list[Worker]:
        """Start several workers at once, and wait until the door lists them all."""
        started = [self.worker(root, *options, name=name, wait=False, **how) for name in names]
        for worker in started:
            worker.wait_seen()
        return started

    def site(self, *options: str) -> str:
        """Start the demo's site; returns its URL."""
        site = self.start("site", [sys.executable, str(PROJECT / "scripts" / "site"), *options])
        return until(lambda: site.out.read_text().partition("\n")[0], "the site's URL", guard=[site])

    def swarm(self, *arguments: str) -> str:
        """Run ``swarm`` with the profile that the root wrote; returns what it printed."""
        done = subprocess.run(
            [*command("swarm"), *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            cwd=PROJECT,
            env={**os.environ, "SWARM_PROFILE": str(self.directory / "profile.json")},
        )
        assert done.returncode == 0, f"swarm {' '.join(arguments)}: {done.returncode}: {done.stderr}"
        return done.stdout

    def tails(self) -> str:
        """The logs' tails of everything started, for a failed test."""
        return "\n".join(process.tail() for process in self.running)


def _alone(options: Sequence[str]) -> list[str]:
    """Options with mDNS off unless they say otherwise: other swarms of this machine would be met by it."""
    return [*options] if "--mdns" in options else [*options, "--mdns", "off"]


class Root:
    """A root: its door's port and data directory stay the same over restarts."""

    def __init__(
        self, scene: Scene, options: Sequence[str], *, netns: Namespace | None, host: str, port: int, name: str
    ) -> None:
        self.scene = scene
        self.options = options
        self.netns = netns
        self.name = name
        self.host = host
        self.data = scene.directory / f"{name}-data"
        self.port = port
        self._ready_file = scene.directory / f"{name}.ready"
        self.process: Running

    def start(self, *options: str) -> None:
        """Start it (again), with further options where given, and wait until the door answers."""
        self._ready_file.unlink(missing_ok=True)
        self.process = self.scene.start(
            self.name,
            [
                *command("swarm-root"),
                "run",
                *("--data", str(self.data)),
                *("--bind", f"{self.host}:{self.port}"),
                *("--ready-file", str(self._ready_file)),
                *_alone([*self.options, *options]),
            ],
            netns=self.netns,
        )
        self.ready = until(self._read_ready, f"{self.name} to be ready", guard=[self.process])
        self.door_url: str = self.ready["door"]
        self.join_link: str = self.ready["join_link"]
        self.operator_key = Path(self.ready["operator_key_file"]).read_text().strip()
        self.door = Door(self.door_url, self.operator_key, netns=self.netns)
        self.scene.closing.callback(self.door.close)

    def _read_ready(self) -> dict[str, Any] | None:
        try:
            read: dict[str, Any] = json.loads(self._ready_file.read_text())
        except (FileNotFoundError, ValueError):
            return None
        return read

    def kill(self) -> None:
        self.process.kill()


class Worker:
    """A worker: its data directory, so its identity, stays the same over restarts."""

    def __init__(
        self,
        scene: Scene,
        root: Root,
        options: Sequence[str],
        *,
        name: str,
        link: str,
        netns: Namespace | None,
        env: Mapping[str, str] | None,
    ) -> None:
        self.scene = scene
        self.root = root
        self.options = options
        self.name = name
        self.link = link
        self.netns = netns
        self.env = env
        self.data = scene.directory / f"worker-{name}"
        self.process: Running

    def argv(self) -> list[str]:
        return [*command("swarm-worker"), self.link, "--data", str(self.data), *_alone(self.options)]

    def start(self) -> None:
        self.process = self.scene.start(self.name, self.argv(), netns=self.netns, env=self.env)

    def kill(self) -> None:
        self.process.kill()

    def wait_seen(self) -> dict[str, Any]:
        """Wait until the door lists it as ready; returns what the door says of it."""
        return until(self.seen, f"the door to list {self.name}", guard=[self.process])

    def seen(self) -> dict[str, Any] | None:
        """What the door says of this worker, None where it doesn't list it."""
        address = self.address
        return next((entry for entry in self.root.door.workers() if entry["address"] == address), None)

    @property
    def address(self) -> str | None:
        """Its Ethereum address, from its data directory; None until it has made its keys."""
        try:
            return str(json.loads((self.data / "eth.key").read_text())["address"])
        except (FileNotFoundError, ValueError):
            return None
