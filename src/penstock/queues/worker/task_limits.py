"""Tasks with `concurrency=`: how many of their jobs run here, and where the others wait.

A job over its task's limit holds no place. Some are kept beside the slots, as long as jobs of the
task end, so that one can begin as soon as another ends. No more than that are claimed, unless there
may be jobs of other tasks behind them. Then those in front leave the worker's claims again: they
are *set aside* on the server, among the jobs that are not yet due, not charged, with their lanes.
So other jobs of the queue are reached however many of the task stand before them, and another
worker may run them.

What is set aside comes back in the order in which it left, at a rate that follows what can be run,
not what waits: see `TaskLimits.waits_s`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from pathlib import Path
from typing import Final

from penstock.queues.worker.claimed_jobs import ClaimedJob
from penstock.queues.worker.performer import Performer

__all__ = ["TaskLimits"]

_LEARNING: Final = 0.1
# About this much work is claimed to be kept here, so that places are busy until more is claimed.
# Up to four times that is kept: how long jobs take changes meanwhile. And only of tasks that are
# quicker than this: a job behind a slow one could run elsewhere.
_KEEP_S, _KEEP_MORE, _KEEP_BELOW_S = 0.25, 4.0, 2.0
# What is kept is let go if none of the task ends for so many times what one takes, at the least for
# as long as the work that is kept; before the first has ended, for this long.
_PATIENCE, _FIRST_PATIENCE_S, _SOON_S = 4.0, 0.05, 0.001
# After so many jobs in a row of tasks with limits the next ones are taken to be such, too.
_IN_A_ROW: Final = 1_000
# While the process is busy for more than this part of its time, so many jobs a second of tasks that
# are quicker than this are passed in search of others; else as many as can be. It is measured once
# in so many seconds.
_BUSY, _BUSY_RATE, _QUICK_S, _WINDOW_S = 0.5, 250.0, 0.01, 0.1
# Jobs that come back each second, over all workers of the queue: at least so many, and so many
# times what they can run.
_LEAST_RATE: Final = 250.0
_SUPPLY: Final = 1.25
_SOONEST_S, _LATEST_S = 0.05, 60.0
_MOST_SURPLUS: Final = 1_000
"""Claimed jobs that are yet to be set aside, at which no more are claimed."""
_MOST_RECALLED: Final = 250
_TOGETHER: Final = 25
"""Jobs that are taken to come back at one moment."""
# Set aside, a job may come back this much later: moments are rounded, so that few wake-ups do.
_ROUNDED_S: Final = 0.15


class _Limited:
    """One task with a limit."""

    __slots__ = (
        "began", "best_s", "each_s", "is_stuck", "last_end", "limit", "out", "out_count",
        "patience", "running", "waiting",
    )  # fmt: skip

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.began = self.last_end = time.monotonic()
        """When its first job was met: the first to end takes at least as long as that is ago."""
        self.running = 0
        self.each_s = self.best_s = 0.0
        """How long a job took of late, and how long it takes if nothing holds it up; 0 before the
        first has ended."""
        self.is_stuck = False
        """Whether no job has ended for so long that none is kept."""
        self.waiting: deque[ClaimedJob] = deque()
        """Kept here, in the order of their claims."""
        self.patience: asyncio.TimerHandle | None = None
        """Until when they are kept although none ends."""
        self.out: list[tuple[float, int]] = []
        """A heap: when jobs that were set aside come back, by the monotonic clock, and how many."""
        self.out_count = 0

    def worth_keeping(self, work_s: float) -> float:
        """How many jobs may wait here, if they are to be about so much work."""
        if self.is_stuck or self.each_s >= _KEEP_BELOW_S:
            return 0
        return self.limit * max(1, int(work_s / self.each_s)) if self.each_s else math.inf

    @property
    def is_unknown(self) -> bool:
        """Whether jobs wait, for a short while, until it is known how long one takes."""
        return not self.each_s and bool(self.waiting)

    @property
    def is_quick(self) -> bool:
        """Whether many of its jobs run here, one soon after the other."""
        return self.running > 0 and not self.is_stuck and self.best_s < _QUICK_S

    @property
    def patience_s(self) -> float:
        return max(_KEEP_S, _PATIENCE * self.each_s) if self.each_s else _FIRST_PATIENCE_S

    def note_back(self) -> None:
        now = time.monotonic()
        while self.out and self.out[0][0] <= now:
            self.out_count -= heappop(self.out)[1]


class _Passing:
    """How many jobs of quick tasks may be claimed and set aside in search of others.

    That costs processor time, which the jobs that run here may need more.
    """

    def __init__(self) -> None:
        self._since, self._used = time.monotonic(), _used_s()
        self._passed, self._is_idle = 0, False

    def allowed(self) -> float:
        now = time.monotonic()
        if now - self._since >= _WINDOW_S:
            used, most_s = _used_s(), _BUSY * (now - self._since)
            # After a long time without a call, what was used meanwhile means nothing.
            self._is_idle = now - self._since < 2 * _WINDOW_S and all(
                to - at < most_s for at, to in zip(self._used, used, strict=True)
            )
            self._since, self._used, self._passed = now, used, 0
        return math.inf if self._is_idle else max(0, _BUSY_RATE * _WINDOW_S - self._passed)

    @property
    def next_look(self) -> float:
        """When the answer may be another, by the monotonic clock."""
        return self._since + _WINDOW_S

    def note(self, count: int) -> None:
        """Note that so many are claimed."""
        self._passed += count


def _used_s() -> tuple[float, float]:
    """Processor time of this process; and of this thread, with its waits for a processor."""
    try:
        used, waited, *_ = Path("/proc/thread-self/schedstat").read_bytes().split()
        thread_s = (int(used) + int(waited)) / 1e9
    except (OSError, ValueError):  # not on every system
        thread_s = time.thread_time()
    return time.process_time(), thread_s


class TaskLimits:
    """The tasks of a consumer that have limits of their own.

    `keep` is how many jobs of one task may wait here at most, `keep_bytes` the size of all of them;
    `most_aside` is how many of a task the workers of the queue may have set aside together (0 for
    any number). With `only_task` the consumer has no other, so there are no others to find.
    """

    def __init__(self, *, keep: int, keep_bytes: int, most_aside: int, only_task: bool) -> None:
        self._tasks: dict[str, _Limited] = {}
        self._keep, self._keep_bytes, self._most_aside = keep, keep_bytes, most_aside
        self.only_task = only_task
        self.kept = self._bytes = 0
        """Jobs that wait here, and their size."""
        self._workers = 1
        self._all_back = 0.0
        """When all that was set aside has come back, by the monotonic clock."""
        self._passing = _Passing()
        self.surplus: deque[tuple[Performer, ClaimedJob]] = deque()
        """Claimed jobs that are neither run nor kept: to be set aside."""
        self.when_surplus: Callable[[], object] | None = None
        self.when_place: Callable[[], object] | None = None
        """Called when a job could run here, none is kept, and some were set aside."""
        self._recalled: _Limited | None = None
        self.in_a_row = 0
        """Jobs met of tasks at their limits, without one that could run otherwise."""
        self.next_look: float | None = None
        """When more may be claimed, if none may now although there are places."""

    def claimable(self, wanted: int, coming: int) -> int:
        """How many of the wanted jobs to claim, if `coming` are claimed and not here yet."""
        self.next_look = None
        if len(self.surplus) >= _MOST_SURPLUS or any(
            task.is_unknown for task in self._tasks.values()
        ):
            return 0
        if not self._tasks or not (self.only_task or self.in_a_row + coming >= _IN_A_ROW):
            return wanted
        fits = min(wanted, self._fitting(coming))
        if self.only_task or fits == wanted:
            return fits
        if not any(task.is_quick for task in self._tasks.values()):
            return wanted
        allowed = max(fits, min(wanted, self._passing.allowed() - coming))
        if allowed < 1:
            self.next_look = self._passing.next_look
            return 0
        self._passing.note(int(allowed) - fits)
        return int(allowed)

    def _fitting(self, coming: int) -> int:
        """How many more jobs could run or wait here; 0 while there are enough."""
        size = used = waiting = 0
        for task in self._tasks.values():
            size += task.limit + int(min(self._keep, task.worth_keeping(_KEEP_S)))
            waiting += len(task.waiting)
            used += task.running + len(task.waiting)
        fits = size - used - coming
        return max(0, fits) if not (waiting or coming) or 2 * fits >= size else 0

    def enter(self, performer: Performer, job: ClaimedJob) -> bool:
        """Whether a job may run now: then `leave` follows. If not, it waits here or is surplus."""
        task = self._task(performer)
        self.in_a_row += 1
        if task.running < task.limit:
            task.running += 1
            if not task.waiting:
                self.in_a_row = 0
            return True
        if (
            len(task.waiting) < min(self._keep, task.worth_keeping(_KEEP_MORE * _KEEP_S))
            and self._bytes < self._keep_bytes
        ):
            task.waiting.append(job)
            self.kept += 1
            self._bytes += len(job.item.data)
            if task.patience is None:
                self._be_patient(performer, task, time.monotonic())
            return False
        self.surplus.append((performer, job))
        if len(self.surplus) == 1 and self.when_surplus is not None:
            self.when_surplus()
        return False

    def leave(self, performer: Performer, took_s: float) -> ClaimedJob | None:
        """Note that a job has ended; the one that waited longest, to be begun now."""
        task = self._task(performer)
        task.running -= 1
        task.is_stuck, task.last_end = False, time.monotonic()
        task.best_s = min(took_s, task.best_s + _LEARNING / 5 * (took_s - task.best_s))
        if not task.each_s:
            task.each_s = task.best_s = took_s
        task.each_s += _LEARNING * (took_s - task.each_s)
        if not task.waiting:
            if self.has_aside and self.when_place is not None:
                self._recalled = task
                self.when_place()
            return None
        following = task.waiting.popleft()
        self.kept -= 1
        self._bytes -= len(following.item.data)
        return following

    def _be_patient(self, performer: Performer, task: _Limited, since: float) -> None:
        """Keep jobs for a while; if none of the task ends meanwhile, others may do them sooner."""
        due = since + task.patience_s

        def look() -> None:
            task.patience, now = None, time.monotonic()
            if not task.waiting:
                return
            # If this comes late, jobs may have ended that are not noted yet.
            quiet_since = now if now - due > _FIRST_PATIENCE_S else max(task.last_end, since)
            if quiet_since + task.patience_s > now + _SOON_S:
                self._be_patient(performer, task, quiet_since)
            else:
                self._let_go(performer, task)

        wait_s = max(0.0, due - time.monotonic())
        task.patience = asyncio.get_running_loop().call_later(wait_s, look)

    def _let_go(self, performer: Performer, task: _Limited) -> None:
        task.is_stuck = True
        self.surplus.extendleft((performer, job) for job in reversed(task.waiting))
        self.kept -= len(task.waiting)
        self._bytes -= sum(len(job.item.data) for job in task.waiting)
        task.waiting.clear()
        if self.when_surplus is not None:
            self.when_surplus()

    def recallable(self) -> int:
        """How many of the jobs that were set aside could be here now."""
        task = self._recalled
        if task is None or task.waiting:
            return 0
        size = task.limit - task.running + min(self._keep, task.worth_keeping(_KEEP_S))
        return int(min(_MOST_RECALLED, size))

    def recalled(self, count: int) -> None:
        """Note that so many are due now."""
        task, self._recalled = self._recalled, None
        while task is not None and task.out and count > 0:
            back, some = heappop(task.out)
            gone = min(some, count)
            count, task.out_count = count - gone, task.out_count - gone
            if gone < some:
                heappush(task.out, (back, some - gone))

    def next_surplus(self, most: int) -> tuple[Performer, list[ClaimedJob]] | None:
        """Take up to `most` surplus jobs of one task."""
        if not self.surplus:
            return None
        performer, jobs = self.surplus[0][0], list[ClaimedJob]()
        while self.surplus and self.surplus[0][0] is performer and len(jobs) < most:
            jobs.append(self.surplus.popleft()[1])
        return performer, jobs

    def waits_s(self, performer: Performer, count: int) -> tuple[float, float] | None:
        """How long the first of so many jobs stays aside, and how much longer each one after it.

        None if there are too many already.

        Those that were set aside before come first. All workers together let `_SUPPLY` times as
        many come back as they can run, `_LEAST_RATE` a second at least: so a place that becomes
        free is soon filled, and what waits costs the server the same however much it is.
        """
        task = self._task(performer)
        task.note_back()
        if self._most_aside and task.out_count * self._workers >= self._most_aside:
            return None
        each_s = task.each_s or time.monotonic() - task.began
        rate = max(_LEAST_RATE / self._workers, _SUPPLY * task.limit / max(each_s, 1e-5))
        first_s = min(_LATEST_S, max(_SOONEST_S, task.out_count / rate))
        return first_s, min(1 / rate, _LATEST_S / count)

    def set_aside(
        self, performer: Performer, count: int, waits_s: tuple[float, float], workers: int
    ) -> None:
        """Note that jobs were set aside, and how many workers the queue has."""
        task, self._workers = self._task(performer), max(1, workers)
        back, step_s = time.monotonic() + waits_s[0], waits_s[1]
        for part in range(0, count, _TOGETHER):
            heappush(task.out, (back + part * step_s, min(_TOGETHER, count - part)))
        back += count * step_s
        task.out_count += count
        self._all_back = max(self._all_back, back + _ROUNDED_S)

    @property
    def has_aside(self) -> bool:
        """Whether jobs were set aside here that may not have come back yet."""
        return time.monotonic() < self._all_back

    def take_back(self) -> list[ClaimedJob]:
        """What was claimed and waits here, of any task."""
        left = [job for _, job in self.surplus]
        self.surplus.clear()
        for task in self._tasks.values():
            left += task.waiting
            task.waiting.clear()
        self.kept = self._bytes = 0
        return left

    def _task(self, performer: Performer) -> _Limited:
        task = self._tasks.get(performer.name)
        if task is None:
            task = self._tasks[performer.name] = _Limited(performer.concurrency or 1)
        return task
