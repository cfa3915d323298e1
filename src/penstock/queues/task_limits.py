"""Tasks with `concurrency=`: how many of their jobs run here, and where the others wait.

A job over its task's limit holds no place. If the task is quick, some are kept beside the slots, so
that one can begin as soon as another ends. All others leave the worker's claims again: they are
*set aside* on the server, among the jobs that are not yet due, not charged and with their lanes. So
other jobs of the queue are reached however many of the task stand before them, and another worker
may run them.

What is set aside comes back in the order in which it left, at a rate that follows what can be run,
not what waits: see `TaskLimits.waits_s`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from penstock.queues.context import JobContext
from penstock.queues.performer import Performer

__all__ = ["TaskLimits"]

_LEARNING: Final = 0.1
# What is kept here is about this much work, so that places are busy until others come back; and
# only of tasks that are quicker than this: a job behind a slow one could run elsewhere.
_KEEP_S, _KEEP_BELOW_S = 0.25, 0.5
# Jobs that come back each second, over all workers of the queue: at least so many, and so many
# times what they can run.
_LEAST_RATE: Final = 250.0
_SUPPLY: Final = 2.0
_SOONEST_S, _LATEST_S = 0.05, 60.0
_TOGETHER: Final = 25
"""Jobs that are taken to come back at one moment."""
# Set aside, a job may come back this much later: moments are rounded, so that few wake-ups do.
_ROUNDED_S: Final = 0.15


class _Limited:
    """One task with a limit."""

    __slots__ = ("began", "each_s", "limit", "out", "out_count", "running", "waiting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.began = time.monotonic()
        """When its first job was met: the first to end takes at least as long as that is ago."""
        self.running = 0
        self.each_s = 0.0
        """How long a job took of late; 0 before the first has ended."""
        self.waiting: deque[JobContext] = deque()
        """Kept here, in the order of their claims."""
        self.out: list[tuple[float, int]] = []
        """A heap: when jobs that were set aside come back, by the monotonic clock, and how many."""
        self.out_count = 0

    @property
    def worth_keeping(self) -> int:
        """How many jobs may wait here."""
        if not 0 < self.each_s < _KEEP_BELOW_S:
            return 0
        return self.limit * max(1, int(_KEEP_S / self.each_s))

    def note_back(self) -> None:
        now = time.monotonic()
        while self.out and self.out[0][0] <= now:
            self.out_count -= heappop(self.out)[1]


class TaskLimits:
    """The tasks of a consumer that have limits of their own.

    `keep` is how many jobs of one task may wait here at most, `keep_bytes` the size of all of them;
    `most_aside` is how many of a task the workers of the queue may have set aside together (0 for
    any number).
    """

    def __init__(self, *, keep: int, keep_bytes: int, most_aside: int) -> None:
        self._tasks: dict[str, _Limited] = {}
        self._keep, self._keep_bytes, self._most_aside = keep, keep_bytes, most_aside
        self._bytes = 0
        """Of the jobs that wait here."""
        self._workers = 1
        self._all_back = 0.0
        """When all that was set aside has come back, by the monotonic clock."""
        self.surplus: deque[tuple[Performer, JobContext]] = deque()
        """Claimed jobs that are neither run nor kept: to be set aside."""
        self.when_surplus: Callable[[], object] | None = None

    def enter(self, performer: Performer, job: JobContext) -> bool:
        """Whether a job may run now: then `leave` follows. If not, it waits here or is surplus."""
        task = self._task(performer)
        if task.running < task.limit:
            task.running += 1
            return True
        if (
            len(task.waiting) < min(self._keep, task.worth_keeping)
            and self._bytes < self._keep_bytes
        ):
            task.waiting.append(job)
            self._bytes += len(job.item.data)
            return False
        self.surplus.append((performer, job))
        if len(self.surplus) == 1 and self.when_surplus is not None:
            self.when_surplus()
        return False

    def leave(self, performer: Performer, took_s: float) -> JobContext | None:
        """Note that a job has ended; the one that waited longest, to be begun now."""
        task = self._task(performer)
        task.running -= 1
        task.each_s += (_LEARNING if task.each_s else 1.0) * (took_s - task.each_s)
        if not task.waiting:
            return None
        following = task.waiting.popleft()
        self._bytes -= len(following.item.data)
        return following

    def next_surplus(self, most: int) -> tuple[Performer, list[JobContext]] | None:
        """Take up to `most` surplus jobs of one task."""
        if not self.surplus:
            return None
        performer, jobs = self.surplus[0][0], list[JobContext]()
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
        rate = max(_LEAST_RATE / self._workers, _SUPPLY * task.limit / max(each_s, 0.001))
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

    def take_back(self) -> list[JobContext]:
        """What was claimed and waits here, of any task."""
        left = [job for _, job in self.surplus]
        self.surplus.clear()
        for task in self._tasks.values():
            left += task.waiting
            task.waiting.clear()
        self._bytes = 0
        return left

    def _task(self, performer: Performer) -> _Limited:
        task = self._tasks.get(performer.name)
        if task is None:
            task = self._tasks[performer.name] = _Limited(performer.concurrency or 1)
        return task
