"""The bucket in Redis: the numbers of the ledger's own buckets, among any number of takers."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator

import attrs
import pytest

from rendezvous.policy.pacing import Bucket, new_bucket, opens_at, refilled, tokens_now
from swarm.errors import ClosedError, ConfigurationError, QueueUnreachable
from swarm.queue.pace import Ask, RedisPace, open_pace
from tests.free_port import free_port
from tests.redis_server import RedisServer, running_redis

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as opened:
        yield opened


@pytest.fixture
def pace(server: RedisServer) -> Iterator[RedisPace]:
    with open_pace(f"{server.url}?prefix=test{next(_numbers)}") as opened:
        yield opened


def test_it_gives_what_the_ledgers_own_bucket_would_give_at_the_same_times(pace: RedisPace) -> None:
    rng = random.Random(11)
    rate_per_s, burst = 300.0, 4.0
    own: Bucket | None = None
    for _ in range(400):
        wanted = rng.randrange(1, 4)
        (given,) = pace.take([Ask(host="site.test", wanted=wanted, rate_per_s=rate_per_s, burst=burst)])
        own = own or new_bucket(rate_per_s=rate_per_s, burst=burst, now=given.at)
        can = tokens_now(own, now=given.at)
        assert given.taken == min(wanted, int(can)), (given, own)
        own = refilled(own, taken=given.taken, now=given.at)
        assert given.left == pytest.approx(own.tokens, abs=1e-3)  # a clock of microseconds, told with six digits
        own = attrs.evolve(own, tokens=given.left)
        if given.left < 1.0:
            opening = opens_at(own, now=given.at)
            assert opening is not None
            assert opening == pytest.approx(given.at + (1.0 - given.left) / rate_per_s)


def test_takers_at_once_get_no_more_than_the_bucket_together(server: RedisServer) -> None:
    prefix = f"test{next(_numbers)}"
    began, given, lock = threading.Barrier(8), [], threading.Lock()

    def take() -> None:
        with open_pace(f"{server.url}?prefix={prefix}") as mine:
            began.wait()
            for _ in range(50):
                (one,) = mine.take([Ask(host="site.test", wanted=1, rate_per_s=5.0, burst=5.0)])
                with lock:
                    given.append((one.at, one.taken))

    takers = [threading.Thread(target=take) for _ in range(8)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    took_s = max(at for at, _ in given) - min(at for at, _ in given)
    taken = sum(one for _, one in given)
    assert 5 <= taken <= 5 + took_s * 5.0 + 1e-6


def test_many_hosts_are_asked_in_one_round_trip_and_each_has_its_own_bucket(
    server: RedisServer, pace: RedisPace
) -> None:
    asks = [Ask(host=f"h{number}.test", wanted=number, rate_per_s=0.001, burst=10.0) for number in range(1, 31)]
    before = server.client.info("commandstats")["cmdstat_evalsha"]["calls"] if _has_run(server) else 0
    pace.take(asks[:1])
    middle = server.client.info("commandstats")["cmdstat_evalsha"]["calls"]
    given = pace.take(asks)
    after = server.client.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert before < middle
    assert after - middle == 1
    assert [one.taken for one in given] == [min(number, 9 if number == 1 else 10) for number in range(1, 31)]


def _has_run(server: RedisServer) -> bool:
    return "cmdstat_evalsha" in server.client.info("commandstats")


def test_who_waits_for_a_turn_gets_it_when_it_comes(pace: RedisPace) -> None:
    slept: list[float] = []
    pace.wait("site.test", rate_per_s=1_000.0, burst=1.0, sleep=slept.append)
    assert slept == []
    pace.wait("site.test", rate_per_s=1_000.0, burst=1.0, sleep=slept.append)
    assert all(0 < one <= 0.001 for one in slept)


def test_a_bucket_that_would_be_full_again_is_forgotten(server: RedisServer) -> None:
    prefix = f"test{next(_numbers)}"
    with open_pace(f"{server.url}?prefix={prefix}") as pace:
        pace.take([Ask(host="site.test", wanted=2, rate_per_s=1.0, burst=5.0)])
    assert 2_000 <= server.client.pttl(f"{prefix}:site.test") <= 3_000


def test_a_pace_that_was_closed_says_so_to_later_callers_and_to_those_that_wait(server: RedisServer) -> None:
    ask = Ask(host="site.test", wanted=1, rate_per_s=1.0, burst=1.0)
    with open_pace(server.url) as pace:
        pace.take([ask])
    with pytest.raises(ClosedError, match="was closed"):
        pace.take([ask])
    with open_pace(f"{server.url}?prefix=test{next(_numbers)}") as pace:
        pace.take([ask])
        with pytest.raises(ClosedError, match="was closed"):
            pace.wait("site.test", rate_per_s=1.0, burst=1.0, sleep=lambda _: pace.close())


def test_a_pace_that_doesnt_answer_is_an_error_with_address_and_reason() -> None:
    port = free_port()
    with pytest.raises(QueueUnreachable, match=f"redis://127.0.0.1:{port}.*refused"):
        open_pace(f"redis://127.0.0.1:{port}")
    with pytest.raises(ConfigurationError, match="no option prefx"):
        open_pace("redis://127.0.0.1?prefx=a")


def test_a_bucket_that_somebody_else_wrote_nonsense_into_begins_anew_and_empty(
    server: RedisServer, pace: RedisPace
) -> None:
    ask = Ask(host="site.test", wanted=1, rate_per_s=1_000.0, burst=5.0)
    pace.take([ask])
    key = f"{pace._prefix}:site.test"
    for tokens, at in (("many", "now"), ("nan", "nan"), ("-1", "0"), ("5", "-inf")):
        server.client.hset(key, mapping={"tokens": tokens, "at": at})
        (spoilt,) = pace.take([ask])
        assert (spoilt.taken, spoilt.left) == (0, 0.0)
    server.client.hset(key, mapping={"tokens": "1e300", "at": "0"})
    (rich,) = pace.take([ask])
    assert (rich.taken, rich.left) == (1, pytest.approx(4.0))
