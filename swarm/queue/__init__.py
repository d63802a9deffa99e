"""The Queue port and its backends: in memory, in Redis, behind a swarm's door.

    with open_queue("redis://127.0.0.1:6379/0?queue=pages") as queue:
        queue.push("https://example.com/")
        while (delivery := queue.pop(wait_s=5)) is not None:
            print(delivery.task.urls)
            queue.ack(delivery)

Delivery is at least once: what is popped and neither acknowledged nor extended in time is delivered again, to whoever
asks. Everything here is synchronous and safe among threads. The clients that it stands on (redis-py, httpx in
``swarm.client``) block, and so do the programs that feed a swarm; trio code calls it by ``trio.to_thread.run_sync``,
the root by ``asyncio.to_thread``, and one implementation serves all three. ``close`` wakes whoever waits in ``pop``.
"""

from swarm.errors import QueueClosed, QueueUnreachable
from swarm.queue.open import open_queue
from swarm.queue.port import Delivery, Queue, QueueStats

__all__ = ["Delivery", "Queue", "QueueClosed", "QueueStats", "QueueUnreachable", "open_queue"]
