"""Keys, invites, enrolments, what the door has heard of workers, and what the root signed for them."""

from __future__ import annotations

from collections.abc import Sequence

from rendezvous.ledger.act_ops import Admit, Enrol, PutInvite, PutKey, Revoke, Revoked
from rendezvous.ledger.endings import give_back
from rendezvous.ledger.ops import KeepAcceptance, RemoveWorker, SeeWorkers
from rendezvous.ledger.rules import note
from rendezvous.ledger.unit import Unit, as_json
from rendezvous.ledger.values import WorkerRef
from swarm.model import Actor, Address, Refusal, RefusalCode, Role, Status

__all__ = ["admit", "enrol", "keep_acceptance", "put_invite", "put_key", "remove_worker", "revoke", "see_workers"]


def put_key(unit: Unit, op: PutKey) -> bool:
    """Store a key; the name's earlier one is revoked, and who was revoked is taken back by it.

    Returns:
        Whether there was an earlier one that was good.
    """
    unit.connection.run(unit.statements.lift_revocation, op.owner)
    unit.memory.revoked = None
    return _replace_key(unit, op.digest, op.role, op.owner, instance=op.instance, payout=op.payout)


def _replace_key(
    unit: Unit, digest: bytes, role: Role, owner: str, *, instance: str | None, payout: Address | None
) -> bool:
    statements = unit.statements
    replaced = unit.connection.run(statements.revoke_name, unit.now, owner, role.value, instance)
    unit.connection.run(statements.insert_key, digest, role.value, owner, instance, payout, unit.now, None)
    return bool(replaced)


def put_invite(unit: Unit, op: PutInvite) -> None:
    """Store an invite; the same hash again replaces it."""
    unit.connection.run(unit.statements.put_invite, op.digest, op.uses, unit.now + op.expires_in_s)


def enrol(unit: Unit, op: Enrol) -> Refusal | None:
    """Bind a worker to its payout address and give it a key."""
    statements = unit.statements
    for who, why in unit.connection.rows(statements.revocation, op.worker.address):
        return Refusal(RefusalCode.KEY_REVOKED, f"{who} revoked {op.worker.address}: {why}")
    if not unit.connection.run(statements.insert_challenge, op.challenge, op.worker.address, unit.now):
        return Refusal(
            RefusalCode.CHALLENGE_USED,
            "this address has used this challenge already: get GET /settings again and sign the new one",
        )
    if op.invite_digest is not None and not unit.connection.run(statements.use_invite, op.invite_digest, unit.now):
        return Refusal(
            RefusalCode.INVITE_INVALID, "the invite isn't known, has run out, or was used up: ask for a new join link"
        )
    number = unit.worker(op.worker).n
    unit.connection.run(statements.update_enrolled, op.payout, op.peer_id, number)
    _replace_key(unit, op.key_digest, Role.WORKER, op.worker.address, instance=op.worker.instance, payout=op.payout)
    return None


def see_workers(unit: Unit, op: SeeWorkers) -> None:
    """Keep what the door has heard of workers."""
    rows = [
        (seen.payout, seen.peer_id, seen.boot, seen.hello, seen.stats, seen.at, unit.worker(seen.worker).n)
        for seen in op.seen
    ]
    if rows:
        unit.connection.many(unit.statements.update_seen, rows)


def keep_acceptance(unit: Unit, op: KeepAcceptance) -> None:
    """Keep the root's signature; the first one stays."""
    unit.connection.run(unit.statements.keep_acceptance, op.acceptance, op.task, op.generation, op.signature)


def remove_worker(unit: Unit, op: RemoveWorker) -> int:
    """Take a worker off the list; what it holds goes back uncounted."""
    note(unit, who=op.who, act="removed", subject=f"{op.worker.address}:{op.worker.instance}", why=op.why)
    because = f": {op.why}" if op.why else ""
    return _take_off(unit, (op.worker,), who=op.who, detail=f"the worker was removed{because}")


def revoke(unit: Unit, op: Revoke) -> Revoked:
    """Revoke all keys of an owner, requester or worker; what its workers hold goes back."""
    keys = unit.connection.run(unit.statements.revoke_owner, unit.now, op.owner)
    refs = unit.workers_of(op.owner)
    if not keys and not refs:
        return Revoked(keys=0)
    unit.connection.run(unit.statements.put_revocation, op.owner, op.who, op.why, unit.now)
    note(unit, who=op.who, act="revoked", subject=op.owner, why=op.why)
    requeued = _take_off(unit, refs, who=op.who, detail=f"its worker was revoked: {op.why}")
    return Revoked(keys=keys, workers=tuple(refs), requeued=requeued)


def admit(unit: Unit, op: Admit) -> bool:
    """Let a revoked address enrol again."""
    lifted = bool(unit.connection.run(unit.statements.lift_revocation, op.owner))
    if lifted:
        note(unit, who=op.who, act="admitted", subject=op.owner, why=op.why)
    return lifted


def _take_off(unit: Unit, refs: Sequence[WorkerRef], *, who: str, detail: str) -> int:
    unit.flush()
    numbers = [unit.worker(ref).n for ref in refs]
    held = unit.connection.rows(unit.statements.held_seqs, as_json(numbers))
    rows = [row for row in unit.tasks_by_seq([seq for _, seq in held]) if row.status is Status.ACTIVE]
    for row in rows:
        give_back(unit, row, Actor.OPERATOR, who=who, detail=detail)
    for ref, number in zip(refs, numbers, strict=True):
        unit.connection.run(unit.statements.update_seen, None, None, None, None, None, None, number)
        unit.fleet.forget(ref)
    return len(rows)
