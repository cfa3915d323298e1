"""Worker service that queues the jobs of schedules, each once."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from penstock.errors import NotOpen, PenstockError, QueueError
from penstock.queues.schedules.schedule import PAUSED, Schedule, enqueue
from penstock.queues.schedules.scripts import FireStatus, ScheduleScripts
from penstock.queues.schedules.timetable import LONGEST_LOOK_S, ScheduleState, Timetable
from penstock.queues.storage.keys import QueueKeyring
from penstock.queues.storage.registration import register_queue
from penstock.redis.client import Client
from penstock.runtime.service import Service
from penstock.runtime.waiting import retry_delay_s
from penstock.throttled_log import RateLimitedLog

__all__ = ["Scheduler"]

TAKE_OVER_AFTER_S: Final = 5.0
"""A tick this late: no worker declares the schedule as it is stored any more."""
AT_ONCE: Final = 100
"""Jobs of one call: about a millisecond of the server's time."""
TOGETHER: Final = 20
"""Schedules handled concurrently: a few milliseconds of this process's time."""
TROUBLED_AFTER: Final = 3

logger = logging.getLogger(__name__)


class Scheduler(Service):
    """Queues the jobs of schedules when they are due; every worker runs one.

    Each tick gets one job, `cron:<name>:<tick ms>`, whichever worker dies. A new schedule gets its
    first tick after now; one whose `when` has changed, as soon as a worker starts that declares it
    so. One that was removed by hand comes back when a worker that declares it starts.
    """

    restartable = True

    def __init__(self, client: Client, schedules: Sequence[Schedule]) -> None:
        super().__init__("schedules")
        self.fired = 0
        """Jobs queued by this service."""
        self._client = client
        queues: dict[str, list[Schedule]] = {}
        for schedule in schedules:
            queues.setdefault(schedule.queue, []).append(schedule)
        self._tables = [Timetable(client, queue, found) for queue, found in queues.items()]
        self._beaten = 0
        """Ticks that another worker fired first."""
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
            return  # the client was closed

    async def _look_everywhere(self) -> float:
        """Do what is due; returns the monotonic time of the next work."""
        now = time.monotonic()
        # Concurrently: on a cluster, one node may be slow or gone.
        looks = await asyncio.gather(
            *(
                self._try(f"schedules of queue {table.queue}", partial(self._look, table))
                for table in self._tables
                if self._next_at(table) <= now
            ),
            return_exceptions=True,
        )
        for look in looks:
            if isinstance(look, BaseException):
                raise look
        return min(map(self._next_at, self._tables), default=math.inf)

    def _next_at(self, table: Timetable) -> float:
        return max(table.next_at(), self._held.get(f"schedules of queue {table.queue}", 0.0))

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

    async def _try(self, what: str, work: Callable[[], Awaitable[object]]) -> float | None:
        """Call `work`, unless it failed recently; returns the monotonic time of the next attempt.

        `work` is called here, so that a cancellation before leaves no coroutine unawaited.
        """
        held = self._held.get(what, 0.0)
        if held > time.monotonic():
            return held
        try:
            await work()
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
            self._held[what] = time.monotonic() + retry_delay_s(failures)
            return self._held[what]
        self._failures.pop(what, None)
        self._held.pop(what, None)
        return None

    async def _look(self, table: Timetable) -> None:
        if table.queue not in self._registered:  # where `Schedules.list` finds it
            await register_queue(self._client, table.queue)
            self._registered.add(table.queue)
        while (page := await table.read_next()) is not None and not self.stopping:
            for start in range(0, len(page), TOGETHER):
                some = page[start : start + TOGETHER]
                work = {one.name: partial(self._tend, table, one, at) for one, at in some}
                await self._side_by_side(table, work)
            await self._fire_due(table)
        await self._fire_due(table)

    async def _fire_due(self, table: Timetable) -> None:
        while not self.stopping and (due := table.take_due(TOGETHER)):
            before = self._beaten
            work = {one.name: partial(self._fire, table, one, tick) for one, tick in due}
            await self._side_by_side(table, work)
            if (self._beaten - before) * 2 > len(due):
                table.doubt_due()

    async def _side_by_side(
        self, table: Timetable, work: Mapping[str, Callable[[], Awaitable[object]]]
    ) -> None:
        """Call the work of each schedule; those that fail are read again later."""
        ends = await asyncio.gather(
            *(self._try(f"schedule {name}", do) for name, do in work.items()),
            return_exceptions=True,
        )
        for name, end in zip(work, ends, strict=True):
            if isinstance(end, BaseException):
                raise end
            if end is not None:
                table.doubt(name, end)

    async def _tend(self, table: Timetable, schedule: Schedule, standing: ScheduleState) -> None:
        """Declare a schedule, or correct its next tick."""
        tick, text, now_ms = standing
        if await self._declare(table, schedule, standing):
            table.doubt(schedule.name)
        elif text == schedule.when.text and tick not in {"", PAUSED}:
            await self._bring_back(schedule, tick, now_ms)
            table.doubt(schedule.name)

    async def _declare(self, table: Timetable, schedule: Schedule, standing: ScheduleState) -> bool:
        """Set the next tick if this worker has to; returns whether it had."""
        tick, text, now_ms = standing
        when = schedule.when
        if tick and text == when.text:
            table.declared.add(schedule.name)
            return False
        begun = schedule.name in table.declared
        if (not tick and not (begun and text == "")) or (tick and not begun):
            next_ms = when.next_after(now_ms)
        elif (
            tick not in {"", PAUSED} and now_ms - int(float(tick)) > TAKE_OVER_AFTER_S * 1000
        ):  # no worker declares it otherwise any more
            next_ms = when.next_after(int(float(tick)) - 1)
        else:
            return False
        done = await ScheduleScripts.of(self._client).declare_schedule(
            keys=QueueKeyring.of(self._client.keys, schedule.queue),
            name=schedule.name,
            found=text or "",
            text=when.text,
            tick=next_ms,
        )
        table.declared.add(schedule.name)
        if not tick:
            self._registered.discard(schedule.queue)  # the server may have lost it as well
        if done:
            logger.info("schedule %s: %s, where it was %s", schedule.name, when.text, text or "new")
        return True

    async def _fire(self, table: Timetable, schedule: Schedule, found: str) -> None:
        """Queue the jobs of a due schedule, and note its next tick."""
        stands_ms = int(float(found))
        delay_ms = schedule.delay_ms(stands_ms)
        ticks, after_ms = schedule.due_ticks(stands_ms, table.now_ms - delay_ms)
        if stands_ms not in ticks and schedule.missed != "once":
            self._quiet.warning(
                f"missed {schedule.name}",
                "schedule %s: missed ticks are skipped, from %d ms on",
                schedule.name,
                stands_ms,
            )
        most, rest = AT_ONCE, ticks
        while True:
            chunk, rest = rest[:most], rest[most:]
            next_ms = rest[0] if rest else after_ms
            status = await enqueue(
                self._client,
                schedule,
                [(f"cron:{schedule.name}:{tick}", tick) for tick in chunk],
                found=found,
                due_ms=(chunk[-1] if chunk else stands_ms) + delay_ms,
                next_ms=next_ms,
            )
            if status is FireStatus.STALE:
                self._beaten += 1
                table.doubt(schedule.name)
                return
            if status is FireStatus.FULL and len(chunk) == 1:
                raise QueueError(f"queue {schedule.queue!r} is full; tick {chunk[0]} stays due")
            if status is FireStatus.FULL:
                most, rest = 1, [*chunk, *rest]  # there may be room for some
                continue
            if status is FireStatus.QUEUED:
                self.fired += 1 if schedule.unique else len(chunk)
            found = str(next_ms)
            if not rest:
                table.note(schedule, found)
                return

    async def _bring_back(self, schedule: Schedule, found: str, now_ms: int) -> None:
        tick = str(schedule.when.next_after(now_ms))
        logger.warning(
            "schedule %s: its next tick %s was stored by a wrong clock, now %s",
            *(schedule.name, found, tick),
        )
        await ScheduleScripts.of(self._client).move_tick(
            keys=QueueKeyring.of(self._client.keys, schedule.queue),
            name=schedule.name,
            text=schedule.when.text,
            found=found,
            tick=tick,
        )
