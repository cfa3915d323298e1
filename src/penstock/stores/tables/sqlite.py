"""Tables in one SQLite file, shared by any number of processes on a machine.

A process writes with one thread. Queued works run in one transaction, each within a savepoint of
its own, and become durable with one commit: thirty writers cost one fsync.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from penstock.errors import StoreAway, StoreError, StoreFull
from penstock.processes.home import check_file, make_home
from penstock.stores.tables.port import Row, Value
from penstock.stores.tables.work_queue import QueuedWork, ThreadedTables, WorkQueue, WorkQueues

__all__ = ["SqliteTables"]

_READERS = 4
_TOGETHER = 512
"""Most works in one commit."""
_HOLD_S = 0.05
"""No work joins a transaction that is open for longer: other processes wait for it."""
_LARGEST_LOG = 64 * 1024 * 1024
"""A write-ahead log that grew beyond this during a long read is truncated afterwards."""

_FIRST_PAUSE_S = 0.000_1
_LONGEST_PAUSE_S = 0.003

_PRIMARY = 0xFF
"""SQLite's extended error codes have the primary one in the lowest byte."""
_NO_ROOM = 1024 * 1024
"""With fewer bytes free than this, a failed write had no room."""

_STATEMENT_ERRORS = (sqlite3.Error, OverflowError, UnicodeError)
_AWAY = {
    sqlite3.SQLITE_BUSY: "other writers hold it",
    sqlite3.SQLITE_LOCKED: "other writers hold it",
    sqlite3.SQLITE_INTERRUPT: "it was interrupted",
    sqlite3.SQLITE_NOMEM: "there is no memory",
}
_BROKEN = {
    sqlite3.SQLITE_CORRUPT: "is damaged: put back a copy, or move it away to start afresh",
    sqlite3.SQLITE_NOTADB: "is not a database: move it away, or name another in tables.url",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: does its folder exist, and may you write there?",
    sqlite3.SQLITE_PERM: "cannot be opened: may you write there?",
    sqlite3.SQLITE_READONLY: "may only be read",
    sqlite3.SQLITE_AUTH: "cannot be opened: access denied",
}

# Closing any descriptor of a file releases all locks that the process has on it, SQLite's among
# them: nothing may open the file while it is made.
_making = threading.Lock()


class SqliteTables(ThreadedTables):
    """Tables in the file at `path`; both are made if missing, for the user alone.

    With `in_home` its folder is a data directory, which other users must not control.
    """

    def __init__(self, path: Path, *, wait_s: float, in_home: bool = False) -> None:
        super().__init__()
        self.path, self.wait_s, self._in_home = path, wait_s, in_home

    def __repr__(self) -> str:
        return f"<tables in {self.path}>"

    def _start(self) -> WorkQueues:
        try:
            if self._in_home:
                _check(self.path)
            _make(self.path)
            return _SqliteQueues(self.path, self.wait_s)
        except OSError as error:
            kind = StoreFull if error.errno in {errno.ENOSPC, errno.EDQUOT} else StoreError
            raise kind(f"{self.path} cannot be opened: {error.strerror or error}") from error


class _SqliteQueues(WorkQueues):
    def __init__(self, path: Path, wait_s: float) -> None:
        self._path, self._wait_s = path, wait_s
        self._writer = _connect(path, wait_s)
        try:
            self._writer.execute("PRAGMA busy_timeout = 0")  # it takes the write lock instead
            self._write_lock = _WriteLock(path)
            self._identity = _identity(path)
        except BaseException:
            self._writer.close()
            raise
        self.writes = WorkQueue("tables writes", self._serve_writes, threads=1)
        self.reads = WorkQueue("tables reads", self._serve_reads, threads=_READERS)
        self.writes.start()
        self.reads.start()

    def finish(self) -> None:
        self.reads.finish()
        self.writes.finish()
        self._write_lock.close()
        with suppress(sqlite3.Error):  # a full disk: the next to open it merges the log
            self._writer.close()

    # writing

    def _serve_writes(self, queue: WorkQueue) -> None:
        while (first := queue.take()) is not None:
            if first.is_given_up:
                continue
            group = [first]
            try:
                self._begin(first.asked_at + self._wait_s)
                self._run_group(group, queue)
                self._writer.execute("COMMIT")
            except Exception as error:  # noqa: BLE001  each caller waits for its outcome
                whole = self._undone(error)
                for queued in group:
                    queued.error = queued.error or type(whole)(*whole.args)  # for its own traceback
            queue.answer(group)

    def _begin(self, deadline: float) -> None:
        if _identity(self._path) != self._identity:
            raise StoreError(f"{self._path} was moved or removed while it was open: open it again")
        if not self._write_lock.take(deadline):
            raise StoreAway(f"{self._path} does not answer in time: other writers hold it")
        try:
            if not _poll(self._has_begun, deadline):
                raise StoreAway(f"{self._path} does not answer in time: other writers hold it")
        finally:
            self._write_lock.release()

    def _has_begun(self) -> bool:
        try:
            self._writer.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if _is_busy(error):
                return False
            raise
        return True

    def _run_group(self, group: list[QueuedWork], queue: WorkQueue) -> None:
        """Run the first of the group, then works that are queued meanwhile; they join it."""
        until = time.monotonic() + _HOLD_S
        queued: QueuedWork | None = group[0]
        while queued is not None:
            self._run_alone(queued)
            if len(group) >= _TOGETHER or time.monotonic() > until:
                return
            while (queued := queue.take_waiting()) is not None and queued.is_given_up:
                pass
            if queued is not None:
                group.append(queued)

    def _run_alone(self, queued: QueuedWork) -> None:
        """Run a work in a savepoint. Raises what rolled the whole transaction back."""
        writer = self._writer
        writer.execute("SAVEPOINT work")
        transaction = _SqliteTransaction(writer, self._path)
        try:
            queued.result = queued.work(transaction)
            transaction.confirm()
            writer.execute("RELEASE work")
        except BaseException as error:  # noqa: BLE001  it is the caller's
            queued.error = (
                _store_error(error, self._path) if isinstance(error, sqlite3.Error) else error
            )
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
        return error if isinstance(error, StoreError) else _store_error(error, self._path)

    # reading

    def _serve_reads(self, queue: WorkQueue) -> None:
        reader: sqlite3.Connection | None = None
        while (queued := queue.take()) is not None:
            if queued.is_given_up:
                continue
            try:
                if reader is None:
                    reader = _connect(self._path, self._wait_s)
                    reader.execute("PRAGMA query_only = ON")
                self._run_read(reader, queued)
            except BaseException as error:  # noqa: BLE001  it is the caller's
                queued.error = (
                    _store_error(error, self._path) if isinstance(error, sqlite3.Error) else error
                )
            queue.answer([queued])
        if reader is not None:
            reader.close()

    def _run_read(self, reader: sqlite3.Connection, queued: QueuedWork) -> None:
        transaction = _SqliteTransaction(reader, self._path)
        reader.execute("BEGIN")
        try:
            queued.result = queued.work(transaction)
        finally:
            if reader.in_transaction:
                reader.execute("ROLLBACK")
        transaction.confirm()


class _SqliteTransaction:
    """A work's statements. If one fails the work fails, as in PostgreSQL."""

    __slots__ = ("_connection", "_path", "failed")

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path
        self.failed: StoreError | None = None

    def confirm(self) -> None:
        """Raise what failed, also if the work has caught it."""
        if self.failed is not None:
            raise self.failed

    def execute(self, sql: str, *values: Value) -> list[Row]:
        self.confirm()
        try:
            return self._connection.execute(sql, values).fetchall()
        except _STATEMENT_ERRORS as error:
            raise self._failure(error) from error

    def execute_many(self, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        self.confirm()
        try:
            self._connection.executemany(sql, rows)
        except _STATEMENT_ERRORS as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> StoreError:
        self.failed = _store_error(error, self._path)
        return self.failed


class _WriteLock:
    """A fair lock among the writers of all processes; a process that dies releases it.

    SQLite gives its own lock to the process that asks at the right moment. A process that writes
    without a pause asks again microseconds after it released it, the others ask every few
    milliseconds: one of them may wait for too long. So a writer first takes a lock on a file beside
    the database, and keeps it until it has SQLite's; one that has just written comes after those
    that waited.
    """

    SUFFIX = "-turn"

    def __init__(self, database: Path) -> None:
        path = database.with_name(f"{database.name}{self.SUFFIX}")
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file: int | None = os.open(path, flags, 0o600)
        _open.add(self)

    def take(self, deadline: float) -> bool:
        """Wait for the lock until `deadline` (monotonic); whether it was taken."""
        return _poll(self._try, deadline)

    def release(self) -> None:
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file, without releasing the lock of another process that shares it."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _try(self) -> bool:
        if self._file is None:
            return True
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _poll(attempt: Callable[[], bool], deadline: float) -> bool:
    """Try at least once, and again until `deadline` (monotonic); whether it succeeded."""
    pause_s = _FIRST_PAUSE_S
    while not attempt():
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
    return True


_open: weakref.WeakSet[_WriteLock] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """A child that kept the file open would keep the lock of a parent that was killed."""
    for lock in list(_open):
        lock.close()


os.register_at_fork(after_in_child=_leave_to_parent)


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file it is: SQLite keeps writing to one that was moved or removed."""
    try:
        file = path.stat()
    except FileNotFoundError:
        return None
    return file.st_dev, file.st_ino


def _check(path: Path) -> None:
    make_home(path.parent)
    for kind in ("", "-wal", "-shm", _WriteLock.SUFFIX):
        file = path.with_name(f"{path.name}{kind}")
        # Not opened: closing it would release our locks.
        with suppress(FileNotFoundError):
            check_file(file, file.lstat())


def _make(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _making, suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _connect(path: Path, wait_s: float) -> sqlite3.Connection:
    """Open a connection with our settings; StoreError if that fails."""
    connection: sqlite3.Connection | None = None
    try:
        connection = sqlite3.connect(
            path,
            timeout=wait_s,
            isolation_level=None,  # explicit BEGIN
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
            raise _store_error(error, path) from error
        raise
    return connection


def _switch_log_on(connection: sqlite3.Connection, path: Path, deadline: float) -> None:
    """Switch to a write-ahead log, waiting for others who do the same."""
    answers: list[Row] = []

    def switched() -> bool:
        try:
            answers[:] = connection.execute("PRAGMA journal_mode = WAL").fetchall()
        except sqlite3.Error as error:
            if _is_busy(error):
                return False
            raise
        return True

    if not _poll(switched, deadline):
        raise StoreAway(f"{path} does not answer in time: other writers hold it")
    if answers != [("wal",)]:
        raise StoreError(f"{path} cannot have a write-ahead log: is it on a network disk?")


def _is_busy(error: sqlite3.Error) -> bool:
    """Whether another writer has the lock."""
    return _code(error) & _PRIMARY in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def _store_error(error: Exception, path: Path) -> StoreError:
    """Our error for whatever a statement raised."""
    if isinstance(error, OverflowError | UnicodeError):
        return StoreError(f"a value cannot be stored: {error}")
    if not isinstance(error, sqlite3.Error):
        return StoreError(f"{path}: {type(error).__name__}: {error}")
    kind = _code(error) & _PRIMARY
    if kind == sqlite3.SQLITE_FULL or (kind == sqlite3.SQLITE_IOERR and _had_no_room(error, path)):
        return StoreFull(f"no room for {path}: {error}")
    if kind == sqlite3.SQLITE_IOERR:
        return StoreAway(f"the disk of {path} fails ({_name(error)}): {error}")
    if kind in _AWAY:
        return StoreAway(f"{path} does not answer in time: {_AWAY[kind]}")
    broken = _BROKEN.get(kind)
    return StoreError(f"{path} {broken} ({error})" if broken else f"{path}: {error}")


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0)


def _name(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", "unknown")


def _had_no_room(error: sqlite3.Error, path: Path) -> bool:
    if _code(error) == sqlite3.SQLITE_IOERR_FSYNC:
        return False  # whatever the reason: the data may be written or not
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _NO_ROOM
