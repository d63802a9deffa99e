"""A token bucket per host in Redis: several swarms, or a swarm and other crawlers, keep one pace together.

    with open_pace("redis://127.0.0.1:6379/0") as pace:
        pace.wait("example.com", rate_per_s=1.0, burst=5.0)
        fetch("https://example.com/")

The numbers are those of the root's own buckets: a full bucket at first, ``rate_per_s`` tokens a second up to ``burst``,
a token a request. Time is Redis' own, so the members' clocks don't matter. A host's bucket is the hash
``{prefix}:{host}`` with its ``tokens`` and when they were counted (``at``, Unix microseconds); it is dropped once it
would be full again, and begins anew, empty, where it holds something else than numbers. Nothing is given while Redis is
away or talks nonsense: what shares a limit can't guess.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from swarm.queue.port import ClosedByBlock
from swarm.queue.redis_link import CallsInTime, RedisUrl, connect, faults_of, read_redis_url

if TYPE_CHECKING:
    from redis.commands.core import Script

__all__ = ["DEFAULT_PREFIX", "Ask", "Given", "RedisPace", "open_pace"]

DEFAULT_PREFIX: Final = "swarm:pace"
#: What the URL of a pace may say in its query.
OPTIONS: Final = ("prefix",)
TIMEOUT_S: Final = 5.0
#: Callers beyond these wait for each other.
CALLS_AT_ONCE: Final = 8

#: KEYS: a host's bucket each. ARGV: for each the tokens that are wanted, the rate (1/s) and the burst.
#: Answers for each: tokens given, tokens left, Unix seconds of Redis.
_TAKE: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local answers = {}
for i, key in ipairs(KEYS) do
  local wanted, rate, burst = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
  local known = redis.call('HMGET', key, 'tokens', 'at')
  local tokens = burst
  if known[1] or known[2] then
    local had, at = tonumber(known[1] or ''), tonumber(known[2] or '')
    if had and at and had >= 0 and at >= 0 then
      tokens = math.min(burst, had + math.max(0, now - at) / 1000000 * rate) + 1e-9
    else
      tokens = 0
    end
  end
  local given = math.min(wanted, math.floor(tokens))
  if given < 0 then given = 0 end
  tokens = math.max(0, tokens - given)
  redis.call('HSET', key, 'tokens', string.format('%.17g', tokens), 'at', string.format('%.0f', now))
  redis.call('PEXPIRE', key, math.ceil((burst - tokens) / rate * 1000) + 1000)
  answers[i] = {given, string.format('%.17g', tokens), string.format('%.6f', now / 1000000)}
end
return answers
"""


@attrs.frozen(kw_only=True)
class Ask:
    """Tokens of one host.

    Args:
        host: as URLs have it.
        wanted: how many.
        rate_per_s: tokens that come in a second; above 0.
        burst: the most there can be; at least 1.
    """

    host: str
    wanted: int
    rate_per_s: float
    burst: float


@attrs.frozen(kw_only=True)
class Given:
    """What was given.

    Args:
        taken: how many tokens; fewer than wanted where there weren't more.
        left: how many there are now.
        at: when, Unix seconds of Redis.
    """

    taken: int
    left: float
    at: float


class RedisPace(ClosedByBlock):
    """The buckets.

    Args:
        where: the Redis; one server, not a cluster: hosts are asked for together.
        prefix: what the keys begin with; members that share a pace share it.
        timeout_s: how long a call may take, connecting and the whole answer included.

    *Resource handling*: holds connections; use it as a context manager, or ``close`` it.
    """

    def __init__(self, where: RedisUrl, *, prefix: str = DEFAULT_PREFIX, timeout_s: float = TIMEOUT_S) -> None:
        self.where: Final = where
        self._prefix: Final = prefix
        self._redis: Final = connect(where, timeout_s=timeout_s)
        self._calls: Final = CallsInTime(self._redis, where, limit_s=timeout_s, at_once=CALLS_AT_ONCE)
        self._script: Final[Script] = self._redis.register_script(_TAKE)

    def close(self) -> None:
        """Hang up."""
        self._calls.close()

    def check(self) -> None:
        """Raise ``QueueUnreachable`` with the reason where Redis doesn't answer or doesn't let us in."""
        with faults_of(self.where):
            self._calls.run(self._redis.ping)

    def take(self, asks: Sequence[Ask]) -> list[Given]:
        """Take tokens of several hosts in one round trip; each gives what it has.

        Raises:
            QueueUnreachable: Redis doesn't answer, or with what can't be; whether tokens were taken isn't known.
            ClosedError: it was closed.
        """
        if not asks:
            return []
        arguments: list[Any] = []
        for ask in asks:
            arguments += [ask.wanted, repr(float(ask.rate_per_s)), repr(float(max(1.0, ask.burst)))]
        with faults_of(self.where):
            keys = [f"{self._prefix}:{ask.host}" for ask in asks]
            answers = self._calls.run(lambda: self._script(keys=keys, args=arguments))
            return [_given(ask, *answer) for ask, answer in zip(asks, answers, strict=True)]

    def wait(
        self,
        host: str,
        *,
        rate_per_s: float,
        burst: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Wait until one request may go to this host.

        Raises:
            QueueUnreachable: Redis doesn't answer.
            ClosedError: it was closed, also while waiting.
        """
        while True:
            (given,) = self.take([Ask(host=host, wanted=1, rate_per_s=rate_per_s, burst=burst)])
            if given.taken:
                return
            sleep((1.0 - given.left) / rate_per_s)


def _given(ask: Ask, taken: Any, left: Any, at: Any) -> Given:
    """An answer of the script; raises ValueError where a bucket can't have given it."""
    given = Given(taken=int(taken), left=float(left), at=float(at))
    if not (0 <= given.taken <= ask.wanted and 0.0 <= given.left <= max(1.0, ask.burst) + 1e-6 and given.at >= 0.0):
        raise ValueError(f"{given.taken} of {ask.wanted} tokens, {given.left} left")
    return given


def open_pace(location: str, *, timeout_s: float = TIMEOUT_S) -> RedisPace:
    """Open the buckets that ``redis://HOST:PORT/DB[?prefix=NAME]`` names, and see that it answers.

    Raises:
        ConfigurationError: the location makes no sense.
        QueueUnreachable: it doesn't answer.
    """
    where = read_redis_url(location, known=OPTIONS)
    pace = RedisPace(where, prefix=where.options.get("prefix") or DEFAULT_PREFIX, timeout_s=timeout_s)
    try:
        pace.check()
    except BaseException:
        pace.close()
        raise
    return pace
