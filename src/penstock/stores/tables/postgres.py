"""Tables in PostgreSQL. Needs the extra `postgres`."""

from __future__ import annotations

import queue
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
    another is undone and run again. Reads wait for no writer unless there is but one connection.
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
        self._links = tuple(Link(conninfo, wait_s) for _ in range(connections))
        self._links[0].connect()  # now, so that a wrong address or password shows
        self._unused = queue.SimpleQueue[Link]()
        for link in self._links:
            self._unused.put(link)
        self._has_ended = threading.Event()
        self._watch = threading.Thread(target=self._look, name="tables watch", daemon=True)
        # Half of them only read, so that works that write cannot keep them all.
        readers = connections // 2
        self.writes = Desk("tables writes", self._serve, threads=connections - readers)
        self.reads = Desk("tables reads", self._serve, threads=readers) if readers else self.writes
        self._desks = {self.writes, self.reads}
        self._watch.start()
        for desk in self._desks:
            desk.start()

    def finish(self) -> None:
        for desk in self._desks:
            desk.finish()
        self._has_ended.set()
        self._watch.join()

    def _serve(self, desk: Desk) -> None:
        link = self._unused.get()
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
