"""``swarm-worker wallet`` and ``redeem`` on a real node, with no root anywhere."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from pathlib import Path

import attrs
import pytest
import trio
from eth_account import Account as EthAccount

from rendezvous.chain import escrow
from rendezvous.chain.rpc import open_rpc
from swarm.cli.worker import main
from swarm.errors import ConfigurationError
from swarm.identity import open_identity, read_eth_key
from swarm.vouchers import EMPTY_TASKS_ROOT, Escrow, Voucher, sign_voucher
from swarm.worker.channel_watch import look, pause_s
from swarm.worker.promises import Account, KeptVoucher
from swarm.worker.voucher_book import VOUCHERS_FILE, open_voucher_book, read_book
from tests.chain.hardhat import ETHER, Chain, Hardhat, fresh_chain
from tests.chain.test_channels import send

LOCKED = 10**16


@attrs.frozen
class Alice:
    """A worker's directory, the chain, and the root's key: the root itself is gone."""

    data: Path
    address: str
    url: str
    chain: Chain

    def run(self, command: str, *options: str) -> int:
        return main([command, "--data", str(self.data), *options])

    def keep(self, cumulative_wei: int, *, key: bytes | None = None, rpc: str | None = None) -> None:
        """As if its turns had brought a voucher of so much."""
        place = Escrow(chain_id=31337, address=self.chain.contract)
        payer = self.chain.signer.address
        voucher = Voucher(
            requester=payer, worker=self.address, cumulative_wei=cumulative_wei, tasks_root=EMPTY_TASKS_ROOT
        )
        kept = KeptVoucher(
            escrow=place, voucher=voucher, signature=sign_voucher(place, voucher, key or self.chain.key), tasks=3
        )

        async def write() -> None:
            async with open_voucher_book(self.data / VOUCHERS_FILE, clock=lambda: 1_000.0) as book:
                await book.note_account(Account(escrow=place, payer=payer, payee=self.address), rpc=rpc)
                await book.keep_voucher(kept, tasks=())

        trio.run(write)

    def ether(self, address: str) -> int:
        async def ask() -> int:
            async with open_rpc(self.url) as rpc:
                return int(await rpc.call("eth_getBalance", address, "latest"), 16)

        return asyncio.run(ask())

    def give(self, address: str, wei: int) -> None:
        async def call() -> None:
            async with open_rpc(self.url) as rpc:
                await rpc.call("hardhat_setBalance", address, hex(wei))

        asyncio.run(call())


@pytest.fixture
def alice(hardhat: Hardhat, tmp_path: Path) -> Alice:
    data = tmp_path / "worker"
    with open_identity(data) as identity:
        address = identity.address

    async def fund() -> Chain:
        async with open_rpc(hardhat.url) as rpc:
            chain = await fresh_chain(rpc)
            signed = chain.signer.sign_transaction(
                {
                    "type": 2,
                    "chainId": 31337,
                    "nonce": 0,
                    "to": chain.contract,
                    "data": "0x" + escrow.fund([(address, LOCKED)]).hex(),
                    "value": LOCKED,
                    "gas": 300_000,
                    "maxFeePerGas": 100 * 10**9,
                    "maxPriorityFeePerGas": 10**9,
                }
            )
            await rpc.call("eth_sendRawTransaction", "0x" + signed.raw.hex())
            return chain

    return Alice(data, address, hardhat.url, asyncio.run(fund()))


def test_a_voucher_is_redeemed_by_the_node_that_the_settings_named(
    alice: Alice, capsys: pytest.CaptureFixture[str]
) -> None:
    alice.keep(6 * 10**15, rpc=alice.url)
    alice.give(alice.address, ETHER)
    assert alice.run("redeem", "--yes") == 0
    told = capsys.readouterr()
    assert "the node that the swarm's settings name" in told.err
    assert f"redeemed 0.006eth for {alice.address}" in told.out
    assert ETHER < alice.ether(alice.address) < ETHER + 6 * 10**15

    assert alice.run("redeem", "--yes") == 0
    assert "all of it was paid" in capsys.readouterr().out
    alice.keep(5 * 10**15)  # an older one comes to light: the book knows the last one still
    assert alice.run("redeem", "--yes") == 2  # and no node is named any more
    assert "give --rpc" in capsys.readouterr().err


def test_another_key_pays_the_gas_and_the_worker_is_paid_whole(
    alice: Alice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alice.keep(6 * 10**15)
    key = secrets.token_bytes(32)
    key_file = tmp_path / "gas.key"
    key_file.write_text(key.hex() + "\n")
    key_file.chmod(0o600)
    options = ("--rpc", alice.url, "--key-file", str(key_file), "--yes")
    assert alice.run("redeem", *options) == 2
    assert "gas may cost" in capsys.readouterr().err
    alice.give(EthAccount.from_key(key).address, ETHER)
    assert alice.run("redeem", *options) == 0
    told = capsys.readouterr()
    assert "your --rpc" in told.err
    assert alice.ether(alice.address) == 6 * 10**15
    assert key.hex() not in told.out + told.err


def test_more_than_is_locked_pays_what_is_locked_and_the_rest_stays_owed(
    alice: Alice, capsys: pytest.CaptureFixture[str]
) -> None:
    alice.keep(LOCKED + 5)
    alice.give(alice.address, ETHER)
    assert alice.run("redeem", "--rpc", alice.url, "--yes") == 0
    assert "redeemed 0.01eth" in capsys.readouterr().out
    assert alice.run("redeem", "--rpc", alice.url, "--yes") == 0
    assert "nothing of it is locked, 5wei are owed" in capsys.readouterr().out


def test_a_forged_voucher_costs_no_gas(alice: Alice, capsys: pytest.CaptureFixture[str]) -> None:
    alice.keep(10**15, key=secrets.token_bytes(32))
    alice.give(alice.address, ETHER)
    assert alice.run("redeem", "--rpc", alice.url, "--yes") == 2
    assert "isn't signed by its payer" in capsys.readouterr().err
    assert alice.ether(alice.address) == ETHER


def test_nothing_is_sent_unless_somebody_agrees(alice: Alice, capsys: pytest.CaptureFixture[str]) -> None:
    alice.keep(10**15)
    alice.give(alice.address, ETHER)
    assert alice.run("redeem", "--rpc", alice.url) == 2
    assert "nobody can be asked" in capsys.readouterr().err
    assert alice.ether(alice.address) == ETHER


def test_a_script_redeems_a_voucher_that_is_dearer_than_it_brings_where_the_hints_lead_it(
    alice: Alice, capsys: pytest.CaptureFixture[str]
) -> None:
    alice.keep(1_000)
    alice.give(alice.address, ETHER)
    redeem = ("redeem", "--rpc", alice.url)
    for options in ((), ("--yes",)):
        assert alice.run(*redeem, *options) == 2
        hint = capsys.readouterr().err.splitlines()[-1]
        assert "nothing was sent" in hint
    assert alice.run(*redeem, "--yes", "--max-gas-cost", "1gwei") == 2
    assert "more than --max-gas-cost 1gwei" in capsys.readouterr().err
    assert alice.run(*redeem, "--yes", "--max-gas-cost", "1") == 2
    assert "has no unit" in capsys.readouterr().err
    assert alice.ether(alice.address) == ETHER

    named = re.search(r"--yes --max-gas-cost \S+", hint)
    assert named is not None
    assert alice.run(*redeem, *named.group().split()) == 0
    assert f"redeemed 1000wei for {alice.address}" in capsys.readouterr().out


def test_a_voucher_is_shown_for_anyone_to_send(alice: Alice, capsys: pytest.CaptureFixture[str]) -> None:
    alice.keep(6 * 10**15)
    assert alice.run("redeem", "--show") == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["worker"], told["cumulative_wei"]) == (alice.address, str(6 * 10**15))

    async def relay() -> None:
        async with open_rpc(alice.url) as rpc:
            await send(rpc, secrets.token_bytes(32), told["contract"], bytes.fromhex(told["call"][2:]))

    asyncio.run(relay())
    assert alice.ether(alice.address) == 6 * 10**15


def test_a_worker_that_leaves_gives_back_what_it_has_not_earned(
    alice: Alice, capsys: pytest.CaptureFixture[str]
) -> None:
    alice.keep(6 * 10**15)
    alice.give(alice.address, ETHER)
    node = ("--rpc", alice.url, "--yes")
    assert alice.run("release", *node) == 2
    assert "0.006eth of it are earned and not redeemed" in capsys.readouterr().err
    assert alice.run("release", "--rpc", alice.url) == 2
    assert alice.run("redeem", *node) == 0
    assert alice.run("release", *node) == 0
    assert "released 0.004eth" in capsys.readouterr().out
    assert alice.run("release", *node) == 0
    assert "nothing is locked" in capsys.readouterr().out


def test_the_wallet_shows_channel_locked_earned_and_redeemed(alice: Alice, capsys: pytest.CaptureFixture[str]) -> None:
    alice.keep(6 * 10**15)
    alice.give(alice.address, ETHER)
    assert alice.run("redeem", "--rpc", alice.url, "--yes") == 0
    alice.keep(8 * 10**15)
    capsys.readouterr()
    assert alice.run("wallet", "--rpc", alice.url, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["address"], told["node_is"]) == (alice.address, "your --rpc")
    (channel,) = told["channels"]
    assert channel["contract"] == alice.chain.contract
    assert channel["payer"] == alice.chain.signer.address
    assert channel["earned_wei"] == str(8 * 10**15)
    assert channel["redeemed_wei"] == str(6 * 10**15)
    assert channel["due_wei"] == str(2 * 10**15)
    assert channel["locked_wei"] == str(LOCKED - 6 * 10**15)
    assert alice.run("wallet", "--rpc", alice.url) == 0
    told = capsys.readouterr().out
    assert "0.008eth by vouchers, for 3 tasks" in told
    assert "due now" in told


def test_without_a_node_the_wallet_shows_what_the_book_says(alice: Alice, capsys: pytest.CaptureFixture[str]) -> None:
    alice.keep(6 * 10**15)
    assert alice.run("wallet") == 0
    told = capsys.readouterr()
    assert "0.006eth by vouchers" in told.out
    assert "give --rpc" in told.err


def test_a_node_of_another_chain_or_none_is_refused(alice: Alice, capsys: pytest.CaptureFixture[str]) -> None:
    alice.keep(6 * 10**15)
    assert alice.run("wallet", "--rpc", "http://127.0.0.1:9") == 3
    assert "127.0.0.1:9" in capsys.readouterr().err


def last_of(alice: Alice) -> tuple[Account, KeptVoucher]:
    ((account, noted),) = read_book(alice.data / VOUCHERS_FILE)
    assert noted is not None
    return Account(escrow=account.escrow, payer=account.payer, payee=account.payee), noted.kept


def as_payer(alice: Alice, data: bytes) -> None:
    async def call() -> None:
        async with open_rpc(alice.url) as rpc:
            await send(rpc, alice.chain.key, alice.chain.contract, data)

    asyncio.run(call())


def test_a_worker_that_sees_an_exit_redeems_its_last_voucher_at_once(alice: Alice) -> None:
    alice.keep(6 * 10**15)
    alice.give(alice.address, ETHER)
    account, last = last_of(alice)
    key = read_eth_key(alice.data)
    calm = look(alice.url, account, last, key)
    assert (calm.redeemed, calm.covers(last), calm.channel.settled_wei) == (None, True, 0)
    assert pause_s(calm) == 900.0  # four times within the exit delay

    as_payer(alice, escrow._call("startExit", [alice.address]))
    seen = look(alice.url, account, last, key)
    assert seen.redeemed is not None
    assert seen.channel.settled_wei == 6 * 10**15
    assert not seen.covers(last)  # no more work while the payer takes its money back
    again = look(alice.url, account, last, key)
    assert again.redeemed is None


def test_a_worker_without_ether_is_told_who_can_redeem_for_it(alice: Alice) -> None:
    alice.keep(6 * 10**15)
    alice.give(alice.address, 0)
    account, last = last_of(alice)
    as_payer(alice, escrow._call("startExit", [alice.address]))
    with pytest.raises(ConfigurationError, match="no ether for the gas") as told:
        look(alice.url, account, last, read_eth_key(alice.data))
    assert told.value.hint is not None
    assert "--key-file" in told.value.hint


def test_an_over_signed_voucher_is_seen_not_to_be_covered(alice: Alice) -> None:
    alice.keep(LOCKED + 1)
    account, last = last_of(alice)
    assert not look(alice.url, account, last, read_eth_key(alice.data)).covers(last)


def test_a_directory_where_no_worker_ran_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wallet", "--data", str(tmp_path / "nothing")]) == 2
    assert "no worker ran in" in capsys.readouterr().err
    assert not (tmp_path / "nothing").exists()
