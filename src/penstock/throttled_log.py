"""Repeated log lines at a bounded rate."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from penstock.clock import SYSTEM_CLOCK, Clock

__all__ = ["Bursts", "RateLimitedLog"]

EVERY_S = 10.0
MAX_CAUSES = 1_000
BURST = 3


@dataclass(slots=True)
class _Cause:
    written_at: float
    suppressed: int = 0


class RateLimitedLog:
    """Writes at most one line per `every_s` and cause, with the number of omitted ones.

        quiet = RateLimitedLog(logging.getLogger(__name__))
        quiet.warning("connect", "cannot reach %s: %s", address, error)

    The cause is a short, fixed text by which lines count as the same; without ids or times. The
    number of omitted lines is the extra `suppressed` of the next line of that cause. Thread-safe.
    """

    def __init__(
        self, logger: logging.Logger, *, every_s: float = EVERY_S, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._logger, self._every_s, self._clock = logger, every_s, clock
        self._causes: dict[str, _Cause] = {}
        self._lock = threading.Lock()

    def info(self, cause: str, message: str, *args: object) -> bool:
        return self._write(logging.INFO, cause, message, args, None)

    def warning(
        self, cause: str, message: str, *args: object, exc_info: BaseException | None = None
    ) -> bool:
        return self._write(logging.WARNING, cause, message, args, exc_info)

    def error(
        self, cause: str, message: str, *args: object, exc_info: BaseException | None = None
    ) -> bool:
        return self._write(logging.ERROR, cause, message, args, exc_info)

    def _write(
        self,
        level: int,
        cause: str,
        message: str,
        args: tuple[object, ...],
        exc_info: BaseException | None,
    ) -> bool:
        """Whether the line was written."""
        suppressed = self._due(cause)
        if suppressed is None:
            return False
        self._logger.log(
            level,
            message,
            *args,
            exc_info=exc_info,
            extra={"suppressed": suppressed} if suppressed else None,
            stacklevel=3,  # the line of the caller of warning() or error()
        )
        return True

    def _due(self, cause: str) -> int | None:
        """Number of lines omitted since the last one; None if it is too early for another."""
        now = self._clock.monotonic()
        with self._lock:
            known = self._causes.pop(cause, None)
            if known is not None and now - known.written_at < self._every_s:
                known.suppressed += 1
                self._causes[cause] = known
                return None
            if len(self._causes) >= MAX_CAUSES:
                del self._causes[next(iter(self._causes))]  # the oldest
            self._causes[cause] = _Cause(now)
            return known.suppressed if known else 0


@dataclass(slots=True)
class _Run:
    """Events of one cause that follow each other."""

    since: float
    admitted: int = 1
    left_out: int = 0
    summarise: Callable[[int], None] | None = None
    timer: asyncio.TimerHandle | None = None


class Bursts:
    """Admits the first `burst` events of a cause, then one summary of the rest every `every_s`.

        if bursts.admits(cause, lambda count: logger.warning("%d more like this", count)):
            logger.warning("the whole story")

    Unlike with `RateLimitedLog`, the count of what was left out is reported although nothing of
    that cause follows: after `every_s` by a timer of the event loop, or by `flush`. A cause that
    was silent for `every_s` starts again with a burst. To be used in one thread.
    """

    def __init__(
        self, *, burst: int = BURST, every_s: float = EVERY_S, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._burst, self._every_s, self._clock = burst, every_s, clock
        self._runs: dict[Hashable, _Run] = {}

    def admits(self, cause: Hashable, summarise: Callable[[int], None]) -> bool:
        """Whether to report this event in full; if not, it is counted for `summarise(count)`."""
        now = self._clock.monotonic()
        run = self._runs.get(cause)
        if run is not None and now - run.since >= self._every_s:
            self._period_ended(cause)  # there is no event loop, or its timer is late
            run = self._runs.get(cause)
        if run is None:
            if len(self._runs) >= MAX_CAUSES:
                self._end(next(iter(self._runs)))
            self._runs[cause] = _Run(now)
            return True
        if run.admitted < self._burst:
            run.admitted += 1
            return True
        run.left_out += 1
        run.summarise = summarise
        if run.timer is None:
            run.timer = self._timer(run.since + self._every_s - now, cause)
        return False

    def flush(self) -> None:
        """Report what was left out so far, and forget all causes."""
        for cause in list(self._runs):
            self._end(cause)

    def _period_ended(self, cause: Hashable) -> None:
        run = self._runs.get(cause)
        if run is None:
            return
        if not run.left_out:
            self._end(cause)
            return
        _stop_timer(run)
        run.since = self._clock.monotonic()
        _summarise(run)

    def _end(self, cause: Hashable) -> None:
        run = self._runs.pop(cause)
        _stop_timer(run)
        _summarise(run)

    def _timer(self, delay_s: float, cause: Hashable) -> asyncio.TimerHandle | None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return None
        return loop.call_later(delay_s, self._period_ended, cause)


def _stop_timer(run: _Run) -> None:
    if run.timer is not None:
        run.timer.cancel()
        run.timer = None


def _summarise(run: _Run) -> None:
    count, run.left_out = run.left_out, 0
    if count and run.summarise is not None:
        run.summarise(count)
