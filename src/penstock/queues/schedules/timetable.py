"""Next ticks of a queue's schedules, cached in one process.

The server has the authoritative state, which workers and people change. Only what is due, what has
changed and a share of the rest is read at a time, so that the cost of a tick does not grow with the
number of schedules.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from penstock.delivery.queries import text
from penstock.queues.schedules.schedule import PAUSED, Schedule
from penstock.queues.schedules.scripts import ScheduleScripts
from penstock.queues.storage.keys import QueueKeyring
from penstock.redis.client import Client
from penstock.redis.wire import Reply

__all__ = ["CLOCK_DOUBT_MS", "LONGEST_LOOK_S", "PAGE", "ScheduleState", "Timetable"]

LONGEST_LOOK_S: Final = 1.0
"""How often changes by others are read."""
PAGE: Final = 500
"""Schedules that one script reads: about a millisecond of the server's time."""
ROUND_S: Final = 10.0
"""Longest time until each schedule was read once."""
CLOCK_DOUBT_MS: Final = 86_400_000
"""A next tick this much too far away was stored while the server's clock was wrong."""
_NEVER: Final = b"-inf"
_AHEAD_MS: Final = 1_500
_BEHIND_MS: Final = 2_000
"""Window around now: a change that makes a tick due within a second is found in time."""


class ScheduleState(NamedTuple):
    """Stored state of a schedule."""

    tick: str
    """The next tick in ms, `PAUSED`, or "" if there is none."""
    text: str | None
    """Its declaration: None if it never had one, "" if it was removed by hand."""
    now_ms: int
    """The server's time when it was read."""


class Timetable:
    """A heap of due times, and the names that have to be read again."""

    def __init__(self, client: Client, queue: str, schedules: Sequence[Schedule]) -> None:
        self.queue = queue
        self.declared: set[str] = set()
        """Names that were stored as this process declares them."""
        self._client, self._keys = client, QueueKeyring.of(client.keys, queue)
        self._schedules = {schedule.name: schedule for schedule in schedules}
        self._names = list(self._schedules)
        self._known: dict[str, tuple[Reply, Reply]] = {}
        """Tick and declaration by name, as read or written last."""
        self._due: list[tuple[int, str, str]] = []
        """Heap of due time in server ms, name, tick. An entry whose tick is outdated is void."""
        self._doubtful: dict[str, float] = dict.fromkeys(self._names, 0.0)
        """Names to read again, and from which time on."""
        self._doubts: list[tuple[float, str]] = [(0.0, name) for name in self._names]
        self._plausible: dict[str, int] = {}
        """Ticks more than a day away, and the server ms at which they were found right."""
        self._place = 0
        self._unread: list[str] = []
        self._refresh_at = 0.0
        self._seen_until_ms = 0
        self._clock_ms, self._clock_at = 0, time.monotonic()

    # ---- when

    @property
    def now_ms(self) -> int:
        """Estimate of the server's time, never ahead of it."""
        return self._clock_ms + int((time.monotonic() - self._clock_at) * 1000)

    def next_at(self) -> float:
        """Monotonic time of the next work."""
        at = self._refresh_at
        if self._doubts:
            at = min(at, self._doubts[0][0])
        if self._due:
            # One ms later the server's clock has reached it for certain.
            due_s = (self._due[0][0] + 1 - self._clock_ms) / 1000
            at = min(at, self._clock_at + due_s)
        return at

    # ---- what is known

    def take_due(self, most: int) -> list[tuple[Schedule, str]]:
        """Take due schedules, with their stored ticks."""
        now_ms, taken = self.now_ms, list[tuple[Schedule, str]]()
        while self._due and self._due[0][0] <= now_ms and len(taken) < most:
            _, name, tick = heappop(self._due)
            if self._is_current(name, tick):
                taken.append((self._schedules[name], tick))
        return taken

    def note(self, schedule: Schedule, tick: str) -> None:
        """Note the next tick of a schedule that is stored as this process declares it."""
        self.declared.add(schedule.name)
        self._known[schedule.name] = tick.encode(), schedule.when.text.encode()
        self._push(schedule, tick)

    def doubt(self, name: str, until: float = 0.0) -> None:
        """Read a schedule again, not before `until`."""
        self._known.pop(name, None)
        if name not in self._doubtful:
            self._doubtful[name] = until
            heappush(self._doubts, (until, name))

    def doubt_due(self) -> None:
        """Read all due schedules again: other workers are firing them."""
        for schedule, _ in self.take_due(len(self._due)):
            self.doubt(schedule.name)

    def _push(self, schedule: Schedule, tick: str) -> None:
        tick_ms = int(float(tick))
        heappush(self._due, (tick_ms + schedule.delay_ms(tick_ms), schedule.name, tick))

    def _is_current(self, name: str, tick: str) -> bool:
        known = self._known.get(name)
        return known is not None and known[0] == tick.encode()

    # ---- what is read

    async def read_next(self) -> list[tuple[Schedule, ScheduleState]] | None:
        """Read a page of doubtful names or, once a second, of a share of the rest.

        Returns schedules that need the caller's attention; None if all was read.
        """
        if time.monotonic() >= self._refresh_at:
            self._refresh_at = time.monotonic() + LONGEST_LOOK_S
            self._unread = self._share()
            if self._seen_until_ms and len(self._unread) < len(self._names):
                await self._read_around_now()
        if self._unread:
            names, self._unread = self._unread[:PAGE], self._unread[PAGE:]
            return await self._read([name for name in names if name not in self._doubtful])
        names = self._take_doubtful()
        return await self._read(names) if names else None

    def _share(self) -> list[str]:
        """The next names in turn: all of them, if they fit a page."""
        most = max(PAGE, math.ceil(len(self._names) * LONGEST_LOOK_S / ROUND_S))
        first, self._place = self._place, self._place + most
        if self._place >= len(self._names):
            self._place = 0
        return self._names[first : first + most]

    def _take_doubtful(self) -> list[str]:
        now, names = time.monotonic(), list[str]()
        while self._doubts and self._doubts[0][0] <= now and len(names) < PAGE:
            names.append(heappop(self._doubts)[1])
            del self._doubtful[names[-1]]
        return names

    async def _read_around_now(self) -> None:
        """Find ticks near now that differ from the cached ones."""
        start_ms = min(self._seen_until_ms, self.now_ms - _BEHIND_MS)
        offset, found = 0, list[Reply]()
        while True:
            self._clock_ms, *found = await ScheduleScripts.of(self._client).upcoming_ticks(
                keys=self._keys, start_ms=start_ms, ahead_ms=_AHEAD_MS, offset=offset, count=PAGE
            )
            self._clock_at = time.monotonic()
            for stored, tick in zip(found[::2], found[1::2], strict=True):
                name = text(stored)
                known = self._known.get(name)
                if name in self._schedules and (known is None or known[0] != tick):
                    self.doubt(name)
            if len(found) < 2 * PAGE:
                break
            offset += PAGE
        self._seen_until_ms = self._clock_ms + _AHEAD_MS

    async def _read(self, names: list[str]) -> list[tuple[Schedule, ScheduleState]]:
        if not names:
            return []
        try:
            now_ms, *reply = await ScheduleScripts.of(self._client).watch_schedule(
                keys=self._keys, names=names
            )
        except BaseException:
            for name in names:
                self.doubt(name)
            raise
        self._clock_ms, self._clock_at = now_ms, time.monotonic()
        self._seen_until_ms = self._seen_until_ms or now_ms
        open_: list[tuple[Schedule, ScheduleState]] = []
        for name, tick, stored in zip(names, reply[::2], reply[1::2], strict=True):
            if self._known.get(name) == (tick, stored) and self._is_plausible(name, tick, now_ms):
                continue
            schedule = self._schedules[name]
            standing = ScheduleState(text(tick), None if stored is None else text(stored), now_ms)
            is_ours = standing.text == schedule.when.text and standing.tick not in {"", PAUSED}
            if is_ours and self._is_plausible(name, tick, now_ms):
                self.note(schedule, standing.tick)
            else:
                self._known.pop(name, None)
                open_.append((schedule, standing))
        return open_

    def _is_plausible(self, name: str, tick: bytes, now_ms: int) -> bool:
        """Whether a tick is a time, and not stored by a clock that was far ahead."""
        if tick == _NEVER:
            return False
        stands_ms = int(float(tick))
        if stands_ms - now_ms <= CLOCK_DOUBT_MS:
            return True
        if now_ms >= self._plausible.get(name, now_ms + 1):
            return True
        if stands_ms > self._schedules[name].when.next_after(now_ms + CLOCK_DOUBT_MS):
            return False
        self._plausible[name] = now_ms
        return True
