"""A worker signs what it completes, where its root knows receipts; also what waits for an upload over a restart."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import trio
from eth_account import Account

from swarm.model import Status
from swarm.receipts import completion_digest
from swarm.signing import recover
from swarm.testing import MemoryDoor, MemoryIpfs
from swarm.turn_wire import CompletionProof, Done, Outcome
from swarm.wire import Completion, ErrorBody
from tests.unit.test_worker_turns import Alice, done, no, task_id
from tests.unit.test_worker_work import ALICE, alice_at

SIGNER = Account.from_key(ALICE.eth_key).address


def signer_of(said: Done) -> str | None:
    """Who signed a completion as alice reports it."""
    assert said.proof is not None
    completion = Completion(
        network="memory",
        task=said.task,
        generation=said.proof.generation,
        result=said.cid,
        fence=said.fence,
        worker=ALICE.address,
        payout=ALICE.address,
    )
    return recover(completion_digest(completion), said.proof.signature)


def said_by(door: MemoryDoor) -> list[Done]:
    return [item for turn in (*door.unheard, *door.turns) for item in turn.done]


class Refusing(MemoryIpfs):
    """An IPFS address that is down at first, and says when somebody noticed."""

    def __init__(self) -> None:
        super().__init__()
        self.down = True
        self.refused = threading.Event()

    def put_blocks(self, blocks: Any) -> None:
        if self.down:
            self.refused.set()
        super().put_blocks(blocks)


async def test_a_completion_is_signed_for_the_generation_that_the_grant_says(tmp_path: Path) -> None:
    ipfs = MemoryIpfs()
    door = MemoryDoor(clock=trio.current_time, ipfs=ipfs)
    async with alice_at(tmp_path, door, ipfs):
        await door.until_status(door.submit(generation=3), Status.COMPLETED)

    (said,) = said_by(door)
    assert said.proof is not None
    assert said.proof.generation == 3
    assert signer_of(said) == SIGNER


async def test_a_root_that_names_no_generation_is_sent_no_signature(tmp_path: Path) -> None:
    ipfs = MemoryIpfs()
    door = MemoryDoor(clock=trio.current_time, ipfs=ipfs)
    async with alice_at(tmp_path, door, ipfs):
        await door.until_status(door.submit(), Status.COMPLETED)

    assert [said.proof for said in said_by(door)] == [None]


async def test_a_result_that_waited_for_its_upload_over_a_restart_is_signed_still(tmp_path: Path) -> None:
    ipfs = Refusing()
    door = MemoryDoor(clock=trio.current_time, ipfs=ipfs)
    async with alice_at(tmp_path, door, ipfs):
        task = door.submit(spec={"size": 100_000}, generation=2)
        assert await trio.to_thread.run_sync(ipfs.refused.wait, 10.0)
    ipfs.down = False
    async with alice_at(tmp_path, door, ipfs):
        await door.until_status(task, Status.COMPLETED)

    assert {signer_of(said) for said in said_by(door)} == {SIGNER}


def test_a_signature_that_the_door_does_not_take_is_left_out_and_the_work_is_not_lost() -> None:
    alice = Alice()
    alice.given(1)
    proof = CompletionProof(generation=1, signature="0x" + "11" * 65)
    alice.turns.executed(1)
    alice.turns.report(msgspec.structs.replace(done(1), proof=proof), alice.now)

    turn, effects = alice.say(outcomes=(no(1, "signature_invalid"),))
    assert turn.done[0].proof == proof
    assert effects == []
    turn, effects = alice.say(outcomes=(Outcome(task=task_id(1), fence=1, status="completed"),))
    assert turn.done == (done(1),)
    assert len(effects) == 1


def test_a_refusal_of_an_unsigned_result_is_final() -> None:
    alice = Alice()
    alice.given(1)
    alice.turns.executed(1)
    alice.turns.report(done(1), alice.now)
    error = ErrorBody(code="signature_invalid", message="no")
    _, effects = alice.say(outcomes=(Outcome(task=task_id(1), fence=1, error=error),))
    assert len(effects) == 1
