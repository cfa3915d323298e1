"""Tables in PostgreSQL. Needs the extra `postgres`."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue

import psycopg
from psycopg.conninfo import conninfo_to_dict

from penstock.stores.tables.postgres_connection import PostgresConnection, with_defaults
from penstock.stores.tables.work_queue import ThreadedTables, WorkQueue, WorkQueues

__all__ = ["PostgresTables", "is_address"]

_CHECK_S = 0.5
"""How often connections are checked for a server that does not answer."""


class PostgresTables(ThreadedTables):
    """Tables in the database at `url`, over at most `connections` connections.

    Works are serializable, as in SQLite: one that conflicts with another is rolled back and run
    again. Reads wait for no writer unless there is only one connection.
    """

    def __init__(self, url: str, *, connections: int, wait_s: float) -> None:
        super().__init__()
        self._conninfo = with_defaults(url, wait_s)
        self._connections, self.wait_s = connections, wait_s

    def __repr__(self) -> str:
        return "<tables in PostgreSQL>"

    def _start(self) -> WorkQueues:
        return _PostgresQueues(self._conninfo, self._connections, self.wait_s)


class _PostgresQueues(WorkQueues):
    def __init__(self, conninfo: str, connections: int, wait_s: float) -> None:
        self._connections = tuple(PostgresConnection(conninfo, wait_s) for _ in range(connections))
        self._connections[0].connect()  # now, so that a wrong address or password shows
        self._unused = SimpleQueue[PostgresConnection]()
        for connection in self._connections:
            self._unused.put(connection)
        self._has_ended = threading.Event()
        self._watch = threading.Thread(target=self._check_answers, name="tables watch", daemon=True)
        # Half of them only read, so that writes cannot occupy all.
        readers = connections // 2
        self.writes = WorkQueue("tables writes", self._serve, threads=connections - readers)
        self.reads = (
            WorkQueue("tables reads", self._serve, threads=readers) if readers else self.writes
        )
        self._queues = {self.writes, self.reads}
        self._watch.start()
        for queue in self._queues:
            queue.start()

    def finish(self) -> None:
        for queue in self._queues:
            queue.finish()
        self._has_ended.set()
        self._watch.join()

    def _serve(self, queue: WorkQueue) -> None:
        connection = self._unused.get()
        while (queued := queue.take()) is not None:
            if queued.is_given_up:
                continue
            try:
                queued.result = connection.run(queued)
            except BaseException as error:  # noqa: BLE001  it is the caller's
                queued.error = error
            queue.answer([queued])
        connection.drop()

    def _check_answers(self) -> None:
        while not self._has_ended.wait(_CHECK_S):
            now = time.monotonic()
            for connection in self._connections:
                connection.end_if_silent(now)


def is_address(url: str) -> bool:
    """Whether libpq can parse it, and to what was meant.

    It takes what follows the first @, / or ? of a password for a host, a port or a database, which
    errors would then show.
    """
    try:
        given = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    except psycopg.Error:
        return False
    ports = given.get("port", "").split(",")
    return (
        # Before an abstract socket there is an @.
        not any("@" in host[1:] for host in given.get("host", "").split(","))
        and all(not port or port.isdecimal() for port in ports)
        and not ("@" in given.get("dbname", "") and "user" not in given)
    )
