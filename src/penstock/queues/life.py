"""A worker's life as a member of a queue: claiming, running, and leaving in good order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.clock import SYSTEM_CLOCK
from penstock.errors import PenstockError, ServerError
from penstock.queues.context import JobContext
from penstock.queues.hand import MOST_DONE, Hand
from penstock.queues.reaper import Reaper
from penstock.queues.slots import Slots
from penstock.queues.waiters import Waiters
from penstock.queues.work import Work
from penstock.runtime.backoff import retry_delay_s
from penstock.runtime.waiting import happens_within

if TYPE_CHECKING:
    from penstock.queues.queue import Queue

__all__ = ["Life"]

logger = logging.getLogger(__name__)

# A worker that is cut short has this long to tell the server what it has done.
_LAST_WORDS_S = 2.0
_TEND_S = 0.5
_BLOCK_S = 1.0
_MOST_WATCHED = 500


class Life:
    """What a consumer does from joining its queue to leaving it."""

    def __init__(
        self,
        queue: Queue,
        hand: Hand,
        work: Work,
        reaper: Reaper,
        *,
        places: int,
        tracks: bool,
        stop_asked: asyncio.Event,
        note: Callable[[PenstockError | None], None],
    ) -> None:
        self._queue, self._hand, self._work, self._reaper = queue, hand, work, reaper
        self._client, self._settings = queue.client, queue.client.settings.queues
        self._tracks, self._stop_asked, self._note = tracks, stop_asked, note
        self._news, self._ended = asyncio.Event(), asyncio.Event()
        self._hint = True
        """Whether there may be jobs to claim."""
        self._futile = False
        self._reap_after = 0.0
        prefetch = self._settings.prefetch
        self.slots = Slots(
            work,
            places=places,
            # What is claimed ahead would count against the limit without running.
            ahead=0 if queue.options.limit or queue.options.lane_limit else 2 * prefetch,
            when_news=self._something_ended,
        )
        self._waiters = Waiters(self._client, hand.keys, _BLOCK_S, self._there_are_jobs)

    async def run(self) -> None:
        name = f"queue {self._queue.name}"
        tending = asyncio.create_task(self._tend_for_ever(), name=f"{name} tend")
        settling = asyncio.create_task(self._settle_for_ever(), name=f"{name} settle")
        settling.add_done_callback(lambda _: self._news.set())
        self._settling = settling
        stopping = asyncio.create_task(self._stop_asked.wait())
        stopping.add_done_callback(lambda _: self._news.set())
        self._waiters.begin(lanes=False)
        try:
            await self._fetch()
            await self._waiters.close()
            await self._drain()
        except BaseException:
            await self._last_words(self._cut_short)
            raise
        else:
            await self._last_words(self._hand.leave)
        finally:
            for task in (tending, settling, stopping):
                task.cancel()
            await self._waiters.close()
            await self.slots.close()
            await asyncio.gather(tending, settling, stopping, return_exceptions=True)

    # ---- claiming

    async def _fetch(self) -> None:
        hand, slots, stop = self._hand, self.slots, self._stop_asked
        failures = 0
        while not stop.is_set() and not hand.lost:
            if (error := slots.failure() or _failure_of(self._settling)) is not None:
                raise error
            wanted = slots.room if self._hint else 0
            acks_due = hand.done and (slots.is_empty or len(hand.done) >= MOST_DONE // 2)
            if not wanted and not acks_due:
                await self._rest()
                continue
            try:
                await self._claim(min(wanted, self._settings.prefetch))
                failures = 0
                self._note(None)
            except ServerError as error:
                if not error.transient:
                    raise
                failures += 1
                self._troubled(error)
                await happens_within(stop, retry_delay_s(failures), SYSTEM_CLOCK)

    async def _claim(self, wanted: int) -> None:
        gate = self._queue.options.gate
        granted, retry_after_s = wanted, 0.0
        if gate is not None and wanted:
            admission = await gate.admit(self._queue.name, wanted)
            granted, retry_after_s = min(wanted, admission.granted), admission.retry_after_s
        jobs = await self._hand.exchange(granted)
        if gate is not None and len(jobs) < granted:
            await gate.give_back(self._queue.name, granted - len(jobs))
        if self._hand.uses_lanes:
            self._waiters.begin(lanes=True)
        if jobs:
            self._futile = False
            await self._accept(jobs)
        if len(jobs) < wanted:
            self._hint = False
            self._waiters.arm(futile=self._futile or retry_after_s > 0)
            self._futile = not jobs

    async def _accept(self, jobs: Sequence[JobContext]) -> None:
        """Hand claimed jobs to the slots; those with a record are noted as begun first."""
        tracked = [job for job in jobs if job.tracked]
        if self._tracks:
            tracked = [job for job in jobs if self._is_tracked(job)]
        if not tracked:
            self.slots.put(jobs)
            return
        for job in tracked:
            job.tracked = True
        verdicts = await self._hand.begin(tracked)
        over = {job.claim for job, verdict in zip(tracked, verdicts, strict=True) if verdict != 1}
        for job in tracked:
            if job.claim in over and not self._hand.lost:
                self._work.passed_over(job)
        self._something_ended()
        self.slots.put(job for job in jobs if job.claim not in over)

    def _is_tracked(self, job: JobContext) -> bool:
        performer = self._work.performer_of(job.item)
        return job.tracked or (performer is not None and performer.tracked)

    async def _settle_for_ever(self) -> None:
        """Write the ends of jobs with records, beside the claims."""
        while True:
            await self._ended.wait()
            self._ended.clear()
            if self._hand.ended:
                await self._hand.flush_ended()
                self._news.set()

    def _something_ended(self) -> None:
        self._news.set()
        if self._hand.ended:
            self._ended.set()

    async def _rest(self) -> None:
        """Wait for jobs on the server, for room, for something done; or until the next look."""
        self._news.clear()
        hand = self._hand
        wait_s = self._settings.poll_s
        if hand.next_due_ms:
            wait_s = min(wait_s, max(0.001, (hand.next_due_ms - hand.now_ms) / 1000))
        try:
            async with asyncio.timeout(wait_s):
                await self._news.wait()
        except TimeoutError:
            self._hint = True

    def _there_are_jobs(self) -> None:
        self._hint = True
        self._news.set()

    # ---- beside it

    async def _tend_for_ever(self) -> None:
        """Return what dead workers had, and stop jobs that were cancelled.

        When the server could not be reached, others could not either: before anybody is given up,
        they get the time to say that they live.
        """
        every_s = min(_TEND_S, self._settings.beat_s)
        while True:
            try:
                may_reap = time.monotonic() >= self._reap_after
                if may_reap and await self._reaper.reap(self._hand.now_ms, self._hand.worker):
                    self._there_are_jobs()
                await self._look_for_cancelled()
            except ServerError as error:
                if not error.transient:
                    logger.exception("queue %s: cannot look after it", self._queue.name)
                self._troubled(error)
            await asyncio.sleep(every_s)

    def _troubled(self, error: ServerError) -> None:
        self._reap_after = time.monotonic() + self._settings.silence_s
        self._note(error)

    async def _look_for_cancelled(self) -> None:
        jobs = [job for job in self.slots.running if job.tracked and not job.cut][:_MOST_WATCHED]
        if not jobs:
            return
        asked = await self._client.pipeline(
            [("HGET", self._hand.keys.record(job.id), "cancel_asked") for job in jobs]
        )
        for job, answer in zip(jobs, asked, strict=True):
            if isinstance(answer, bytes) and job in self.slots.running:
                job.stop("cancelled")

    # ---- the end

    async def _drain(self) -> None:
        """Give back what was not begun, and let what was finish.

        It is over when nothing is in hand: an end that is still on its way may not arrive.
        """
        hand = self._hand
        if hand.lost:
            return
        hand.draining = True
        await self._give_back(self.slots.take_back())
        while not hand.lost:
            if (error := _failure_of(self._settling)) is not None:
                raise error
            if hand.ended:
                await hand.flush_ended()
            if hand.done or hand.in_doubt:
                with suppress(ServerError):
                    await self._give_back(await hand.exchange(0))
                    continue
                await asyncio.sleep(retry_delay_s(1))
            elif not hand.jobs:
                return
            else:
                self._news.clear()
                if hand.jobs and not hand.done and not hand.ended:
                    await self._news.wait()

    async def _give_back(self, jobs: Sequence[JobContext]) -> None:
        if jobs:
            await self._hand.give_back(jobs)

    async def _cut_short(self) -> None:
        """Tell what is done; what was cut runs elsewhere, and is not charged for it."""
        hand = self._hand
        hand.closing = True
        await self.slots.close()
        await hand.flush_ended()
        while hand.done and not hand.lost:
            await hand.exchange(0)
        if not hand.lost:
            await hand.give_back(list(hand.jobs.values()))
            await hand.leave()

    async def _last_words(self, say: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(_LAST_WORDS_S):
                await say()
        except (TimeoutError, PenstockError) as error:
            logger.warning(
                "queue %s: others take over when its silence is noticed: %s",
                self._queue.name,
                error or "no answer",
            )


def _failure_of(task: asyncio.Task[None]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None
