"""Records of running jobs: marked as running, and watched for cancellation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from penstock.errors import ServerError
from penstock.queues.storage.scripts import BeginVerdict
from penstock.queues.worker.claimed_jobs import ClaimedJobs, StopReason
from penstock.queues.worker.concurrency import JobSlots

__all__ = ["RunningRecords"]

_CANCELLED_EVERY_S = 0.5
_MOST_WATCHED = 500
# The record of a job that takes less than this is never marked as running.
_NOTE_AFTER_S = 0.02


class RunningRecords:
    """Keeps the records of the jobs that run in `slots`."""

    def __init__(self, claims: ClaimedJobs, slots: JobSlots, *, beat_s: float) -> None:
        self._claims, self._slots = claims, slots
        self._cancelled_every_s = min(_CANCELLED_EVERY_S, beat_s)
        self._due = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def note_soon(self) -> None:
        """Mark jobs as running that still do in a while."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_NOTE_AFTER_S, self._due.set)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def note_running(self) -> None:
        """Mark records as running where that was put off and their jobs still do. Endless."""
        slots = self._slots
        while True:
            await self._due.wait()
            self._due.clear()
            self._timer = None
            old = time.monotonic() - _NOTE_AFTER_S / 2
            tracked = [job for job in slots.running if job.tracked and not job.run_noted]
            jobs = [job for job in tracked if job.began and job.began <= old]
            if len(jobs) < len(tracked) or not slots.is_empty:
                self.note_soon()
            for job, verdict in zip(jobs, await self._claims.begin(jobs), strict=True):
                if verdict != BeginVerdict.RUN and job in slots.running:
                    job.stop(StopReason.ENDED)

    async def stop_cancelled(self, troubled: Callable[[ServerError], None]) -> None:
        """Stop jobs that were cancelled while they run. Endless."""
        while True:
            await asyncio.sleep(self._cancelled_every_s)
            try:
                await self._look_for_cancelled()
            except ServerError as error:
                troubled(error)

    async def _look_for_cancelled(self) -> None:
        running, claims = self._slots.running, self._claims
        jobs = [job for job in running if job.tracked and not job.stop_reason][:_MOST_WATCHED]
        if not jobs:
            return
        replies = await claims.membership.client.pipeline(
            [("HGET", claims.keys.record(job.id), "cancel_asked") for job in jobs]
        )
        for job, reply in zip(jobs, replies, strict=True):
            if isinstance(reply, bytes) and job in running:
                job.stop(StopReason.CANCELLED)
