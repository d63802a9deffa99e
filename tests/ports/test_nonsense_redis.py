"""A port that answers and is no Redis: an error with its address, whatever it says; no traceback and no token."""

from __future__ import annotations

import socket
import threading
import time
from typing import Final, NoReturn

import pytest

from swarm.errors import QueueUnreachable
from swarm.queue.pace import Ask, RedisPace
from swarm.queue.redis_link import read_redis_url
from swarm.queue.redis_queue import RedisQueue
from tests.nonsense_redis import NONSENSE, saying

#: A quarter of a second is meant; the machine may be busy.
ENDS_S: Final = 10.0


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


#: The promise of a very long text, of which a byte comes now and then: each look finds something.
DRIPS = b"$999999999\r\n"


def test_a_pace_ends_in_time_where_the_answer_drips() -> None:
    with saying(DRIPS, drip_s=0.02) as url:
        where = read_redis_url(url, known=())
        with RedisPace(where, timeout_s=0.25) as pace:
            for _ in range(2):  # the second has a connection of its own
                began = time.monotonic()
                with pytest.raises(QueueUnreachable, match=r"no whole answer within 0\.25 s"):
                    pace.take([Ask(host="site.test", wanted=1, rate_per_s=1.0, burst=2.0)])
                assert time.monotonic() - began < ENDS_S


def test_a_queue_ends_in_time_where_the_answer_drips() -> None:
    with saying(DRIPS, drip_s=0.02) as url:
        where = read_redis_url(url, known=())
        with RedisQueue(where, name="pages", call_s=0.25) as queue:
            began = time.monotonic()
            with pytest.raises(QueueUnreachable, match=r"no whole answer within 0\.25 s"):
                queue.take_raw(1)
            assert time.monotonic() - began < ENDS_S


def test_a_pace_ends_in_time_where_the_look_up_of_its_name_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    woken = threading.Event()

    def hang(*_: object, **__: object) -> NoReturn:
        woken.wait(ENDS_S)
        raise socket.gaierror("nobody knows")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    with RedisPace(read_redis_url("redis://pace.test:6379", known=()), timeout_s=0.25) as pace:
        began = time.monotonic()
        with pytest.raises(QueueUnreachable):
            pace.take([Ask(host="site.test", wanted=1, rate_per_s=1.0, burst=2.0)])
        assert time.monotonic() - began < ENDS_S / 2
        woken.set()
