"""The book of vouchers: what this worker is owed, on disk, beside its journal.

A file of its own, since it is money: each voucher is synced to the disk before the root hears that it is here, in a
thread, and the journal of outcomes needs neither. What a voucher is worth doesn't hang on this program: a row holds all
that the contract asks for, and is read beside a worker that runs.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from swarm.errors import ConfigurationError
from swarm.model import Address, TaskId, Wei
from swarm.vouchers import SIGNATURE_BYTES, Escrow, Voucher
from swarm.words import WORD_BYTES
from swarm.worker import sqlite_file
from swarm.worker.promises import Account, Expected, KeptVoucher

__all__ = ["VOUCHERS_FILE", "NotedAccount", "NotedVoucher", "VoucherBook", "open_voucher_book", "read_book"]

VOUCHERS_FILE: Final = "vouchers.db"
#: The schema; a newer file is refused rather than misread.
SCHEMA_VERSION: Final = 1
#: A task that no voucher paid for within 90 days was never accepted.
EXPECT_S: Final = 90 * 86_400.0
#: No amount has more: 2^256 has as many.
MAX_WEI_DIGITS: Final = 78

#: What tasks are to be paid until a voucher does, and of each channel the last voucher, which is worth all before it.
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS accounts (
    chain_id INTEGER NOT NULL,
    contract TEXT NOT NULL,
    payer TEXT NOT NULL,
    payee TEXT NOT NULL,
    rpc TEXT,
    written_at REAL NOT NULL,
    PRIMARY KEY (chain_id, contract, payer, payee)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS expected (
    task TEXT NOT NULL,
    generation INTEGER NOT NULL,
    result TEXT NOT NULL,
    reward_wei TEXT NOT NULL,
    written_at REAL NOT NULL,
    PRIMARY KEY (task, generation)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS vouchers (
    chain_id INTEGER NOT NULL,
    contract TEXT NOT NULL,
    payer TEXT NOT NULL,
    payee TEXT NOT NULL,
    cumulative_wei TEXT NOT NULL,
    tasks_root BLOB NOT NULL,
    signature BLOB NOT NULL,
    tasks INTEGER NOT NULL,
    written_at REAL NOT NULL,
    PRIMARY KEY (chain_id, contract, payer, payee, cumulative_wei)
) WITHOUT ROWID
"""
_EXPECT: Final = "INSERT OR REPLACE INTO expected VALUES (?, ?, ?, ?, ?)"
_FORGET: Final = "DELETE FROM expected WHERE task = ? AND generation = ?"
_SUPERSEDE: Final = "DELETE FROM vouchers WHERE chain_id = ? AND contract = ? AND payer = ? AND payee = ?"
_KEEP: Final = "INSERT OR REPLACE INTO vouchers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_JOIN: Final = "INSERT OR REPLACE INTO accounts VALUES (?, ?, ?, ?, ?, ?)"
_READ: Final = (
    "SELECT chain_id, contract, payer, payee, cumulative_wei, tasks_root, signature, tasks "
    "FROM vouchers ORDER BY written_at"
)


@attrs.frozen(kw_only=True)
class NotedVoucher:
    """A voucher in the book."""

    kept: KeptVoucher

    @property
    def channel(self) -> tuple[Escrow, Address, Address]:
        """Contract, payer and payee."""
        return self.kept.escrow, self.kept.voucher.requester, self.kept.voucher.worker


class VoucherBook:
    """The vouchers on disk, and what they should hold in memory too; made by ``open_voucher_book``."""

    def __init__(self, connection: sqlite3.Connection, *, path: Path, clock: Callable[[], float]) -> None:
        self._connection: Final = connection
        self._path: Final = path
        self._clock: Final = clock
        self._writing: Final = trio.Lock()
        self._expected = _read_expected(connection, since=clock() - EXPECT_S)
        _read_all(connection)  # a damaged book is met here, where its opener names it

    async def note_account(self, account: Account, *, rpc: str | None) -> None:
        """Note whom this worker works for, and the node that the settings name.

        Raises:
            StoreFull: the disk is full.
        """
        escrow = account.escrow
        where = (escrow.chain_id, escrow.address, account.payer, account.payee)
        await self._write([(_JOIN, [(*where, rpc, self._clock())])])

    def last_voucher(self, escrow: Escrow, payer: Address, payee: Address) -> KeptVoucher | None:
        """The voucher of the greatest amount that was taken; None where there is none. Sync: for the start."""
        wanted = (escrow, payer, payee)
        kept = [each.kept for each in _read_all(self._connection) if each.channel == wanted]
        return max(kept, key=lambda each: each.cumulative_wei, default=None)

    def expected(self, task: TaskId, generation: int) -> Expected | None:
        """What a task that this worker did is to be paid; None where it isn't known, or was paid for already."""
        return self._expected.get((task, generation))

    async def expect(self, task: TaskId, generation: int, expected: Expected) -> None:
        """Note what a task is to be paid by a voucher.

        Raises:
            StoreFull: the disk is full; it is known until this process ends.
        """
        self._expected[task, generation] = expected
        row = (task, generation, expected.result, str(expected.reward_wei), self._clock())
        await self._write([(_EXPECT, [row])])

    async def keep_voucher(self, kept: KeptVoucher, *, tasks: Iterable[tuple[TaskId, int]]) -> None:
        """Keep a voucher that pays for these tasks, in the place of the channel's last; durable when this returns.

        Raises:
            StoreFull: the disk is full, or the file is damaged; nothing was written.
        """
        paid = [key for key in tasks if key in self._expected]
        await self._write([(_SUPERSEDE, [_where(kept)]), (_KEEP, [_row_of(kept, at=self._clock())]), (_FORGET, paid)])
        for key in paid:
            del self._expected[key]

    async def _write(self, batch: Sequence[sqlite_file.Written]) -> None:
        async with self._writing:  # one thread at a time
            await trio.to_thread.run_sync(sqlite_file.write, self._connection, self._path, batch)


@contextlib.asynccontextmanager
async def open_voucher_book(path: Path, *, clock: Callable[[], float]) -> AsyncIterator[VoucherBook]:
    """The book of a data directory that the caller has locked.

    Args:
        path: the SQLite file; made where there is none.
        clock: Unix seconds.

    Raises:
        ConfigurationError: the file is damaged, or of a newer version.

    *Resource handling*: leaving the block closes the file.
    """
    try:
        connection = await trio.to_thread.run_sync(_connect, path)
        book = VoucherBook(connection, path=path, clock=clock)
    except sqlite3.Error as fault:
        raise ConfigurationError(
            f"the book of vouchers {path} can't be opened: {fault}",
            hint="it holds money: keep it, and bring it back from a copy",
        ) from fault
    try:
        yield book
    finally:
        connection.close()


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite_file.open_file(path, schema=_SCHEMA, version=SCHEMA_VERSION, synchronous="FULL")


def _where(kept: KeptVoucher) -> tuple[Any, ...]:
    """The channel of a voucher, as the first columns of ``vouchers`` name it."""
    return kept.escrow.chain_id, kept.escrow.address, kept.voucher.requester, kept.voucher.worker


def _row_of(kept: KeptVoucher, *, at: float) -> tuple[Any, ...]:
    """A row of ``vouchers``."""
    voucher = kept.voucher
    return (*_where(kept), str(voucher.cumulative_wei), voucher.tasks_root, kept.signature, kept.tasks, at)


def _read_all(connection: sqlite3.Connection) -> list[NotedVoucher]:
    """All vouchers in the book; one that an earlier version wrote may have several of a channel."""
    return [NotedVoucher(kept=_kept_of(row)) for row in connection.execute(_READ)]


def _kept_of(row: tuple[object, ...]) -> KeptVoucher:
    """A row of ``vouchers``; raises ``sqlite3.DatabaseError`` where nobody can have written it so."""
    chain_id, contract, payer, payee, cumulative_wei, root, signature, tasks = row
    if not (
        isinstance(chain_id, int)
        and isinstance(tasks, int)
        and isinstance(contract, str)
        and isinstance(payer, str)
        and isinstance(payee, str)
        and isinstance(root, bytes)
        and len(root) == WORD_BYTES
        and isinstance(signature, bytes)
        and len(signature) == SIGNATURE_BYTES
        and tasks >= 0
    ):
        raise sqlite3.DatabaseError("a voucher in it makes no sense")
    voucher = Voucher(requester=payer, worker=payee, cumulative_wei=_wei_of(cumulative_wei), tasks_root=root)
    escrow = Escrow(chain_id=chain_id, address=contract)
    return KeptVoucher(escrow=escrow, voucher=voucher, signature=signature, tasks=tasks)


def _wei_of(text: object) -> Wei:
    """An amount; raises ``sqlite3.DatabaseError`` where it is none."""
    if not isinstance(text, str) or not text.isascii() or not text.isdigit() or len(text) > MAX_WEI_DIGITS:
        raise sqlite3.DatabaseError("an amount in it makes no sense")
    return int(text)


def _read_expected(connection: sqlite3.Connection, *, since: float) -> dict[tuple[TaskId, int], Expected]:
    """What tasks are to be paid that were done since then (Unix seconds); older ones were never accepted."""
    with connection:
        connection.execute("DELETE FROM expected WHERE written_at < ?", (since,))
    rows = connection.execute("SELECT task, generation, result, reward_wei FROM expected")
    return {
        (task, generation): Expected(result=result, reward_wei=_wei_of(reward_wei))
        for task, generation, result, reward_wei in rows
    }


@attrs.frozen(kw_only=True)
class NotedAccount:
    """Whom this worker works for, and the node that the settings named last."""

    escrow: Escrow
    payer: Address
    payee: Address
    rpc: str | None


def read_book(path: Path) -> list[tuple[NotedAccount, NotedVoucher | None]]:
    """Each account with its last voucher, the latest account last; a worker may have the book open.

    Raises:
        ConfigurationError: the file can't be read.
    """
    if not path.exists():
        return []
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as connection:
            connection.execute("PRAGMA query_only=ON")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if not version and not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                return []  # made, and its maker was killed before it wrote anything
            accounts = connection.execute(
                "SELECT chain_id, contract, payer, payee, rpc FROM accounts ORDER BY written_at"
            ).fetchall()
            found = _read_all(connection)
    except sqlite3.Error as fault:
        raise ConfigurationError(f"the book of vouchers {path} can't be read: {fault}") from fault
    last = {each.channel: each for each in sorted(found, key=lambda each: each.kept.cumulative_wei)}
    noted = []
    for chain_id, contract, payer, payee, rpc in accounts:
        account = NotedAccount(escrow=Escrow(chain_id=chain_id, address=contract), payer=payer, payee=payee, rpc=rpc)
        if not (isinstance(chain_id, int) and all(isinstance(one, str) for one in (contract, payer, payee, rpc or ""))):
            raise ConfigurationError(f"the book of vouchers {path} can't be read: an account in it makes no sense")
        noted.append((account, last.get((account.escrow, payer, payee))))
    return noted
