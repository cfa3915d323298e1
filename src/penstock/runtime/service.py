"""The contract by which everything with a lifetime starts and stops."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, cast

from penstock.clock import SYSTEM_CLOCK
from penstock.errors import ConfigError, NotOpen
from penstock.runtime.logs import cleaned
from penstock.runtime.progress import WatchedBlock
from penstock.runtime.waiting import happens_within, retry_delay_s
from penstock.throttled_log import RateLimitedLog

if TYPE_CHECKING:
    from penstock.runtime.watchdog import Watchdog

__all__ = ["READY", "Readiness", "Service"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

STEADY_S: Final = 10.0
"""A restarted service that has run for so long counts as healthy again. More than the longest
back-off, so that one that fails at every start is never reported ready in between."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Ready, or not for the `reasons` given. True in a condition if ready."""

    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What makes the worker slower than it could be, although it does its work."""

    @property
    def ready(self) -> bool:
        return not self.reasons

    def __bool__(self) -> bool:
        return self.ready

    def __str__(self) -> str:
        if self.reasons:
            return "not ready: " + "; ".join(self.reasons)
        return f"ready ({'; '.join(self.notes)})" if self.notes else "ready"


READY = Readiness()


class Service(ABC):
    """Something that runs until it is asked to stop. Subclasses write `run()`.

    The contract, which `tests/kit/lifecycle.py` checks for every service:

    - `start()` runs the body in a task of the service's own; starting what already runs changes
      nothing. `serve()` runs it in the caller's task: so a parent (a `TaskGroup`) holds it.
    - `ask_to_stop()` only asks. `stop()` asks and waits for the end. Both may come twice, at the
      same time, or before any start; a stop that is itself cancelled only stops waiting.
    - A stopped service stays stopped: starting it raises `NotOpen`.
    - A failure of the body is raised by `serve()`, `wait()` and `stop()`, every time. After
      `start()`, when perhaps no caller waits, it is logged as well.
    - A `restartable` service runs its body again after a failure, with back-off, until it is asked
      to stop; meanwhile `failing` is the reason. Only wrong configuration (`ConfigError`) and a
      closed client (`NotOpen`), which no repetition mends, are failures of the service itself.
    - A cancellation passes through. A body that ends as cancelled without having been cancelled (it
      awaited something that was) has failed: a task group would take that for an orderly end, and
      the worker would continue without the service.
    - `async with service:` starts it and stops it; if the block is cancelled while it waits for
      that stop, the body is cancelled too, so that nothing is left behind. When the block fails,
      its exception wins; the service's is in the log.

    The body checks `stopping`, or waits for `stop_asked`, and returns soon after; it may finish
    what it has begun. A caller that cannot wait that long cancels it.
    """

    restartable: bool = False
    """Whether the body can be run again after it has failed, and is."""
    watchdog: Watchdog | None = None
    """That of the worker, which sets it on its work; None outside a worker."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.restarted = 0
        """How often the body was run again, in the latest row of failures."""
        self._restart_reason = ""
        self._ran_at = 0.0
        """When the body was run last, on the monotonic clock."""
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

    def limitation(self) -> str | None:
        """What slows the service down although it works; None if nothing does. As `trouble`."""
        return None

    def details(self) -> Mapping[str, str]:
        """Facts about the service for the worker's record, by name. As `trouble`."""
        return {}

    def watched(self, name: str) -> WatchedBlock:
        """Put a read loop of the body under watch, within `async with`; see `WatchedBlock`."""
        return WatchedBlock(name, self.watchdog, self.stop_asked)

    @property
    def failing(self) -> str | None:
        """Why the body failed and is run again; None once it has been running for a while."""
        if not self._restart_reason or time.monotonic() - self._ran_at > STEADY_S:
            return None
        return self._restart_reason

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

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
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
        """Whether the caller is the one to run the body; False if it runs already."""
        if self._ended.is_set() or (self.stopping and not self._begun):
            raise NotOpen(f"service {self.name!r} was stopped and cannot be started again")
        first, self._begun = not self._begun, True
        return first

    async def _live(self) -> None:
        while not self.stopping:
            self._ran_at = time.monotonic()
            try:
                await self.run()
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                failure: BaseException = RuntimeError(
                    f"service {self.name!r} ended as cancelled, but was not cancelled"
                )
                failure.__cause__ = error
            except BaseException as error:  # noqa: BLE001  raised below, unless it is started again
                failure = error
            else:
                return
            if not isinstance(failure, Exception) or not self.restartable or _is_final(failure):
                self._failure = failure
                raise failure
            await self._rest_after(failure)

    async def _rest_after(self, failure: Exception) -> None:
        """Report a failure, and wait before the body is run again."""
        steady = time.monotonic() - self._ran_at > STEADY_S
        self.restarted = 1 if steady else self.restarted + 1
        wait_s = retry_delay_s(self.restarted)
        cause = _first_cause(failure)
        self._restart_reason = cleaned(f"{self.name} failed: {type(cause).__name__}: {cause}")
        self._ran_at = time.monotonic() + wait_s
        quiet.error(
            f"{self.name} {type(cause).__name__}",
            "%s failed and is started again in %.1f s; other services continue",
            self.name,
            wait_s,
            exc_info=failure,
        )
        await happens_within(self.stop_asked, wait_s, SYSTEM_CLOCK)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._ended.set()  # also if the task was cancelled before its first step
        if not task.cancelled() and (failure := task.exception()) is not None:
            logger.error("service %s failed", self.name, exc_info=failure)


def _first_cause(failure: Exception) -> Exception:
    """What failed first, where a task group has failed."""
    while isinstance(failure, ExceptionGroup):
        failure = cast("ExceptionGroup[Exception]", failure).exceptions[0]
    return failure


def _is_final(failure: Exception) -> bool:
    """Whether running the body again cannot help."""
    if isinstance(failure, ExceptionGroup):
        return failure.subgroup((ConfigError, NotOpen)) is not None  # pyright: ignore[reportUnknownMemberType]
    return isinstance(failure, ConfigError | NotOpen)
