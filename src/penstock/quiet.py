"""Log lines for what repeats: a broken connection is worth one line, not four thousand."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from penstock.clock import SYSTEM_CLOCK, Clock

__all__ = ["RateLimitedLog"]

EVERY_S = 10.0
MAX_CAUSES = 1_000


@dataclass(slots=True)
class _Cause:
    written_at: float
    suppressed: int = 0


class RateLimitedLog:
    """Writes at most one line per `every_s` and cause, and says how many it left out.

        quiet = RateLimitedLog(logging.getLogger(__name__))
        quiet.warning("connect", "cannot reach %s: %s", address, error)

    The cause is a short, fixed text: what makes two lines "the same again". It must not hold an id
    or a time, else every line is new. The count of lines left out is the extra `suppressed` of the
    next line of that cause. Safe to use from any thread.
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
            stacklevel=3,  # the line belongs to whoever called warning() or error()
        )
        return True

    def _due(self, cause: str) -> int | None:
        """How many lines were left out since the last one; None if it is too early for another."""
        now = self._clock.monotonic()
        with self._lock:
            known = self._causes.pop(cause, None)
            if known is not None and now - known.written_at < self._every_s:
                known.suppressed += 1
                self._causes[cause] = known
                return None
            if len(self._causes) >= MAX_CAUSES:
                del self._causes[next(iter(self._causes))]  # the one not heard of for longest
            self._causes[cause] = _Cause(now)
            return known.suppressed if known else 0
