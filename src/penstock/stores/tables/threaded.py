"""What both kinds of tables share: they are opened, closed, and work in threads."""

from __future__ import annotations

import asyncio
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self, TypeVar

from penstock.errors import NotOpen
from penstock.stores.tables.errands import Desk, Errand
from penstock.stores.tables.port import Transaction

__all__ = ["Desks", "ThreadedTables"]

T = TypeVar("T")


class Desks(ABC):
    """The threads and connections of tables that are open."""

    reads: Desk
    writes: Desk

    @abstractmethod
    def finish(self) -> None:
        """Do what was asked for, end the threads, close the connections. Blocks."""


class ThreadedTables(ABC):
    """Tables whose works run in threads of their own. Callers may be in any loop.

    Close does what was asked for before it. A caller that is cancelled does not learn whether its
    work was done.
    """

    def __init__(self) -> None:
        self._desks: Desks | None = None
        self._pid = os.getpid()
        self._changing = threading.Lock()
        self._inherited: list[object] = []

    @abstractmethod
    def _start(self) -> Desks:
        """Connect, and start the threads. Blocks."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect, and make what is missing. May come twice."""
        if self._pid != os.getpid():
            # The parent's threads are not here, and its connections are not ours to close.
            self._inherited += [self._desks, self._changing]
            self._desks, self._pid, self._changing = None, os.getpid(), threading.Lock()
        if self._desks is not None:
            return
        try:
            await asyncio.to_thread(self._open)
        except BaseException:
            await self.close()  # a caller that was cancelled leaves nothing open
            raise

    async def close(self) -> None:
        """Do what was asked for, and let go of everything. May come twice, or before any open."""
        if self._pid == os.getpid():
            await asyncio.to_thread(self._close)

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run work in a transaction that may change things; it is on the disk when this returns."""
        errand = Errand(work, is_write=True)
        self._open_desks().writes.ask(errand)
        return await errand.future

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run work that only looks, on one state of the tables; waits for no writer."""
        errand = Errand(work, is_write=False)
        self._open_desks().reads.ask(errand)
        return await errand.future

    def _open_desks(self) -> Desks:
        if self._desks is None:
            raise NotOpen("the tables are not open: call open() first")
        if self._pid != os.getpid():
            raise NotOpen("the tables were opened before a fork: open them in this process")
        return self._desks

    def _open(self) -> None:
        with self._changing:
            if self._desks is None:
                self._desks = self._start()

    def _close(self) -> None:
        with self._changing:
            desks, self._desks = self._desks, None
            if desks is not None:
                desks.finish()
