"""``swarm-root wallet``: the key that pays is made, imported and shown, and never told."""

from __future__ import annotations

import json
import re
import secrets
from pathlib import Path

import pytest
from eth_account import Account

from rendezvous.chain.keys import open_signer
from rendezvous.chain.keystore import keystore_address, make_keystore, parse_key, unlock
from rendezvous.cli import run
from swarm.errors import ConfigurationError

PASSPHRASE = "correct horse battery staple"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data directory of a root that never ran."""
    assert run(["init", "--data", str(tmp_path / "root")]) == 0
    return tmp_path / "root"


@pytest.fixture
def passphrase_file(tmp_path: Path) -> Path:
    path = tmp_path / "passphrase"
    path.write_text(PASSPHRASE + "\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A keystore and its key; unlocking takes a second on purpose."""
    path, key = tmp_path_factory.mktemp("wallet") / "wallet.json", secrets.token_bytes(32)
    make_keystore(path, PASSPHRASE, key=key)
    return path, key


def test_a_new_wallet_is_encrypted_private_and_opens_with_its_passphrase(
    data: Path, passphrase_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    capsys.readouterr()
    monkeypatch.setenv("SWARM_ROOT_PASSPHRASE_FILE", str(passphrase_file))
    assert run(["wallet", "new", "--data", str(data)]) == 0
    told = capsys.readouterr()

    path = data / "wallet.json"
    signer = open_signer(path, passphrase_file)
    key = unlock(path, PASSPHRASE)
    assert told.out.strip() == signer.address == keystore_address(path)
    assert path.stat().st_mode & 0o777 == 0o600
    for secret in (key.hex(), PASSPHRASE):
        assert secret not in path.read_text() + told.out + told.err + repr(signer) + str(signer.__dict__)
    assert json.loads(path.read_text())["version"] == 3


def test_a_wallet_is_shown_without_its_passphrase(
    data: Path, made: tuple[Path, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(["wallet", "show", "--data", str(data), "--chain-key", str(made[0])]) == 0
    assert Account.from_key(made[1]).address in capsys.readouterr().out


def test_a_second_new_wallet_is_refused_and_the_first_is_untouched(
    data: Path, made: tuple[Path, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    before = made[0].read_bytes()
    assert run(["wallet", "new", "--data", str(data), "--chain-key", str(made[0])]) == 2
    assert "exists already" in capsys.readouterr().err
    assert made[0].read_bytes() == before


def test_an_imported_key_is_the_same_key_and_is_not_repeated(
    data: Path, passphrase_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, key_file = secrets.token_bytes(32), tmp_path / "key"
    key_file.write_text("0x" + key.hex() + "\n")
    key_file.chmod(0o600)
    options = ("--data", str(data), "--passphrase-file", str(passphrase_file))
    assert run(["wallet", "import", "--key-file", str(key_file), *options]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[-1] == Account.from_key(key).address
    assert key.hex() not in told.out + told.err
    assert unlock(data / "wallet.json", PASSPHRASE) == key


@pytest.mark.parametrize("text", ["", "0x12", "zz" * 32, "00" * 32, "ff" * 32])
def test_what_is_no_key_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_key(text)
    assert not text or text not in str(refused.value) + (refused.value.hint or "")


def test_a_wrong_passphrase_is_refused_and_stands_in_no_message(made: tuple[Path, bytes], tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("Tr0ub4dor&3\n")
    wrong.chmod(0o600)
    with pytest.raises(ConfigurationError, match="can't be unlocked") as refused:
        open_signer(made[0], wrong)
    assert "Tr0ub4dor" not in repr(refused.value) + str(refused.value) + (refused.value.hint or "")
    assert refused.value.__cause__ is None


def test_a_passphrase_file_that_others_can_read_is_refused(made: tuple[Path, bytes], passphrase_file: Path) -> None:
    passphrase_file.chmod(0o644)
    with pytest.raises(ConfigurationError, match="readable by others"):
        open_signer(made[0], passphrase_file)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"address": "0x12"}', b"\xff"])
def test_what_is_no_keystore_is_told_as_such(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "wallet.json"
    path.write_bytes(body)
    with pytest.raises(ConfigurationError, match=re.escape(str(path))):
        keystore_address(path)


def test_a_root_that_is_to_pay_without_a_wallet_says_how_to_make_one(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contract = Account.from_key(bytes(31) + b"\1").address
    code = run(["run", "--data", str(data), "--rpc", "http://127.0.0.1:9", "--contract", contract])
    assert code == 2
    assert "swarm-root wallet new" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--rpc", "http://127.0.0.1:9"), "but no contract"),
        (("--chain-key", "/nowhere"), "no effect without --rpc"),
    ],
)
def test_half_of_the_chains_settings_are_refused(
    data: Path, options: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", "--data", str(data), *options]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("amount", ["1", "0eth", "-1eth", "much"])
def test_a_deposit_of_no_amount_is_refused_before_anything_is_asked(
    data: Path, amount: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["deposit", "--data", str(data), "--", amount]) == 2
    assert "error: " in capsys.readouterr().err


def test_an_allowance_is_given_with_the_key_and_changed_later(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        assert run([*arguments, "--data", str(data)]) == code
        found = capsys.readouterr()
        return found.out + found.err

    told("keys", "add", "requester", "alice", "--allowance", "0.5eth")
    assert "left 0.5eth" in told("keys", "allowance", "alice")
    assert "left 0.75eth" in told("keys", "allowance", "alice", "+0.25eth")
    assert "left 0.74eth" in told("keys", "allowance", "alice", "-0.01eth")
    told("keys", "add", "requester", "alice")  # a new key: the allowance is alice's
    assert "left 0.74eth" in told("keys", "allowance", "alice")
    assert "no more can go" in told("keys", "allowance", "alice", "-1eth", code=2)
    assert "left 2eth" in told("keys", "allowance", "alice", "2eth")
    assert "needs no allowance" in told("keys", "add", "operator", "bob", "--allowance", "1eth", code=2)
