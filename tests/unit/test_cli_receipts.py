"""``swarm receipt`` and ``swarm verify`` as a person and a script meet them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swarm.cli.base import run
from swarm.cli.swarm import cli
from tests.fake_door import KEY, FakeDoor

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent.parent / "vectors" / "receipts.json").read_text())
PAID, _, UNPAID = (vector["receipt"] for vector in VECTORS["receipts"])

Verify = Callable[..., tuple[int, str, str]]


@pytest.fixture
def verify(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Verify:
    """Check a receipt; without a door, a profile, or a network."""
    monkeypatch.setenv("SWARM_PROFILE", str(tmp_path / "nobody.json"))

    def call(receipt: object, *options: str) -> tuple[int, str, str]:
        path = tmp_path / "receipt.json"
        path.write_text(receipt if isinstance(receipt, str) else json.dumps(receipt))
        code = run(cli, ["verify", str(path), *options], program="swarm")
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.mark.parametrize("receipt", [PAID, UNPAID], ids=["paid", "unpaid"])
def test_a_good_receipt_says_who_did_what_and_who_accepted_it(verify: Verify, receipt: dict[str, Any]) -> None:
    code, out, err = verify(receipt)
    assert code == 0
    for shown in (receipt["completion"]["worker"], receipt["completion"]["result"], receipt["acceptance"]["signer"]):
        assert shown in out
    assert "good" in err


def test_a_paid_receipt_says_where_to_look_on_the_chain(verify: Verify) -> None:
    _, out, _ = verify(PAID)
    assert "0.001eth" in out
    assert PAID["acceptance"]["ethereum"]["contract"] in out
    assert "0x7e363fc5936cb4fef88e3655ad46da7605a748c8860930eab3ff827e56cbd9cd" in out  # the chain's id of this task


def test_a_changed_receipt_is_told_with_the_reason(verify: Verify) -> None:
    richer = {**PAID, "acceptance": {**PAID["acceptance"], "reward_wei": "2000000000000000"}}
    code, out, err = verify(richer)
    assert (code, out) == (1, "")
    assert "the acceptance isn't signed by" in err
    stolen = {**PAID, "completion": {**PAID["completion"], "payout": PAID["acceptance"]["signer"]}}
    code, _, err = verify(stolen)
    assert code == 1
    assert "the completion isn't signed by its worker" in err


def test_another_signer_than_the_one_named_is_told(verify: Verify) -> None:
    assert verify(PAID, "--signer", PAID["acceptance"]["signer"])[0] == 0
    code, _, err = verify(PAID, "--signer", UNPAID["acceptance"]["signer"])
    assert code == 1
    assert f"not by {UNPAID['acceptance']['signer']}" in err


def test_a_receipt_of_another_result_is_told(verify: Verify, tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_bytes(b"a manifest")
    assert verify(PAID, "--manifest", str(manifest))[0] == 0
    manifest.write_bytes(b"another manifest")
    code, _, err = verify(PAID, "--manifest", str(manifest))
    assert code == 1
    assert "isn't the result" in err


@pytest.mark.parametrize("text", ["", "{}", "[]", "no json", json.dumps({**PAID, "completion": {}})])
def test_what_is_no_receipt_is_told_in_one_line(verify: Verify, text: str) -> None:
    code, out, err = verify(text)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "Traceback" not in err


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeDoor]:
    door = FakeDoor()
    monkeypatch.chdir(tmp_path)
    with door.served() as served:
        monkeypatch.setenv("SWARM_URL", served)
        monkeypatch.setenv("SWARM_KEY", KEY)
        yield door


def test_a_receipt_is_written_as_it_was_given_and_verifies(
    door: FakeDoor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = PAID["completion"]["task"]
    door.receipts[task] = PAID
    assert run(cli, ["receipt", task, "-o", "receipt.json"], program="swarm") == 0
    assert json.loads((tmp_path / "receipt.json").read_text()) == PAID
    assert run(cli, ["verify", "receipt.json"], program="swarm") == 0
    capsys.readouterr()
    assert run(cli, ["receipt", UNPAID["completion"]["task"]], program="swarm") == 1
    assert "there is no" in capsys.readouterr().err
