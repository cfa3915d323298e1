"""`QueueAdmin`: everything that people do to queues."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum

from penstock.delivery.audit import Act, default_who, read_acts
from penstock.delivery.payloads import SHOWN_BYTES
from penstock.delivery.times import wait_s
from penstock.errors import InvalidJob, JobMissing
from penstock.queues.choice import MOST_AT_ONCE, checked_id, whole
from penstock.queues.dead_letters import QueueDeadLetters
from penstock.queues.deletion import delete_queue
from penstock.queues.facts import list_queues, queue_workers, read_facts
from penstock.queues.in_hand import read_claims, wait_until_idle
from penstock.queues.lane_pages import LanePages
from penstock.queues.lanes import FIXED, fair_lanes, lane_named
from penstock.queues.moving import Move
from penstock.queues.purging import purge_delayed, purge_lane
from penstock.queues.records import JobRecord
from penstock.queues.search import JobState, read_job, search_jobs
from penstock.queues.showing import show_job
from penstock.queues.views import (
    ClaimView,
    JobPage,
    JobView,
    QueueFacts,
    QueueLine,
    QueueWorkerView,
)
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.keys import QueueKeyring

__all__ = ["Cancelled", "QueueAdmin"]

HEAVIEST = 1_000
_MOST_LIMIT = 1_000_000


class Cancelled(StrEnum):
    """What became of a job that was to be cancelled."""

    CANCELLED = "cancelled"
    """It had not begun, and never will."""
    ASKED = "asked"
    """It runs, and was asked to stop."""
    ENDED = "ended"
    """It had ended before."""


class QueueAdmin:
    """Shows, pauses, empties, moves and deletes queues and their jobs.

    A queue that was never used has zeros and `known=False`; a server that cannot be asked is a
    `ServerError`, a name that no queue can have `InvalidName`. A lane is "" (the plain list), a
    priority or the group of a fair lane. Each act is on record; `who` names the person there;
    without it, that is this process's user and host.
    """

    def __init__(self, client: Client, codec: Codec) -> None:
        self._client, self._codec = client, codec

    # --- looking

    async def list(self) -> list[QueueLine]:
        """Every registered queue by name. Two round trips, O(queues)."""
        return await list_queues(self._client)

    async def facts(self, queue: str) -> QueueFacts:
        """How a queue stands. Two round trips; it takes no longer if more jobs wait."""
        return await read_facts(self._client, self._codec, queue)

    async def workers(self, queue: str) -> list[QueueWorkerView]:
        """Workers of a queue, those given up as dead last. Two round trips, O(workers)."""
        return await queue_workers(self._client, queue)

    async def claims(self, queue: str, worker: str, count: int = 100) -> list[ClaimView]:
        """What a worker has in hand, the oldest claims first. Two round trips, O(its claims)."""
        keys = self._keys(queue)
        whole("count", count, 1, MOST_AT_ONCE)
        return await read_claims(self._client, self._codec, keys, worker, count)

    async def peek(
        self,
        queue: str,
        lane: str = "",
        start: int = 0,
        count: int = 100,
        *,
        most_bytes: int = SHOWN_BYTES,
    ) -> list[JobView]:
        """Jobs that wait in a lane, up to 1,000, the next to be claimed first.

        A round trip, and one per page of 200 or fewer. It claims nothing.
        """
        keys = self._keys(queue)
        whole("start", start, 0)
        whole("count", count, 1, MOST_AT_ONCE)
        pages = LanePages(self._client, self._codec, keys, _one_lane(keys, lane))
        left = min(count, await pages.count() - start)
        jobs: list[JobView] = []
        while len(jobs) < left:
            place = start + len(jobs)
            page = await pages.page(place, left - len(jobs))
            if not page:
                break
            jobs += [
                show_job(item, lane=lane, place=place + at, most_bytes=most_bytes)
                for at, item in enumerate(page)
            ]
        return jobs

    async def job(self, queue: str, job_id: str) -> JobRecord:
        """The record of a job; `JobMissing` if it has none (any more). One round trip."""
        return await read_job(self._client, queue, job_id)

    async def jobs(
        self,
        queue: str,
        *,
        state: JobState | None = None,
        name: str | None = None,
        error: str | None = None,
        since: datetime | float | None = None,
        until: datetime | float | None = None,
        cursor: str | None = None,
        count: int = 100,
    ) -> JobPage:
        """Search jobs that have a record: state by state, the newest first.

        `name` and `error` are parts of the task's name and of the error's text or class; `since`
        and `until` say when the state was taken. Two round trips per 100 jobs looked at, 10,000 at
        most: where few match, a page is short and its cursor goes on. A cursor stays good while
        jobs come and go.
        """
        return await search_jobs(
            self._client,
            queue,
            state=state,
            name=name,
            error=error,
            since=since,
            until=until,
            cursor=cursor,
            count=count,
        )

    def dead_letters(self, queue: str, *, overflow: bool = False) -> QueueDeadLetters:
        """Dead letters of a queue or, with `overflow`, jobs moved aside when it was full."""
        return QueueDeadLetters(self._client, self._codec, queue, overflow=overflow)

    async def audit(self, queue: str, count: int = 100) -> list[Act]:
        """What people did to a queue and its letters, the newest first. One round trip."""
        return await read_acts(self._client, self._keys(queue).audit, count)

    # --- stopping and going on

    async def pause(self, queue: str, lane: str | None = None, *, who: str | None = None) -> bool:
        """Let no job of a queue, or of one of its lanes, begin; False if that was so.

        Jobs in hand run on, new ones are taken in. One round trip.
        """
        keys = self._keys(queue)
        kind, name = lane_named(keys, lane)
        return await self._client.scripts.pause_lane(
            keys=keys, who=who or default_who(), kind=kind, lane=name
        )

    async def resume(self, queue: str, lane: str | None = None, *, who: str | None = None) -> bool:
        """Let jobs begin again, of a lane that was parked, too; False if they did. One round trip.

        A lane that was paused for itself stays so when its queue is resumed.
        """
        keys = self._keys(queue)
        kind, name = lane_named(keys, lane)
        return await self._client.scripts.resume_lane(
            keys=keys, who=who or default_who(), kind=kind, lane=name
        )

    async def park(
        self, queue: str, group: str, for_s: float | timedelta, *, who: str | None = None
    ) -> int:
        """Keep a fair lane out of its turns for so many seconds.

        Returns until when, in the server's epoch ms; 0 if it is paused and stays so.
        """
        keys = self._keys(queue)
        for_ms = round(_seconds("for_s", for_s) * 1000)
        return await self._client.scripts.park_lane(
            keys=keys, who=who or default_who(), lane=keys.lane(group), for_ms=for_ms
        )

    async def set_weight(
        self, queue: str, group: str, weight: int, *, who: str | None = None
    ) -> None:
        """Let a fair lane have `weight` jobs in one turn, 1 to 1,000. One round trip."""
        keys = self._keys(queue)
        whole("weight", weight, 1, HEAVIEST)
        await self._client.scripts.weigh_lane(
            keys=keys, who=who or default_who(), lane=keys.lane(group), weight=weight
        )

    async def set_limits(
        self,
        queue: str,
        *,
        limit: int | None = None,
        lane_limit: int | None = None,
        who: str | None = None,
    ) -> None:
        """Say how many jobs may be in hand at once, over all workers and in each fair lane.

        0 is any number, None leaves it. A worker that starts with limits of its own sets those.
        Two round trips.
        """
        keys = self._keys(queue)
        told = {"limit": limit, "lane_limit": lane_limit}
        given = {name: value for name, value in told.items() if value is not None}
        for name, value in given.items():
            whole(name, value, 0, _MOST_LIMIT)
        if not given:
            raise InvalidJob("set_limits: give limit, lane_limit or both")
        texts = {name: str(given.get(name, "")) for name in told}
        await self._client.scripts.declare_queue(keys=keys, side="", levels="", **texts)
        detail = ", ".join(f"{name} {value}" for name, value in given.items())
        await self._record(keys, who, "limit", 1, detail)

    async def drain(self, queue: str, timeout: float | timedelta | None = None) -> bool:  # noqa: ASYNC109  it is an answer
        """Wait until nothing waits, is delayed or in hand; False if that takes longer.

        Stops nobody from adding jobs. Three round trips, twice a second.
        """
        timeout_s = None if timeout is None else _seconds("timeout", timeout)
        return await wait_until_idle(self._client, self._keys(queue), timeout_s)

    # --- jobs

    async def purge(
        self,
        queue: str,
        lane: str | None = None,
        *,
        delayed: bool = False,
        who: str | None = None,
    ) -> int:
        """Throw away what waits in a queue, or in one lane, and with `delayed` what is not yet due.

        Their records say `cancelled`, their unique keys are free. Jobs in hand and those added
        meanwhile stay. Returns how many; two round trips per page of 200 or fewer, O(jobs).
        """
        keys = self._keys(queue)
        kind, name = lane_named(keys, lane)
        everything = kind == "queue"
        lanes = (*FIXED, *await fair_lanes(self._client, keys)) if everything else (name,)
        removed = 0
        try:
            for one in lanes:
                removed += await purge_lane(self._client, self._codec, keys, one)
            if delayed:
                which = None if everything else name
                removed += await purge_delayed(self._client, self._codec, keys, which)
        finally:
            if removed:
                detail = "" if everything else f"lane {lane}"
                await self._record(keys, who, "purge", removed, detail)
        return removed

    async def move(
        self,
        queue: str,
        to: str,
        *,
        count: int | None = None,
        ids: Iterable[str] | None = None,
        lane: str = "",
        to_lane: str | None = None,
        who: str | None = None,
    ) -> int:
        """Move waiting jobs of a lane to the back of another queue; how many were moved.

        The next `count` jobs, those of `ids` (`JobMissing` if none of them waits there), or all
        that wait now. `to_lane` is as `lane` unless told. Records end as `cancelled` here and begin
        there. The other queue's size is no limit.

        If this process dies half-way, the jobs in its hand return to `queue`: a few may be in both,
        none is lost. Five round trips per page of 200 or fewer; for `ids`, O(waiting jobs).
        """
        keys, target = self._keys(queue), self._keys(to)
        if queue == to:
            raise InvalidJob(f"move: queue {queue!r} is where the jobs are already")
        if count is not None and ids is not None:
            raise InvalidJob("move: give count or ids, not both")
        if count is not None:
            whole("count", count, 1)
        if isinstance(ids, str):
            raise InvalidJob(f"ids = {ids[:60]!r}: expected a list of ids")
        wanted = None if ids is None else {checked_id(id_) for id_ in ids}
        move = Move(
            self._client,
            self._codec,
            keys,
            target,
            lane=_one_lane(keys, lane),
            to_lane=_one_lane(target, lane if to_lane is None else to_lane),
            who=who or default_who(),
        )
        await self._client.call("SADD", self._client.keys.queues().registry, to)
        await move.run(count, wanted)
        return move.moved

    async def cancel(self, queue: str, job_id: str, *, who: str | None = None) -> Cancelled:
        """Cancel a job that has a record, or ask it to stop if it runs; else `JobMissing`.

        Two round trips.
        """
        keys = self._keys(queue)
        reply = await self._client.scripts.cancel_job(
            keys=keys,
            record=keys.record(checked_id(job_id)),
            job_id=keys.record_name(job_id),
            keep_ms=round(self._client.settings.queues.keep_s * 1000),
        )
        if reply < 0:
            raise JobMissing(queue, job_id)
        done = (Cancelled.ENDED, Cancelled.ASKED, Cancelled.CANCELLED)[reply]
        if done is not Cancelled.ENDED:
            await self._record(keys, who, "cancel", 1, job_id)
        return done

    async def retry(self, queue: str, job_id: str, *, who: str | None = None) -> None:
        """Queue a failed job again, whose letter is there; else `JobMissing`. O(letters)."""
        done = await self.dead_letters(queue).requeue([job_id], who=who)
        if not done.requeued:
            raise JobMissing(queue, job_id)

    async def delete(self, queue: str) -> bool:
        """Delete a queue with its jobs, letters, records and schedules; False if there is none.

        `QueueError` while it has workers. If it ends half-way, delete it again. O(jobs).
        """
        return await delete_queue(self._client, self._codec, queue)

    # --- inside

    def _keys(self, queue: str) -> QueueKeyring:
        return QueueKeyring.of(self._client.keys, queue)

    async def _record(
        self, keys: QueueKeyring, who: str | None, what: str, count: int, detail: str
    ) -> None:
        await self._client.scripts.note_queue_act(
            keys=keys, who=who or default_who(), what=what, count=count, detail=detail
        )


def _one_lane(keys: QueueKeyring, lane: str) -> str:
    kind, name = lane_named(keys, lane)
    if kind == "queue":
        raise InvalidJob("lane: expected a lane; '' is the plain list")
    return name


def _seconds(name: str, value: float | timedelta) -> float:
    try:
        seconds = wait_s(value, name)
    except (TypeError, ValueError) as error:
        raise InvalidJob(str(error)) from None
    asked = value.total_seconds() if isinstance(value, timedelta) else value
    if asked < 0:
        raise InvalidJob(f"{name} = {value!r}: expected 0 or more")
    return seconds
