"""``swarm-root channel``: what stands on workers' channels, and asking for it back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from eth_account import Account

from rendezvous.cli import run
from rendezvous.ledger.money_ops import ChannelSeen, IntentKind, SeeChannels
from rendezvous.ledger.settings import LedgerSettings
from swarm.content.cid import raw_cid
from swarm.model import Settle, Status
from tests.rendezvous.ledger_world import ALICE, BOB, World, new_task

REWARD = 10**15
KEY = b"\x07" * 32
PAYER = Account.from_key(KEY).address


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    data = tmp_path / "root"
    assert run(["init", "--data", str(data)]) == 0
    wallet = data / "wallet.json"
    wallet.write_text(json.dumps(Account.encrypt(KEY, "correct horse", iterations=2)))
    wallet.chmod(0o600)
    made = World(data / "ledger.sqlite", LedgerSettings(host_rate_per_s=0, payer=PAYER))
    for worker in (ALICE, BOB):
        made.submit(new_task(reward_wei=REWARD), settle=Settle.CHANNEL)
        (lease,) = made.claim(worker)
        assert made.complete(worker, lease, cid=raw_cid(b"result")) is Status.COMPLETED
    seen = ChannelSeen(payee=ALICE.address, locked_wei=5 * REWARD, settled_wei=REWARD)
    made.do(SeeChannels(payer=PAYER, number=7, seen=(seen,)))
    yield made
    made.close()


def channel(world: World, *arguments: str) -> int:
    return run(["channel", *arguments, "--data", str(world.path.parent)])


def closing(world: World) -> list[str | None]:
    return [intent.payee for intent in world.reader.intents(PAYER) if intent.kind is IntentKind.EXIT]


def test_channels_are_listed_with_what_stands_on_them(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert channel(world, "list") == 0
    told = capsys.readouterr().out
    assert f"{ALICE.address}\ttasks 1\tearned 0.001eth\tredeemed 0.001eth\tlocked 0.005eth" in told
    assert channel(world, "list", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["worker"]: row["locked_wei"] for row in rows} == {ALICE.address: str(5 * REWARD), BOB.address: "0"}


def test_closing_is_asked_for_once_and_only_where_anything_is_locked(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert channel(world, "close", "--all") == 0
    assert "1 channels are closed after the exit delay; they hold 0.005eth" in capsys.readouterr().out
    assert channel(world, "close", ALICE.address) == 0
    assert closing(world) == [ALICE.address]


def test_a_channel_that_is_being_closed_is_not_closed_again(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    seen = ChannelSeen(payee=ALICE.address, locked_wei=5 * REWARD, settled_wei=REWARD, exit_at=2_000_000)
    world.do(SeeChannels(payer=PAYER, number=8, seen=(seen,)))
    assert channel(world, "close", "--all") == 0
    assert closing(world) == []
    assert channel(world, "list") == 0
    assert "back from 1970-01-24" in capsys.readouterr().out
    finishing = [intent for intent in world.reader.intents(PAYER) if intent.kind is IntentKind.CLOSE]
    assert [intent.not_before for intent in finishing] == [2_000_060.0]


@pytest.mark.parametrize(
    ("arguments", "words"), [((), "which channels?"), (("0x" + "d" * 40,), "has no channel"), (("x", "--all"), "which")]
)
def test_what_cannot_be_closed_is_named(
    world: World, arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert channel(world, "close", *arguments) == 2
    assert words in capsys.readouterr().err
    assert closing(world) == []
