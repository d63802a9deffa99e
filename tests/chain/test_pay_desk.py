"""The pay desk as a root runs it: woken by the ledger, telling what lasts, auditing; and money in the ledger itself."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account

from rendezvous.chain import escrow
from rendezvous.chain.alerts import Alerts
from rendezvous.chain.keys import LocalSigner, open_signer
from rendezvous.chain.outbox import Rules, Worry, WorryCode
from rendezvous.chain.reconcile import ChainSettings, PayDesk, open_pay_desk
from rendezvous.chain.rpc import shown_url
from rendezvous.ledger.ledger import Ledger, open_ledger
from rendezvous.ledger.ops import DoneItem, Forget, Submit, TakeTurn
from rendezvous.ledger.settings import LedgerSettings
from swarm.content.cid import raw_cid
from swarm.errors import ConfigurationError
from swarm.vouchers import chain_task_id
from swarm.wire import TaskView
from tests.chain.fake_chain import CHAIN_ID, CONTRACT, FakeChain, address_of, signer_of
from tests.chain.hardhat import Chain, Hardhat
from tests.chain.pay_world import ALICE, REWARD, PayWorld, check_books
from tests.patience import PATIENCE_S
from tests.rendezvous.ledger_world import NOOP, World, new_task

ROOT = address_of("root")


def worry(code: WorryCode = WorryCode.CHAIN_UNREACHABLE, *, at_once: bool = False) -> Worry:
    return Worry(code=code, message="it is down", hint="start it", at_once=at_once)


def test_what_lasts_two_minutes_is_told_and_ends_with_its_cause() -> None:
    alerts = Alerts()
    alerts.update([worry()], now=0.0)
    alerts.update([worry()], now=119.0)
    assert alerts.active == ()
    alerts.update([worry()], now=120.0)
    (told,) = alerts.active
    assert (told.code, told.since, told.hint) == (WorryCode.CHAIN_UNREACHABLE, 0.0, "start it")
    alerts.update([], now=121.0)
    assert alerts.active == ()
    alerts.update([worry()], now=122.0)  # it begins anew
    assert alerts.active == ()


def test_what_must_not_wait_is_told_at_once() -> None:
    alerts = Alerts()
    alerts.update([worry(WorryCode.CHAIN_LOST, at_once=True)], now=0.0)
    assert [alert.code for alert in alerts.active] == [WorryCode.CHAIN_LOST]


# ── as a root runs it ─────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def fake_desk(directory: Path, **settings: Any) -> AsyncIterator[tuple[FakeChain, Ledger, PayDesk]]:
    """A pay desk on a chain in memory."""
    chain = FakeChain(random.Random(1))
    chain.give(ROOT, 10**21)
    async with open_ledger(str(directory / "l.sqlite"), LedgerSettings(host_rate_per_s=0, payer=ROOT)) as ledger:
        section = ChainSettings(
            url="http://127.0.0.1:1",
            contract=CONTRACT,
            holder="root",
            rules=Rules(finality_blocks=1, linger_s=0.0),
            poll_s=0.01,
            **settings,
        )
        yield chain, ledger, PayDesk(ledger, chain, signer_of("root"), section, chain_id=CHAIN_ID)


async def submit_one(ledger: Ledger) -> str:
    task = new_task(reward_wei=REWARD)
    await ledger.call(Submit(owner="o", job=task.id, job_named=False, name=None, tasks=(task,)))
    return task.id


async def run_one(ledger: Ledger) -> None:
    turn = TakeTurn(worker=ALICE, boot="boot-of-alice", facts=NOOP, want=1)
    (grant,) = (await ledger.call(turn)).granted
    done = DoneItem(task=grant.task.id, fence=grant.fence, cid=raw_cid(b"x"), size_bytes=1)
    await ledger.call(TakeTurn(worker=ALICE, boot="boot-of-alice", facts=NOOP, done=(done,)))


async def test_what_the_ledger_commits_wakes_the_pay_desk(tmp_path: Path) -> None:
    async with fake_desk(tmp_path, sweep_s=1_000.0) as (chain, ledger, desk), asyncio.timeout(PATIENCE_S):
        await desk.sweep()
        running = asyncio.create_task(desk.run())
        await asyncio.sleep(0)  # it sweeps once, and then waits to be woken
        task = await submit_one(ledger)
        await run_one(ledger)

        async def view() -> TaskView:
            found = await ledger.read(lambda reader: reader.task(task))
            assert found is not None
            return found

        while (await view()).paid is None:
            chain.mine()
            await asyncio.sleep(0.01)
        assert chain.ether(ALICE.address) == REWARD
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_chain_that_is_down_is_told_and_paying_goes_on_when_it_is_back(tmp_path: Path) -> None:
    async with fake_desk(tmp_path, alert_after_s=0.0) as (chain, ledger, desk):
        await desk.sweep()
        chain.down = True
        await submit_one(ledger)
        await desk.sweep()
        assert [alert.code for alert in desk.alerts.active] == [WorryCode.CHAIN_UNREACHABLE]
        chain.down = False
        await desk.sweep()
        assert desk.alerts.active == ()
        assert len(chain.pool) == 1


async def test_an_audit_tells_what_another_did_with_the_key(tmp_path: Path) -> None:
    async with fake_desk(tmp_path) as (chain, ledger, desk):
        await desk.sweep()
        await submit_one(ledger)
        await run_one(ledger)
        for _ in range(6):
            await desk.sweep()
            chain.mine()
        await desk.sweep()
        report = await desk.audit()
        assert (report.differences, report.tasks, report.paid_wei) == ((), 1, REWARD)
        stranger = chain_task_id(new_task().id, 1)
        signed = signer_of("root").sign_transaction(
            {
                "type": 2,
                "chainId": CHAIN_ID,
                "nonce": chain.nonce(ROOT),
                "to": CONTRACT,
                "data": "0x" + escrow.create_batch([stranger], 7, chain.head.timestamp + 1_000).hex(),
                "value": 7,
                "gas": 200_000,
                "maxFeePerGas": 10**10,
                "maxPriorityFeePerGas": 1,
            }
        )
        await chain.call("eth_sendRawTransaction", "0x" + signed.raw.hex())
        for _ in range(2):
            chain.mine()
        report = await desk.audit()
        assert report.differences == (f"task 0x{stranger.hex()} was funded, but not by this ledger",)
        assert (report.tasks, report.open_wei) == (2, 7)
        await desk.sweep()
        assert WorryCode.AUDIT_DIFFERS in [alert.code for alert in desk.alerts.active]


async def test_the_pay_desk_says_which_chain_it_pays_on(hardhat: Hardhat, chain: Chain, tmp_path: Path) -> None:
    async with open_ledger(str(tmp_path / "l.sqlite")) as ledger:
        good = ChainSettings(url=hardhat.url, contract=chain.contract, holder="root")
        async with open_pay_desk(ledger, chain.signer, good) as desk:
            told = desk.ethereum
            assert (told.network, told.chain_id, told.contract) == ("hardhat", 31337, chain.contract)
            await desk.sweep()
        elsewhere = ChainSettings(url=hardhat.url, contract=ALICE.address, holder="root")
        with pytest.raises(ConfigurationError, match="this ledger's money is in"):
            async with open_pay_desk(ledger, chain.signer, elsewhere):
                pass
        with pytest.raises(ConfigurationError, match="there is no contract at"):
            async with open_pay_desk(ledger, LocalSigner(b"\1" * 32), elsewhere):
                pass


async def test_an_audit_agrees_with_a_real_chain(chain: Chain, world: PayWorld) -> None:
    world.submit(*(new_task(reward_wei=REWARD) for _ in range(5)))
    await world.rounds()
    for _ in range(4):
        world.run_task()
    world.fail_task()
    await world.settle_down()
    await check_books(world)


# ── keys, secrets, the ledger ─────────────────────────────────────────────────────────────────────────────────────


def test_a_keystore_is_unlocked_by_its_passphrase_only(tmp_path: Path) -> None:
    key = bytes(range(1, 33))
    keystore, right, wrong = (tmp_path / name for name in ("k.json", "right", "wrong"))
    keystore.write_text(json.dumps(Account.encrypt(key, "right", iterations=2)))
    right.write_text("right\n")
    wrong.write_text("wrong\n")
    for file in (keystore, right, wrong):
        file.chmod(0o600)
    signer = open_signer(keystore, right)
    assert signer.address == Account.from_key(key).address
    assert key.hex() not in repr(signer)
    with pytest.raises(ConfigurationError, match="can't be unlocked"):
        open_signer(keystore, wrong)


def test_a_secret_in_the_url_of_the_node_is_never_shown() -> None:
    section = ChainSettings(url="https://user:pw@node.example:8545/v3/SECRET?k=S", contract=CONTRACT, holder="root")
    assert shown_url(section.url) == "https://node.example:8545"
    assert "SECRET" not in repr(section)
    assert "pw" not in repr(section)


def test_an_error_of_the_contract_is_told_by_its_name_and_arguments() -> None:
    data = escrow._hash_of("error", "TaskNotOpen")[:4] + b"\7" * 32
    error = escrow.decode_error(data)
    assert str(error) == "TaskNotOpen(0x" + "07" * 32 + ")"
    assert error is not None
    assert error.task == b"\7" * 32
    assert escrow.decode_error(b"\1\2\3\4") is None
    assert escrow.decode_error(data[:20]) is None


def test_a_task_that_money_is_still_to_move_for_is_not_forgotten(tmp_path: Path) -> None:
    world = World(tmp_path / "l.sqlite", LedgerSettings(host_rate_per_s=0, payer=ROOT))
    owed, free = world.one(reward_wei=REWARD), world.one()
    for _ in range(2):
        (lease,) = world.claim(ALICE)
        world.complete(ALICE, lease)
    world.now += 10
    assert world.do(Forget(tasks=(owed, free), ended_before=world.now)) == 1
    assert world.task(owed).reward_wei == str(REWARD)
    world.close()


def test_an_unpaid_swarm_writes_no_intents(tmp_path: Path) -> None:
    world = World(tmp_path / "l.sqlite")
    world.one(reward_wei=REWARD)
    (lease,) = world.claim(ALICE)
    world.complete(ALICE, lease)
    assert world.value("SELECT count(*) FROM intents") == 0
    world.close()
