"""New tasks: all submissions of a group at once. Submit → SubmitResult or Refusal.

A dedupe key belongs to one task at a time: while that task lives, and for ``dedupe_ttl_s`` after it completed. A failed
or cancelled task frees its key. An ``Idempotency-Key`` answers a repeated submission with the stored answer.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import orjson

from rendezvous.ledger.allowances import Payer, charge, open_budget, payer_of, refusal_to_pay
from rendezvous.ledger.lines import DemandKeys, Lines
from rendezvous.ledger.ops import PreparedTask, Submit, SubmitResult
from rendezvous.ledger.rows import Job, TaskRow, encode_body
from rendezvous.ledger.unit import Unit, as_json
from rendezvous.policy.order import rank
from swarm.model import Actor, Move, Refusal, RefusalCode, Settle, Status, TaskId

__all__ = ["dedupe_digest", "frees_key", "submit"]


def dedupe_digest(owner: str, key: str) -> str:
    """What stands for (owner, key) in the ledger: 128 bits, which nobody finds a second key for."""
    digest = hashlib.blake2b(f"{owner}\0{key}".encode(), digest_size=16).digest()
    return urlsafe_b64encode(digest)[:22].decode()


def _digest_of(owner: str, task: PreparedTask) -> str:
    return task.kept_digest or dedupe_digest(owner, task.dedupe_key)


def frees_key(status: str | None, finished_at: float | None, ttl_s: float | None, *, now: float) -> bool:
    """Whether a task in this state leaves its dedupe key to others; a task that is gone does."""
    if status is None or status in (Status.FAILED, Status.CANCELLED):
        return True
    return status == Status.COMPLETED and (finished_at or 0.0) + (ttl_s or 0.0) <= now


@attrs.define
class _New:
    """One task on its way in."""

    op: int
    position: int
    task: PreparedTask
    job: Job
    digest: str
    seq: int


def submit(unit: Unit, lines: Lines, ops: Sequence[Submit]) -> list[SubmitResult | Refusal]:
    """Take the submissions of one group."""
    answers: list[SubmitResult | Refusal | None] = [None] * len(ops)
    earlier: dict[tuple[str, str], int] = {}
    fresh: list[int] = []
    for index, op in enumerate(ops):
        if op.idempotency_key is not None:
            first = earlier.setdefault((op.owner, op.idempotency_key), index)
            if first != index:  # repeated within the group: answered below, as the first is
                continue
            answers[index] = _stored_answer(unit, op)
        if answers[index] is None:
            fresh.append(index)
    _insert(unit, lines, ops, [index for index in fresh if not _pays(ops[index])], answers)
    for index in fresh:
        if _pays(ops[index]):  # alone: whether there is room hangs on what was charged just before
            answers[index] = _refusal_to_pay(unit, ops[index])
            if answers[index] is None:
                _insert(unit, lines, ops, [index], answers)
    for index, op in enumerate(ops):
        if answers[index] is None and op.idempotency_key is not None:
            first = earlier[op.owner, op.idempotency_key]
            same = ops[first].body_digest == op.body_digest
            answers[index] = answers[first] if same else _mismatch()
    return [answer for answer in answers if answer is not None]


def _pays(op: Submit) -> bool:
    return op.budget_wei is not None or any(task.reward_wei for task in op.tasks)


def _refusal_to_pay(unit: Unit, op: Submit) -> Refusal | None:
    """Refuse a submission whose new tasks cost more than there is, before anything of it is written."""
    job = unit.jobs_by_id([op.job]).get(op.job)
    if job is not None and job.owner != op.owner:
        return None  # refused below, as not being there
    digests = {_digest_of(op.owner, task): task.reward_wei for task in reversed(op.tasks)}
    for digest, _, _, status, finished_at, ttl_s in unit.connection.rows(
        unit.statements.dedupe_holders, as_json(digests)
    ):
        if not frees_key(status, finished_at, ttl_s, now=unit.now):
            del digests[digest]
    payer = None if job is None else payer_of(unit, job.n)
    return refusal_to_pay(unit, payer or _payer(op), sum(digests.values()), job=op.job)


def _payer(op: Submit) -> Payer:
    return Payer(owner=op.owner if op.charged else None, budget_wei=op.budget_wei)


def _mismatch() -> Refusal:
    return Refusal(
        RefusalCode.IDEMPOTENCY_MISMATCH,
        "this Idempotency-Key was used for another request: repeat that one unchanged, or take a new key",
    )


def _stored_answer(unit: Unit, op: Submit) -> SubmitResult | Refusal | None:
    found = unit.connection.rows(unit.statements.idempotent_answer, op.owner, op.idempotency_key)
    if not found:
        return None
    digest, answer = found[0]
    if bytes(digest) != op.body_digest:
        return _mismatch()
    stored = orjson.loads(answer)
    return SubmitResult(job=stored["job"], tasks=tuple((task, created) for task, created in stored["tasks"]))


def _insert(
    unit: Unit, lines: Lines, ops: Sequence[Submit], fresh: Sequence[int], answers: list[SubmitResult | Refusal | None]
) -> None:
    jobs = _jobs(unit, ops, fresh, answers)
    total = sum(len(ops[index].tasks) for index in jobs)
    if not total:
        return
    seq = unit.next("task", by=total)
    new: list[_New] = []
    for index, job in jobs.items():
        owner = ops[index].owner
        for position, task in enumerate(ops[index].tasks):
            new.append(_New(index, position, task, job, _digest_of(owner, task), seq))
            seq += 1
    holders = _take_keys(unit, new)
    results: dict[int, list[tuple[TaskId, bool]]] = {index: [("", False)] * len(ops[index].tasks) for index in jobs}
    for item in new:
        holder = holders.get(item.seq)
        results[item.op][item.position] = (item.task.id, True) if holder is None else (holder, False)
    created = [item for item in new if item.seq not in holders]
    _write(unit, lines, created)
    for index, job in jobs.items():
        op = ops[index]
        if _pays(op):
            if (op.charged or op.budget_wei is not None) and payer_of(unit, job.n) is None:
                open_budget(unit, job.n, _payer(op))
            charge(unit, job.n, [(item.task.id, 1, item.task.reward_wei) for item in created if item.task.reward_wei])
        answers[index] = SubmitResult(job=job.id, tasks=tuple(results[index]))
        if op.idempotency_key is not None:
            stored = orjson.dumps({"job": job.id, "tasks": results[index]}).decode()
            unit.connection.later_once(
                unit.statements.insert_idempotent_answer,
                op.owner,
                op.idempotency_key,
                op.body_digest,
                stored,
                unit.now,
            )


def _jobs(
    unit: Unit, ops: Sequence[Submit], fresh: Sequence[int], answers: list[SubmitResult | Refusal | None]
) -> dict[int, Job]:
    """Each submission's job: found, or made. A submission to a job that isn't its owner's is refused."""
    known = unit.jobs_by_id(ops[index].job for index in fresh)
    jobs: dict[int, Job] = {}
    made: list[tuple[Any, ...]] = []
    for index in fresh:
        op = ops[index]
        job = known.get(op.job)
        if (job is None and op.job_named) or (job is not None and job.owner != op.owner):
            answers[index] = Refusal(RefusalCode.NOT_FOUND, f"there is no job {op.job}")
            continue
        if job is None:
            settle = op.settle.value if op.settle is Settle.CHANNEL else None
            job = Job(unit.next("job"), op.job, op.owner, op.name, unit.now, settle)
            made.append((job.n, job.id, job.owner, job.name, job.created_at, job.settle))
            unit.keep_job(job)
            known[op.job] = job
        jobs[index] = job
    if made:
        unit.connection.later(unit.statements.insert_job, made)
    return jobs


def _take_keys(unit: Unit, new: Sequence[_New]) -> dict[int, TaskId]:
    """Take the dedupe keys of new tasks.

    Returns:
        For each task (its seq) that doesn't get its key, the id of the one that has it.
    """
    first: dict[str, _New] = {}
    for item in new:
        first.setdefault(item.digest, item)
    taken = unit.connection.many(unit.statements.insert_dedupe, [(key, item.seq) for key, item in first.items()])
    held = {} if taken == len(first) else _held_keys(unit, first)
    holders = {}
    for item in new:
        if item.digest in held:
            holders[item.seq] = held[item.digest]
        elif first[item.digest] is not item:
            holders[item.seq] = first[item.digest].task.id
    return holders


def _held_keys(unit: Unit, asking: Mapping[str, _New]) -> dict[str, TaskId]:
    """Which of these keys another task has, and which task; a key that its holder left free is taken."""
    held = {}
    for digest, seq, task, status, finished_at, ttl_s in unit.connection.rows(
        unit.statements.dedupe_holders, as_json(asking)
    ):
        if seq == asking[digest].seq:
            continue
        if frees_key(status, finished_at, ttl_s, now=unit.now):
            unit.connection.run(unit.statements.take_dedupe, digest, asking[digest].seq)
        else:
            held[digest] = task
    return held


def _write(unit: Unit, lines: Lines, new: Sequence[_New]) -> None:
    """Insert the tasks that got their keys, and the first event of each."""
    if not new:
        return
    now = unit.now
    keys = DemandKeys()
    pairs = [
        (keys.key(tier=item.task.tier, kind=item.task.kind, requires=item.task.requires), item.task.host)
        for item in new
    ]
    lanes = lines.lanes(pairs)
    rows: dict[Status, list[tuple[Any, ...]]] = {Status.PENDING: [], Status.WAITING: []}
    bodies: list[tuple[Any, ...]] = []
    for item, pair in zip(new, pairs, strict=True):
        task = item.task
        delayed = task.not_before_s > 0
        row = TaskRow(
            item.seq,
            task.id,
            item.job.n,
            task.priority,
            str(task.reward_wei),
            task.max_attempts,
            task.max_run_s,
            now,
            now + task.expires_in_s,
            Status.WAITING.value if delayed else Status.PENDING.value,
            lanes[pair],
        )
        row.rank = rank(task.priority, now)
        if delayed:
            row.wake_at = now + task.not_before_s
        else:
            unit.stale_heads.add(row.lane)
        unit.count(row.job, row.status, 1)
        unit.record(row, Move.SUBMIT, None, Actor.REQUESTER)
        body = encode_body(task)
        unit.memory.keep(row, body)
        rows[row.status].append(row.first_columns())
        bodies.append((row.seq, body, item.digest, task.dedupe_ttl_s))
    for status, batch in rows.items():
        if batch:
            unit.connection.later(unit.statements.batches.insert_task(status), batch)
    unit.connection.later(unit.statements.insert_body, bodies)
