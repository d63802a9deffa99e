"""What a route is, and one call of it: the words that the route table and the handlers share.

A handler takes the door's resources and a ``Call`` (key checked, body parsed, queries parsed) and gives back an
answer struct, a ``Refusal``, or a response that it streams itself. It never sees headers of authentication or JSON.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec
from aiohttp import web

from rendezvous.ledger.values import WorkerRef
from swarm.model import Address, Refusal, Role
from swarm.wire import Answer

if TYPE_CHECKING:
    from rendezvous.door.resources import Door

__all__ = ["ANYONE", "Call", "Caller", "Empty", "Handler", "Query", "Reply", "Route", "Shown"]

DEFAULT_BODY_BYTES: Final = 64 * 1024
#: Who may call a route that asks for no key.
ANYONE: Final[frozenset[Role]] = frozenset()


class Empty(Answer, frozen=True):
    """An answer that says no more than that it was done."""


@attrs.frozen(kw_only=True)
class Caller:
    """Who calls: what the API key is bound to."""

    digest: bytes
    role: Role
    owner: str
    worker: WorkerRef | None = None
    payout: Address | None = None

    @property
    def sees(self) -> str | None:
        """The owner whose tasks the caller sees; None is all of them."""
        return None if self.role is Role.OPERATOR else self.owner


@attrs.frozen(kw_only=True)
class Query:
    """One query parameter. With ``at_most`` it is an integer, else text of up to 256 characters."""

    name: str
    help: str
    default: int | None = None
    at_least: int = 0
    at_most: int | None = None
    choices: tuple[str, ...] = ()
    required: bool = False


@attrs.frozen(kw_only=True)
class Call:
    """One call of a route, checked."""

    request: web.Request
    caller: Caller | None
    raw: bytes
    body: Any
    queries: dict[str, Any]

    @property
    def who(self) -> Caller:
        """The caller of a route that asks for a key."""
        if self.caller is None:
            raise LookupError("this route asks for no key")
        return self.caller

    def path(self, name: str) -> str:
        """A part of the path, such as the task's id."""
        return self.request.match_info[name]


@attrs.frozen(kw_only=True)
class Shown:
    """An answer with a status or headers of its own; ``enveloped`` where it brings its own envelope."""

    value: msgspec.Struct | msgspec.Raw
    status: int = 200
    headers: dict[str, str] = attrs.field(factory=dict)
    enveloped: bool = False


Reply = msgspec.Struct | Shown | Refusal | web.StreamResponse
Handler = Callable[["Door", Call], Awaitable[Reply]]


@attrs.frozen(kw_only=True)
class Route:
    """One row of the route table.

    Args:
        who: the roles that may call it; ``ANYONE`` asks for no key.
        body: the struct that the request body must be; None where there is no body.
        raw: the body is text that the handler parses itself.
        body_optional: an empty body stands for the struct's defaults.
        answer: the struct of ``data``; for a ``Page`` the struct of its items is ``item``.
        media: the content type where the answer isn't the JSON envelope.
        limited: False where the rate limit doesn't apply (probes).
        enveloped: ``answer`` is the whole body, its envelope included.
    """

    method: str
    path: str
    summary: str
    handler: Handler
    who: frozenset[Role] = ANYONE
    body: type[msgspec.Struct] | None = None
    body_optional: bool = False
    raw: bool = False
    answer: type[msgspec.Struct] | None = None
    item: type[msgspec.Struct] | None = None
    status: int = 200
    media: str | None = None
    queries: tuple[Query, ...] = ()
    headers: tuple[Query, ...] = ()
    max_body_bytes: int = DEFAULT_BODY_BYTES
    limited: bool = True
    enveloped: bool = False
