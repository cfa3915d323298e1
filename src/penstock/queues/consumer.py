"""A consumer: one worker of a queue, with the jobs it has in hand and the functions it runs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.clock import SYSTEM_CLOCK
from penstock.delivery.depends import Resolver
from penstock.delivery.failure_log import FailureLog
from penstock.errors import PenstockError, ServerError
from penstock.queues.attempts import limit_of
from penstock.queues.beats import QueueBeats
from penstock.queues.context import JobContext
from penstock.queues.counts import Counts
from penstock.queues.hand import Hand
from penstock.queues.items import Item
from penstock.queues.life import Life
from penstock.queues.lost_lanes import relist_known_lanes
from penstock.queues.performer import Performer
from penstock.queues.reaper import Reaper
from penstock.queues.tending import Tender
from penstock.queues.wakeups import Wakeups
from penstock.queues.work import Work
from penstock.quiet import RateLimitedLog
from penstock.redis.wire import Argument
from penstock.runtime.backoff import retry_delay_s
from penstock.runtime.heartbeat_thread import Beat, HeartbeatThread
from penstock.runtime.service import Service
from penstock.runtime.waiting import happens_within

if TYPE_CHECKING:
    from penstock.queues.queue import Queue

__all__ = ["QueueConsumer", "places_of"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)


def places_of(queue: Queue, concurrency: int | None) -> int:
    """How many jobs of a queue a worker runs at once; `concurrency` is what the worker says."""
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
        beats: QueueBeats,
        tender: Tender,
        wakeups: Wakeups,
        resolver: Resolver,
        concurrency: int | None = None,
    ) -> None:
        super().__init__(f"queue {queue.name}")
        self.queue, self.counts = queue, Counts()
        client, settings = queue.client, queue.client.settings.queues
        self._client, self._settings = client, settings
        self._worker_id, self._lives = worker_id, 0
        self._beats = beats
        self._heartbeats, self._tender, self._wakeups = heartbeats, tender, wakeups
        self._places = places_of(queue, concurrency)
        self._performers = queue.performers()
        self._raw = queue.raw_performer()
        performers = [one for one in (*self._performers.values(), self._raw) if one is not None]
        self._tracks = queue.options.status or any(one.tracked for one in performers)
        self._only_task = len(performers) == 1 and performers[0].concurrency is not None
        self._work = Work(
            queue.codec,
            self.counts,
            self._performer_of,
            queue.options.retry,
            unknown_s=settings.unknown_s,
            most_result=settings.max_result_bytes,
            places=self._places,
            resolver=resolver,
            failure_log=FailureLog("queue", queue.name, client.settings),
        )
        self._reaper = Reaper(client, queue.codec, queue.keyring, self._work.policy_of, self.counts)
        self._trouble: str | None = "has not begun yet"
        self._life: Life | None = None
        self._was_given_up = False

    def trouble(self) -> str | None:
        foreign = self._life and self._life.foreign
        trouble = self._trouble or foreign or self._work.threads.trouble()
        return f"queue {self.queue.name}: {trouble}" if trouble and not self.ended else None

    @property
    def has_aside(self) -> bool:
        """Whether it has set jobs aside, over the limits of their tasks, that are not back yet."""
        return self._life is not None and self._life.limits.has_aside

    @property
    def jobs(self) -> list[JobContext]:
        """The jobs whose functions are running."""
        return list(self._life.slots.running) if self._life else []

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
                    await self._one_life()
                    failures = 0
                except ServerError as error:
                    if not error.transient:
                        raise
                    failures += 1
                    self._note(error)
                    await happens_within(self.stop_asked, retry_delay_s(failures), SYSTEM_CLOCK)
        finally:
            await self._work.close()

    # ---- one life as a member

    async def _one_life(self) -> None:
        """Be a member of the queue until asked to stop, or until given up as dead."""
        self._lives += 1
        hand = Hand(
            self._client,
            self.queue.codec,
            self.queue.keyring,
            f"{self._worker_id}.{self._lives}",
            self.counts,
            self._beats,
        )
        hand.first_fields = self._first_fields
        await hand.join()
        if self._was_given_up:  # it stood still, most likely, and may do so again
            hand.pulse.stand_still()
        life = Life(
            self.queue,
            hand,
            self._work,
            self._reaper,
            places=self._places,
            tracks=self._tracks,
            only_task=self._only_task,
            tender=self._tender,
            wakeups=self._wakeups,
            stop_asked=self.stop_asked,
            note=self._note,
        )
        self._life = life
        beat = Beat(self.name, self._settings.beat_s, hand.beat)
        self._heartbeats.add(beat)
        self._note(None)
        try:
            await life.run()
        finally:
            self._life, self._was_given_up = None, hand.lost
            self._heartbeats.remove(beat)

    def _first_fields(self, job: JobContext) -> list[Argument]:
        limit = limit_of(job.item, self._work.policy_of(job.item))
        return self.queue.found_fields(job.item, job.id, job.lane, limit)

    def _performer_of(self, item: Item) -> Performer | None:
        if item.task:
            performer = self._performers.get(item.task)
            if performer is not None:
                return performer
        return self._raw

    def _note(self, error: PenstockError | None) -> None:
        if error is None:
            self._trouble = None
            return
        self._trouble = str(error)
        quiet.warning(f"{self.name} {type(error).__name__}", "%s: %s", self.name, error)
