"""Running jobs: so many at a time, each awaited where it was taken, without a task of its own."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager, suppress

from penstock.errors import NotOpen, ServerError
from penstock.queues.context import JobContext, set_current
from penstock.queues.hand import claim_number
from penstock.queues.items import NO_META, Item
from penstock.queues.performer import Performer
from penstock.queues.pulse import Pulse
from penstock.queues.task_limits import TaskLimits
from penstock.queues.work import Work

__all__ = ["Slots"]

# Jobs are claimed ahead only if they are quicker than this: a job that waits behind a slow one
# could have run elsewhere.
_QUICK_S = 0.005
# What is claimed ahead is about this much work: enough to hide a round trip several times over.
_AHEAD_S = 0.02
_LEARNING = 0.1
# A job that is to run alone waits so long for others to end, and then they wait so long for it.
_ALONE_S = 5.0
_TURN = 64
"""Jobs run in one go before others get the event loop, however quick they are."""


class Slots:
    """`places` loops that take jobs from one buffer, in which up to `ahead` more may wait.

    Where these have more than `ahead_bytes` together, none is claimed ahead.

    A job whose function never waits is run on the spot, so a single slot empties the buffer at full
    speed; one that waits lets the next slot take over.
    """

    def __init__(
        self,
        work: Work,
        *,
        places: int,
        ahead: int,
        ahead_bytes: int,
        limits: TaskLimits,
        when_news: Callable[[], None],
        pulse: Pulse,
    ) -> None:
        self.places, self.limits = places, limits
        self._usable = places - work.threads.lost
        """Places that no abandoned call holds."""
        work.threads.when_changed = self._places_changed
        self.running: set[JobContext] = set()
        self.each_s = _QUICK_S
        """How long a job took of late."""
        self._work = work
        self._most_ahead, self._most_bytes = ahead, ahead_bytes
        self._when_news, self._pulse = when_news, pulse
        self._buffer: deque[JobContext] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._waking = False
        self._busy = 0
        self._beginning: set[JobContext] = set()
        self._alone: JobContext | None = None
        self._readers = 0
        """Calls under way that read jobs, of which a process can die before any begins."""
        self._waiting_readers = 0
        """Those that wait until no job runs alone."""
        self._changed = asyncio.Event()

    def room(self, asked: int, each_bytes: float) -> int:
        """How many jobs to claim now, if `asked` may be on their way; 0 while there are enough.

        Those of late had `each_bytes` on average.
        """
        ahead = 0
        if self.each_s < _QUICK_S and len(self._buffer) * each_bytes < self._most_bytes:
            ahead = min(self._most_ahead, int(self._usable * _AHEAD_S / max(self.each_s, 1e-6)))
        limits = self.limits
        if limits.in_a_row:  # most of them may hold no place
            ahead = max(ahead, min(self._most_ahead // 4, limits.in_a_row))
        size = self._usable + ahead
        room = max(0, size - self._busy - len(self._buffer) - asked)
        if (self._buffer or asked) and 2 * room < size:
            return 0
        if limits.in_a_row or limits.only_task:
            return limits.claimable(room, len(self._buffer) + asked)
        return room

    @property
    def is_stuck(self) -> bool:
        """Whether abandoned calls hold all places, so that nothing can begin."""
        return self._usable <= 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to begin."""
        return not (self._buffer or self.limits.kept)

    def put(self, jobs: Iterable[JobContext]) -> None:
        self._buffer += jobs
        self._wake()

    def take_back(self) -> list[JobContext]:
        """What was put and has not been begun."""
        waiting = self.limits.take_back()
        left = sorted([*waiting, *self._buffer], key=_number) if waiting else list(self._buffer)
        self._buffer.clear()
        return left

    async def close(self) -> None:
        """Cut what runs and end all slots."""
        self._work.threads.when_changed, self._usable = None, 0  # what ends now wakes no other
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def failure(self) -> BaseException | None:
        """What a slot failed with, which none should."""
        for task in self._tasks:
            if task.done():
                cancelled = task.cancelled()
                return RuntimeError("a slot was cancelled") if cancelled else task.exception()
        return None

    @asynccontextmanager
    async def alone(self, job: JobContext) -> AsyncGenerator[None]:
        """Let a job run while nothing else does in this process, as far as that is soon.

        If the process ends meanwhile, then because of this job, or for no fault of any.
        """
        while self._waiting_readers:  # else one such job after the other would keep them waiting
            self._changed.clear()
            await self._changed.wait()
        self._alone = job
        timer: asyncio.TimerHandle | None = None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_ALONE_S):
                    while self._readers or any(
                        self._is_under_way(one) for one in self.running if one is not job
                    ):
                        self._changed.clear()
                        await self._changed.wait()
            timer = asyncio.get_running_loop().call_later(_ALONE_S, self._admit_others)
            yield
        finally:
            if timer is not None:
                timer.cancel()
            self._admit_others()

    @property
    def is_alone(self) -> bool:
        """Whether a job is to run while nothing else does: nothing may be read then."""
        return self._alone is not None

    async def shared(self) -> None:
        """Wait until no job runs alone; before the next one does, `begin_reading` can be called."""
        self._waiting_readers += 1
        try:
            while self._alone is not None:
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._waiting_readers -= 1
            self._changed.set()

    def begin_reading(self) -> None:
        """Note that jobs are about to be claimed, or returned: none runs alone until that ends."""
        self._readers += 1

    def end_reading(self) -> None:
        self._readers -= 1
        if self._alone is not None:
            self._changed.set()

    @asynccontextmanager
    async def among_others(self, job: JobContext) -> AsyncGenerator[None]:
        """Let a job begin, as soon as none is alone."""
        while self._alone is not None:
            self._changed.clear()
            await self._changed.wait()
        self._beginning.add(job)
        try:
            yield
        finally:
            self._beginning.discard(job)

    def _is_under_way(self, job: JobContext) -> bool:
        return job.slot is not None or job in self._beginning

    def _places_changed(self) -> None:
        self._usable = self.places - self._work.threads.lost
        self._wake()
        self._when_news()

    def _admit_others(self) -> None:
        self._alone = None
        self._changed.set()
        self._wake()
        self._when_news()

    def _wake(self) -> None:
        if self._waking or not self._buffer or self._alone is not None:
            return
        if self._busy >= self._usable:
            return
        while self._idle:
            sleeper = self._idle.pop()
            if not sleeper.done():
                self._waking = True
                sleeper.set_result(None)
                return
        if len(self._tasks) < self.places:
            self._waking = True
            name = f"slot {len(self._tasks) + 1}"
            task = asyncio.create_task(self._slot(), name=name)
            task.add_done_callback(lambda _: self._when_news())
            self._tasks.append(task)

    async def _slot(self) -> None:  # noqa: C901, PLR0912, PLR0915  each call would cost every job
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        buffer, running, pulse = self._buffer, self.running, self._pulse
        performer_of, counts, turn = self._work.performer_of, self._work.counts, 0
        limits, limited = self.limits, None
        self._waking = False
        while True:
            while not buffer or self._alone is not None or self._busy >= self._usable:
                sleeper = loop.create_future()
                self._idle.append(sleeper)
                await sleeper
                self._waking = False
            began = time.monotonic()
            if began >= pulse.alive_until:  # what is in hand may have passed to others
                await pulse.until_alive()
                continue
            job = buffer.popleft()
            if buffer and not self._waking:
                self._wake()
            self._busy += 1
            running.add(job)
            item = job.item
            job.began = began
            try:
                performer = performer_of(item)
                if performer is None or performer.concurrency is None:
                    limits.in_a_row = 0
                elif limits.enter(performer, job):
                    limited = performer
                else:
                    if not buffer:
                        self._when_news()  # there is room for others
                    continue
                if performer is None or not performer.quick or not _is_simple(item):
                    await self._work.run(job, performer, self)
                else:
                    # Nothing has to be around it, so it is run on the spot.
                    set_current(job)
                    job.slot = me
                    try:
                        args, kwargs = performer.decode(item)
                        outcome = await performer.function(*args, **kwargs)
                    except BaseException as error:  # noqa: BLE001  it becomes a recorded outcome
                        outcome = error
                    job.slot = None
                    if (
                        job.tracked
                        or job.cut
                        or isinstance(outcome, BaseException)
                        or (me is not None and me.cancelling())
                    ):
                        await self._work.returned(job, performer, outcome)
                    else:
                        counts.done += 1
                        job.hand.done.append(job.claim)
            except (ServerError, NotOpen):
                raise
            except Exception as error:  # noqa: BLE001  a fault of ours with this one job
                await self._work.bury_broken(job, error)
            finally:
                running.discard(job)
                self._busy -= 1
                if self._alone is not None:
                    self._changed.set()
                if limited is not None:
                    self._leave(job, limited)
                    limited = None
            self.each_s += _LEARNING * (time.monotonic() - began - self.each_s)
            self._when_news()
            turn += 1
            if turn >= _TURN:
                turn = 0
                await asyncio.sleep(0)

    def _leave(self, job: JobContext, performer: Performer) -> None:
        """Let the next job of a task with a limit follow one that has ended."""
        if job.thread is None:
            self._follow(job, performer)
        else:  # its function still runs

            def returned(_: object) -> None:
                self._follow(job, performer)
                self._wake()

            job.thread.add_done_callback(returned)

    def _follow(self, job: JobContext, performer: Performer) -> None:
        following = self.limits.leave(performer, time.monotonic() - job.began)
        if following is not None:
            self._buffer.appendleft(following)


def _number(job: JobContext) -> int:
    claim = job.claim
    return claim_number(claim if isinstance(claim, bytes) else claim.encode())


def _is_simple(item: Item) -> bool:
    """Whether a job makes its first attempt of several, and may do so at any time."""
    meta = item.meta
    if meta is NO_META:
        return item.asked_attempts != 1
    late = meta.expires_ms or meta.attempts or meta.crashes or meta.unique
    return not late and meta.max_attempts != 1 and item.asked_attempts != 1
