"""The contract by which everything with a lifetime starts and stops."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from penstock.errors import NotOpen

__all__ = ["Service"]

logger = logging.getLogger(__name__)


class Service(ABC):
    """Something that runs until it is asked to stop. Subclasses write `run()`.

    The contract, which `penstock.testing.lifecycle.check_lifecycle` proves for any service:

    - `start()` runs the body in a task of the service's own; starting what already runs changes
      nothing. `serve()` runs it in the caller's task: so a parent (a `TaskGroup`) holds it.
    - `ask_to_stop()` only asks. `stop()` asks and waits for the end. Both may come twice, at the
      same time, or before any start; a stop that is itself cancelled only stops waiting.
    - A stopped service stays stopped: starting it raises `NotOpen`.
    - A failure of the body reaches whoever waits: it is raised by `serve()`, `wait()` and `stop()`,
      every time. After `start()`, when perhaps nobody waits, it is logged as well.
    - A cancellation passes through. A body that ends as cancelled although nobody cancelled it (it
      awaited something that was) has failed: a task group would take that for an orderly end, and
      the worker would live on without the service.
    - `async with service:` starts it and stops it; if the block is cancelled while it waits for
      that stop, the body is cancelled too, so that nothing is left behind. When the block fails,
      its exception wins; the service's is in the log.

    The body looks at `stopping`, or waits for `stop_asked`, and returns soon after; it may finish
    what it has begun. Whoever cannot wait that long cancels it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.stop_asked = asyncio.Event()
        self._ended = asyncio.Event()
        self._begun = False
        self._task: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    @abstractmethod
    async def run(self) -> None:
        """Do the service's work until `stop_asked`."""

    def trouble(self) -> str | None:
        """Why the service cannot do its work now; None if it can. Safe to ask from any thread."""
        return None

    @property
    def stopping(self) -> bool:
        """Whether the service was asked to stop (and perhaps has stopped)."""
        return self.stop_asked.is_set()

    @property
    def running(self) -> bool:
        return self._begun and not self._ended.is_set()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    async def start(self) -> None:
        """Run the body in a task of its own; returns at once."""
        if self._begin():
            self._task = asyncio.create_task(self._live(), name=self.name)
            self._task.add_done_callback(self._task_ended)

    async def serve(self) -> None:
        """Run the body in the caller's task, until it ends."""
        if not self._begin():
            raise NotOpen(f"service {self.name!r} is already running")
        self._task = asyncio.current_task()
        try:
            await self._live()
        finally:
            self._ended.set()

    def ask_to_stop(self) -> None:
        """Ask for the end without waiting for it."""
        self.stop_asked.set()

    async def stop(self) -> None:
        """Ask for the end and wait for it; raises what the body failed with."""
        self.ask_to_stop()
        if not self._begun:
            self._ended.set()
        await self.wait()

    async def wait(self) -> None:
        """Return when the service has ended; raises what the body failed with."""
        if self.running and self._task is asyncio.current_task():
            raise RuntimeError(
                f"service {self.name!r} would wait for itself; its body may only ask_to_stop()"
            )
        await self._ended.wait()
        if self._failure is not None:
            raise self._failure

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.stop()
        except asyncio.CancelledError:
            if self._task is not None:
                self._task.cancel()
            await self._ended.wait()
            raise
        except Exception:
            if error is None:
                raise

    def _begin(self) -> bool:
        """Whether the caller is the one to run the body; False if somebody already does."""
        if self._ended.is_set() or (self.stopping and not self._begun):
            raise NotOpen(f"service {self.name!r} was stopped and cannot be started again")
        first, self._begun = not self._begun, True
        return first

    async def _live(self) -> None:
        try:
            if not self.stopping:
                await self.run()
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self._failure = RuntimeError(
                f"service {self.name!r} ended as cancelled, but nobody cancelled it"
            )
            raise self._failure from error
        except BaseException as error:
            self._failure = error
            raise

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._ended.set()  # also if the task was cancelled before its first step
        if not task.cancelled() and (failure := task.exception()) is not None:
            logger.error("service %s failed", self.name, exc_info=failure)
