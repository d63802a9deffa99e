"""A connection to Redis: its URL, and its faults as ours. Shared by the queue and by the root's pacing.

An unreachable Redis is an error that names the address and the reason; nothing else is ever used in its place. A
password never gets into an error or a log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import attrs

from swarm.errors import ClosedError, ConfigurationError, QueueUnreachable
from swarm.reasons import reason_of
from swarm.settings import nearest

if TYPE_CHECKING:
    from redis import Redis

__all__ = ["CallsInTime", "RedisUrl", "connect", "faults_of", "read_redis_url"]

SCHEMES: Final = frozenset({"redis", "rediss", "unix"})
#: A local answer takes 0.1 ms, one across a continent 0.2 s.
TIMEOUT_S: Final = 5.0

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class RedisUrl:
    """Where a Redis is.

    Args:
        url: for the client; may hold a password.
        shown: the same for people: host, port and database alone.
        options: what the query said.
    """

    url: str = attrs.field(repr=False)
    shown: str
    options: dict[str, str]


def read_redis_url(text: str, *, known: Collection[str]) -> RedisUrl:
    """Read ``redis://[[USER]:PASSWORD@]HOST[:PORT][/DB][?option=value]``; ``rediss`` is TLS, ``unix`` a socket.

    Args:
        text: the URL.
        known: the options that may be in its query.

    Raises:
        ConfigurationError: it isn't one, or has an unknown option.
    """
    try:
        parts = urlsplit(text.strip())
        port = parts.port or 6379
    except ValueError as fault:
        raise ConfigurationError(f"not the URL of a Redis: {fault}", hint="such as redis://127.0.0.1:6379/0") from fault
    whole = bool(parts.path) if parts.scheme == "unix" else bool(parts.hostname)
    if parts.scheme not in SCHEMES or not whole or parts.fragment:
        raise ConfigurationError("not the URL of a Redis", hint="such as redis://127.0.0.1:6379/0")
    if parts.scheme != "unix" and not (parts.path in {"", "/"} or parts.path[1:].isdigit()):
        raise ConfigurationError(
            f"{parts.path[1:]!r} isn't the number of a Redis database",
            hint="a queue is named by ?queue=NAME, as in redis://127.0.0.1:6379/0?queue=pages",
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if name not in known:
            close = nearest(name, known)
            hint = f"did you mean {close}?" if close else f"known are {', '.join(sorted(known))}"
            raise ConfigurationError(f"there is no option {name} of a Redis URL", hint=hint)
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
    where = parts.path if parts.scheme == "unix" else f"{host}:{port}{parts.path.rstrip('/')}"
    return RedisUrl(
        url=urlunsplit((parts.scheme, parts.netloc, parts.path, "", "")),
        shown=f"{parts.scheme}://{where}",
        options=options,
    )


def connect(where: RedisUrl, *, timeout_s: float = TIMEOUT_S) -> Redis:
    """A client with its pool; it connects when it is first used, and again after a loss.

    Raises:
        ConfigurationError: the extra ``redis`` isn't installed.
    """
    try:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ModuleNotFoundError as fault:
        raise ConfigurationError(
            "the Python package redis isn't installed", hint="pip install 'task-swarm[redis]'"
        ) from fault
    # Nothing is sent twice behind a caller's back: a script may have run. A connection that died while it was idle is
    # noticed when it is taken from the pool, and replaced.
    never = Retry(NoBackoff(), retries=0)
    client: Redis = Redis.from_url(
        where.url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=never, protocol=2
    )
    return client


class CallsInTime:
    """Calls of a client, each of which ends in time, whatever server, network and resolver do.

    A socket's own time-out begins anew with each byte, and none holds for the look-up of a name. So a call runs in
    another thread, and where one isn't done in time the client's connections are closed, which ends it there: the
    others that are under way fail with it, and are told so.

    Args:
        client: whose calls they are.
        where: for the error.
        limit_s: how long a whole call may take, seconds.
        at_once: how many calls may be under way; others wait, within their time.

    *Resource handling*: holds threads, and the client; ``close`` it. A call that has begun ends by itself, or with the
    error of a connection that was hung up; one that waited for its turn ends with ``ClosedError``.
    """

    def __init__(self, client: Redis, where: RedisUrl, *, limit_s: float, at_once: int) -> None:
        self._client: Final = client
        self._where: Final = where
        self._limit_s: Final = limit_s
        self._threads: Final = ThreadPoolExecutor(at_once, thread_name_prefix="redis")

    def run(self, call: Callable[[], T]) -> T:
        """The call's answer, or its fault.

        Raises:
            QueueUnreachable: it wasn't done in time; whether the server did it isn't known.
            ClosedError: the client was closed before the call began.
        """
        try:
            under_way = self._threads.submit(call)
        except RuntimeError as fault:
            raise self._closed_error() from fault
        try:
            return under_way.result(self._limit_s)
        except CancelledError as fault:
            raise self._closed_error() from fault
        except TimeoutError as fault:
            if under_way.done():  # its own, or it was done just now
                return under_way.result()
            under_way.cancel()
            self._client.connection_pool.disconnect()
            raise QueueUnreachable(self._where.shown, f"no whole answer within {self._limit_s:g} s") from fault

    def close(self) -> None:
        """Hang up."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"the connection to {self._where.shown} was closed")


@contextlib.contextmanager
def faults_of(where: RedisUrl) -> Iterator[None]:
    """Turn the client's faults into ours.

    Raises:
        QueueUnreachable: it doesn't answer, can't do this now (full, read-only, loading, wrong password), or says what
            no Redis says.
        ConfigurationError: a key holds something else.
    """
    from redis.exceptions import AuthenticationError, RedisError, ResponseError

    try:
        yield
    except AuthenticationError as fault:
        raise QueueUnreachable(
            where.shown, str(fault), hint="put user and password in the URL; no other queue was used"
        ) from fault
    except ResponseError as fault:
        if "WRONGTYPE" in str(fault):
            raise ConfigurationError(
                f"{where.shown}: {fault}", hint="a queue's key is a list, a set or a sorted set; choose another ?queue="
            ) from fault
        raise QueueUnreachable(where.shown, str(fault)) from fault
    except (RedisError, OSError) as fault:
        raise QueueUnreachable(
            where.shown, reason_of(fault), hint="is a Redis running there? no other queue was used"
        ) from fault
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError) as fault:
        # The client's parser and our readers of answers meet bytes from a peer: they have one way out.
        raise QueueUnreachable(
            where.shown,
            f"its answer makes no sense: {reason_of(fault)[:200]}",
            hint="is that a Redis? nothing was taken",
        ) from fault
