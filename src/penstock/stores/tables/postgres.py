"""Tables in PostgreSQL. Needs the extra `postgres`."""

from __future__ import annotations

import threading
import time

import psycopg
from psycopg.conninfo import conninfo_to_dict

from penstock.stores.tables.errands import Desk
from penstock.stores.tables.postgres_link import Link, with_defaults
from penstock.stores.tables.threaded import Desks, ThreadedTables

__all__ = ["PostgresTables", "is_address"]

_LOOK_S = 0.5
"""How often connections are looked at that wait for an answer."""


class PostgresTables(ThreadedTables):
    """Tables in the database at `url`, over at most `connections` connections.

    Works are as isolated as they are in SQLite, where one comes after the other: a work that meets
    another is undone and run again.
    """

    def __init__(self, url: str, *, connections: int, wait_s: float) -> None:
        super().__init__()
        self._conninfo = with_defaults(url, wait_s)
        self._connections, self.wait_s = connections, wait_s

    def __repr__(self) -> str:
        return "<tables in PostgreSQL>"

    def _start(self) -> Desks:
        return _PostgresDesks(self._conninfo, self._connections, self.wait_s)


class _PostgresDesks(Desks):
    def __init__(self, conninfo: str, connections: int, wait_s: float) -> None:
        # The first connects now, so that a wrong address or password shows.
        self._idle = [Link(conninfo, wait_s) for _ in range(connections)]
        self._links = tuple(self._idle)
        self._idle[-1].connect()
        self._choosing = threading.Lock()
        self._has_ended = threading.Event()
        self._watch = threading.Thread(target=self._look, name="tables watch", daemon=True)
        self.reads = self.writes = Desk("tables", self._serve, threads=connections)
        self._watch.start()
        self.reads.start()

    def finish(self) -> None:
        self.reads.finish()
        self._has_ended.set()
        self._watch.join()

    def _serve(self, desk: Desk) -> None:
        with self._choosing:
            link = self._idle.pop()
        while (errand := desk.take()) is not None:
            if errand.is_given_up:
                continue
            try:
                errand.result = link.run(errand)
            except BaseException as error:  # noqa: BLE001  it is the caller's
                errand.error = error
            desk.answer([errand])
        link.drop()

    def _look(self) -> None:
        while not self._has_ended.wait(_LOOK_S):
            now = time.monotonic()
            for link in self._links:
                link.end_if_silent(now)


def is_address(url: str) -> bool:
    """Whether libpq can read it."""
    try:
        conninfo_to_dict(url)
    except psycopg.Error:
        return False
    return True
