"""Profiles and sessions, as the writer keeps them: who has which, and how it fares."""

from __future__ import annotations

from typing import Any

import attrs

from rendezvous.ledger.rules import SECOND_ORDER
from rendezvous.ledger.unit import Unit
from rendezvous.policy.contexts import Context, ContextKind, ProfileState, challenged, state_of
from rendezvous.policy.eligibility import Contexts, Demand

__all__ = ["begin_context", "context_of", "contexts_of", "note_accepted_profile", "note_challenged"]

#: The counter of contexts that were begun.
CONTEXT = "context"


def context_of(columns: Any) -> Context:
    """The context of (worker, used_at, accepted, challenges)."""
    worker, used_at, accepted, challenges = columns
    return Context(worker=worker, used_at=used_at, accepted=accepted, challenges=challenges)


def _read(unit: Unit, kind: ContextKind, name: str | None) -> Context | None:
    if name is None or not unit.counter(CONTEXT):
        return None
    known = unit.memory.contexts
    key = (kind.value, name)
    if key not in known:
        rows = unit.connection.rows(unit.statements.policy.context, kind.value, name)
        known[key] = context_of(rows[0]) if rows else None
    return known[key]


def contexts_of(unit: Unit, demand: Demand) -> Contexts:
    """What is known of the profile and session that a demand names."""
    return Contexts(
        profile=_read(unit, ContextKind.PROFILE, demand.requires.profile),
        session=_read(unit, ContextKind.SESSION, demand.requires.session),
    )


def _keep(unit: Unit, kind: ContextKind, name: str, context: Context) -> None:
    unit.memory.contexts[kind.value, name] = context
    unit.connection.run(
        unit.statements.policy.put_context,
        kind.value,
        name,
        context.worker,
        context.used_at,
        context.accepted,
        context.challenges,
    )


def begin_context(unit: Unit, demand: Demand, worker: int) -> None:
    """A worker is granted a task of the profile and session that the demand names: from now on they are its own."""
    named = ((ContextKind.PROFILE, demand.requires.profile), (ContextKind.SESSION, demand.requires.session))
    for kind, name in named:
        if name is None:
            continue
        known = _read(unit, kind, name)
        if known is None:
            unit.next(CONTEXT)
        if known is None or known.worker != worker:
            known = Context(worker=worker, used_at=unit.now)
        _keep(unit, kind, name, attrs.evolve(known, used_at=unit.now))


def note_accepted_profile(unit: Unit, demand: Demand) -> None:
    """A task of the profile that the demand names was accepted."""
    name = demand.requires.profile
    known = _read(unit, ContextKind.PROFILE, name)
    if name is not None and known is not None:
        _keep(unit, ContextKind.PROFILE, name, attrs.evolve(known, accepted=known.accepted + 1))


def note_challenged(unit: Unit, demand: Demand) -> None:
    """A site turned the profile away that the demand names."""
    name = demand.requires.profile
    known = _read(unit, ContextKind.PROFILE, name)
    if name is None or known is None:
        return
    after = challenged(known)
    if demand.careful and ProfileState.RETIRED is state_of(after) is not state_of(known):
        unit.next(SECOND_ORDER)
    _keep(unit, ContextKind.PROFILE, name, after)
