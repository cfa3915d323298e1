"""Callers of one process that wait for their turn, and the one task that serves them all."""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from penstock.errors import NotOpen

__all__ = ["BackgroundTasks", "Waiter", "WaitingCallers"]

T = TypeVar("T")


class Waiter(Generic[T]):
    """One caller."""

    __slots__ = ("came", "deadline", "future", "timer")

    def __init__(self, patience_s: float) -> None:
        self.came = time.monotonic()
        self.deadline = self.came + patience_s
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None


W = TypeVar("W", bound=Waiter[Any])


class WaitingCallers(ABC, Generic[W]):
    """Callers in the order in which they came. Its task runs while any of them waits."""

    def __init__(self, name: str) -> None:
        self._waiters: OrderedDict[W, None] = OrderedDict()
        self._task: asyncio.Task[None] | None = None
        self._task_name = name

    def __len__(self) -> int:
        return len(self._waiters)

    async def close(self) -> None:
        """Refuse all callers with `NotOpen`, and wait for the end of the task."""
        for waiter in list(self._waiters):
            self._refuse(waiter, NotOpen("closed while callers waited"))
        if self._task is not None and self._task.get_loop() is asyncio.get_running_loop():
            self._wake()
            await asyncio.wait([self._task])

    @abstractmethod
    async def _serve(self) -> None:
        """Ask the server again and again, until no caller waits."""

    @abstractmethod
    async def _end_serving(self) -> None:
        """Clean up after `_serve`. Callers that come meanwhile get another task."""

    @abstractmethod
    def _expire(self, waiter: W) -> None:
        """End the wait of a caller whose deadline has passed."""

    @abstractmethod
    def _wake(self) -> None:
        """Interrupt a pause of `_serve`."""

    def _join(self, waiter: W) -> bool:
        """Add a caller behind all others; False if the task has only begun for it."""
        self._waiters[waiter] = None
        if waiter.deadline < math.inf:
            left_s = max(0.0, waiter.deadline - time.monotonic())
            waiter.timer = asyncio.get_running_loop().call_later(left_s, self._expire, waiter)
        if self._task is not None:
            return True
        # In no task group: it serves callers that come after this one as well. `close` awaits it.
        self._task = asyncio.create_task(self._run(), name=self._task_name)
        return False

    def _remove(self, waiter: W) -> bool:
        """Take a caller out; False if it does not wait any more."""
        if waiter not in self._waiters:
            return False
        del self._waiters[waiter]
        if waiter.timer is not None:
            waiter.timer.cancel()
        return True

    def _refuse(self, waiter: W, error: Exception) -> None:
        if self._remove(waiter) and not waiter.future.done():
            waiter.future.set_exception(error)

    async def _run(self) -> None:
        try:
            await self._serve()
        except asyncio.CancelledError:
            for waiter in list(self._waiters):
                self._remove(waiter)
                waiter.future.cancel()
            raise
        except Exception as error:  # noqa: BLE001  every caller gets it
            for waiter in list(self._waiters):
                self._refuse(waiter, error)
        finally:
            self._task = None
            await self._end_serving()


class BackgroundTasks:
    """Calls that outlive the caller that caused them; `close` awaits them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, call: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(call, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait until all have ended."""
        await asyncio.gather(*self._tasks)
