"""Files that a crash, a full disk or somebody's editor damaged: an error that names the file, never a traceback."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from rendezvous.directory import CONTRACT_FILE, OPERATOR_KEY, ContractFile, open_directory
from swarm.cli.worker import main
from swarm.errors import ConfigurationError, StoreFull
from swarm.identity import open_identity, write_private
from swarm.membership import MEMBERSHIP_FILE, Membership, keep_membership, read_membership
from swarm.worker.journal import open_journal
from swarm.worker.voucher_book import VOUCHERS_FILE, open_voucher_book, read_book
from tests.unit.test_worker_promises import ACCOUNT, OTHER, PAYER, TASKS, taken, told

CONTRACT = ContractFile(
    chain_id=31337, contract=OTHER, block=7, payer=PAYER, exit_delay_s=60, transaction="0x" + "11" * 32
)


async def _book(path: Path) -> None:
    async with open_voucher_book(path, clock=lambda: 1_000.0) as book:
        await book.note_account(ACCOUNT, rpc=None)
        await book.keep_voucher(taken(told(0, 2)), tasks=())


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("cumulative_wei", "many"),
        ("cumulative_wei", "-5"),
        ("cumulative_wei", "9" * 5_000),
        ("cumulative_wei", "٣"),
        ("tasks_root", 2_000_000_000),
        ("tasks_root", b"short"),
        ("signature", "text"),
        ("signature", b""),
        ("tasks", "many"),
        ("payer", b"\xff"),
        ("chain_id", "main"),
    ],
)
async def test_a_voucher_that_makes_no_sense_is_told_by_the_name_of_its_book(
    tmp_path: Path, column: str, value: Any
) -> None:
    path = tmp_path / VOUCHERS_FILE
    await _book(path)
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute(f"UPDATE vouchers SET {column} = ?", (value,))  # noqa: S608  # a name from above
    with pytest.raises(ConfigurationError, match=VOUCHERS_FILE):
        read_book(path)
    with pytest.raises(ConfigurationError, match=VOUCHERS_FILE):
        async with open_voucher_book(path, clock=lambda: 1_000.0) as book:
            book.last_voucher(ACCOUNT.escrow, ACCOUNT.payer, ACCOUNT.payee)


async def test_an_expectation_or_an_account_that_makes_no_sense_is_told_too(tmp_path: Path) -> None:
    path = tmp_path / VOUCHERS_FILE
    await _book(path)
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("INSERT INTO expected VALUES (?, 1, 'cid', 'much', 1000)", (TASKS[0].task,))
        file.execute("UPDATE accounts SET rpc = ?", (b"\xff",))
    with pytest.raises(ConfigurationError, match=VOUCHERS_FILE):
        async with open_voucher_book(path, clock=lambda: 1_000.0):
            pass
    with pytest.raises(ConfigurationError, match=VOUCHERS_FILE):
        read_book(path)


def test_a_book_whose_maker_was_killed_at_once_has_no_vouchers_and_one_cut_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / VOUCHERS_FILE
    path.write_bytes(b"")
    assert read_book(path) == []
    trio.run(_book, path)
    whole = path.read_bytes()
    for size in (100, 5_000, len(whole) - 100):
        path.write_bytes(whole[:size])
        for beside in tmp_path.glob(f"{VOUCHERS_FILE}-*"):
            beside.unlink()
        with pytest.raises(ConfigurationError, match=VOUCHERS_FILE):
            read_book(path)


async def test_a_book_that_is_damaged_under_way_keeps_the_worker_working(tmp_path: Path) -> None:
    path = tmp_path / VOUCHERS_FILE
    async with open_voucher_book(path, clock=lambda: 1_000.0) as book:
        book._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with path.open("r+b") as file:
            file.seek(100)
            file.write(b"\xff" * (path.stat().st_size - 100))
        book._connection.execute("PRAGMA shrink_memory")
        with contextlib.closing(sqlite3.connect(path)) as other, contextlib.suppress(sqlite3.DatabaseError):
            other.execute("PRAGMA journal_mode=DELETE")
        with pytest.raises(StoreFull, match=VOUCHERS_FILE) as said:
            await book.keep_voucher(taken(told(0, 2)), tasks=())
        assert "no space" not in str(said.value)


def test_redeem_and_release_name_a_book_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_identity(tmp_path / "worker"):
        pass
    (tmp_path / "worker" / VOUCHERS_FILE).write_bytes(b"\0" * 5_000)
    for command in ("wallet", "redeem", "release"):
        assert main([command, "--data", str(tmp_path / "worker")]) == 2
        assert VOUCHERS_FILE in capsys.readouterr().err


@pytest.mark.parametrize(("column", "value"), [("state", "odd"), ("report", 5), ("size_bytes", "big")])
async def test_a_journal_with_a_record_that_makes_no_sense_is_named(tmp_path: Path, column: str, value: Any) -> None:
    path = tmp_path / "journal.db"
    async with open_journal(path, clock=lambda: 1_000.0):
        pass
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("INSERT INTO outcomes VALUES ('t', 1, 'kept', NULL, NULL, 0, 1.0, 1, 1000.0)")
        file.execute(f"UPDATE outcomes SET {column} = ?", (value,))  # noqa: S608  # a name from above
    with pytest.raises(ConfigurationError, match="journal"):
        async with open_journal(path, clock=lambda: 1_000.0):
            pass


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"contract": "\xff"}',
        b"[" * 100_000,
        msgspec.json.encode(CONTRACT)[:-20],
        msgspec.json.encode(msgspec.structs.replace(CONTRACT, contract="nowhere")),
        msgspec.json.encode(msgspec.structs.replace(CONTRACT, block=-1)),
        msgspec.json.encode(msgspec.structs.replace(CONTRACT, chain_id=2**63)),
    ],
    ids=lambda body: repr(body[-12:]),
)
def test_a_damaged_contract_file_is_named(tmp_path: Path, body: bytes) -> None:
    with open_directory(tmp_path / "root") as directory:
        directory.keep_contract(CONTRACT)
        assert directory.contract() == CONTRACT
        write_private(directory.contract_file, body)
        with pytest.raises(ConfigurationError, match=CONTRACT_FILE):
            directory.contract()


@pytest.mark.parametrize("body", [b"", b"\n", b"\xff\xff", b"a\0b", b"two words\nand more"], ids=repr)
def test_a_damaged_operator_key_is_named(tmp_path: Path, body: bytes) -> None:
    with open_directory(tmp_path / "root") as directory:
        directory.keep_operator_key("good")
        assert directory.operator_key() == "good"
        write_private(directory.operator_key_file, body)
        with pytest.raises(ConfigurationError, match=OPERATOR_KEY):
            directory.operator_key()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[" * 5_000,
        b'{"key_id": "k", "network_id": "n", "api_key": ""}',
        b'{"key_id": "k", "network_id": "n", "api_key": "a\\nb"}',
        b'{"key_id": "k", "network_id": "n", "api_key": "a\\u0000"}',
        b'{"key_id": "k", "network_id": "n", "api_key": "' + b"a" * 1_000_000 + b'"}',
    ],
    ids=lambda body: repr(body[-12:]),
)
def test_a_damaged_membership_is_as_good_as_none(tmp_path: Path, body: bytes) -> None:
    keep_membership(tmp_path, Membership(key_id="k", network_id="n", api_key="swk_good"))
    kept = read_membership(tmp_path)
    assert kept is not None
    assert kept.api_key == "swk_good"
    write_private(tmp_path / MEMBERSHIP_FILE, body)
    assert read_membership(tmp_path) is None


def test_a_membership_that_cant_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / MEMBERSHIP_FILE).mkdir()
    with pytest.raises(ConfigurationError, match=MEMBERSHIP_FILE):
        read_membership(tmp_path)
