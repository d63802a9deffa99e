"""Execute granted tasks under their limits. Grant → Result.

An execution belongs to its lease: when the lease is lost the scope is cancelled, whatever the executor does. This step
knows nothing of turns, uploads or the door.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import structlog
import trio

from swarm.content.manifest import Manifest, UrlOutcome
from swarm.errors import StoreFull
from swarm.executors.base import Execution, Executor, TaskDeferred, TaskFailed, Tools
from swarm.logs import working_on
from swarm.model import Address, Reason, TaskId
from swarm.turn_wire import Grant
from swarm.web.blocked import heeded
from swarm.wire import REASON_PATTERN
from swarm.worker.leases import Executions
from swarm.worker.results import Broken, Deferred, Executed, Result

log = structlog.get_logger()

#: A disk that is full is looked at again after this long.
DISK_FULL_WAIT_S = 30.0


async def execute(
    grants: trio.MemoryReceiveChannel[Grant],
    results: trio.MemorySendChannel[Result],
    *,
    executors: Mapping[str, Executor],
    tools: Callable[[Grant], Tools],
    versions: Mapping[str, str],
    executions: Executions,
    begin: Callable[[int, TaskId], bool],
    clock: Callable[[], float],
) -> None:
    """Run grants one after another until the channel closes; start one such task a slot.

    Args:
        grants: what to run.
        results: what came out; where it is full the slot waits, and takes no more.
        executors: by kind.
        tools: what an executor may use for one grant.
        versions: what goes into manifests beside the executor's own version.
        executions: where the scope of each execution is found by its fence.
        begin: told the fence and the task; False where the lease is gone already.
        clock: seconds.
    """
    async with grants, results:
        async for grant in grants:
            if not begin(grant.fence, grant.task.id):
                continue
            with working_on(grant.task.id, grant.fence):
                result = await run_grant(grant, executors, tools, versions=versions, executions=executions, clock=clock)
                if result is not None:
                    await results.send(result)


async def run_grant(
    grant: Grant,
    executors: Mapping[str, Executor],
    tools: Callable[[Grant], Tools],
    *,
    versions: Mapping[str, str],
    executions: Executions,
    clock: Callable[[], float],
) -> Result | None:
    """Run one grant to its result, None where it was stopped. What goes wrong in an executor is a result as well."""
    task = grant.task
    began = clock()

    def broken(reason: str, detail: str, **more: object) -> Broken:
        if re.fullmatch(REASON_PATTERN, reason) is None:  # a plugin's word: the door would refuse the whole turn
            reason, detail = Reason.EXECUTOR_ERROR, f"it failed with {reason!r}, which isn't a reason: {detail}"
        return Broken(grant=grant, reason=reason, detail=clean(detail), ran_s=clock() - began, **more)  # type: ignore[arg-type]

    executor = executors.get(task.kind)
    if executor is None:
        return broken(Reason.BAD_SPEC, f"this worker has no executor for {task.kind}")
    try:
        used = tools(grant)
        with executions.scope(grant.fence, limit_s=task.max_run_s) as running:
            execution = await executor.run(task, used)
    except TaskFailed as failed:
        wait_s = None if failed.retry_after_s is None else heeded(failed.retry_after_s)
        return broken(failed.reason, failed.detail, retryable=failed.retryable, retry_after_s=wait_s)
    except TaskDeferred as deferred:
        return Deferred(grant=grant, detail=clean(deferred.detail), retry_after_s=deferred.retry_after_s)
    except StoreFull as full:
        return Deferred(grant=grant, detail=clean(str(full)), retry_after_s=DISK_FULL_WAIT_S, disk_full=True)
    except Exception as fault:  # supervision boundary: an executor is a plugin, its defects cost one task
        log.exception("executor_broke", kind=task.kind)
        return broken(Reason.EXECUTOR_ERROR, f"{type(fault).__name__}: {fault}")
    if running.scope.cancelled_caught:
        if running.stopped is None:
            return broken(Reason.RUN_TOO_LONG, f"not done within {task.max_run_s:g} s")
        log.info("execution_stopped", why=running.stopped, ran_s=round(clock() - began, 3))
        return None
    if not any(outcome.reason is None for outcome in execution.outcomes):
        first = next(iter(execution.outcomes), None)
        return broken(
            first.reason if first is not None and first.reason is not None else Reason.EXECUTOR_ERROR,
            first.detail if first is not None else "the executor gave no outcome",
        )
    manifest = manifest_of(grant, execution, worker=used.worker, versions={**versions, task.kind: executor.version})
    return Executed(grant=grant, manifest=manifest, ran_s=clock() - began)


def manifest_of(grant: Grant, execution: Execution, *, worker: Address, versions: Mapping[str, str]) -> Manifest:
    """The result of a task as it is stored."""
    return Manifest(
        task=grant.task.id,
        worker=worker,
        kind=grant.task.kind,
        meta=grant.task.meta,
        outcomes=tuple(_cleaned(outcome) for outcome in execution.outcomes),
        versions=dict(versions),
    )


def _cleaned(outcome: UrlOutcome) -> UrlOutcome:
    import msgspec

    return msgspec.structs.replace(outcome, detail=clean(outcome.detail)) if outcome.detail else outcome


def clean(detail: str) -> str:
    """A sentence that any ledger can store: no NUL, no lone surrogates, at most 500 characters."""
    return detail.replace("\0", "�").encode("utf-8", "replace").decode()[:500]
