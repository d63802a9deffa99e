"""``POST /v1/tasks``: check a submission and hand it to the ledger in one operation.

What is checked here needs no ledger: sizes, URLs (canonical, of one host), dedupe keys. Who has a task already is the
ledger's answer. A kind that no live worker runs is a warning, not a refusal: the worker may come. So is a tier that the
operator hasn't named: it has a share, too.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

import orjson
from uuid6 import uuid7

from rendezvous.door.call import Call, Query
from rendezvous.door.resources import Door
from rendezvous.door.workers import hear_of_elsewhere
from rendezvous.ledger.ops import PreparedTask, Submit, SubmitResult
from rendezvous.policy.retry import RetryRules, check_dedupe_ttl, longest_hold_s, retry_horizon_s
from swarm.content.urls import canonical
from swarm.errors import MalformedInput
from swarm.model import JobId, Refusal, RefusalCode, Role, Settle
from swarm.vouchers import MAX_WEI
from swarm.wire import (
    DEFAULT_TIER,
    MAX_META_BYTES,
    MAX_TASK_BYTES,
    NewTask,
    Submission,
    Submitted,
    SubmittedTask,
    encode,
)

__all__ = ["IDEMPOTENCY_KEY", "TASKS_A_SLICE", "check_kept_for", "check_reward", "prepare", "submit"]

IDEMPOTENCY_KEY: Final = Query(
    name="Idempotency-Key", help="Up to 128 visible ASCII characters; the same key with the same body submits once."
)
MAX_IDEMPOTENCY_KEY: Final = 128
#: How long the default dedupe key is kept after its task ended, unless retries could take longer: a week, seconds.
DEDUPE_TTL_S: Final = 604_800.0
_RULES: Final = RetryRules()
#: A task takes about 30 µs to check: after so many, others are let in.
TASKS_A_SLICE: Final = 100
#: Warnings of one answer; a job of a thousand unknown kinds needs no thousand sentences.
MAX_WARNINGS: Final = 20


async def submit(door: Door, call: Call) -> Submitted | Refusal:
    """Take new tasks of one job."""
    submission: Submission = call.body
    key = call.request.headers.get("Idempotency-Key")
    if key is not None and not (0 < len(key) <= MAX_IDEMPOTENCY_KEY and key.isascii() and key.isprintable()):
        return Refusal(RefusalCode.BAD_REQUEST, "Idempotency-Key is 1 to 128 visible ASCII characters")
    if submission.budget_wei is not None and submission.job is not None:
        return Refusal(RefusalCode.BAD_REQUEST, "a job's budget is set when it is made: leave budget_wei out")
    if submission.settle is not None and submission.job is not None:
        return Refusal(RefusalCode.BAD_REQUEST, "how a job is settled is fixed when it is made: leave settle out")
    job: JobId = submission.job or str(uuid7())
    paid = door.site.charter.ethereum is not None
    prepared: list[PreparedTask] = []
    for number, task in enumerate(submission.tasks):
        checked = prepare(task, job=job)
        if isinstance(checked, Refusal):
            return Refusal(checked.code, f"tasks[{number}]: {checked.message}", details=checked.details)
        unpayable = check_reward(checked, paid=paid)
        if unpayable is not None:
            return Refusal(unpayable.code, f"tasks[{number}]: {unpayable.message}")
        prepared.append(checked)
        if number % TASKS_A_SLICE == TASKS_A_SLICE - 1:
            await asyncio.sleep(0)
    answer: SubmitResult | Refusal = await door.ledger.call(
        Submit(
            owner=call.who.owner,
            job=job,
            job_named=submission.job is not None,
            name=submission.name,
            tasks=tuple(prepared),
            charged=paid and call.who.role is Role.REQUESTER,
            budget_wei=int(submission.budget_wei) if paid and submission.budget_wei is not None else None,
            settle=submission.settle or Settle.TASK,
            idempotency_key=key,
            body_digest=hashlib.sha256(call.raw).digest(),
        )
    )
    if isinstance(answer, Refusal):
        return answer
    return Submitted(
        job=answer.job,
        tasks=tuple(
            SubmittedTask(id=task, status="created" if created else "duplicate") for task, created in answer.tasks
        ),
        warnings=await _warned(door, submission.tasks),
    )


def check_reward(task: PreparedTask, *, paid: bool) -> Refusal | None:
    """Refuse a reward that this swarm can't pay."""
    if task.reward_wei and not paid:
        return Refusal(
            RefusalCode.UNPAID_SWARM,
            "this swarm has no contract, so nobody can be paid: submit without rewards",
        )
    if task.reward_wei > MAX_WEI:
        return Refusal(RefusalCode.BAD_REQUEST, f"a reward is at most {MAX_WEI} wei")
    return None


def prepare(task: NewTask, *, job: JobId) -> PreparedTask | Refusal:
    """Check one task of a submission and bring it into the form that the ledger stores."""
    size_bytes = len(encode(task))
    if size_bytes > MAX_TASK_BYTES:
        return Refusal(RefusalCode.BODY_TOO_LARGE, f"{size_bytes} bytes where a task has at most {MAX_TASK_BYTES}")
    meta_bytes = len(encode(task.meta))
    if meta_bytes > MAX_META_BYTES:
        return Refusal(RefusalCode.BODY_TOO_LARGE, f"meta has {meta_bytes} bytes where it may have {MAX_META_BYTES}")
    try:
        urls = tuple(canonical(url) for url in task.urls)
    except MalformedInput as fault:
        return Refusal(RefusalCode.BAD_URL, str(fault))
    hosts = sorted({url.split("/", 3)[2] for url in urls})  # ``host_of``, of what is canonical already
    if len(hosts) > 1:
        return Refusal(
            RefusalCode.URLS_OF_MANY_HOSTS,
            f"a task's URLs are of one host, these are of {len(hosts)}: {', '.join(hosts[:5])}; make a task of each",
        )
    try:
        dedupe_key, dedupe_ttl_s = _default_dedupe(task, urls, job)
    except orjson.JSONEncodeError as fault:
        return Refusal(RefusalCode.BAD_REQUEST, f"spec or meta can't be stored: {fault}; nest it less deeply")
    if task.dedupe is not None:
        too_short = check_kept_for(task.dedupe.ttl_s, task)
        if too_short is not None:
            return too_short
        dedupe_key, dedupe_ttl_s = f"key:{task.dedupe.key}", task.dedupe.ttl_s
    return PreparedTask(
        id=str(uuid7()),
        kind=task.kind,
        urls=urls,
        host=hosts[0],
        spec=task.spec,
        meta=task.meta,
        priority=task.priority,
        tier=task.tier,
        requires=task.requires,
        reward_wei=int(task.reward_wei),
        max_attempts=task.max_attempts,
        max_run_s=task.max_run_s,
        not_before_s=task.not_before_s,
        expires_in_s=task.expires_in_s,
        dedupe_key=dedupe_key,
        dedupe_ttl_s=dedupe_ttl_s,
    )


def check_kept_for(ttl_s: float, task: NewTask) -> Refusal | None:
    """Refuse to remember a task's dedupe key for less than its attempts may take, seconds."""
    return check_dedupe_ttl(ttl_s, max_attempts=task.max_attempts, max_run_s=task.max_run_s, rules=_RULES)


def _default_dedupe(task: NewTask, urls: tuple[str, ...], job: JobId) -> tuple[str, float]:
    """Within its job, a task is the same if it does the same: kind, canonical URLs, spec."""
    orjson.dumps([task.meta])  # nested so that it still fits a manifest, where it is one level down
    effect: list[Any] = [task.kind, urls, task.spec]
    digest = hashlib.sha256(orjson.dumps(effect, option=orjson.OPT_SORT_KEYS)).hexdigest()
    horizon_s = retry_horizon_s(max_attempts=task.max_attempts, max_run_s=task.max_run_s, rules=_RULES)
    return f"job:{job}:{digest[:32]}", max(DEDUPE_TTL_S, horizon_s + longest_hold_s(task.max_run_s) + 1.0)


async def _warned(door: Door, tasks: Sequence[NewTask]) -> tuple[str, ...]:
    """What should be known of tasks that were taken."""
    unfit = [*_unfit(door, tasks)]
    if unfit and await hear_of_elsewhere(door):
        unfit = [*_unfit(door, tasks)]
    return tuple(islice(dict.fromkeys([*_unknown_tiers(door, tasks), *unfit]), MAX_WARNINGS))


def _unknown_tiers(door: Door, tasks: Sequence[NewTask]) -> Iterable[str]:
    there_are = ", ".join(sorted(door.tiers))
    for tier in dict.fromkeys(task.tier for task in tasks):
        if tier not in door.tiers and tier != DEFAULT_TIER:  # which most name without knowing
            yield f"there is no tier {tier}, so its tasks have the smallest share; the tiers are {there_are}"


def _unfit(door: Door, tasks: Sequence[NewTask]) -> Iterable[str]:
    kinds = door.fleet.kinds()
    for kind, requires in {(task.kind, encode(task.requires)): (task.kind, task.requires) for task in tasks}.values():
        if kind not in kinds:
            yield f"no live worker runs tasks of the kind {kind}; they wait for one"
        elif not door.fleet.anyone_fits(kind, requires):
            asked = encode(requires).decode()
            yield f"no live worker has what a task of the kind {kind} requires ({asked}); it waits for one"
