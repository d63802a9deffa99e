"""The swarm: one root and a few workers as real processes, and a driver that submits to the door.

Latencies are taken from the ledger's own times (the same clock: one machine), from just before the request was sent to
when the result was recorded, so that measuring asks nothing of the door while it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import aiohttp
import attrs
import orjson
from figures import Figures, cpu_s

from tests.acceptance.harness import Root, Scene, Worker, until

WARM_UP = 500
#: Each look costs the root a millisecond; the figures are of the ledger's times, not of when we saw the end.
DONE_POLL_S = 0.2
RUN_S = 120.0


@attrs.frozen
class Swarm:
    """What was started.

    Args:
        root: its door takes the submissions.
        workers: they run them.
    """

    root: Root
    workers: Sequence[Worker]

    def measure(self, tasks: int, *, sizes: Sequence[int], submitters: int) -> Figures:
        """Submit no-ops and wait until the last is done.

        Args:
            tasks: how many.
            sizes: of the submissions, in turn.
            submitters: how many submit side by side, each one submission after the other.
        """
        before = self._cpu_s()
        sent = asyncio.run(self._drive(tasks, sizes, submitters))
        after = self._cpu_s()
        started_at = min(sent.values())
        finished = {task["id"]: task["finished_at"] for job in sent.jobs for task in self.root.door.tasks_of(job)}
        return Figures(
            tasks=len(sent),
            took_s=max(finished[task] for task in sent) - started_at,
            latencies_s=[finished[task] - sent_at for task, sent_at in sent.items()],
            cpu_us={part: (after[part] - before[part]) / len(sent) * 1e6 for part in before},
        )

    def _cpu_s(self) -> dict[str, float]:
        return {
            "root": cpu_s(self.root.process.pid),
            "workers": sum(cpu_s(worker.process.pid) for worker in self.workers),
            "driver": time.process_time(),
        }

    async def _drive(self, tasks: int, sizes: Sequence[int], submitters: int) -> Sent:
        """Submit, wait for the end; returns when each task was sent."""
        headers = {"Authorization": f"Bearer {self.root.operator_key}", "Content-Type": "application/json"}
        sent = Sent()
        left = _chunks(tasks, sizes)
        connector = aiohttp.TCPConnector(limit=submitters + 1)
        async with aiohttp.ClientSession(self.root.door_url, headers=headers, connector=connector) as door:
            job = (await _submit(door, 1, sent, None))[0]
            sent.clear()

            async def submit() -> None:
                for count in left:
                    await _submit(door, count, sent, job)

            await asyncio.gather(*(submit() for _ in range(submitters)))
            sent.jobs.add(job)
            async with asyncio.timeout(RUN_S):
                while not (await _get(door, f"/v1/jobs/{job}"))["done"]:  # noqa: ASYNC110 -- another process ends it
                    await asyncio.sleep(DONE_POLL_S)
        return sent

    def idle(self, tasks: int, *, pause_s: float) -> tuple[list[float], dict[str, int]]:
        """Submit tasks one by one to idle workers.

        Args:
            tasks: how many.
            pause_s: from the end of one to the next, seconds.

        Returns:
            From just before each submission to its grant, seconds; and how the grants came about.
        """
        latencies_s, via = [], dict[str, int]()
        door = self.root.door
        for _ in range(tasks):
            sent_at = time.time()
            task = door.submit([noop()])["tasks"][0]["id"]
            until(lambda task=task: door.task(task)["status"] == "completed", "a task of an idle swarm", within_s=RUN_S)
            granted = next(event for event in door.history(task) if event["move"] == "granted")
            latencies_s.append(granted["at"] - sent_at)
            how = door.task(task)["via"]
            via[how] = via.get(how, 0) + 1
            time.sleep(pause_s)
        return latencies_s, via


_urls = itertools.count()


def noop() -> dict[str, Any]:
    """A task that does nothing, unlike any other: the same URL twice in a job would be a duplicate."""
    return {"kind": "noop", "urls": [f"http://bench.invalid/{next(_urls)}"]}


class Sent(dict[str, float]):
    """When each task was sent (Unix seconds, by id), and to which jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: set[str] = set()


def _chunks(tasks: int, sizes: Sequence[int]) -> Iterator[int]:
    for size in itertools.cycle(sizes):
        if tasks <= 0:
            return
        yield min(size, tasks)
        tasks -= size


async def _submit(door: aiohttp.ClientSession, count: int, sent: Sent, job: str | None) -> tuple[str, list[str]]:
    body = orjson.dumps({"tasks": [noop() for _ in range(count)]} | ({"job": job} if job else {}))
    sent_at = time.time()
    async with door.post("/v1/tasks", data=body, headers={"Idempotency-Key": uuid.uuid4().hex}) as answer:
        read = orjson.loads(await answer.read())
    if "data" not in read:
        raise RuntimeError(f"the door refused a submission: {read}")
    ids = [task["id"] for task in read["data"]["tasks"]]
    sent.update(dict.fromkeys(ids, sent_at))
    return read["data"]["job"], ids


async def _get(door: aiohttp.ClientSession, path: str) -> Any:
    async with door.get(path) as answer:
        return orjson.loads(await answer.read())["data"]


@contextlib.contextmanager
def open_swarm(scene: Scene, *, name: str, workers: int, slots: int, p2p: str) -> Iterator[Swarm]:
    """Start a root and workers, and warm them.

    Args:
        scene: ends them.
        name: of the root, so that several can stand side by side.
        workers: how many.
        slots: of each.
        p2p: ``on``, or ``off`` for HTTPS and WebSocket alone.
    """
    root = scene.root("--p2p", p2p, "--host-rate", "0", name=name)
    names = [f"{name}-worker-{number}" for number in range(workers)]
    started = scene.workers(root, "--slots", str(slots), "--p2p", p2p, names=names)
    swarm = Swarm(root, started)
    swarm.measure(WARM_UP, sizes=[50], submitters=2)
    yield swarm
