"""Rewards on the command line: quoted, capped, and refused before anything is submitted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swarm.cli.base import run
from swarm.cli.swarm import cli
from swarm.gas import path_a_gas
from tests.fake_door import KEY, FakeDoor

GAS = json.loads((Path(__file__).parents[1] / "contracts" / "gas.json").read_text())
PAID: dict[str, Any] = {
    "owner": "alice",
    "role": "requester",
    "ethereum": {"network": "hardhat", "chain_id": 31337, "contract": "0x" + "1" * 40},
    "allowance_wei": str(10**18),
    "spent_wei": str(4 * 10**17),
    "base_fee_wei": str(10**9),
}


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeDoor]:
    door = FakeDoor()
    door.account = dict(PAID)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Path("urls.txt").write_text("".join(f"https://site.example/{number}\n" for number in range(4)))
    with door.served() as served:
        monkeypatch.setenv("SWARM_URL", served)
        monkeypatch.setenv("SWARM_KEY", KEY)
        yield door


def swarm(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(cli, arguments, program="swarm")
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_reward_and_a_budget_travel_with_the_submission(door: FakeDoor, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = swarm(capsys, "submit", "urls.txt", "--reward", "0.001eth", "--budget", "0.1eth", "--detach")

    assert code == 0
    assert {task["reward_wei"] for task in door.tasks.values()} == {str(10**15)}
    assert door.jobs[out.strip()]["budget_wei"] == str(10**17)


def test_how_a_job_is_settled_travels_with_the_submission(door: FakeDoor, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--reward", "20gwei", "--settle", "channel", "--detach")
    code, out, _ = swarm(capsys, "submit", "urls.txt", *options)

    assert code == 0
    assert door.jobs[out.strip()]["settle"] == "channel"


@pytest.mark.parametrize(
    ("options", "account", "expected"),
    [
        (("--reward", "0.1eth", "--budget", "0.3eth"), PAID, ("budget_exceeded", 2)),
        (("--reward", "0.2eth"), PAID, ("allowance_exceeded", 1)),
        (("--reward", "1wei"), {"owner": "alice", "role": "requester"}, ("unpaid_swarm", 1)),
        (("--reward", "1"), PAID, ("has no unit", 2)),
    ],
)
def test_rewards_that_do_not_fit_are_refused_before_anything_is_submitted(
    door: FakeDoor,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    account: dict[str, Any],
    expected: tuple[str, int],
) -> None:
    door.account = account
    code, _, err = swarm(capsys, "submit", "urls.txt", *options)

    assert code == expected[1]
    assert expected[0] in err
    assert not door.tasks
    assert ("POST", "/v1/tasks") not in door.requests


def test_a_quote_sums_rewards_and_gas_and_submits_nothing(door: FakeDoor, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = swarm(capsys, "quote", "urls.txt", "--reward", "0.001eth", "--json")

    told = json.loads(out)
    assert code == 0
    assert (told["tasks"], told["rewards_wei"], told["fits"]) == (4, str(4 * 10**15), True)
    assert told["gas_wei"] == str(told["gas"] * 10**9)
    assert told["allowance_left_wei"] == str(6 * 10**17)
    assert door.requests == [("GET", "/v1/account")]


def test_a_quote_for_people_names_amounts_with_units(door: FakeDoor, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = swarm(capsys, "quote", "urls.txt", "--reward", "0.2eth")

    assert code == 1
    assert "0.8eth (4 x 0.2eth)" in out
    assert "base fee of 1gwei" in out
    assert "0.6eth left" in out
    assert "allowance" in err


def test_a_quote_in_a_swarm_without_a_chain_says_that_nobody_is_paid(
    door: FakeDoor, capsys: pytest.CaptureFixture[str]
) -> None:
    door.account = {"owner": "alice", "role": "requester"}
    code, out, err = swarm(capsys, "quote", "urls.txt", "--reward", "0.2eth")
    assert (code, out) == (1, "")
    assert "unpaid_swarm" in err


def test_a_quote_without_the_chains_price_still_tells_the_gas(
    door: FakeDoor, capsys: pytest.CaptureFixture[str]
) -> None:
    del door.account["base_fee_wei"]
    code, out, _ = swarm(capsys, "quote", "urls.txt", "--reward", "0.001eth")
    assert code == 0
    assert "gas now" not in out


@pytest.mark.parametrize(
    ("tasks", "measured"),
    [
        (1, GAS["create, from the value sent"]["gas"] + GAS["complete, a known account"]["gas"]),
        (500, GAS["createBatch"]["gas"] + 2.5 * GAS["completeBatch, 50 workers"]["gas"]),
        (10_000, 20 * GAS["createBatch"]["gas"] + 50 * GAS["completeBatch, 50 workers"]["gas"]),
    ],
)
def test_the_estimate_of_gas_is_what_the_contracts_tests_measure(tasks: int, measured: float) -> None:
    assert path_a_gas(tasks) == pytest.approx(measured, rel=0.03)
