"""Concurrency of a worker: slots that run jobs side by side, and jobs that run alone."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager, suppress

from penstock.errors import NotOpen, ServerError
from penstock.queues.storage.stored_job import NO_META, Item
from penstock.queues.worker.claimed_jobs import ClaimedJob
from penstock.queues.worker.job_context import set_current
from penstock.queues.worker.job_processor import Admission, JobProcessor
from penstock.queues.worker.membership import Liveness
from penstock.queues.worker.performer import Performer
from penstock.queues.worker.task_limits import TaskLimits

__all__ = ["ExclusiveRun", "JobSlots"]

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


class ExclusiveRun:
    """Lets one job run while nothing else does in this process, as far as that is soon.

    If the process ends meanwhile, then because of this job, or for no fault of any. Beside jobs,
    *reading* is kept apart from it: a process can die of jobs that it reads before any begins.
    """

    def __init__(self, running: set[ClaimedJob], when_over: Callable[[], None]) -> None:
        self._running, self._when_over = running, when_over
        self._turn = asyncio.Lock()
        self.is_alone = False
        """Whether a job runs alone, or is about to: nothing may be read then."""
        self._beginning: set[ClaimedJob] = set()
        self._readers = self._waiting_readers = 0
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Note that a job has ended."""
        if self.is_alone:
            self._changed.set()

    @asynccontextmanager
    async def alone(self, job: ClaimedJob) -> AsyncGenerator[None]:
        async with self._turn:
            while self._waiting_readers:  # else such jobs in a row would keep them waiting
                await self._change()
            self.is_alone = True
            timer: asyncio.TimerHandle | None = None
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_ALONE_S):
                        while self._readers or any(
                            self._is_under_way(one) for one in self._running if one is not job
                        ):
                            await self._change()
                timer = asyncio.get_running_loop().call_later(_ALONE_S, self._admit_others)
                yield
            finally:
                if timer is not None:
                    timer.cancel()
                self._admit_others()

    @asynccontextmanager
    async def among_others(self, job: ClaimedJob) -> AsyncGenerator[None]:
        """Let a job begin as soon as none runs alone."""
        while self.is_alone:
            await self._change()
        self._beginning.add(job)
        try:
            yield
        finally:
            self._beginning.discard(job)

    async def until_over(self) -> None:
        """Wait until no job runs alone; before the next one does, `begin_reading` can be called."""
        self._waiting_readers += 1
        try:
            while self.is_alone:
                await self._change()
        finally:
            self._waiting_readers -= 1
            self._changed.set()

    def begin_reading(self) -> None:
        """Note that jobs are about to be claimed, or returned: none runs alone until that ends."""
        self._readers += 1

    def end_reading(self) -> None:
        self._readers -= 1
        self.changed()

    def _is_under_way(self, job: ClaimedJob) -> bool:
        return job.running_in is not None or job in self._beginning

    def _admit_others(self) -> None:
        self.is_alone = False
        self._changed.set()
        self._when_over()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class JobSlots:
    """`places` loops that take jobs from one buffer, in which up to `ahead` more may wait.

    Where these have more than `ahead_bytes` together, none is claimed ahead.

    A job whose function never waits is run on the spot, so a single slot empties the buffer at full
    speed; one that waits lets the next slot take over.

    `when_changed` is called when a job has ended or there is room for others, `when_failed` if a
    slot fails: callbacks to the member, which would have to poll otherwise.
    """

    def __init__(
        self,
        processor: JobProcessor,
        *,
        places: int,
        ahead: int,
        ahead_bytes: int,
        limits: TaskLimits,
        liveness: Liveness,
        when_changed: Callable[[], None],
        when_failed: Callable[[Exception], None],
    ) -> None:
        self.places, self.limits = places, limits
        self.running: set[ClaimedJob] = set()
        self.exclusive = ExclusiveRun(self.running, self._others_admitted)
        self.each_s = _QUICK_S
        """How long a job took of late."""
        self._usable = places - processor.threads.lost
        """Places that no abandoned call holds."""
        processor.threads.when_changed = self._places_changed
        self._processor = processor
        self._most_ahead, self._most_bytes = ahead, ahead_bytes
        self._when_changed, self._when_failed, self._liveness = when_changed, when_failed, liveness
        self._buffer: deque[ClaimedJob] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._group: asyncio.TaskGroup | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._waking = False
        self._busy = 0

    def open(self, group: asyncio.TaskGroup) -> None:
        """Run slots in this group."""
        self._group = group

    async def close(self) -> None:
        """Cut what runs and end all slots."""
        self._processor.threads.when_changed = None
        self._group, self._usable = None, 0  # what ends now wakes no other
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

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

    def put(self, jobs: Iterable[ClaimedJob]) -> None:
        self._buffer += jobs
        self._wake()

    def take_back(self) -> list[ClaimedJob]:
        """What was put and has not been begun."""
        waiting, left = self.limits.take_back(), list(self._buffer)
        if waiting:
            left = sorted([*waiting, *left], key=lambda job: job.number)
        self._buffer.clear()
        return left

    def _places_changed(self) -> None:
        self._usable = self.places - self._processor.threads.lost
        self._others_admitted()

    def _others_admitted(self) -> None:
        self._wake()
        self._when_changed()

    def _wake(self) -> None:
        if self._waking or not self._buffer or self.exclusive.is_alone:
            return
        if self._busy >= self._usable:
            return
        while self._idle:
            sleeper = self._idle.pop()
            if not sleeper.done():
                self._waking = True
                sleeper.set_result(None)
                return
        if self._group is not None and len(self._tasks) < self.places:
            self._waking = True
            name = f"slot {len(self._tasks) + 1}"
            self._tasks.append(self._group.create_task(self._slot(), name=name))

    async def _slot(self) -> None:
        try:
            await self._run_jobs()
        except asyncio.CancelledError:
            if self._group is not None:
                self._when_failed(RuntimeError("a slot was cancelled"))
            raise
        except Exception as error:  # noqa: BLE001  it ends the member, which has jobs to give back
            self._when_failed(error)

    async def _run_jobs(self) -> None:  # noqa: C901, PLR0912, PLR0915  each call would cost every job
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        buffer, running, liveness = self._buffer, self.running, self._liveness
        exclusive, processor = self.exclusive, self._processor
        performers, raw, counts, turn = processor.performers, processor.raw, processor.counts, 0
        limits, limited = self.limits, None
        is_simple = _is_simple if processor.signatures is None else _never
        self._waking = False
        while True:
            while not buffer or exclusive.is_alone or self._busy >= self._usable:
                sleeper = loop.create_future()
                self._idle.append(sleeper)
                await sleeper
                self._waking = False
            began = time.monotonic()
            if began >= liveness.alive_until:  # claimed jobs may have passed to others
                await liveness.until_alive()
                continue
            job = buffer.popleft()
            if buffer and not self._waking:
                self._wake()
            self._busy += 1
            running.add(job)
            item = job.item
            job.began = began
            try:
                performer = performers.get(item.task, raw)
                if performer is None or performer.concurrency is None:
                    limits.in_a_row = 0
                elif limits.enter(performer, job):
                    limited = performer
                else:
                    if not buffer:
                        self._when_changed()  # there is room for others
                    continue
                if performer is None or not performer.quick or not is_simple(item):
                    await self._run(job, performer)
                else:
                    # Nothing has to be around it, so it is run on the spot.
                    set_current(job)
                    job.running_in = me
                    try:
                        args, kwargs = performer.decode(item)
                        outcome = await performer.function(*args, **kwargs)
                    except BaseException as error:  # noqa: BLE001  it becomes a recorded outcome
                        outcome = error
                    job.running_in = None
                    if (
                        job.tracked
                        or job.stop_reason
                        or isinstance(outcome, BaseException)
                        or (me is not None and me.cancelling())
                    ):
                        await processor.returned(job, performer, outcome)
                    else:
                        counts.done += 1
                        job.claims.done.append(job.claim)
            except (ServerError, NotOpen):
                raise
            except Exception as error:  # noqa: BLE001  a fault of Penstock with this one job
                await processor.bury_broken(job, error)
            finally:
                running.discard(job)
                self._busy -= 1
                if exclusive.is_alone:
                    exclusive.changed()
                if limited is not None:
                    self._leave(job, limited)
                    limited = None
            self.each_s += _LEARNING * (time.monotonic() - began - self.each_s)
            self._when_changed()
            turn += 1
            if turn >= _TURN:
                turn = 0
                await asyncio.sleep(0)

    async def _run(self, job: ClaimedJob, performer: Performer | None) -> None:
        admission = await self._processor.admit(job, performer)
        if performer is None or admission is Admission.ENDED:
            return
        alone = admission is Admission.ALONE
        async with self.exclusive.alone(job) if alone else self.exclusive.among_others(job):
            await self._processor.run(job, performer)

    def _leave(self, job: ClaimedJob, performer: Performer) -> None:
        """Let the next job of a task with a limit follow one that has ended."""
        if job.abandoned is None:
            self._follow(job, performer)
        else:  # its function still runs

            def returned(_: object) -> None:
                self._follow(job, performer)
                self._wake()

            job.abandoned.add_done_callback(returned)

    def _follow(self, job: ClaimedJob, performer: Performer) -> None:
        following = self.limits.leave(performer, time.monotonic() - job.began)
        if following is not None:
            self._buffer.appendleft(following)


def _never(item: Item) -> bool:  # noqa: ARG001  in place of `_is_simple`
    """Each job has to be verified first."""
    return False


def _is_simple(item: Item) -> bool:
    """Whether a job makes its first attempt of several, and may do so at any time."""
    meta = item.meta
    if item.fault is not None:
        return False
    if meta is NO_META:
        return item.asked_attempts != 1
    late = meta.expires_ms or meta.attempts or meta.crashes or meta.unique
    return not late and meta.max_attempts != 1 and item.asked_attempts != 1
