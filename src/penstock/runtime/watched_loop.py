"""A loop that is restarted when it hangs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.clock import Clock
from penstock.errors import ServerError
from penstock.runtime.logs import cleaned
from penstock.runtime.progress import LoopProgress
from penstock.runtime.service import Service
from penstock.runtime.stack_location import place_of_task
from penstock.runtime.waiting import happens_within, retry_delay_s
from penstock.throttled_log import RateLimitedLog

__all__ = ["Body", "WatchedLoop"]

logger = logging.getLogger(__name__)

Body = Callable[[LoopProgress], Coroutine[Any, Any, None]]

STUCK_AFTER_POLLS = 2
"""How long a cancelled life may take to end, in polls, before the loop counts as stuck."""


class WatchedLoop(Service):
    """Runs `body` in lives: one that hangs is cancelled, and the next begins. See `Watchdog`.

    - `body(progress)` beats at least once per poll and returns when `progress.stopping`. Every
      life gets a `LoopProgress` of its own, so late beats of an old one prove nothing.
    - A life that ends with a transient `ServerError` is followed by another, with growing distance:
      a server that is away for a minute must not cost a worker. Any other error ends the loop and
      surfaces, as for every service.
    - A body that returns unasked has failed too: a worker that reads no more must not appear idle.
      One that is meant to end (it drains a queue once) calls its loop's `ask_to_stop()` first.
    - **A life that does not end when cancelled is not replaced.** It may wake up at any time, still
      holding its connection and what it has read. Beside a successor it would be a second reader
      under the same consumer name and the same epoch, which no fence could distinguish: messages
      would be handled twice, and out of order. The loop is `stuck` instead: it logs that once,
      fails, and so ends its worker with a non-zero code. A supervisor starts a clean process, and
      until then other workers take over what it had, as after `kill -9`.
    """

    def __init__(self, name: str, body: Body, *, poll_s: float, clock: Clock) -> None:
        super().__init__(name)
        self.restarts = 0
        self.stuck = False
        self.verdict: str | None = f"loop {name} has not polled yet"
        """The watchdog's: why the loop does not count as working."""
        self.progress = LoopProgress(self.stop_asked)
        self._body, self._poll_s, self._clock = body, poll_s, clock
        self._life: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._cut_because = ""
        self._refusals = 0
        self._refusal = ""
        self._quiet = RateLimitedLog(logger, clock=clock)

    @property
    def alive(self) -> bool:
        """Whether a life is under way; none is before the start and between two tries."""
        return self._life is not None and not self._life.done()

    def trouble(self) -> str | None:
        if self.ended and not self.stuck:
            return None
        if self._refusal and not self.progress.beats:
            return f"loop {self.name}: {self._refusal}"
        return self.verdict

    def restart(self, reason: str) -> bool:
        """Cut the present life, so that the next begins; whether there was one to cut."""
        if self._life is None or not self.alive or self._cut_because or self.stopping:
            return False
        self._cut_because = reason
        logger.warning(
            "loop %s: %s, waiting at %s; restarting it",
            self.name,
            reason,
            place_of_task(self._life),
        )
        self._life.cancel()
        return True

    def give_up(self) -> None:
        """Declare that the present life does not end although it was cancelled."""
        if self._life is not None and self.alive and not self.stuck:
            self.stuck = True
            self.verdict = f"loop {self.name} ignores its cancellation"
            logger.error(
                "loop %s ignores its cancellation, waiting at %s; the worker has to end",
                self.name,
                place_of_task(self._life),
            )
            self._news.set()

    async def run(self) -> None:
        while not self.stopping:
            self.progress = LoopProgress(self.stop_asked)
            try:
                await self._one_life()
            except ServerError as error:
                if not error.transient:
                    raise
                self._note_refusal(error)
                await happens_within(self.stop_asked, retry_delay_s(self._refusals), self._clock)

    async def _one_life(self) -> None:
        self._cut_because = ""
        news = self._news = asyncio.Event()
        # Not in a task group, which would wait for a stuck life for ever: this method is its
        # parent, and leaves it behind in that one case only.
        life = self._life = asyncio.create_task(self._body(self.progress), name=self.name)
        life.add_done_callback(lambda _: news.set())
        try:
            await news.wait()
        except asyncio.CancelledError:
            await self._cancel(life, news)
            raise
        if not life.done():
            raise RuntimeError(f"loop {self.name!r} ignores its cancellation")
        if self._cut_because:
            self._note_restart(life)
        elif life.cancelled():
            raise RuntimeError(f"loop {self.name!r} ended as cancelled, but was not cancelled")
        else:
            life.result()
            if not self.stopping:
                raise RuntimeError(f"loop {self.name!r} ended, but was not asked to")

    async def _cancel(self, life: asyncio.Task[None], news: asyncio.Event) -> None:
        life.cancel()
        if not await happens_within(news, STUCK_AFTER_POLLS * self._poll_s, self._clock):
            self.give_up()
        elif not life.cancelled() and (error := life.exception()) is not None:
            logger.error("loop %s failed while it was cancelled", self.name, exc_info=error)

    def _note_restart(self, life: asyncio.Task[None]) -> None:
        self.restarts += 1
        error = None if life.cancelled() else life.exception()
        if error is not None:  # a broken connection may well fail to close; it is replaced anyway
            logger.warning("loop %s: its old life ended badly", self.name, exc_info=error)

    def _note_refusal(self, error: ServerError) -> None:
        self._refusals = 1 if self.progress.beats else self._refusals + 1
        self._refusal = cleaned(f"{type(error).__name__}: {error}")
        self.progress = LoopProgress(self.stop_asked)
        self._quiet.warning(
            type(error).__name__, "loop %s: %s; trying again", self.name, self._refusal
        )
