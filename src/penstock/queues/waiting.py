"""Waiting for jobs to end: one loop for all that are awaited on a client."""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.errors import ServerError
from penstock.redis.client import Client
from penstock.redis.wire import Reply

__all__ = ["ENDED", "Poller"]

ENDED: Final = frozenset({b"done", b"failed", b"cancelled", b"expired"})
"""States that no job leaves."""

SHORTEST_S: Final = 0.002
LONGEST_S: Final = 0.05
_GROWTH: Final = 1.5
# So many awaited jobs are not asked for more often than this: one look costs the server as much.
_EACH_S: Final = 20e-6
_AT_ONCE: Final = 500

Ending = tuple[bytes | None, bytes | None, bytes | None]
"""State, result and error, as they stand in a record; the first is None if there is no record."""


class Poller:
    """Looks at the records of all awaited jobs together. It runs while somebody waits."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._awaited: dict[str, set[asyncio.Future[Ending]]] = {}
        self._loop: asyncio.Task[None] | None = None
        self._pause_s = SHORTEST_S

    async def end_of(self, record: str) -> Ending:
        """Return how the job of this record ended, when it has; at once if there is no record."""
        future: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(record, set()).add(future)
        self._pause_s = SHORTEST_S
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._run(), name="penstock: awaited jobs")
        try:
            return await future
        finally:
            self._forget(record, future)

    def _forget(self, record: str, future: asyncio.Future[Ending]) -> None:
        waiting = self._awaited.get(record)
        if waiting is not None:
            waiting.discard(future)
            if not waiting:
                del self._awaited[record]
        if not self._awaited and self._loop is not None:
            self._loop.cancel()
            self._loop = None

    async def _run(self) -> None:
        try:
            while self._awaited:
                await self._look()
                pause_s = max(self._pause_s, len(self._awaited) * _EACH_S)
                self._pause_s = min(self._pause_s * _GROWTH, LONGEST_S)
                await asyncio.sleep(pause_s)
        except Exception as error:  # noqa: BLE001  whoever waits is told, instead of waiting on
            for waiting in list(self._awaited.values()):
                _tell(waiting, error)

    async def _look(self) -> None:
        records = list(self._awaited)
        for first in range(0, len(records), _AT_ONCE):
            some = records[first : first + _AT_ONCE]
            commands = [("HMGET", record, "status", "result", "error") for record in some]
            for record, reply in zip(some, await self._client.pipeline(commands), strict=True):
                self._learn(record, reply)

    def _learn(self, record: str, reply: Reply) -> None:
        if isinstance(reply, ServerError):
            # Nothing was asked of the server but to look, so it can be asked again.
            if not reply.transient:
                _tell(self._awaited.get(record, ()), reply)
        elif reply[0] is None or reply[0] in ENDED:
            self._pause_s = SHORTEST_S
            for future in self._awaited.get(record, ()):
                if not future.done():
                    future.set_result((reply[0], reply[1], reply[2]))


def _tell(waiting: set[asyncio.Future[Ending]] | tuple[()], error: Exception) -> None:
    for future in waiting:
        if not future.done():
            future.set_exception(error)
