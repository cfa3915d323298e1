"""A consumer: one worker of a queue, and the functions that it runs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.clock import SYSTEM_CLOCK
from penstock.delivery.depends import Resolver
from penstock.delivery.failure_log import FailureLog
from penstock.errors import ServerError
from penstock.queues.storage.job_signatures import JobSignatures
from penstock.queues.worker.arrival_watcher import ArrivalWakeups
from penstock.queues.worker.attempts import limit_of
from penstock.queues.worker.claimed_jobs import ClaimedJob, ClaimedJobs, WorkerCounts
from penstock.queues.worker.job_processor import JobProcessor
from penstock.queues.worker.lost_lanes import relist_known_lanes
from penstock.queues.worker.membership import Membership, QueueHeartbeats
from penstock.queues.worker.queue_member import QueueMember
from penstock.queues.worker.reaper import Reaper
from penstock.queues.worker.tender import Tender
from penstock.redis.wire import Argument
from penstock.runtime.heartbeat_thread import Beat, HeartbeatThread
from penstock.runtime.service import Service
from penstock.runtime.waiting import happens_within, retry_delay_s
from penstock.throttled_log import RateLimitedLog

if TYPE_CHECKING:
    from penstock.queues.queue import Queue

__all__ = ["QueueConsumer", "places_of"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)


def places_of(queue: Queue, concurrency: int | None) -> int:
    """How many jobs of a queue a worker runs at once; `concurrency` is the worker's."""
    return concurrency or queue.options.concurrency or queue.client.settings.queues.concurrency


class QueueConsumer(Service):
    """Runs the jobs of a queue, beside any number of other consumers of it.

    Every job reaches its function at least once; it is acknowledged when the function has returned.
    """

    restartable = True

    def __init__(
        self,
        queue: Queue,
        *,
        worker_id: str,
        heartbeats: HeartbeatThread,
        beats: QueueHeartbeats,
        tender: Tender,
        wakeups: ArrivalWakeups,
        resolver: Resolver,
        concurrency: int | None = None,
    ) -> None:
        super().__init__(f"queue {queue.name}")
        self.queue, self.counts = queue, WorkerCounts()
        client, settings = queue.client, queue.client.settings.queues
        self._client, self._settings = client, settings
        self._worker_id, self._joined = worker_id, 0
        self._beats = beats
        self._heartbeats, self._tender, self._wakeups = heartbeats, tender, wakeups
        self._places = places_of(queue, concurrency)
        by_task, raw = queue.performers(), queue.raw_performer()
        performers = [one for one in (*by_task.values(), raw) if one is not None]
        self._tracks = queue.options.status or any(one.tracked for one in performers)
        self._only_task = len(performers) == 1 and performers[0].concurrency is not None
        self._processor = JobProcessor(
            queue.codec,
            self.counts,
            by_task,
            raw,
            queue.options.retry,
            unknown_s=settings.unknown_s,
            most_result=settings.max_result_bytes,
            signatures=JobSignatures.required_of(client, queue.name),
            places=self._places,
            resolver=resolver,
            failure_log=FailureLog("queue", queue.name, client.settings),
        )
        self._reaper = Reaper(
            client, queue.codec, queue.keyring, self._processor.policy_of, self.counts
        )
        self._trouble: str | None = "has not begun yet"
        self._member: QueueMember | None = None
        self._was_given_up = False

    def trouble(self) -> str | None:
        member, trouble = self._member, self._trouble
        if member is not None:
            trouble = member.trouble or member.upkeep.foreign
        trouble = trouble or self._processor.threads.trouble()
        return f"queue {self.queue.name}: {trouble}" if trouble and not self.ended else None

    @property
    def has_aside(self) -> bool:
        """Whether it has set jobs aside, over the limits of their tasks, that are not back yet."""
        return self._member is not None and self._member.limits.has_aside

    @property
    def jobs(self) -> list[ClaimedJob]:
        """The jobs whose functions are running."""
        return list(self._member.slots.running) if self._member else []

    async def run(self) -> None:
        try:
            failures = 0
            may_have_lost = self.restarted > 0  # a key was in the way, most likely of the ring
            while not self.stopping:
                try:
                    await self.queue.declared()
                    if may_have_lost:
                        await relist_known_lanes(self._client, self.queue.keyring)
                        may_have_lost = False
                    await self._be_member()
                    failures = 0
                except ServerError as error:
                    if not error.transient:
                        raise
                    failures += 1
                    self._trouble = str(error)
                    quiet.warning(f"{self.name} {type(error).__name__}", "%s: %s", self.name, error)
                    await happens_within(self.stop_asked, retry_delay_s(failures), SYSTEM_CLOCK)
        finally:
            await self._processor.close()

    async def _be_member(self) -> None:
        """Be a member of the queue until asked to stop, or until given up as dead."""
        self._joined += 1
        name = f"{self._worker_id}.{self._joined}"
        membership = Membership(self._client, self.queue.keyring, name, self._beats)
        claims = ClaimedJobs(membership, self.queue.codec, self.counts)
        claims.first_fields = self._first_fields
        await membership.join()
        if self._was_given_up:  # it stood still, most likely, and may do so again
            membership.liveness.stand_still()
        self._member = member = QueueMember(
            self.queue,
            claims,
            self._processor,
            self._reaper,
            places=self._places,
            tracks=self._tracks,
            only_task=self._only_task,
            tender=self._tender,
            wakeups=self._wakeups,
            watched=self.watched,
            stop_asked=self.stop_asked,
        )
        beat = Beat(self.name, self._settings.beat_s, claims.beat)
        self._heartbeats.add(beat)
        self._trouble = None
        try:
            await member.run()
        finally:
            self._member, self._was_given_up = None, membership.lost
            self._heartbeats.remove(beat)

    def _first_fields(self, job: ClaimedJob) -> list[Argument]:
        limit = limit_of(job.item, self._processor.policy_of(job.item))
        return self.queue.raw_jobs.found_fields(job.item, job.id, job.lane, limit)
