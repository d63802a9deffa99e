"""The words of the project: statuses, the one transition table, reasons and refusals.

Pure values. Every writer of a task's status asks ``MOVES`` and no other place; the ledger puts ``sources(move)`` into
its WHERE clauses, the state-machine test walks the same table.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

import attrs

__all__ = [
    "AGENT",
    "MOVES",
    "RETRYABLE_REASONS",
    "TERMINAL",
    "TURNS_AWAY",
    "Actor",
    "Address",
    "Cid",
    "JobId",
    "Move",
    "Reason",
    "Refusal",
    "RefusalCode",
    "Role",
    "Rule",
    "Status",
    "TaskId",
    "Via",
    "Wei",
    "is_retryable",
    "sources",
    "targets",
]

TaskId = str  #: UUIDv7, lower-case text
JobId = str  #: UUIDv7, lower-case text
Address = str  #: EIP-55 checksummed Ethereum address
Cid = str  #: CIDv1, base32, sha2-256
Wei = int  #: a decimal string in JSON

#: The product token that our User-Agent starts with and that robots.txt rules are looked up for.
AGENT: Final = "task-swarm"


class Status(enum.StrEnum):
    """Where a task is in its life."""

    #: Delayed, or backing off after a failure; the ledger moves it on when its time has come.
    WAITING = "waiting"
    #: Ready to be granted.
    PENDING = "pending"
    #: Granted: it has an assignee, a fence and a lease.
    ACTIVE = "active"
    #: Its result is recorded.
    COMPLETED = "completed"
    #: The dead letter: it has a reason and can be replayed.
    FAILED = "failed"
    #: Called off by its owner or the operator.
    CANCELLED = "cancelled"


TERMINAL: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})


class Actor(enum.StrEnum):
    """Who may move a task."""

    REQUESTER = "requester"
    WORKER = "worker"
    ASSIGNEE = "assignee"
    LEDGER = "ledger"
    OPERATOR = "operator"
    POLICY = "policy"


class Role(enum.StrEnum):
    """What an API key may do."""

    WORKER = "worker"
    REQUESTER = "requester"
    OPERATOR = "operator"


class Via(enum.StrEnum):
    """How a grant came about."""

    #: The worker asked for this very task, which it had heard of by gossip.
    OFFER = "offer"
    #: The worker asked for any task.
    WANT = "want"
    #: The door pushed it to the least loaded worker.
    ASSIGN = "assign"


class Move(enum.StrEnum):
    """The steps of a task's life; each writes the task row and one event in one transaction."""

    SUBMIT = "submitted"
    WAKE = "woken"
    GRANT = "granted"
    RENEW = "renewed"
    COMPLETE = "completed"
    RELEASE = "released"
    EXPIRE_LEASE = "lease_expired"
    QUARANTINE = "quarantined"
    RETRY = "retried"
    FAIL = "failed"
    FAIL_BY_HAND = "failed_by_hand"
    EXPIRE = "expired"
    UNFUND = "funding_failed"
    CANCEL = "cancelled"
    REJECT = "rejected"
    REPLAY = "replayed"


@attrs.frozen(kw_only=True)
class Rule:
    """One row of the transition table: from which statuses, to which, and by whom. None is "not there yet"."""

    sources: frozenset[Status | None]
    targets: frozenset[Status]
    actors: frozenset[Actor]


def _rule(sources: set[Status | None] | set[Status] | set[None], targets: set[Status], actors: set[Actor]) -> Rule:
    return Rule(sources=frozenset(sources), targets=frozenset(targets), actors=frozenset(actors))


_W, _P, _A, _C, _F, _X = (
    Status.WAITING,
    Status.PENDING,
    Status.ACTIVE,
    Status.COMPLETED,
    Status.FAILED,
    Status.CANCELLED,
)

#: The one transition table (DESIGN §3).
MOVES: Final[Mapping[Move, Rule]] = {
    Move.SUBMIT: _rule({None}, {_P, _W}, {Actor.REQUESTER}),
    Move.WAKE: _rule({_W}, {_P}, {Actor.LEDGER}),
    Move.GRANT: _rule({_P}, {_A}, {Actor.WORKER}),
    Move.RENEW: _rule({_A}, {_A}, {Actor.ASSIGNEE}),
    # a funded task's result that crossed its cancelling on the way is honoured, while the lease would have run
    Move.COMPLETE: _rule({_A, _X}, {_C}, {Actor.ASSIGNEE}),
    Move.RELEASE: _rule({_A}, {_P}, {Actor.ASSIGNEE, Actor.LEDGER, Actor.OPERATOR}),
    Move.EXPIRE_LEASE: _rule({_A}, {_P, _F}, {Actor.LEDGER}),
    Move.QUARANTINE: _rule({_A}, {_P}, {Actor.LEDGER, Actor.OPERATOR}),
    Move.RETRY: _rule({_A}, {_W}, {Actor.ASSIGNEE}),
    Move.FAIL: _rule({_A}, {_F}, {Actor.ASSIGNEE, Actor.LEDGER}),
    Move.FAIL_BY_HAND: _rule({_P, _W, _A}, {_W, _F}, {Actor.OPERATOR}),
    Move.EXPIRE: _rule({_A, _W, _P}, {_F}, {Actor.LEDGER}),
    Move.UNFUND: _rule({_A, _W, _P}, {_F}, {Actor.LEDGER}),
    Move.CANCEL: _rule({_A, _W, _P}, {_X}, {Actor.REQUESTER, Actor.OPERATOR}),
    Move.REJECT: _rule({_C}, {_P, _F}, {Actor.POLICY}),
    Move.REPLAY: _rule({_F}, {_P}, {Actor.REQUESTER, Actor.OPERATOR}),
}


def sources(move: Move) -> frozenset[Status]:
    """The statuses that a move may start from (for a WHERE clause)."""
    return frozenset(status for status in MOVES[move].sources if status is not None)


def targets(move: Move) -> frozenset[Status]:
    """The statuses that a move may end in."""
    return MOVES[move].targets


class Settle(enum.StrEnum):
    """How the tasks of a job are paid for: fixed when the job is made."""

    #: Each task is funded on the chain and paid by itself (path A).
    TASK = "task"
    #: Vouchers on a channel of each worker (path B).
    CHANNEL = "channel"


class Reason(enum.StrEnum):
    """Why an execution or a task failed. Executors may add their own words of the same shape (DESIGN §8)."""

    DNS = "dns"
    CONNECT = "connect"
    TIMEOUT = "timeout"
    HTTP_5XX = "http_5xx"
    HTTP_408 = "http_408"
    #: The lease ran out: the worker died, or was cut off.
    WORKER_LOST = "worker_lost"
    #: The site said stop: 403, 429 or a challenge page. Retried after cooling off.
    BLOCKED = "blocked"
    HTTP_4XX = "http_4xx"
    TLS = "tls"
    ROBOTS = "robots"
    TOO_LARGE = "too_large"
    SELECTOR_MISSING = "selector_missing"
    #: The address isn't one that this worker may dial (private, loopback, link-local, metadata, other scheme).
    ADDRESS_REFUSED = "address_refused"
    TOO_MANY_REDIRECTS = "too_many_redirects"
    #: The task's ``spec`` doesn't fit its kind.
    BAD_SPEC = "bad_spec"
    #: The executor itself broke; a defect of ours or of a plugin.
    EXECUTOR_ERROR = "executor_error"
    #: ``max_run_s`` was used up.
    RUN_TOO_LONG = "run_too_long"
    #: ``expires_in_s`` passed before it was done.
    EXPIRED = "expired"
    FUNDING_FAILED = "funding_failed"
    BY_HAND = "by_hand"


RETRYABLE_REASONS: Final = frozenset(
    {
        Reason.DNS,
        Reason.CONNECT,
        Reason.TIMEOUT,
        Reason.HTTP_5XX,
        Reason.HTTP_408,
        Reason.WORKER_LOST,
        Reason.BLOCKED,
        Reason.EXECUTOR_ERROR,
    }
)


def is_retryable(reason: str, said: bool | None = None) -> bool:
    """Whether a failure may be tried again.

    Args:
        reason: one of ``Reason``, or an executor's own word.
        said: what the executor said of its own word; for a reason of ours it isn't asked.
    """
    try:
        return Reason(reason) in RETRYABLE_REASONS
    except ValueError:
        return bool(said)


class RefusalCode(enum.StrEnum):
    """Every stable code that the door can answer with. ``rendezvous.door.envelope`` maps each to its HTTP status."""

    # the request itself
    BAD_REQUEST = "bad_request"
    UNSTORABLE_TEXT = "unstorable_text"
    BODY_TOO_LARGE = "body_too_large"
    HEADERS_TOO_LARGE = "headers_too_large"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    EXPECTATION_FAILED = "expectation_failed"
    NOT_FOUND = "not_found"
    IDEMPOTENCY_MISMATCH = "idempotency_mismatch"
    URLS_OF_MANY_HOSTS = "urls_of_many_hosts"
    BAD_URL = "bad_url"
    DEDUPE_TTL_TOO_SHORT = "dedupe_ttl_too_short"
    # money
    UNPAID_SWARM = "unpaid_swarm"
    ALLOWANCE_EXCEEDED = "allowance_exceeded"
    BUDGET_EXCEEDED = "budget_exceeded"
    # who asks
    UNAUTHORIZED = "unauthorized"
    KEY_REVOKED = "key_revoked"
    FORBIDDEN = "forbidden"
    INVITE_INVALID = "invite_invalid"
    CHALLENGE_EXPIRED = "challenge_expired"
    CHALLENGE_USED = "challenge_used"
    SIGNATURE_INVALID = "signature_invalid"
    VERSION_UNSUPPORTED = "version_unsupported"
    RATE_LIMITED = "rate_limited"
    STALE_TURN = "stale_turn"
    # a task that won't move
    INVALID_ASSIGNEE = "invalid_assignee"
    LEASE_EXPIRED = "lease_expired"
    WRONG_STATUS = "wrong_status"
    RESULT_DIFFERS = "result_differs"
    RESULT_UNREADABLE = "result_unreadable"
    RESULT_MISMATCH = "result_mismatch"
    # a grant that policy doesn't give
    KIND_UNSUPPORTED = "kind_unsupported"
    REQUIRES_UNMET = "requires_unmet"
    PROFILE = "profile"
    PROFILE_MATURING = "profile_maturing"
    PROFILE_RETIRED = "profile_retired"
    SESSION_ELSEWHERE = "session_elsewhere"
    OUTSIDE_HOURS = "outside_hours"
    PASSED_OVER = "passed_over"
    SUSPECT_HELD = "suspect_held"
    HOST_PACED = "host_paced"
    HOST_HELD = "host_held"
    HOST_BUSY = "host_busy"
    HOST_SLOW = "host_slow"
    SWARM_PACED = "swarm_paced"
    PAUSED = "paused"
    QUARANTINED = "quarantined"
    COOLING_OFF = "cooling_off"
    EGRESS_FLAGGED = "egress_flagged"
    PREFIX_TAKEN = "prefix_taken"
    NEWCOMER = "newcomer"
    CLAIM_BUDGET = "claim_budget"
    VERSION_NOT_APPROVED = "version_not_approved"
    # what the root leans on
    LEDGER_UNAVAILABLE = "ledger_unavailable"
    IPFS_UNAVAILABLE = "ipfs_unavailable"
    STORE_FULL = "store_full"
    ROBOTS_UNAVAILABLE = "robots_unavailable"
    SHUTTING_DOWN = "shutting_down"
    INTERNAL = "internal"


#: A worker that is answered one of these stops: asking again, at whatever door, won't change it.
TURNS_AWAY: Final = frozenset({RefusalCode.KEY_REVOKED, RefusalCode.VERSION_UNSUPPORTED, RefusalCode.FORBIDDEN})


@attrs.frozen
class Refusal:
    """A "no" that is part of the protocol: a stable code, a sentence that says what to do, and when to ask again.

    Args:
        code: the stable code.
        message: a sentence a person can use.
        retry_after_s: when asking again can help, seconds; None where it can't.
        details: facts for programs.
    """

    code: RefusalCode
    message: str
    retry_after_s: float | None = None
    details: Mapping[str, Any] | None = None
