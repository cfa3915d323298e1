"""The worker for code that does not await: see `penstock.sync`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from contextlib import suppress

from penstock import app as asynchronous
from penstock.errors import NotOpen
from penstock.runtime import worker as asynchronous_worker
from penstock.runtime.process import CLEAN_UP_S, run_process, run_to_the_end
from penstock.runtime.service import Readiness

__all__ = ["Worker"]


class Worker:
    """`penstock.runtime.Worker`, blocking. Made by `Penstock.worker`.

        sys.exit(app.worker().run_forever())             # the purpose of this process

        worker = app.worker()                            # or beside other work
        thread = threading.Thread(target=worker.run)
        thread.start()
        ...
        worker.stop()

    It has an event loop of its own in the thread that runs it. Plain functions run in further
    threads, so they may call every blocking method of the application.
    """

    def __init__(
        self,
        app: asynchronous.Penstock,
        worker: asynchronous_worker.Worker,
        turn: threading.Lock,
    ) -> None:
        self._app, self._worker = app, worker
        self._turn = turn  # one worker of an application at a time: they would share connections
        self._gate = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = threading.Event()

    @property
    def failures(self) -> list[Exception]:
        """Errors that services failed with; each is in the log as well."""
        return self._worker.failures

    def run(self, *, handle_signals: bool = False) -> int:
        """Run in this thread until stopped; the exit code. As `penstock.runtime.Worker.run`."""
        with asyncio.Runner() as runner:
            return run_to_the_end(runner, self._run(handle_signals))

    def run_forever(self) -> int:
        """Run as the purpose of this process; the exit code."""
        return run_process(lambda: self._run(handle_signals=True))

    def ask_to_stop(self) -> None:
        """Ask for the end without waiting for it; from any thread."""
        with self._gate:
            if self._loop is None:
                self._worker.ask_to_stop()
            elif not self._ended.is_set():
                self._loop.call_soon_threadsafe(self._worker.ask_to_stop)

    def stop(self) -> None:
        """Ask for the end and wait for it, from another thread. May be called twice."""
        self.ask_to_stop()
        if self._loop is not None:
            self._ended.wait()

    def cut(self) -> None:
        """Cancel what runs and wait for the end, from another thread; jobs are given back."""
        with self._gate:
            if self._loop is None or self._ended.is_set():
                return
            cutting = asyncio.run_coroutine_threadsafe(self._worker.cut(), self._loop)
        # The loop may end before the coroutine does, or before it begins.
        with suppress(concurrent.futures.CancelledError, TimeoutError):
            cutting.result(2 * CLEAN_UP_S)

    def readiness(self) -> Readiness:
        """Whether the worker does its work now, and if not, why. Cheap; from any thread."""
        return self._worker.readiness()

    def details(self) -> dict[str, str]:
        """Facts about its services, for its record. As `readiness`."""
        return self._worker.details()

    async def _run(self, handle_signals: bool) -> int:
        if not self._turn.acquire(blocking=False):
            raise NotOpen("a worker of this application is running in this process already")
        try:
            with self._gate:
                self._loop = asyncio.get_running_loop()
            async with self._app:
                return await self._worker.run(handle_signals=handle_signals)
        finally:
            with self._gate:
                self._ended.set()
            self._turn.release()
