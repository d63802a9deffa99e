"""The shape of every answer: ``{"data": …}`` or ``{"error": {…}}``, and the HTTP status of every refusal.

``STATUS_OF`` is the one table that says which status a refusal has; a test holds that no code is missing. Nothing
here knows a route or the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from aiohttp import web

from rendezvous.ledger.ops import Ended
from swarm.errors import (
    ClosedError,
    ContentMismatch,
    IpfsUnreachable,
    LedgerUnavailable,
    MalformedInput,
    StoreFull,
    SwarmError,
)
from swarm.model import Refusal, RefusalCode
from swarm.turn_wire import Outcome
from swarm.wire import Answer, ErrorBody, encode

__all__ = ["STATUS_OF", "data", "error_body", "outcome_of", "refusal_of", "refused"]

#: Below this, compressing costs more than it saves.
GZIP_FROM_BYTES: Final = 1_400
JSON: Final = "application/json"
#: Said when what the root leans on is down and nothing better is known, seconds.
RETRY_AFTER_OUTAGE_S: Final = 2.0
#: A full store needs the operator, or the next collection.
RETRY_WHEN_FULL_S: Final = 30.0

_C: Final = RefusalCode
STATUS_OF: Final[Mapping[RefusalCode, int]] = {
    _C.BAD_REQUEST: 400,
    _C.UNSTORABLE_TEXT: 400,
    _C.BODY_TOO_LARGE: 413,
    _C.HEADERS_TOO_LARGE: 431,
    _C.METHOD_NOT_ALLOWED: 405,
    _C.EXPECTATION_FAILED: 417,
    _C.NOT_FOUND: 404,
    _C.IDEMPOTENCY_MISMATCH: 409,
    _C.URLS_OF_MANY_HOSTS: 400,
    _C.BAD_URL: 400,
    _C.DEDUPE_TTL_TOO_SHORT: 400,
    _C.UNPAID_SWARM: 400,
    _C.ALLOWANCE_EXCEEDED: 402,
    _C.BUDGET_EXCEEDED: 402,
    _C.UNAUTHORIZED: 401,
    _C.KEY_REVOKED: 401,
    _C.FORBIDDEN: 403,
    _C.INVITE_INVALID: 403,
    _C.CHALLENGE_EXPIRED: 400,
    _C.CHALLENGE_USED: 409,
    _C.SIGNATURE_INVALID: 400,
    _C.VERSION_UNSUPPORTED: 400,
    _C.RATE_LIMITED: 429,
    _C.STALE_TURN: 409,
    _C.INVALID_ASSIGNEE: 400,  # the seed's own status
    _C.LEASE_EXPIRED: 400,
    _C.WRONG_STATUS: 409,
    _C.RESULT_DIFFERS: 409,
    _C.RESULT_UNREADABLE: 400,
    _C.RESULT_MISMATCH: 400,
    _C.KIND_UNSUPPORTED: 409,
    _C.REQUIRES_UNMET: 409,
    _C.PROFILE: 409,
    _C.PROFILE_MATURING: 409,
    _C.PROFILE_RETIRED: 409,
    _C.SESSION_ELSEWHERE: 409,
    _C.OUTSIDE_HOURS: 409,
    _C.PASSED_OVER: 409,
    _C.SUSPECT_HELD: 409,
    _C.HOST_PACED: 409,
    _C.HOST_HELD: 409,
    _C.HOST_BUSY: 409,
    _C.HOST_SLOW: 409,
    _C.SWARM_PACED: 409,
    _C.PAUSED: 409,
    _C.QUARANTINED: 409,
    _C.COOLING_OFF: 409,
    _C.EGRESS_FLAGGED: 409,
    _C.PREFIX_TAKEN: 409,
    _C.NEWCOMER: 409,
    _C.CLAIM_BUDGET: 409,
    _C.VERSION_NOT_APPROVED: 409,
    _C.LEDGER_UNAVAILABLE: 503,
    _C.IPFS_UNAVAILABLE: 503,
    _C.STORE_FULL: 507,
    _C.ROBOTS_UNAVAILABLE: 503,
    _C.SHUTTING_DOWN: 503,
    _C.INTERNAL: 500,
}


class Failure(Answer, frozen=True):
    """The envelope of a refusal."""

    error: ErrorBody


def error_body(refusal: Refusal) -> ErrorBody:
    """A refusal as it travels."""
    details = dict(refusal.details) if refusal.details else None
    return ErrorBody(
        code=refusal.code.value, message=refusal.message, retry_after_s=refusal.retry_after_s, details=details
    )


def outcome_of(ended: Ended) -> Outcome:
    """What became of one task, as it travels."""
    if isinstance(ended.outcome, Refusal):
        return Outcome(task=ended.task, fence=ended.fence, error=error_body(ended.outcome))
    return Outcome(task=ended.task, fence=ended.fence, status=ended.outcome.value)


def data(
    value: Any, *, request: web.BaseRequest, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """An answer in its envelope; gzip where it is big and the client takes it."""
    body = b'{"data":' + (bytes(value) if isinstance(value, msgspec.Raw) else encode(value)) + b"}"
    response = web.Response(body=body, status=status, content_type=JSON, headers=headers)
    if len(body) >= GZIP_FROM_BYTES and "gzip" in request.headers.get("Accept-Encoding", ""):
        response.enable_compression(web.ContentCoding.gzip)
    return response


def refused(refusal: Refusal, *, headers: Mapping[str, str] | None = None) -> web.Response:
    """A refusal in its envelope, with its status and ``Retry-After``."""
    response = web.Response(
        body=encode(Failure(error=error_body(refusal))),
        status=STATUS_OF[refusal.code],
        content_type=JSON,
        headers=headers,
    )
    if refusal.retry_after_s is not None:
        response.headers["Retry-After"] = str(max(1, math.ceil(refusal.retry_after_s)))
    if refusal.code in {RefusalCode.UNAUTHORIZED, RefusalCode.KEY_REVOKED}:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def refusal_of(fault: SwarmError) -> Refusal | None:
    """The refusal that a fault of ours or of the client is answered with; None where it is a defect."""
    if isinstance(fault, LedgerUnavailable):
        return Refusal(
            RefusalCode.LEDGER_UNAVAILABLE,
            "the ledger can't be reached or written; nothing was changed, ask again",
            RETRY_AFTER_OUTAGE_S,
        )
    if isinstance(fault, IpfsUnreachable):
        return Refusal(
            RefusalCode.IPFS_UNAVAILABLE,
            "the root's IPFS node doesn't answer; keep the result and ask again",
            RETRY_AFTER_OUTAGE_S,
        )
    if isinstance(fault, (MalformedInput, ContentMismatch)):
        return Refusal(RefusalCode.BAD_REQUEST, str(fault))
    if isinstance(fault, StoreFull):
        return Refusal(RefusalCode.STORE_FULL, "the root's store is full; keep the result", RETRY_WHEN_FULL_S)
    if isinstance(fault, ClosedError):
        return Refusal(RefusalCode.SHUTTING_DOWN, "the root is stopping; come back in a moment", RETRY_AFTER_OUTAGE_S)
    return None
