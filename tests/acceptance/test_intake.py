"""A producer that knows only Redis feeds the swarm; the root is killed while it drains: each message is one task."""

from __future__ import annotations

import random

from tests.acceptance.harness import Scene, until
from tests.redis_server import RedisServer, running_redis

MESSAGES = 5_000
#: Kills in all, and how many of them have to hit while messages are in the root's hands: on a busy machine few do.
MOST_KILLS = 40
HITS = 2


def done(redis: RedisServer) -> int:
    """How many messages were acknowledged."""
    return int(redis.client.hget("{pages}:totals", "done") or 0)


def test_a_root_killed_while_it_drains_a_queue_takes_each_message_once(scene: Scene) -> None:
    (scene.directory / "redis").mkdir()
    rng = random.Random(5)
    with running_redis(scene.directory / "redis") as redis:
        intake = f"{redis.url}?queue=pages&visible=500ms&dedupe=off&backlog=1000000"
        root = scene.root("--p2p", "off", "--intake", intake)
        hits = kill = 0
        while hits < HITS:
            kill += 1
            assert kill <= MOST_KILLS, "no kill hit"
            # the same page each time: nothing but a message's own id tells them apart
            redis.client.lpush("pages", *(["https://site.invalid/"] * MESSAGES))
            enough = MESSAGES * (kill - 1) + rng.randrange(1, MESSAGES // 2)
            until(lambda enough=enough: done(redis) >= enough or None, "some to be acknowledged")
            root.kill()
            hits += redis.client.zcard("{pages}:flight") > 0
            assert done(redis) < MESSAGES * kill, "it was killed too late to show anything"
            root.start()
            total = MESSAGES * kill
            until(lambda total=total: done(redis) >= total or None, "the rest", guard=[root.process])
        status = root.door.call("GET", "/v1/status").ok()
        assert sum(status["tasks"].values()) == MESSAGES * kill
        assert redis.client.llen("{pages}:dead") == 0
        assert redis.client.zcard("{pages}:flight") == 0
