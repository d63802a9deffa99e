"""The main job on one machine: a chain, a root, three workers, a small site, 24 tasks; results and payments verified.

Eight tasks are submitted one at a time to idle workers, so that gossip can bring each to the one who takes it, then
sixteen at once, each with a reward. What is told at the end was read from the ledger (by the door), from the block
store (each result's CID and all that its manifest names), from receipts and from the chain, to the wei. Everything
runs on loopback, in a directory of its own, and ends with the demo. ``--unpaid`` leaves the chain out.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import attrs
from demo_chain import REWARD_WEI, ChainFault, DemoChain, answers, node_command, open_chain

from swarm.client import Client, Result
from swarm.errors import SwarmError
from swarm.model import TERMINAL, Move, Status, Via
from swarm.receipts import receipt_fault
from swarm.wire import NewTask, TaskView

T = TypeVar("T")

WORKERS = ("alice", "bob", "carol")
SINGLY, AT_ONCE = 8, 16
#: Few, so that sixteen tasks at once are work for all three.
SLOTS = "2"
#: Of eight tasks that idle workers heard of by gossip, two may be taken by a turn that was due anyway.
BY_OFFER_AT_LEAST = 6
PAGES = SINGLY + AT_ONCE - 1
EXTRACT = {"title": "h1::text", "price": ".price::text", "stock": ".stock::text"}

POLL_S = 0.02
START_S = 60.0
TASK_S = 60.0
FUNDED_S = 3.0
#: Funding, then the verdict, each a block and two on top of it; a loaded machine takes longer.
SETTLE_S = 90.0
#: A worker's own grace for its drain is 8 s.
STOP_S = 10.0
STOPPED = "\nstopped; all processes of the demo have ended"
TAIL_LINES = 15


class Failure(Exception):
    """The demo didn't show what it is to show; says what."""


@attrs.frozen(kw_only=True)
class Program:
    """A process of ours and where it writes."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    out: Path


class Stage:
    """All processes of the demo, and the directory they live in.

    Resource handling: a context manager; leaving it ends every process, by its pid.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.programs: list[Program] = []
        bin_directory = Path(sys.executable).parent
        homes = {f"XDG_{name}_HOME": str(directory / name.lower()) for name in ("CONFIG", "DATA", "STATE", "CACHE")}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SWARM_")}
        self.profile = directory / "profile.json"
        self.environment = {**kept, **homes, "SWARM_PROFILE": str(self.profile), "PYTHONUNBUFFERED": "1"}
        self.environment["PATH"] = f"{bin_directory}:{self.environment.get('PATH', '')}"

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        for program in reversed(self.programs):
            if program.process.poll() is None:
                program.process.terminate()
        deadline = time.monotonic() + STOP_S
        for program in reversed(self.programs):
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.process.wait(max(0.1, deadline - time.monotonic()))
            if program.process.poll() is None:
                program.process.kill()
                program.process.wait()

    def start(self, name: str, *command: str) -> Program:
        """Start a program in a session of its own, so that Ctrl-C reaches it through us alone."""
        log, out = self.directory / f"{name}.log", self.directory / f"{name}.out"
        with log.open("wb") as stderr, out.open("wb") as stdout:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=self.environment,
                start_new_session=True,
            )
        program = Program(name=name, process=process, log=log, out=out)
        self.programs.append(program)
        return program

    def run(self, *command: str) -> str:
        """Run a program to its end; what it printed."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failure(f"{' '.join(command[:3])}: {done.stderr.strip()}")
        return done.stdout.strip()

    def until(self, probe: Callable[[], T | None], within_s: float, what: str) -> T:
        """Poll until the probe gives something, while all our programs live."""
        deadline = time.monotonic() + within_s
        while True:
            if (found := probe()) is not None:
                return found
            for program in self.programs:
                if program.process.poll() is not None:
                    raise Failure(f"{program.name} ended with {program.process.returncode} while waiting for {what}")
            if time.monotonic() > deadline:
                raise Failure(f"no {what} within {within_s:.0f} s")
            time.sleep(POLL_S)

    def tails(self) -> str:
        """The last lines of every program, for a failure."""
        shown = []
        for program in self.programs:
            lines = [
                line for path in (program.out, program.log) for line in path.read_text(errors="replace").splitlines()
            ]
            code = program.process.poll()
            shown += [
                f"── {program.name} ({'running' if code is None else f'ended with {code}'})",
                *lines[-TAIL_LINES:],
            ]
        return "\n".join(shown)


class Teller:
    """Says what happens; on a terminal, progress stays on one line."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self._is_open = False

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started

    def say(self, sentence: str) -> None:
        self._close()
        print(f"[{self.elapsed_s:5.1f} s] {sentence}", flush=True)

    def progress(self, sentence: str) -> None:
        if sys.stdout.isatty():
            print(f"\r\033[K[{self.elapsed_s:5.1f} s] {sentence}", end="", flush=True)
            self._is_open = True

    def _close(self) -> None:
        if self._is_open:
            print("\r\033[K", end="")
            self._is_open = False


# ── the steps ─────────────────────────────────────────────────────────────────────────────────────────────────────


def start_site(stage: Stage) -> str:
    site = Path(__file__).parent / "site"
    program = stage.start("site", sys.executable, str(site), "--pages", str(PAGES), "--delay", "0.05")
    return stage.until(lambda: first_line(program.out), START_S, "site")


def start_chain(stage: Stage) -> DemoChain:
    port = free_port()
    stage.environment["HARDHAT_DISABLE_TELEMETRY_PROMPT"] = "true"
    stage.start("chain", *node_command(port))
    return open_chain(
        port,
        root=stage.directory / "root",
        run=stage.run,
        until_up=lambda http: stage.until(lambda: answers(http), START_S, "chain"),
    )


def start_root(stage: Stage, chain: DemoChain | None) -> dict[str, Any]:
    ready = stage.directory / "root.ready"
    stage.start(
        "root",
        *("swarm-root", "run", "--data", str(stage.directory / "root"), "--bind", "127.0.0.1:0"),
        *("--ready-file", str(ready), "--host-rate", "0", "--allow-private", "on"),
        *(chain.options if chain is not None else ()),
    )

    def read() -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(ready.read_text())
        except (FileNotFoundError, ValueError):
            return None
        return found

    return stage.until(read, START_S, "root")


def start_workers(stage: Stage, client: Client, join_link: str, tell: Teller) -> dict[str, str]:
    """Start the workers and wait until each hears gossip; returns address → name."""
    names: dict[str, str] = {}
    for name in WORKERS:
        data = stage.directory / name
        stage.start(name, "swarm-worker", join_link, "--data", str(data), "--slots", SLOTS, "--allow-private", "on")
    for name in WORKERS:
        address = stage.until(functools.partial(address_of, stage, name), START_S, f"address of {name}")
        names[address] = name

    def all_hear() -> bool | None:
        hearing = {worker["address"] for worker in client.workers() if worker.get("gossip")}
        tell.progress(f"{len(hearing & set(names))} of {len(WORKERS)} workers hear gossip")
        return True if hearing >= set(names) else None

    stage.until(all_hear, START_S, "gossip at all workers")
    return names


def scrape(client: Client, stage: Stage, site: str, tell: Teller, *, reward_wei: int) -> str:
    """Submit the tasks, eight singly and sixteen at once, and wait for their ends; returns the job."""
    urls = [f"{site}/item/{number}" for number in range(1, PAGES + 1)]
    shape: dict[str, Any] = {"kind": "scrape", "spec": {"extract": EXTRACT}, "reward_wei": str(reward_wei)}
    # What fails before its funding is signed never gets to the chain; this one is to show a refund.
    missing = NewTask(urls=(f"{site}/missing",), not_before_s=FUNDED_S if reward_wei else 0.0, **shape)
    tasks = [*(NewTask(urls=(url,), **shape) for url in urls), missing]
    job: str | None = None
    for number, task in enumerate(tasks[:SINGLY], 1):
        receipt = client.submit([task], name="demo", job=job)
        job = receipt.job
        wait_done(client, stage, job, tell)
        tell.progress(f"{number} of {SINGLY} tasks submitted singly are done")
    assert job is not None
    tell.say(f"{SINGLY} tasks submitted one at a time, each to idle workers; now {AT_ONCE} at once")
    client.submit(tasks[SINGLY:], job=job)
    wait_done(client, stage, job, tell)
    return job


def wait_done(client: Client, stage: Stage, job: str, tell: Teller) -> None:
    def done() -> bool | None:
        view = client.job(job)
        ended = sum(view.counts.get(status, 0) for status in TERMINAL)
        tell.progress(f"{ended} of {view.total} tasks have ended")
        return True if view.done else None

    stage.until(done, TASK_S, "end of the tasks")


def wait_settled(client: Client, stage: Stage, job: str, tell: Teller) -> None:
    """Wait until each task is paid or refunded: funded, told the verdict, and final on the chain."""

    def settled() -> bool | None:
        tasks = list(client.tasks(job=job))
        paid = sum(task.paid is not None for task in tasks)
        tell.progress(f"{paid} of {len(tasks)} tasks are paid")
        return True if all(task.paid or task.refunded for task in tasks) else None

    stage.until(settled, SETTLE_S, "payment of the tasks")


# ── reading back ──────────────────────────────────────────────────────────────────────────────────────────────────


def read_back(client: Client, job: str) -> tuple[list[TaskView], int]:
    """The tasks as the ledger has them, and how many results were verified.

    Raises:
        Failure: one isn't what it is to be.
    """
    tasks = list(client.tasks(job=job))
    results = {result.task: result for result in client.results(job)}
    verified = 0
    for task in tasks:
        if Status(task.status) is Status.COMPLETED:
            verify(client, task, results[task.id])
            verified += 1
        elif task.reason != "http_4xx":
            raise Failure(f"{task.urls[0]} is {task.status} for {task.reason}")
    return tasks, verified


def verify(client: Client, task: TaskView, result: Result) -> None:
    """Check one result: its CID, each content that it names, the records, and that it was completed once."""
    if result.problem or result.manifest is None or result.cid != task.result:
        raise Failure(f"the result of {task.urls[0]} can't be verified: {result.problem or 'it has none'}")
    for content in result.manifest.named():
        if len(client.content(content.cid)) != content.size_bytes:
            raise Failure(f"{content.cid} isn't {content.size_bytes} bytes long")
    number = task.urls[0].rsplit("/", 1)[1]
    (record,) = result.records
    if record["title"] != f"Item {number}" or not record["price"].startswith("€ "):
        raise Failure(f"{task.urls[0]} gave {record}")
    completions = [event for event in client.history(task.id) if event.to == Status.COMPLETED]
    if len(completions) != 1 or completions[0].fence != task.fence:
        raise Failure(f"{task.urls[0]} was completed {len(completions)} times")


def check_money(client: Client, chain: DemoChain, tasks: list[TaskView]) -> tuple[int, int]:
    """Hold ledger, receipts and chain to each other; how many tasks were paid, and refunded.

    Raises:
        Failure: they differ, or a receipt isn't good.
    """
    completed = [task for task in tasks if Status(task.status) is Status.COMPLETED]
    payouts: dict[str, int] = {}
    for task in completed:
        receipt = client.receipt(task.id)
        if fault := receipt_fault(receipt, signer=chain.payer):
            raise Failure(f"the receipt of {task.urls[0]} isn't good: {fault}")
        if (receipt.completion.result, receipt.acceptance.reward_wei) != (task.result, str(REWARD_WEI)):
            raise Failure(f"the receipt of {task.urls[0]} is of something else")
        payouts[receipt.completion.payout] = payouts.get(receipt.completion.payout, 0) + 1
    try:
        chain.check(tasks, payouts)
    except ChainFault as fault:
        raise Failure(str(fault)) from fault
    paid = sum(task.paid is not None for task in completed)
    return paid, sum(task.refunded is not None for task in tasks)


def show(client: Client, tasks: list[TaskView], names: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("task", "page", "worker", "granted by", "status", "result (CID)", box=None, pad_edge=False)
    for task in tasks:
        page = "/" + task.urls[0].split("/", 3)[3]
        outcome = task.result or task.reason
        colour = "green" if task.status == Status.COMPLETED else "red"
        status = f"[{colour}]{task.status}[/]"
        # A failed task has no assignee any more; its history knows who had it.
        worker = task.assignee or next(
            (event.who for event in client.history(task.id) if event.move == Move.GRANT), None
        )
        table.add_row(task.id, page, names.get(worker or "", worker), task.via, status, outcome)
    Console(width=None if sys.stdout.isatty() else 200).print(table)


# ── the whole ─────────────────────────────────────────────────────────────────────────────────────────────────────


def perform(stage: Stage, *, keep: bool, unpaid: bool) -> str:
    """Run the demo; returns its last line."""
    tell = Teller()
    site = start_site(stage)
    tell.say(f"a site of {PAGES} items and one dead link is at {site}")
    chain = None if unpaid else start_chain(stage)
    if chain is not None:
        tell.say(f"a chain mines every second at {chain.url}; {chain.payer} pays by the contract {chain.contract}")
    ready = start_root(stage, chain)
    key_file = Path(ready["operator_key_file"])
    tell.say(f"the root's door is open at {ready['door']}; its peer is {ready['peer_id']}")
    with Client(ready["door"], key_file.read_text().strip()) as client:
        names = start_workers(stage, client, ready["join_link"], tell)
        tell.say(f"{', '.join(WORKERS)} joined by one link, found the root's peer and hear its gossip")
        job = scrape(client, stage, site, tell, reward_wei=0 if chain is None else REWARD_WEI)
        money = ""
        if chain is not None:
            tell.say("all tasks have ended; waiting until each is paid or refunded, finally")
            wait_settled(client, stage, job, tell)
        tell.say("reading the ledger, and each result with all that it names")
        tasks, verified = read_back(client, job)
        if chain is not None:
            paid, refunded = check_money(client, chain, tasks)
            tell.say("receipts verified; the chain has what the ledger says, to the wei")
            if (paid, refunded) != (PAGES, 1):
                raise Failure(f"{paid} tasks are paid and {refunded} refunded; it should be {PAGES} and 1")
            money = f"{paid} paid, {refunded} refunded, "
        elapsed_s = tell.elapsed_s
        print()
        show(client, tasks, names)
        print(flush=True)
    statuses = [task.status for task in tasks]
    completed, failed = statuses.count(Status.COMPLETED), statuses.count(Status.FAILED)
    by_offer = sum(task.via == Via.OFFER for task in tasks)
    if (len(tasks), completed, failed) != (SINGLY + AT_ONCE, PAGES, 1):
        raise Failure(f"{len(tasks)} tasks, {completed} completed, {failed} failed; it should be 24, 23 and 1")
    if by_offer < BY_OFFER_AT_LEAST:
        raise Failure(f"only {by_offer} tasks were granted by offer; gossip should bring {BY_OFFER_AT_LEAST} or more")
    summary = (
        f"demo ok: {len(tasks)} tasks, {completed} completed, {failed} failed, {by_offer} by offer, "
        f"{verified} results verified, {money}{elapsed_s:.1f} s"
    )
    if keep:
        print(summary)
        stay(stage, site, job)
    return summary


def stay(stage: Stage, site: str, job: str) -> None:
    """Leave it running until Ctrl-C, and say what to try. The root has written the profile that ``swarm`` reads."""
    programs = Path(sys.executable).parent
    print(
        f"""
It keeps running. In another terminal:

    export SWARM_PROFILE={stage.profile} PATH="{programs}:$PATH"
    swarm status
    swarm workers
    swarm ls {job}
    swarm results {job} --format csv
    swarm submit {site}/item/1 {site}/item/2 --extract title=h1::text

Logs and data are in {stage.directory}. Ctrl-C here ends it all.""",
        flush=True,
    )
    try:
        stage.until(lambda: None, float("inf"), "Ctrl-C")
    except (KeyboardInterrupt, SystemExit) as asked:
        print("\nstopping all processes of the demo …", flush=True)
        if isinstance(asked, SystemExit):
            raise


def free_port() -> int:
    """A port below those that the system gives to outgoing connections: one of them could take it meanwhile."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def first_line(path: Path) -> str | None:
    line, newline, _ = path.read_text().partition("\n")
    return line if newline else None


def address_of(stage: Stage, name: str) -> str | None:
    """A worker's address, from its own log."""
    for line in (stage.directory / f"{name}.log").read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            if entry.get("event") == "worker_started":
                return str(entry["worker"])
    return None


@contextlib.contextmanager
def own_directory() -> Iterator[Path]:
    """A directory that is removed after a success, and kept and named after a failure."""
    directory = Path(tempfile.mkdtemp(prefix="swarm-demo-"))
    try:
        yield directory
    except Failure:
        print(f"data and logs are kept in {directory}", file=sys.stderr)
        raise
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    shutil.rmtree(directory, ignore_errors=True)


def leave(number: int, _: FrameType | None) -> None:
    """A signal that ends us ends our programs first."""
    raise SystemExit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--keep", action="store_true", help="keep it running afterwards, and say what to try")
    parser.add_argument("--unpaid", action="store_true", help="without a chain: nobody is paid")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    try:
        with own_directory() as directory, Stage(directory) as stage:
            try:
                last_line = perform(stage, keep=options.keep, unpaid=options.unpaid)
            except (Failure, ChainFault, SwarmError, OSError, subprocess.SubprocessError) as fault:
                print(stage.tails(), file=sys.stderr)
                raise Failure(str(fault)) from fault
    except Failure as failure:
        print(f"demo failed: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(STOPPED, file=sys.stderr)
        return 130
    except SystemExit:
        print(STOPPED, file=sys.stderr)
        raise
    if not options.keep:  # it was said before it stayed
        print(last_line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
