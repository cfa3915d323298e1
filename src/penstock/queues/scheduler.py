"""The service of every worker that queues the jobs of schedules, each once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from penstock.delivery.looking import text
from penstock.errors import NotOpen, PenstockError, QueueError
from penstock.queues.schedule import PAUSED, QUEUED, Schedule, enqueue
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client
from penstock.redis.keys.keyring import QueueKeyring
from penstock.runtime.backoff import retry_delay_s
from penstock.runtime.service import Service

__all__ = ["Scheduler"]

LONGEST_LOOK_S: Final = 1.0
"""How often a worker looks even if nothing is due: somebody may have changed a schedule."""
TAKE_OVER_AFTER_S: Final = 5.0
"""So late, nobody is there any more who declares a schedule as it stands on the server."""
CLOCK_DOUBT_MS: Final = 86_400_000
"""A next tick so much too far away was stored while the server's clock was wrong."""
AT_ONCE: Final = 100
"""Jobs of one call: about a millisecond of the server's time."""
TROUBLED_AFTER: Final = 3

logger = logging.getLogger(__name__)


class Standing(NamedTuple):
    """Where a schedule stands on the server."""

    tick: str
    """The next tick in ms, `PAUSED`, or "" if there is none."""
    text: str | None
    """How it is declared: None if it never was, "" if it was removed by hand."""
    now_ms: int
    """The server's time when it stood there."""
    at: float
    """The same, by our monotonic clock."""


class Scheduler(Service):
    """Queues the jobs of schedules when they are due; every worker runs one.

    Each tick gets one job, `cron:<name>:<tick ms>`, whatever dies when. A schedule that is new gets
    its first tick after now; one whose `when` has changed gets a new one as soon as a worker starts
    that declares it so. One that was removed by hand comes back with the next start of a worker.
    """

    restartable = True

    def __init__(self, client: Client, schedules: Sequence[Schedule]) -> None:
        super().__init__("schedules")
        self.fired = 0
        """Jobs queued by this service."""
        self._client = client
        self._queues: dict[str, list[Schedule]] = {}
        for schedule in schedules:
            self._queues.setdefault(schedule.queue, []).append(schedule)
        self._declared: set[tuple[str, str]] = set()
        self._registered: set[str] = set()
        self._failures: dict[str, int] = {}
        self._held: dict[str, float] = {}
        self._quiet = RateLimitedLog(logger)

    def trouble(self) -> str | None:
        troubled = [
            what for what, count in self._failures.copy().items() if count >= TROUBLED_AFTER
        ]
        return f"{', '.join(troubled)} failed repeatedly" if troubled else None

    async def run(self) -> None:
        try:
            while not self.stopping:
                await self._rest(await self._look_everywhere())
        except NotOpen:
            return  # the client was closed: other workers go on

    async def _look_everywhere(self) -> float:
        # Side by side: on a cluster, one node may be slow to answer, or gone.
        looks = await asyncio.gather(
            *(
                self._try(f"schedules of queue {queue}", partial(self._look, queue, schedules))
                for queue, schedules in self._queues.items()
            ),
            return_exceptions=True,
        )
        again = time.monotonic() + LONGEST_LOOK_S
        for look in looks:
            if isinstance(look, BaseException):
                raise look
            again = min(again, look)
        return again

    async def _rest(self, until: float) -> None:
        wait = min(until - time.monotonic(), LONGEST_LOOK_S)
        if wait <= 0:
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(wait):
                await self.stop_asked.wait()
        except TimeoutError:
            return

    async def _try(self, what: str, work: Callable[[], Awaitable[float]]) -> float:
        """Do a part of the work, unless it failed just now; when to look again, monotonic.

        Called here and not before: who is cancelled before this begins leaves nothing unawaited.
        """
        held = self._held.get(what, 0.0)
        if held > time.monotonic():
            return held
        try:
            again = await work()
        except NotOpen:
            raise
        except Exception as error:  # noqa: BLE001  one broken schedule must not stop the others
            failures = self._failures[what] = self._failures.get(what, 0) + 1
            expected = isinstance(error, PenstockError)
            self._quiet.warning(
                f"{what} {type(error).__name__}",
                "%s: not done, trying again: %s",
                what,
                error,
                exc_info=None if expected else error,
            )
            again = self._held[what] = time.monotonic() + retry_delay_s(failures)
        else:
            self._failures.pop(what, None)
        return again

    async def _look(self, queue: str, schedules: Sequence[Schedule]) -> float:
        if queue not in self._registered:  # those who list all schedules look there
            await self._client.call("SADD", self._client.keys.queues().registry, queue)
            self._registered.add(queue)
        reply = await self._client.scripts.watch_schedule(
            keys=QueueKeyring.of(self._client.keys, queue),
            names=[schedule.name for schedule in schedules],
        )
        now_ms, at = reply[0], time.monotonic()
        again = at + LONGEST_LOOK_S
        for schedule, tick, stored in zip(schedules, reply[1::2], reply[2::2], strict=True):
            told = None if stored is None else text(stored)
            standing = Standing(text(tick), told, now_ms, at)
            tended = self._try(f"schedule {schedule.name}", partial(self._tend, schedule, standing))
            again = min(again, await tended)
        return again

    async def _tend(self, schedule: Schedule, standing: Standing) -> float:
        """Declare a schedule or queue its jobs, if it is time to; when to look again."""
        tick, text, now_ms, at = standing
        if await self._declare(schedule, standing):
            return at
        if text != schedule.when.text or tick in {"", PAUSED}:
            return at + LONGEST_LOOK_S
        stands_ms = int(float(tick))
        due_ms = stands_ms + schedule.delay_ms(stands_ms)
        if due_ms <= now_ms:
            await self._fire(schedule, tick, stands_ms, now_ms)
            return at
        if stands_ms > schedule.when.next_after(now_ms + CLOCK_DOUBT_MS):
            await self._bring_back(schedule, tick, now_ms)
            return at
        return at + (due_ms - now_ms) / 1000

    async def _declare(self, schedule: Schedule, standing: Standing) -> bool:
        """Set the next tick, if it is ours to set; whether it was."""
        tick, text, now_ms, _ = standing
        when, mark = schedule.when, (schedule.queue, schedule.name)
        if tick and text == when.text:
            self._declared.add(mark)
            return False
        begun = mark in self._declared
        if (not tick and not (begun and text == "")) or (tick and not begun):
            next_ms = when.next_after(now_ms)
        elif (
            tick not in {"", PAUSED} and now_ms - int(float(tick)) > TAKE_OVER_AFTER_S * 1000
        ):  # whoever declared it otherwise has gone
            next_ms = when.next_after(int(float(tick)) - 1)
        else:
            return False
        done = await self._client.scripts.declare_schedule(
            keys=QueueKeyring.of(self._client.keys, schedule.queue),
            name=schedule.name,
            found=text or "",
            text=when.text,
            tick=next_ms,
        )
        self._declared.add(mark)
        if not tick:
            self._registered.discard(schedule.queue)  # the server may have lost that as well
        if done:
            logger.info("schedule %s: %s, where it was %s", schedule.name, when.text, text or "new")
        return True

    async def _fire(self, schedule: Schedule, found: str, stands_ms: int, now_ms: int) -> None:
        delay_ms = schedule.delay_ms(stands_ms)
        ticks, after_ms = schedule.due_ticks(stands_ms, now_ms - delay_ms)
        if stands_ms not in ticks and schedule.missed != "once":
            self._quiet.warning(
                f"missed {schedule.name}",
                "schedule %s: ticks were missed and are given up, from %d ms on",
                schedule.name,
                stands_ms,
            )
        if not ticks:
            await enqueue(
                self._client, schedule, (), found=found, due_ms=stands_ms, next_ms=after_ms
            )
        most = AT_ONCE
        while ticks:
            chunk, rest = ticks[:most], ticks[most:]
            next_ms = rest[0] if rest else after_ms
            done = await enqueue(
                self._client,
                schedule,
                [(f"cron:{schedule.name}:{tick}", tick) for tick in chunk],
                found=found,
                due_ms=chunk[-1] + delay_ms,
                next_ms=next_ms,
            )
            if done < 0:
                return  # another worker was faster
            if done == 0 and len(chunk) == 1:
                raise QueueError(f"queue {schedule.queue!r} is full; tick {chunk[0]} stays due")
            if done == 0:
                most = 1  # there may be room for some
                continue
            if done == QUEUED:
                self.fired += 1 if schedule.unique else len(chunk)
            ticks, found = rest, str(next_ms)

    async def _bring_back(self, schedule: Schedule, found: str, now_ms: int) -> None:
        tick = str(schedule.when.next_after(now_ms))
        logger.warning(
            "schedule %s: its next tick %s was stored by a wrong clock, now %s",
            *(schedule.name, found, tick),
        )
        await self._client.scripts.move_tick(
            keys=QueueKeyring.of(self._client.keys, schedule.queue),
            name=schedule.name,
            text=schedule.when.text,
            found=found,
            tick=tick,
        )
