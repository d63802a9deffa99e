"""Check a task's ``spec`` against the shape that its kind takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from swarm.executors.base import TaskFailed
from swarm.model import Reason

HttpStatus = Annotated[int, Meta(ge=100, le=599)]


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The base of all specs: what isn't known is refused, so that a typing error is no silent default."""


S = TypeVar("S", bound=Spec)


def read_spec(spec: Mapping[str, Any], shape: type[S]) -> S:
    """Check a spec.

    Raises:
        TaskFailed: ``bad_spec``; the detail names the field.
    """
    try:
        return msgspec.convert(spec, shape)
    except msgspec.ValidationError as fault:
        known = ", ".join(field.name for field in msgspec.structs.fields(shape))
        raise TaskFailed(Reason.BAD_SPEC, f"{fault}; known are: {known}") from fault
