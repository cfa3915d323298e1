"""Threads of handlers that are not async, and their abandoned calls."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import Any, TypeVar

__all__ = ["HandlerThreads"]

T = TypeVar("T")


class HandlerThreads:
    """The threads of one consumer: one for each of its places, started when first needed.

    A thread cannot be stopped. A call that ends before its function does (it timed out, or its
    caller was cancelled) is *abandoned*: the function keeps its thread, and so one place is `lost`
    until it returns. Callers begin no more calls than `places - lost`, so that a thread is free
    for each of them and none waits behind a function that hangs. There are no replacement threads:
    a function that always hangs would collect them without bound.
    """

    def __init__(self, places: int, name: str) -> None:
        self.places = places
        self.when_changed: Callable[[], object] | None = None
        """Called when a place was lost or has come back."""
        self._name = name
        self._executor: ThreadPoolExecutor | None = None
        self._abandoned: dict[asyncio.Future[Any], str] = {}
        """Calls whose functions still run, with the names of these."""
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def lost(self) -> int:
        """Places held by abandoned calls."""
        return len(self._abandoned)

    def trouble(self) -> str | None:
        """Functions that hold lost places; None without. Callable from any thread."""
        names = list(self._abandoned.values())
        if not names:
            return None
        counted = ", ".join(f"{name} ({count})" for name, count in Counter(names).most_common(5))
        return (
            f"{len(names)} of {self.places} places are held by functions that timed out or were "
            f"cancelled and still run in their threads: {counted}"
        )

    async def call(
        self,
        name: str,
        function: Callable[[], T],
        *,
        timeout_s: float | None = None,
        when_abandoned: Callable[[asyncio.Future[Any]], object] | None = None,
    ) -> T:
        """Run a function in a thread, within a copy of the caller's context.

        `TimeoutError` comes `timeout_s` after the function has begun there: a wait for the thread
        does not count. `when_abandoned` gets a future that is done when the function has returned.
        """
        began: list[float] = []

        def run() -> T:
            began.append(time.monotonic())
            return function()

        if self._executor is None:
            self._executor = ThreadPoolExecutor(self.places, thread_name_prefix=self._name)
        running = self._executor.submit(copy_context().run, run)
        try:
            if timeout_s is None:
                return await asyncio.wrap_future(running)
            return await _within(timeout_s, running, began)
        except (asyncio.CancelledError, TimeoutError):
            if not running.done() and not running.cancel():
                self._abandon(name, running, when_abandoned)
            raise

    @asynccontextmanager
    async def place(self, closed: asyncio.Event) -> AsyncGenerator[bool]:
        """Hold a place for one call at a time; False if `closed` is set before one is free.

        For callers that do not count their places themselves. The first to ask is the first served.
        """
        if not await self._take(closed):
            yield False
            return
        try:
            yield True
        finally:
            self._taken -= 1
            self._serve_waiting()

    def close(self) -> None:
        """Release the threads; later calls get new ones. Abandoned calls still count."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)

    async def _take(self, closed: asyncio.Event) -> bool:
        if self._taken + self.lost < self.places and not self._waiting:
            self._taken += 1
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        served = False
        try:
            async with asyncio.TaskGroup() as group:
                closing = group.create_task(closed.wait())
                await asyncio.wait((waiter, closing), return_when=asyncio.FIRST_COMPLETED)
                closing.cancel()
            served = waiter.done()
            return served
        finally:
            if not served:
                if waiter.done():  # cancelled just after it was served
                    self._taken -= 1
                    self._serve_waiting()
                else:
                    self._waiting.remove(waiter)

    def _serve_waiting(self) -> None:
        while self._waiting and self._taken + self.lost < self.places:
            self._taken += 1
            self._waiting.popleft().set_result(None)

    def _abandon(
        self,
        name: str,
        running: ThreadFuture[Any],
        when_abandoned: Callable[[asyncio.Future[Any]], object] | None,
    ) -> None:
        ended = asyncio.wrap_future(running)
        self._abandoned[ended] = name
        ended.add_done_callback(self._came_back)
        if when_abandoned is not None:
            when_abandoned(ended)
        self._changed()

    def _came_back(self, ended: asyncio.Future[Any]) -> None:
        del self._abandoned[ended]
        if not ended.cancelled():
            ended.exception()  # retrieved, so that asyncio does not report it
        self._serve_waiting()
        self._changed()

    def _changed(self) -> None:
        if self.when_changed is not None:
            self.when_changed()


async def _within(timeout_s: float, running: ThreadFuture[T], began: list[float]) -> T:
    """Wait for a call until its function has run for `timeout_s`."""
    ended = asyncio.wrap_future(running)
    left_s = timeout_s
    try:
        while left_s > 0:
            await asyncio.wait((ended,), timeout=left_s)
            if ended.done():
                return ended.result()
            left_s = began[0] + timeout_s - time.monotonic() if began else timeout_s
    finally:
        ended.cancel()  # else asyncio would report an error that was not retrieved
    raise TimeoutError(f"the function was still running after {timeout_s:g} s")
