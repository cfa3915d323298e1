"""One connection to PostgreSQL, used by one thread; reopened when it is lost."""

from __future__ import annotations

import math
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar

import psycopg
from psycopg import IsolationLevel
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.errors import StoreAway, StoreError, StoreFull
from penstock.stores.tables.port import Row, Value
from penstock.stores.tables.work_queue import QueuedWork

__all__ = ["PostgresConnection", "with_defaults"]

T = TypeVar("T")
_LOSSES = 3
"""A work that loses its connection this often is not run again: it may be the cause."""
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.1
_GRACE_S = 1.0
"""How long to wait for a silent server beyond its own timeout."""
_LONGEST_MS = 2**31 - 1
_ADVISORY_LOCK = int.from_bytes(b"penstock")

_CONFLICTS = {"40001", "40P01"}  # serialization failure, deadlock
_FULL = "53100"
# 08 connection, 25P03 idle in transaction, 53 resources, 55P03 lock, 57 operator, 58 system.
_AWAY = ("08", "25P03", "53", "55P03", "57", "58")
_READ_ONLY = "25006"
# While connecting libpq gives no code. In another language a permanent refusal counts as temporary.
_REFUSALS = (
    "authentication failed",
    "does not exist",
    "no password supplied",
    "no pg_hba.conf entry",
    "permission denied for database",
)


class _ConnectionLost(StoreAway):
    """The server hung up before the commit was sent: nothing has happened."""


class _Conflict(StoreAway):
    """Another transaction came first; this one was rolled back and can be run again."""


class PostgresConnection:
    """A connection, opened when needed. All methods but `end_if_silent` are for its one thread."""

    def __init__(self, conninfo: str, wait_s: float) -> None:
        self._conninfo, self._wait_s = conninfo, wait_s
        self._connection: psycopg.Connection[Row] | None = None
        self._asked_at: float | None = None
        self._asking = threading.Lock()

    def connect(self) -> psycopg.Connection[Row]:
        """Return the open connection; StoreAway or StoreError if it cannot be opened."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        self.drop()
        try:
            connection = psycopg.connect(
                # Prepared statements do not survive a change of their table, nor a pooler.
                self._conninfo,
                prepare_threshold=None,
            )
        except psycopg.Error as error:
            raise _connect_error(error) from error
        self._connection = connection
        connection.adapters.register_loader("numeric", _NumberLoader)
        connection.adapters.register_loader("bool", _TruthLoader)
        limit_ms = str(min(math.ceil(self._wait_s * 1000), _LONGEST_MS))
        try:
            # The second frees others when this process freezes within a transaction.
            self.ask(
                lambda: connection.execute(
                    "SELECT set_config('statement_timeout', %s, false),"
                    " set_config('idle_in_transaction_session_timeout', %s, false)",
                    (limit_ms, limit_ms),
                )
            )
            self.ask(connection.commit)
        except psycopg.Error as error:
            self.drop()
            raise _connect_error(error) from error
        return connection

    def drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def run(self, queued: QueuedWork) -> Any:
        """Run a work until it is committed, again after conflicts and lost connections."""
        deadline = queued.asked_at + self._wait_s
        if time.monotonic() > deadline:
            raise StoreAway("PostgreSQL does not answer in time: all connections are in use")
        losses, pause_s = 0, _FIRST_PAUSE_S
        while True:
            try:
                return self._run_once(queued)
            except _ConnectionLost:
                losses += 1
                if losses >= _LOSSES or time.monotonic() > deadline:
                    raise
            except _Conflict:
                if time.monotonic() > deadline:
                    raise
                # At random, so that they do not conflict again.
                time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def ask(self, question: Callable[[], T]) -> T:
        """Call the server; `end_if_silent` bounds the wait."""
        with self._asking:
            self._asked_at = time.monotonic()
        try:
            return question()
        finally:
            with self._asking:
                self._asked_at = None

    def end_if_silent(self, now: float) -> None:
        """Shut the connection down if an answer is overdue, to wake its thread. Any thread.

        The server's own timeouts end what takes too long; this is for a frozen or unreachable one.
        """
        with self._asking:
            connection = self._connection
            if connection is None or self._asked_at is None or connection.closed:
                return
            if now - self._asked_at > self._wait_s + _GRACE_S:
                with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as line:
                    line.shutdown(socket.SHUT_RDWR)

    def _run_once(self, queued: QueuedWork) -> Any:
        connection = self.connect()
        # Works write by what they have read, without FOR UPDATE. Only these levels make that as
        # safe as SQLite's one writer; a read never conflicts.
        connection.isolation_level = (
            IsolationLevel.SERIALIZABLE if queued.is_write else IsolationLevel.REPEATABLE_READ
        )
        connection.read_only = not queued.is_write
        transaction = _PostgresTransaction(self, connection, is_write=queued.is_write)
        try:
            result = queued.work(transaction)
            transaction.confirm()
        except BaseException:
            self._undo(connection)
            if isinstance(transaction.failed, _ConnectionLost | _Conflict):
                raise transaction.failed from None  # even if the work replaced it
            raise
        self._commit(connection, is_write=queued.is_write)
        return result

    def _commit(self, connection: psycopg.Connection[Row], *, is_write: bool) -> None:
        try:
            self.ask(connection.commit)
        except psycopg.Error as error:
            if connection.closed:
                self.drop()
                raise StoreAway(
                    "PostgreSQL hung up while it committed: it may or may not have happened"
                ) from error
            self._undo(connection)
            raise _store_error(error, is_lost=False, is_write=is_write) from error

    def _undo(self, connection: psycopg.Connection[Row]) -> None:
        try:
            self.ask(connection.rollback)
        except psycopg.Error:
            self.drop()


class _PostgresTransaction:
    """A work's statements. If one fails the work fails."""

    __slots__ = ("_connection", "_is_write", "_owner", "failed")

    def __init__(
        self, owner: PostgresConnection, connection: psycopg.Connection[Row], *, is_write: bool
    ) -> None:
        self._owner, self._connection, self._is_write = owner, connection, is_write
        self.failed: StoreError | None = None

    def confirm(self) -> None:
        """Raise what failed, also if the work has caught it."""
        if self.failed is not None:
            raise self.failed

    def execute(self, sql: str, *values: Value) -> list[Row]:
        def ask() -> list[Row]:
            if _is_about_tables(sql):
                # Two transactions that create the same table, even IF NOT EXISTS, conflict in
                # PostgreSQL's catalog: one would fail. So they run one after the other.
                self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (_ADVISORY_LOCK,))
            cursor = self._connection.execute(_translated(sql), _plain(values))
            return cursor.fetchall() if cursor.description is not None else []

        return self._answered(ask)

    def execute_many(self, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        def ask() -> None:
            with self._connection.cursor() as cursor:
                cursor.executemany(_translated(sql), [_plain(row) for row in rows])

        self._answered(ask)

    def _answered(self, ask: Callable[[], T]) -> T:
        self.confirm()
        try:
            return self._owner.ask(ask)
        except (psycopg.Error, OverflowError, UnicodeError) as error:
            is_lost = self._connection.closed
            self.failed = _store_error(error, is_lost=is_lost, is_write=self._is_write)
            raise self.failed from error


class _NumberLoader(Loader):
    """Loads `numeric` (the type of a sum) as an int or a float, as SQLite does."""

    def load(self, data: Buffer) -> int | float:
        text = bytes(data)
        return int(text) if text.lstrip(b"-").isdigit() else float(text)


class _TruthLoader(Loader):
    """Loads booleans as 1 or 0, as SQLite does."""

    def load(self, data: Buffer) -> int:
        return int(bytes(data) == b"t")


def with_defaults(url: str, wait_s: float) -> str:
    """Add our name and timeouts to an address, unless it has its own."""
    wait = max(2, math.ceil(wait_s))  # libpq's minimum
    defaults = {
        "application_name": "penstock",
        "connect_timeout": wait,
        "tcp_user_timeout": wait * 1000,
        "keepalives_idle": wait,
    }
    return make_conninfo("", **(defaults | conninfo_to_dict(url)))


@lru_cache(maxsize=512)
def _translated(sql: str) -> bytes:
    return sql.replace("?", "%s").encode()


@lru_cache(maxsize=512)
def _is_about_tables(sql: str) -> bool:
    return sql.lstrip().partition(" ")[0].upper() in {"ALTER", "CREATE", "DROP"}


def _plain(values: Sequence[Value]) -> list[Value]:
    # PostgreSQL does not store booleans in numeric columns.
    return [int(value) if isinstance(value, bool) else value for value in values]


def _store_error(error: Exception, *, is_lost: bool, is_write: bool) -> StoreError:
    """Our error for whatever a statement raised."""
    if not isinstance(error, psycopg.Error):
        return StoreError(f"a value cannot be stored: {error}")
    state, text = error.sqlstate or "", _text(error)
    if is_lost:
        return _ConnectionLost(f"PostgreSQL hung up: {text}")
    if state in _CONFLICTS:
        return _Conflict(f"PostgreSQL had too many conflicts: {text}")
    if state == _FULL:
        return StoreFull(f"PostgreSQL has no room: {text}")
    # A standby refuses writes; a read that tries to write is an error anyway.
    if state.startswith(_AWAY) or (state == _READ_ONLY and is_write):
        return StoreAway(f"PostgreSQL cannot do it now: {text}")
    return StoreError(f"PostgreSQL: {text}")


def _connect_error(error: psycopg.Error) -> StoreError:
    """Our error for a failed connection. libpq's text has host and user, never the password."""
    text = _text(error)
    if any(sign in text for sign in _REFUSALS):
        return StoreError(f"PostgreSQL refuses: {text}")
    return StoreAway(f"PostgreSQL cannot be reached: {text}")


def _text(error: psycopg.Error) -> str:
    return " ".join(str(error).split()) or type(error).__name__
