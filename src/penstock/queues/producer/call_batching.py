"""Batching of calls that are made at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

from penstock.errors import PenstockError

__all__ = ["CallBatcher"]

Key = TypeVar("Key", bound=Hashable)
Entry = TypeVar("Entry")
Result = TypeVar("Result")


class CallBatcher(Generic[Key, Entry, Result]):
    """Sends an entry at once while no call is in flight; later ones are sent together.

    Entries of one turn of the event loop become one call for each `Key`, of `limit` entries at
    most. A single caller never waits for others.
    """

    def __init__(
        self,
        send: Callable[[Key, Sequence[Entry]], Awaitable[list[Result | PenstockError]]],
        limit: int,
    ) -> None:
        self._send, self._limit = send, limit
        self._in_flight = 0
        self._waiting: dict[Key, list[tuple[Entry, asyncio.Future[Result | PenstockError]]]] = {}
        self._calls: set[asyncio.Task[None]] = set()

    async def add(self, key: Key, entry: Entry) -> Result | PenstockError:
        """Send an entry, and return its result."""
        if not self._in_flight:
            self._in_flight += 1
            try:
                return (await self._send(key, (entry,)))[0]
            finally:
                self._in_flight -= 1
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result | PenstockError] = loop.create_future()
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = []
            loop.call_soon(self._start, key, waiting)
        waiting.append((entry, future))
        if len(waiting) >= self._limit:
            self._start(key, waiting)
        return await future

    async def close(self) -> None:
        """Wait until every call has ended; callers get its results."""
        while self._calls:
            await asyncio.wait(self._calls)

    def _start(
        self, key: Key, waiting: list[tuple[Entry, asyncio.Future[Result | PenstockError]]]
    ) -> None:
        if self._waiting.get(key) is waiting:  # else it was sent when it was full
            del self._waiting[key]
            # A task of its own: the batch is sent also if the caller that began it is cancelled.
            call = asyncio.get_running_loop().create_task(
                self._call(key, waiting), name="penstock: batched jobs"
            )
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _call(
        self, key: Key, waiting: list[tuple[Entry, asyncio.Future[Result | PenstockError]]]
    ) -> None:
        self._in_flight += 1
        try:
            results = await self._send(key, [entry for entry, _ in waiting])
        except asyncio.CancelledError:
            for _, future in waiting:
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001  it is raised in the callers
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)
        else:
            for (_, future), result in zip(waiting, results, strict=True):
                if not future.done():
                    future.set_result(result)
        finally:
            self._in_flight -= 1
