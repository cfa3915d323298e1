"""Calls that are made at the same time, gathered into one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

from penstock.errors import PenstockError

__all__ = ["Gatherer"]

Place = TypeVar("Place", bound=Hashable)
Job = TypeVar("Job")
Result = TypeVar("Result")


class Gatherer(Generic[Place, Job, Result]):
    """Sends a job at once while no other is under way; those that come meanwhile leave together.

    What is asked for in one turn of the event loop is one call, of `most` jobs at most and for each
    `Place` apart. A lone caller waits for nobody.
    """

    def __init__(
        self,
        send: Callable[[Place, Sequence[Job]], Awaitable[list[Result | PenstockError]]],
        most: int,
    ) -> None:
        self._send, self._most = send, most
        self._under_way = 0
        self._waiting: dict[Place, list[tuple[Job, asyncio.Future[Result | PenstockError]]]] = {}
        self._calls: set[asyncio.Task[None]] = set()

    async def add(self, place: Place, job: Job) -> Result | PenstockError:
        """Send a job, and return what became of it."""
        if not self._under_way:
            self._under_way += 1
            try:
                return (await self._send(place, (job,)))[0]
            finally:
                self._under_way -= 1
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result | PenstockError] = loop.create_future()
        waiting = self._waiting.get(place)
        if waiting is None:
            waiting = self._waiting[place] = []
            loop.call_soon(self._leave, place, waiting)
        waiting.append((job, future))
        if len(waiting) >= self._most:
            self._leave(place, waiting)
        return await future

    def _leave(
        self, place: Place, waiting: list[tuple[Job, asyncio.Future[Result | PenstockError]]]
    ) -> None:
        if self._waiting.get(place) is waiting:  # else it has left already
            del self._waiting[place]
            call = asyncio.get_running_loop().create_task(
                self._call(place, waiting), name="penstock: gathered jobs"
            )
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _call(
        self, place: Place, waiting: list[tuple[Job, asyncio.Future[Result | PenstockError]]]
    ) -> None:
        self._under_way += 1
        try:
            ended = await self._send(place, [job for job, _ in waiting])
        except asyncio.CancelledError:
            for _, future in waiting:
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001  it is the callers' to see
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)
        else:
            for (_, future), one in zip(waiting, ended, strict=True):
                if not future.done():
                    future.set_result(one)
        finally:
            self._under_way -= 1
