"""Tables whose transactions run in threads: the queues, and opening and closing them."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar

from penstock.errors import NotOpen
from penstock.stores.tables.port import Transaction

__all__ = ["QueuedWork", "ThreadedTables", "WorkQueue", "WorkQueues"]

T = TypeVar("T")


class QueuedWork:
    """One work, its outcome, and the future of its caller."""

    __slots__ = ("asked_at", "error", "future", "is_write", "loop", "result", "work")

    def __init__(self, work: Callable[[Transaction], Any], *, is_write: bool) -> None:
        self.work, self.is_write = work, is_write
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.asked_at = time.monotonic()
        self.result: Any = None
        self.error: BaseException | None = None

    @property
    def is_given_up(self) -> bool:
        """Whether the caller was cancelled."""
        return self.future.done()

    def settle(self) -> None:
        """Resolve the caller's future; called in the thread of its loop."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        elif isinstance(self.error, StopIteration):  # which futures refuse
            error = RuntimeError("the work raised StopIteration")
            error.__cause__ = self.error
            self.future.set_exception(error)
        else:
            self.future.set_exception(self.error)


class WorkQueue:
    """Threads that run works in the order in which they were queued.

    Each thread calls `serve(queue)`, which takes works until it gets None and answers each.
    """

    def __init__(self, name: str, serve: Callable[[WorkQueue], None], *, threads: int) -> None:
        self._waiting: queue.SimpleQueue[QueuedWork | None] = queue.SimpleQueue()
        self._entrance, self._has_ended = threading.Lock(), False
        # Daemon threads: a process that ends without close() must not wait for them.
        self._threads = [
            threading.Thread(target=serve, args=(self,), name=f"{name} {number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def put(self, queued: QueuedWork) -> None:
        with self._entrance:
            if self._has_ended:
                raise NotOpen("the tables were closed")
            self._waiting.put(queued)

    def take(self) -> QueuedWork | None:
        """Wait for the next work; None when the thread has to end."""
        return self._waiting.get()

    def take_waiting(self) -> QueuedWork | None:
        """The next work, if one is queued."""
        try:
            queued = self._waiting.get_nowait()
        except queue.Empty:
            return None
        if queued is None:
            self._waiting.put(None)  # the end is for `take` to see
        return queued

    def finish(self) -> None:
        """Run what is queued, and end the threads. Blocks."""
        with self._entrance:  # nothing may be queued behind the end
            self._has_ended = True
            for _ in self._threads:
                self._waiting.put(None)
        for thread in self._threads:
            thread.join()

    @staticmethod
    def answer(done: Sequence[QueuedWork]) -> None:
        """Resolve the futures with one call into each loop: it costs more than most works."""
        loop = done[0].loop
        here = [queued for queued in done if queued.loop is loop]
        with suppress(RuntimeError):  # the loop is closed, so no caller waits
            loop.call_soon_threadsafe(lambda: [queued.settle() for queued in here])
        if len(here) < len(done):
            WorkQueue.answer([queued for queued in done if queued.loop is not loop])


class WorkQueues(ABC):
    """The threads and connections of tables that are open."""

    reads: WorkQueue
    writes: WorkQueue

    @abstractmethod
    def finish(self) -> None:
        """Run what is queued, end the threads, close the connections. Blocks."""


class ThreadedTables(ABC):
    """Tables whose works run in threads of their own. Callers may be in any loop.

    A caller that is cancelled does not learn whether its work was done.
    """

    def __init__(self) -> None:
        self._queues: WorkQueues | None = None
        self._pid = os.getpid()
        self._changing = threading.Lock()
        self._inherited: list[object] = []

    @abstractmethod
    def _start(self) -> WorkQueues:
        """Connect, and start the threads. Blocks."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        if self._pid != os.getpid():
            # After a fork: the parent's threads are not here, its connections not ours to close.
            self._inherited += [self._queues, self._changing]
            self._queues, self._pid, self._changing = None, os.getpid(), threading.Lock()
        if self._queues is not None:
            return
        try:
            await asyncio.to_thread(self._open)
        except BaseException:
            await self.close()  # a caller that was cancelled leaves nothing open
            raise

    async def close(self) -> None:
        """Run what is queued, and close everything. May be called twice, or before `open`."""
        if self._pid == os.getpid():
            await asyncio.to_thread(self._close)

    async def write(self, work: Callable[[Transaction], T]) -> T:
        queued = QueuedWork(work, is_write=True)
        self._open_queues().writes.put(queued)
        return await queued.future

    async def read(self, work: Callable[[Transaction], T]) -> T:
        queued = QueuedWork(work, is_write=False)
        self._open_queues().reads.put(queued)
        return await queued.future

    def _open_queues(self) -> WorkQueues:
        if self._queues is None:
            raise NotOpen("the tables are not open: call open() first")
        if self._pid != os.getpid():
            raise NotOpen("the tables were opened before a fork: open them in this process")
        return self._queues

    def _open(self) -> None:
        with self._changing:
            if self._queues is None:
                self._queues = self._start()

    def _close(self) -> None:
        with self._changing:
            queues, self._queues = self._queues, None
            if queues is not None:
                queues.finish()
