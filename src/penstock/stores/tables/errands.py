"""Works that wait for a thread, and the way back to whoever asked for them."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from penstock.errors import NotOpen
from penstock.stores.tables.port import Transaction

__all__ = ["Desk", "Errand"]


class Errand:
    """One work, its outcome, and the future on which its caller waits."""

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
        """Whether the caller was cancelled: nobody wants the outcome."""
        return self.future.done()

    def settle(self) -> None:
        """Tell the caller; in the thread of its loop."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        elif isinstance(self.error, StopIteration):  # which no future takes
            told = RuntimeError("the work raised StopIteration")
            told.__cause__ = self.error
            self.future.set_exception(told)
        else:
            self.future.set_exception(self.error)


class Desk:
    """Threads that serve errands in the order in which they were asked for.

    `serve(desk)` is what a thread does: it takes errands until there is None, and answers each.
    """

    def __init__(self, name: str, serve: Callable[[Desk], None], *, threads: int) -> None:
        self._waiting: queue.SimpleQueue[Errand | None] = queue.SimpleQueue()
        self._entrance, self._has_ended = threading.Lock(), False
        # They hold nothing but the database, which survives a process that ends without close():
        # as daemons they keep it from ending by nobody's wish.
        self._threads = [
            threading.Thread(target=serve, args=(self,), name=f"{name} {number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def ask(self, errand: Errand) -> None:
        with self._entrance:
            if self._has_ended:
                raise NotOpen("the tables were closed")
            self._waiting.put(errand)

    def take(self) -> Errand | None:
        """Wait for the next errand; None when the thread has to end."""
        return self._waiting.get()

    def take_waiting(self) -> Errand | None:
        """Return the next errand if there is one now."""
        try:
            errand = self._waiting.get_nowait()
        except queue.Empty:
            return None
        if errand is None:
            self._waiting.put(None)  # the end is for `take` to see
        return errand

    def finish(self) -> None:
        """Serve what was asked for until now, and end the threads. Blocks."""
        with self._entrance:  # nobody comes after the last one, to wait for ever
            self._has_ended = True
            for _ in self._threads:
                self._waiting.put(None)
        for thread in self._threads:
            thread.join()

    @staticmethod
    def answer(done: Sequence[Errand]) -> None:
        """Tell the callers, with one call into each loop: it costs more than most works do."""
        loop = done[0].loop
        here = [errand for errand in done if errand.loop is loop]
        with suppress(RuntimeError):  # the loop is closed, so nobody waits
            loop.call_soon_threadsafe(_settle, here)
        if len(here) < len(done):
            Desk.answer([errand for errand in done if errand.loop is not loop])


def _settle(done: Iterable[Errand]) -> None:
    for errand in done:
        errand.settle()
