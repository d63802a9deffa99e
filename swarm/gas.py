"""What funding and paying tasks costs in gas, by the table of ``docs/contract.md``; a test holds these to it.

An estimate: batches are as full as the number of tasks allows, and each worker was paid before. The first payment to an
account that never had ether costs 25,000 more.
"""

from __future__ import annotations

from typing import Final

__all__ = ["path_a_gas"]

#: ``createBatch``: a transaction, and each task in it; at most so many of them.
CREATE_BASE_GAS: Final = 24_000
CREATE_GAS: Final = 25_500
CREATE_BATCH: Final = 500
#: ``completeBatch``: a transaction, and each task in it where four of them go to one worker.
COMPLETE_BASE_GAS: Final = 30_000
COMPLETE_GAS: Final = 13_100
COMPLETE_BATCH: Final = 200


def path_a_gas(tasks: int) -> int:
    """Gas for funding so many tasks and settling each: a reward per task (path A)."""
    creating = -(-tasks // CREATE_BATCH) * CREATE_BASE_GAS + tasks * CREATE_GAS
    completing = -(-tasks // COMPLETE_BATCH) * COMPLETE_BASE_GAS + tasks * COMPLETE_GAS
    return creating + completing
