"""A round of work every so often, which one failure does not end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import PenstockError
from penstock.runtime.logs import cleaned
from penstock.runtime.service import Service
from penstock.runtime.waiting import LEAST_S, LONGEST_S, happens_within, retry_delay_s
from penstock.throttled_log import RateLimitedLog

__all__ = ["Duty"]

logger = logging.getLogger(__name__)

TROUBLED_AFTER = 3
"""Failures in a row after which a duty makes its worker not ready."""


class Duty(Service):
    """Runs `do_round` at once and then every `every_s`, measured from start to start.

        sweep = Duty("sweep", reclaim_idle, every_s=30)

    - Rounds never overlap. One that takes longer than `every_s` is followed by the next at once.
    - A failed round is logged (one line per 10 s and cause) and tried again: after half a second at
      the earliest, then at doubling distances up to `every_s` (or 5 s, if that is longer).
    - `nudge()` brings the next round forward to now; nudges during a round make one more round.
    - Asked to stop, it lets the round under way end, and waits for nothing else.
    """

    def __init__(
        self,
        name: str,
        do_round: Callable[[], Awaitable[object]],
        *,
        every_s: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if every_s <= 0:
            raise ValueError(f"duty {name!r}: every_s = {every_s}: expected more than 0")
        super().__init__(name)
        self.rounds = 0
        self.failures = 0
        self.last_success_s: float | None = None
        """When the last good round ended, by `clock.monotonic()`; None if none has."""
        self._do_round, self._every_s, self._clock = do_round, every_s, clock
        self._wake = asyncio.Event()
        self._failures_in_a_row = 0
        self._last_error = ""
        self._quiet = RateLimitedLog(logger, clock=clock)

    def nudge(self) -> None:
        """Let the next round begin now. To be called in the event loop's thread."""
        self._wake.set()

    def ask_to_stop(self) -> None:
        super().ask_to_stop()
        self._wake.set()

    def trouble(self) -> str | None:
        if self._failures_in_a_row < TROUBLED_AFTER:
            return None
        return (
            f"duty {self.name}: {self._failures_in_a_row} rounds failed in a row, "
            f"the last with {self._last_error}"
        )

    async def run(self) -> None:
        while not self.stopping:
            self._wake.clear()
            began_s = self._clock.monotonic()
            await self._round()
            took_s = self._clock.monotonic() - began_s
            await self._pause(self._every_s - took_s)

    async def _round(self) -> None:
        self.rounds += 1
        try:
            await self._do_round()
        except Exception as error:  # noqa: BLE001  one bad round must not end the duty
            self._note_failure(error)
        else:
            self._note_success()

    async def _pause(self, rest_s: float) -> None:
        if self._failures_in_a_row:
            rest_s = retry_delay_s(self._failures_in_a_row, max(self._every_s, LONGEST_S)) - LEAST_S
            # A nudge does not shorten this part, or a caller that nudges in a loop would make a
            # failing duty spin.
            await happens_within(self.stop_asked, LEAST_S, self._clock)
        await happens_within(self._wake, rest_s, self._clock)
        await asyncio.sleep(0)  # lets others run, however late the duty is

    def _note_failure(self, error: Exception) -> None:
        self.failures += 1
        self._failures_in_a_row += 1
        self._last_error = cleaned(f"{type(error).__name__}: {error}")
        expected = isinstance(error, PenstockError)  # one line is enough; a bug needs its trace
        self._quiet.warning(
            type(error).__name__,
            "duty %s: round failed, trying again: %s",
            self.name,
            self._last_error,
            exc_info=None if expected else error,
        )

    def _note_success(self) -> None:
        self.last_success_s = self._clock.monotonic()
        if self._failures_in_a_row:
            self._quiet.info(
                "recovered",
                "duty %s works again after %d failed rounds",
                self.name,
                self._failures_in_a_row,
            )
        self._failures_in_a_row = 0
