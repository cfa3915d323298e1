"""How a read loop shows its watchdog that it is alive."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from penstock.runtime.stack_location import place_of_task

__all__ = ["LoopProgress", "LoopSilent", "WatchedBlock"]

logger = logging.getLogger(__name__)


class LoopProgress:
    """The beats of one run of a loop: the loop beats, the watchdog compares.

        async def consume(progress: LoopProgress) -> None:
            while not progress.stopping:
                chunk = await read(block_s=poll_s)     # returns within a poll, empty or not
                progress.beat()
                if slots.full:
                    with progress.waiting("a free slot", lambda: slots.full):
                        await slots.freed()            # minutes or hours: nothing is frozen
                slots.take(chunk)

    Liveness is that of the read loop, not of the handlers it feeds: a handler may run for any time,
    in a slot or awaited in place, provided that the loop is `waiting` meanwhile.
    """

    __slots__ = ("beats", "excused", "stop_asked")

    def __init__(self, stop_asked: asyncio.Event) -> None:
        self.beats = 0
        self.stop_asked = stop_asked
        """Set when the loop is to end; a loop with long reads waits for it beside them."""
        self.excused: _Waiting | None = None
        """Set by `waiting`."""

    @property
    def stopping(self) -> bool:
        """Whether the loop is to end."""
        return self.stop_asked.is_set()

    def beat(self) -> None:
        """Count a poll. No clock, no lock: the hot loop calls it for every chunk."""
        self.beats += 1

    def waiting(self, reason: str, still: Callable[[], bool] | None = None) -> _Waiting:
        """Be silent on purpose within a `with` block; `reason` names what the loop waits for.

        `still` is a cheap function that returns whether the loop still has to wait (no slot is
        free). Once it returns False the excuse is over, and a loop that has missed its wake-up is
        restarted like any other frozen one.
        """
        return _Waiting(self, reason, still)

    @property
    def excuse(self) -> str | None:
        """What the loop waits for, if it does and still has to."""
        excused = self.excused
        if excused is None or (excused.still is not None and not excused.still()):
            return None
        return excused.reason


class _Waiting:
    """Silence with a reason; made by `LoopProgress.waiting`."""

    __slots__ = ("_outer", "_progress", "reason", "still")

    def __init__(
        self, progress: LoopProgress, reason: str, still: Callable[[], bool] | None
    ) -> None:
        self._progress, self.reason, self.still = progress, reason, still
        self._outer: _Waiting | None = None

    def __enter__(self) -> None:
        self._outer, self._progress.excused = self._progress.excused, self

    def __exit__(self, *_: object) -> None:
        self._progress.excused = self._outer
        self._progress.beat()


class LoopSilent(Exception):
    """A read loop has not polled for too long and was cancelled by the watchdog."""


class _BlockWatcher(Protocol):
    def add(self, block: WatchedBlock) -> None: ...


class WatchedBlock:
    """A read loop under watch, as an `async with` block in the task that reads.

        async with self.watched(f"{self.name} read") as progress:      # in a `Service`
            while True:
                chunk = await read(block_s=poll_s)
                progress.beat()

    When the block has been silent for two polls, its task is cancelled and the block raises
    `LoopSilent`, as `asyncio.timeout` raises TimeoutError. The service around it fails with that
    and, if `restartable`, begins again. Without a watchdog (the service runs outside a worker) the
    block is only a block.
    """

    def __init__(
        self, name: str, watchdog: _BlockWatcher | None, stop_asked: asyncio.Event
    ) -> None:
        self.name = name
        self.progress = LoopProgress(stop_asked)
        self.restarts = 0
        """Blocks of this name that were silent in a row, set by the watchdog."""
        self.stuck = self.ended = False
        self._not_polled = f"loop {name} has not polled yet"
        self.verdict: str | None = self._not_polled
        """The watchdog's: why the loop does not count as working."""
        self._watchdog = watchdog
        self._task: asyncio.Task[None] | None = None
        self._cancelled_before = 0
        self._silent = ""

    @property
    def alive(self) -> bool:
        """Whether the block is being run."""
        return self._task is not None and not self.ended

    def trouble(self) -> str | None:
        if self.stuck:
            return self.verdict
        has_polled = self.verdict is self._not_polled and self.progress.beats > 0
        return None if self.ended or has_polled else self.verdict

    def restart(self, reason: str) -> bool:
        """Cancel the block, unless it is being cancelled already."""
        task = self._task
        if task is None or self.ended or self._silent or self.progress.stopping:
            return False
        if task.cancelling() > self._cancelled_before:
            return False
        self._silent = f"loop {self.name}: {reason}, waiting at {place_of_task(task)}"
        logger.warning("%s; restarting it", self._silent)
        task.cancel()
        return True

    def give_up(self) -> None:
        """Note that the block does not end although it was cancelled."""
        if self._task is not None and self.alive and not self.stuck:
            self.stuck = True
            self.verdict = f"loop {self.name} ignores its cancellation"
            place = place_of_task(self._task)
            logger.error("%s, waiting at %s; the worker has to end", self.verdict, place)

    async def __aenter__(self) -> LoopProgress:
        self._task = asyncio.current_task()
        if self._task is not None:
            self._cancelled_before = self._task.cancelling()
            if self._watchdog is not None:
                self._watchdog.add(self)
        return self.progress

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.ended = True
        if not self._silent or self._task is None:
            return
        if self._task.uncancel() <= self._cancelled_before and kind is asyncio.CancelledError:
            raise LoopSilent(self._silent) from error
