"""One connection to PostgreSQL, used by one thread; it is made anew when it was lost."""

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

from penstock.errors import StoreAway, StoreError
from penstock.stores.tables.errands import Errand
from penstock.stores.tables.port import Row, Value
from penstock.stores.tables.postgres_failures import (
    Conflict,
    ConnectionLost,
    judged,
    judged_connect,
)

__all__ = ["Link", "with_defaults"]

T = TypeVar("T")
_LOSSES = 3
"""A work whose connection is lost this often is not run again: it may be what ends them."""
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.1
_GRACE_S = 1.0
"""How much longer than the server's own timeout a silent server is waited for."""
_LONGEST_MS = 2**31 - 1
_ADVISORY_LOCK = int.from_bytes(b"penstock")


class Link:
    """A place for a connection. All but `end_if_silent` are for its one thread."""

    def __init__(self, conninfo: str, wait_s: float) -> None:
        self._conninfo, self._wait_s = conninfo, wait_s
        self._connection: psycopg.Connection[Row] | None = None
        self._asked_at: float | None = None
        self._asking = threading.Lock()

    def connect(self) -> psycopg.Connection[Row]:
        """Return the connection; StoreAway or StoreError if there is none to be had."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        self.drop()
        try:
            connection = psycopg.connect(
                # A prepared statement does not survive a change of its table, nor a pooler.
                self._conninfo,
                prepare_threshold=None,
            )
        except psycopg.Error as error:
            raise judged_connect(error) from error
        self._connection = connection
        connection.adapters.register_loader("numeric", _NumberLoader)
        connection.adapters.register_loader("bool", _TruthLoader)
        limit_ms = str(min(math.ceil(self._wait_s * 1000), _LONGEST_MS))
        try:
            # The second lets others go on when this process stands still within a transaction.
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
            raise judged_connect(error) from error
        return connection

    def drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def run(self, errand: Errand) -> Any:
        """Run a work until it is committed, again after conflicts and lost connections."""
        deadline = errand.asked_at + self._wait_s
        if time.monotonic() > deadline:
            raise StoreAway("PostgreSQL does not answer in time: all connections are in use")
        losses, pause_s = 0, _FIRST_PAUSE_S
        while True:
            try:
                return self._run_once(errand)
            except ConnectionLost:
                losses += 1
                if losses >= _LOSSES or time.monotonic() > deadline:
                    raise
            except Conflict:
                if time.monotonic() > deadline:
                    raise
                # Those who met each other do not come back together.
                time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def ask(self, question: Callable[[], T]) -> T:
        """Wait for an answer of the server, but not for ever: see `end_if_silent`."""
        with self._asking:
            self._asked_at = time.monotonic()
        try:
            return question()
        finally:
            with self._asking:
                self._asked_at = None

    def end_if_silent(self, now: float) -> None:
        """End the connection if an answer is overdue, so that its thread wakes up. Any thread.

        The server ends what takes too long by itself; this is for one that stands still, or that
        the network hides.
        """
        with self._asking:
            connection = self._connection
            if connection is None or self._asked_at is None or connection.closed:
                return
            if now - self._asked_at > self._wait_s + _GRACE_S:
                with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as line:
                    line.shutdown(socket.SHUT_RDWR)

    def _run_once(self, errand: Errand) -> Any:
        connection = self.connect()
        # Works read and then write by what they read, with SQL that knows no FOR UPDATE. Only these
        # levels keep that as safe as SQLite's one writer does; a read never meets a conflict.
        connection.isolation_level = (
            IsolationLevel.SERIALIZABLE if errand.is_write else IsolationLevel.REPEATABLE_READ
        )
        connection.read_only = not errand.is_write
        transaction = _PostgresTransaction(self, connection, is_write=errand.is_write)
        try:
            result = errand.work(transaction)
            transaction.confirm()
        except BaseException:
            self._undo(connection)
            if isinstance(transaction.failed, ConnectionLost | Conflict):
                raise transaction.failed from None  # whatever the work made of it
            raise
        self._commit(connection, is_write=errand.is_write)
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
            raise judged(error, is_lost=False, is_write=is_write) from error

    def _undo(self, connection: psycopg.Connection[Row]) -> None:
        try:
            self.ask(connection.rollback)
        except psycopg.Error:
            self.drop()


class _PostgresTransaction:
    """A work's statements. One that fails dooms the work."""

    __slots__ = ("_connection", "_is_write", "_link", "failed")

    def __init__(self, link: Link, connection: psycopg.Connection[Row], *, is_write: bool) -> None:
        self._link, self._connection, self._is_write = link, connection, is_write
        self.failed: StoreError | None = None

    def confirm(self) -> None:
        """Raise what failed, for a work that went on as if nothing had happened."""
        if self.failed is not None:
            raise self.failed

    def execute(self, sql: str, *values: Value) -> list[Row]:
        def ask() -> list[Row]:
            if _is_about_tables(sql):
                # Two that create the same table, each if it is missing, meet in PostgreSQL's own
                # tables: one would fail. So they come one after the other.
                self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (_ADVISORY_LOCK,))
            cursor = self._connection.execute(_translated(sql), _plain(values))
            return cursor.fetchall() if cursor.description is not None else []

        return self._told(ask)

    def execute_many(self, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        def ask() -> None:
            with self._connection.cursor() as cursor:
                cursor.executemany(_translated(sql), [_plain(row) for row in rows])

        self._told(ask)

    def _told(self, ask: Callable[[], T]) -> T:
        self.confirm()
        try:
            return self._link.ask(ask)
        except (psycopg.Error, OverflowError, UnicodeError) as error:
            is_lost = self._connection.closed
            self.failed = judged(error, is_lost=is_lost, is_write=self._is_write)
            raise self.failed from error


class _NumberLoader(Loader):
    """A sum is `numeric` here, and an int or a float in SQLite."""

    def load(self, data: Buffer) -> int | float:
        text = bytes(data)
        return int(text) if text.lstrip(b"-").isdigit() else float(text)


class _TruthLoader(Loader):
    """A comparison is 1 or 0 in SQLite."""

    def load(self, data: Buffer) -> int:
        return int(bytes(data) == b"t")


def with_defaults(url: str, wait_s: float) -> str:
    """Add what an address does not say: who we are, and how long to wait for the network."""
    wait = max(2, math.ceil(wait_s))  # libpq takes no less
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
    # PostgreSQL puts no boolean into a column of numbers.
    return [int(value) if isinstance(value, bool) else value for value in values]
