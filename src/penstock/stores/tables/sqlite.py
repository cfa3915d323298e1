"""Tables in one SQLite file, shared by any number of processes on a machine.

A process writes with one thread. Works that wait are run one after another in one transaction, each
within a savepoint of its own, and become durable with one commit: thirty writers cost one fsync.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from penstock.errors import StoreAway, StoreError, StoreFull
from penstock.stores.tables.errands import Desk, Errand
from penstock.stores.tables.port import Row, Value
from penstock.stores.tables.sqlite_failures import is_busy, judged
from penstock.stores.tables.threaded import Desks, ThreadedTables
from penstock.stores.tables.turns import Turn, poll

__all__ = ["SqliteTables"]

_READERS = 4
_TOGETHER = 512
"""Most works of one commit."""
_HOLD_S = 0.05
"""No work joins a transaction that has been open for this long: other processes wait for it."""
_LARGEST_LOG = 64 * 1024 * 1024
"""A write-ahead log that grew beyond this, behind a long read, is cut when it can be."""

# Closing any descriptor of a file ends all locks that the process has on it, SQLite's among them:
# whoever wants to open the file waits until it is made.
_making = threading.Lock()


class SqliteTables(ThreadedTables):
    """Tables in the file at `path`; both are made if missing, for the user alone."""

    def __init__(self, path: Path, *, wait_s: float) -> None:
        super().__init__()
        self.path, self.wait_s = path, wait_s

    def __repr__(self) -> str:
        return f"<tables in {self.path}>"

    def _start(self) -> Desks:
        try:
            _make(self.path)
            return _SqliteDesks(self.path, self.wait_s)
        except OSError as error:
            kind = StoreFull if error.errno in {errno.ENOSPC, errno.EDQUOT} else StoreError
            raise kind(f"{self.path} cannot be opened: {error}") from error


class _SqliteDesks(Desks):
    def __init__(self, path: Path, wait_s: float) -> None:
        self._path, self._wait_s = path, wait_s
        self._writer = _connect(path, wait_s)
        try:
            self._writer.execute("PRAGMA busy_timeout = 0")  # it waits for its turn instead
            self._turn = Turn(path)
            self._identity = _identity(path)
        except BaseException:
            self._writer.close()
            raise
        self.writes = Desk("tables writes", self._serve_writes, threads=1)
        self.reads = Desk("tables reads", self._serve_reads, threads=_READERS)
        self.writes.start()
        self.reads.start()

    def finish(self) -> None:
        self.reads.finish()
        self.writes.finish()
        self._turn.close()
        with suppress(sqlite3.Error):  # a full disk: the next one to open it folds the log in
            self._writer.close()

    # writing

    def _serve_writes(self, desk: Desk) -> None:
        while (first := desk.take()) is not None:
            if first.is_given_up:
                continue
            group = [first]
            try:
                self._begin(first.asked_at + self._wait_s)
                self._run_group(group, desk)
                self._writer.execute("COMMIT")
            except Exception as error:  # noqa: BLE001  each of them waits for its outcome
                whole = self._undone(error)
                for errand in group:
                    errand.error = errand.error or type(whole)(*whole.args)  # each has a traceback
            desk.answer(group)

    def _begin(self, deadline: float) -> None:
        if _identity(self._path) != self._identity:
            raise StoreError(f"{self._path} was moved or removed while it was open: open it anew")
        if not self._turn.take(deadline):
            raise StoreAway(f"{self._path} does not answer in time: other writers hold it")
        try:
            if not poll(self._has_begun, deadline):
                raise StoreAway(f"{self._path} does not answer in time: other writers hold it")
        finally:
            self._turn.pass_on()

    def _has_begun(self) -> bool:
        try:
            self._writer.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if is_busy(error):
                return False
            raise
        return True

    def _run_group(self, group: list[Errand], desk: Desk) -> None:
        """Run the first of the group, and those who wait or come meanwhile; they join it."""
        until = time.monotonic() + _HOLD_S
        errand: Errand | None = group[0]
        while errand is not None:
            self._run_alone(errand)
            if len(group) >= _TOGETHER or time.monotonic() > until:
                return
            while (errand := desk.take_waiting()) is not None and errand.is_given_up:
                pass
            if errand is not None:
                group.append(errand)

    def _run_alone(self, errand: Errand) -> None:
        """Run a work so that it can be undone alone. Raises what undid the whole transaction."""
        writer = self._writer
        writer.execute("SAVEPOINT work")
        transaction = _SqliteTransaction(writer, self._path)
        try:
            errand.result = errand.work(transaction)
            transaction.confirm()
            writer.execute("RELEASE work")
        except BaseException as error:  # noqa: BLE001  it is the caller's
            errand.error = judged(error, self._path) if isinstance(error, sqlite3.Error) else error
        else:
            return
        if not writer.in_transaction:  # SQLite ends it when the disk is full, for example
            raise transaction.failed or StoreError("the work ended its transaction")
        writer.execute("ROLLBACK TO work")
        writer.execute("RELEASE work")

    def _undone(self, error: Exception) -> StoreError:
        with suppress(sqlite3.Error):
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        return error if isinstance(error, StoreError) else judged(error, self._path)

    # reading

    def _serve_reads(self, desk: Desk) -> None:
        reader: sqlite3.Connection | None = None
        while (errand := desk.take()) is not None:
            if errand.is_given_up:
                continue
            try:
                if reader is None:
                    reader = _connect(self._path, self._wait_s)
                    reader.execute("PRAGMA query_only = ON")
                self._look(reader, errand)
            except BaseException as error:  # noqa: BLE001  it is the caller's
                errand.error = (
                    judged(error, self._path) if isinstance(error, sqlite3.Error) else error
                )
            desk.answer([errand])
        if reader is not None:
            reader.close()

    def _look(self, reader: sqlite3.Connection, errand: Errand) -> None:
        transaction = _SqliteTransaction(reader, self._path)
        reader.execute("BEGIN")
        try:
            errand.result = errand.work(transaction)
        finally:
            if reader.in_transaction:
                reader.execute("ROLLBACK")
        transaction.confirm()


class _SqliteTransaction:
    """A work's statements. One that fails dooms the work, as in PostgreSQL."""

    __slots__ = ("_connection", "_path", "failed")

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path
        self.failed: StoreError | None = None

    def confirm(self) -> None:
        """Raise what failed, for a work that went on as if nothing had happened."""
        if self.failed is not None:
            raise self.failed

    def execute(self, sql: str, *values: Value) -> list[Row]:
        self.confirm()
        try:
            return self._connection.execute(sql, values).fetchall()
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            self.failed = judged(error, self._path)
            raise self.failed from error

    def execute_many(self, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        self.confirm()
        try:
            self._connection.executemany(sql, rows)
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            self.failed = judged(error, self._path)
            raise self.failed from error


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file it is. SQLite itself goes on writing to one that nobody finds any more."""
    try:
        file = path.stat()
    except FileNotFoundError:
        return None
    return file.st_dev, file.st_ino


def _make(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _making, suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _connect(path: Path, wait_s: float) -> sqlite3.Connection:
    """Open the file as all connections have it. StoreError says why it cannot be."""
    connection: sqlite3.Connection | None = None
    try:
        connection = sqlite3.connect(
            path,
            timeout=wait_s,
            isolation_level=None,  # we say BEGIN
            check_same_thread=False,  # opened in one, used by one other
            cached_statements=256,
        )
        _switch_log_on(connection, path, time.monotonic() + wait_s)
        for setting in (
            "synchronous = FULL",
            "foreign_keys = ON",
            f"journal_size_limit = {_LARGEST_LOG}",
        ):
            connection.execute(f"PRAGMA {setting}").fetchall()
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise judged(error, path) from error
        raise
    return connection


def _switch_log_on(connection: sqlite3.Connection, path: Path, deadline: float) -> None:
    """Have a write-ahead log. The switch does not wait for others who do the same, so this does."""
    answers: list[Row] = []

    def switched() -> bool:
        try:
            answers[:] = connection.execute("PRAGMA journal_mode = WAL").fetchall()
        except sqlite3.Error as error:
            if is_busy(error):
                return False
            raise
        return True

    if not poll(switched, deadline):
        raise StoreAway(f"{path} does not answer in time: other writers hold it")
    if answers != [("wal",)]:
        raise StoreError(f"{path} cannot have a write-ahead log: is it on a network disk?")
