"""A port that answers and is no Redis: an error with its address, whatever it says; no traceback and no token."""

from __future__ import annotations

import pytest

from swarm.errors import QueueUnreachable
from swarm.queue.pace import Ask, RedisPace
from swarm.queue.redis_link import read_redis_url
from swarm.queue.redis_queue import RedisQueue
from tests.nonsense_redis import NONSENSE, saying


@pytest.mark.parametrize("answer", NONSENSE, ids=lambda answer: repr(answer[:24]))
def test_a_pace_gives_nothing_where_the_answer_makes_no_sense(answer: bytes) -> None:
    with saying(answer) as url:
        where = read_redis_url(url, known=())
        with RedisPace(where, timeout_s=0.5) as pace, pytest.raises(QueueUnreachable) as said:
            pace.take([Ask(host="site.test", wanted=1, rate_per_s=1.0, burst=2.0)])
        assert where.shown in str(said.value)


@pytest.mark.parametrize(
    "answer", [one for one in NONSENSE if one != b"*0\r\n"], ids=lambda answer: repr(answer[:24])
)  # no messages are none
def test_a_queue_takes_nothing_where_the_answer_makes_no_sense(answer: bytes) -> None:
    with saying(answer) as url:
        where = read_redis_url(url, known=())
        with RedisQueue(where, name="pages") as queue, pytest.raises(QueueUnreachable) as said:
            queue.take_raw(1)
        assert where.shown in str(said.value)
