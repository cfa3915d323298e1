"""What a member does for its queue beside running jobs, mostly when the tender asks it to."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from penstock.delivery.queries import ask_typed
from penstock.errors import ServerError
from penstock.queues.storage.foreign_keys import foreign_among, type_commands
from penstock.queues.storage.lanes import FIXED
from penstock.queues.worker.concurrency import ExclusiveRun
from penstock.queues.worker.membership import Membership
from penstock.queues.worker.reaper import Reaper
from penstock.queues.worker.tender import Tender
from penstock.redis.keys.family import RedisType
from penstock.throttled_log import RateLimitedLog

__all__ = ["QueueUpkeep"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

# After this an outage is over, if no worker was silent in the end: the next one is another.
_OVER_S = 1.0
# Heartbeats that the others get before a worker that has just joined gives any of them up.
_BEATS_FIRST = 2
_TYPES_EVERY_S = 5.0
# Calls in a row by which jobs whose records have gone leave the indexes.
_MOST_SWEEPS = 50


class QueueUpkeep:
    """Returns jobs of dead workers, removes stale index entries, and reports foreign keys.

    `when_jobs_wait` and `when_troubled` are callbacks to the member: the tender, which serves all
    queues of the process, often learns of jobs and of trouble with the server before it does.
    """

    def __init__(
        self,
        membership: Membership,
        reaper: Reaper,
        exclusive: ExclusiveRun,
        tender: Tender,
        *,
        when_jobs_wait: Callable[[], None],
        when_troubled: Callable[[ServerError], None],
    ) -> None:
        self.keys, self.jobs_wait = membership.keys, when_jobs_wait
        self.foreign = ""
        """Which of the queue's keys hold something of another type."""
        self._membership, self._reaper, self._exclusive = membership, reaper, exclusive
        self._tender, self._when_troubled = tender, when_troubled
        self._client, self._settings = membership.client, membership.client.settings.queues
        # All may be silent because the server was away, which a newcomer has not seen.
        beats_s = _BEATS_FIRST * self._settings.beat_s
        self._reap_from = time.monotonic() + min(beats_s, self._settings.silence_s)
        self._reap_after = self._types_after = 0.0
        self._reaping, self._was_late = asyncio.Lock(), asyncio.Event()
        membership.liveness.when_late = self._was_late.set
        if membership.liveness.stood_still:
            self._was_late.set()
        membership.when_untended = tender.take_over
        membership.when_foreign = self._note_foreign

    def troubled(self, error: ServerError) -> None:
        """Give no worker up for a while: others may have had the same trouble with the server."""
        now = time.monotonic()
        if self._reap_after < now - _OVER_S:
            self._reap_after = now + self._settings.silence_s
        self._when_troubled(error)

    async def return_claims_of_the_dead(self) -> None:
        """See `Tender`.

        When the server could not be reached, others could not either: before any is given up, they
        get the time for a heartbeat. More trouble within that time does not extend it.
        """
        async with self._reaping:
            try:
                if time.monotonic() >= max(self._reap_after, self._reap_from):
                    # A job that runs alone must not be charged for what is read beside it.
                    await self._exclusive.until_over()
                    await self._reap()
            except ServerError as error:
                self._failed(error)
            finally:
                self._membership.liveness.release()

    async def _reap(self) -> None:
        """Return what dead workers had. No job begins meanwhile: it might block the event loop."""
        member, self._reap_after = self._membership, 0.0
        self._exclusive.begin_reading()
        try:
            dead = await self._reaper.find_dead(member.worker, member.liveness.paused_ms)
            if dead:
                member.liveness.hold()
                await self._reaper.return_jobs(dead, member.now_ms, member.worker)
        finally:
            self._exclusive.end_reading()

    async def sweep_records(self) -> None:
        """Forget jobs whose records have gone; while jobs end, their own scripts do so."""
        try:
            for _ in range(_MOST_SWEEPS):
                if not await self._membership.scripts.sweep_records(keys=self.keys):
                    return
        except ServerError as error:
            self._failed(error)

    async def report_foreign_keys(self, *, found: bool) -> None:
        """Report keys of the queue that another program has made something else of.

        What can be claimed is; jobs that belong there wait until the key is moved away.
        """
        if found and time.monotonic() < self._types_after:
            return
        self._types_after = time.monotonic() + _TYPES_EVERY_S
        keys = self.keys
        expected = {
            **dict.fromkeys((*map(keys.list_of, FIXED), keys.ring), RedisType.LIST),
            **dict.fromkeys((keys.delayed, keys.parked), RedisType.ZSET),
            keys.state: RedisType.HASH,
        }
        try:
            kinds = await ask_typed(self._client, type_commands(expected))
        except ServerError as error:
            self.troubled(error)
            return
        self.foreign = "; ".join(map(str, foreign_among(expected, kinds)))
        if self.foreign:
            quiet.error(
                f"foreign {keys.queue}",
                "queue %s: %s; see `penstock queue repair %s`",
                keys.queue,
                self.foreign,
                keys.queue,
            )

    async def look_when_late(self) -> None:
        """Look for dead workers before anything starts, if silent for too long. Endless."""
        while True:
            await self._was_late.wait()
            self._was_late.clear()
            self._tender.look_soon(self.keys.queue)
            try:
                await self.return_claims_of_the_dead()
                await self._watch_silent_workers()
            finally:
                self._membership.liveness.resume()

    async def _watch_silent_workers(self) -> None:
        """Wait for the end of others that are silent, if this process stands still repeatedly.

        What it starts next may stop this process for as long as what it ran last, so if no other
        worker can notice that one of them is dead, it is waited for: a heartbeat, or its end. A
        worker that was given up itself looks for the dead in any case, as soon as it may.
        """
        member, settings = self._membership, self._settings
        stood_still, member.liveness.stood_still = member.liveness.stood_still, False
        until = time.monotonic() + 2 * settings.silence_s
        while stood_still and not member.lost and time.monotonic() < until:
            may_reap = time.monotonic() >= self._reap_from
            try:
                if may_reap and not await self._reaper.alone_can_notice(
                    member.worker, member.now_ms
                ):
                    return
            except ServerError as error:
                self.troubled(error)
                return
            await asyncio.sleep(settings.beat_s)
            await self.return_claims_of_the_dead()

    def _note_foreign(self, found: bool) -> None:
        self._tender.note_foreign(self.keys.queue, found)

    def _failed(self, error: ServerError) -> None:
        if not error.transient:
            logger.error("queue %s: cannot be looked after", self.keys.queue, exc_info=error)
        self.troubled(error)
