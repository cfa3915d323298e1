"""`QueueAdmin`: inspecting and changing queues and their jobs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum

from penstock.delivery.audit import Act, default_who, read_acts
from penstock.delivery.foreign_keys import ForeignKey
from penstock.delivery.payloads import SHOWN_BYTES
from penstock.delivery.queries import exact
from penstock.delivery.times import wait_s
from penstock.errors import InvalidJob, JobMissing
from penstock.queues.admin.claimed_jobs import read_claims, wait_until_idle
from penstock.queues.admin.job_search import read_job, search_jobs
from penstock.queues.admin.moving import Move
from penstock.queues.admin.purging import delete_queue, purge_delayed, purge_lanes
from penstock.queues.admin.status import list_queues, queue_workers, read_facts
from penstock.queues.admin.views import (
    ClaimView,
    JobPage,
    JobView,
    QueueFacts,
    QueueLine,
    QueueWorkerView,
    show_job,
)
from penstock.queues.dead_letters.dead_letters import QueueDeadLetters
from penstock.queues.dead_letters.filters import MOST_AT_ONCE, checked_id, whole
from penstock.queues.storage.admin_scripts import QueueAdminScripts
from penstock.queues.storage.foreign_keys import delete_foreign, find_foreign, rename_foreign
from penstock.queues.storage.job_record import JobRecord, JobState
from penstock.queues.storage.keys import QueueKeyring, lane_name
from penstock.queues.storage.lanes import FIXED, fair_lanes, lane_named, one_lane, shown_lane
from penstock.queues.storage.pages import LanePages
from penstock.queues.storage.registration import register_queue
from penstock.queues.storage.scripts import CancelStatus, QueueScripts
from penstock.queues.worker.lost_lanes import relist_lanes
from penstock.redis.client import Client
from penstock.redis.codec import Codec

__all__ = ["Cancelled", "QueueAdmin"]

MAX_WEIGHT = 1_000
_MAX_LIMIT = 1_000_000


class Cancelled(StrEnum):
    """Result of cancelling a job."""

    CANCELLED = "cancelled"
    """It had not started, and never will."""
    ASKED = "asked"
    """It is running, and was asked to stop."""
    ENDED = "ended"
    """It had ended before."""


class QueueAdmin:
    """Inspects, pauses, purges, moves and deletes queues and their jobs: `app.queues`.

    A queue that was never used has zeros and `known=False`. An unreachable server raises
    `ServerError`, a name that no queue can have `InvalidName`. A lane is "" (the plain list), a
    priority or the group of a fair lane; bytes are a lane's name as spelled in keys. Each change is
    written to the queue's audit log under `who`, by default this process's user and host.
    """

    def __init__(self, client: Client, codec: Codec) -> None:
        self._client, self._codec = client, codec

    # --- reading

    async def list(self) -> list[QueueLine]:
        """Every registered queue by name. Two round trips, O(queues)."""
        return await list_queues(self._client)

    async def facts(self, queue: str) -> QueueFacts:
        """Lengths, lanes, workers and counters of a queue. Two round trips at any queue length."""
        return await read_facts(self._client, self._codec, queue)

    async def workers(self, queue: str) -> list[QueueWorkerView]:
        """Workers of a queue, dead ones last. Two round trips, O(workers)."""
        return await queue_workers(self._client, queue)

    async def claims(self, queue: str, worker: str, limit: int = 100) -> list[ClaimView]:
        """Jobs that a worker has claimed, the oldest claims first. O(its claims).

        One round trip, and two per page of 100 or fewer.
        """
        keys = self._keys(queue)
        whole("limit", limit, 1, MOST_AT_ONCE)
        return await read_claims(self._client, self._codec, keys, worker, limit)

    async def peek(
        self,
        queue: str,
        lane: str | bytes = "",
        start: int = 0,
        limit: int = 100,
        *,
        max_bytes: int = SHOWN_BYTES,
    ) -> list[JobView]:
        """Jobs waiting in a lane, up to 1,000, the next to be claimed first. Claims nothing.

        One round trip, and one per page of 200 or fewer.
        """
        keys = self._keys(queue)
        whole("start", start, 0)
        whole("limit", limit, 1, MOST_AT_ONCE)
        pages = LanePages(self._client, self._codec, keys, one_lane(lane))
        shown = lane if isinstance(lane, str) else shown_lane(exact(lane))
        left = min(limit, await pages.count() - start)
        jobs: list[JobView] = []
        while len(jobs) < left:
            place = start + len(jobs)
            page = await pages.page(place, left - len(jobs))
            if not page:
                break
            jobs += [
                show_job(item, lane=shown, place=place + at, max_bytes=max_bytes)
                for at, item in enumerate(page)
            ]
        return jobs

    async def job(self, queue: str, job_id: str) -> JobRecord:
        """The record of a job; `JobMissing` if there is none (any more). One round trip."""
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
        limit: int = 100,
    ) -> JobPage:
        """Search jobs that have a record: state by state, the newest first.

        `name` is part of the task's name, `error` part of the error's text or class; `since` and
        `until` bound the time at which the job entered its state. Three round trips per 100 jobs
        examined, up to 10,000, and more for large results: where few match, or results exceed
        64 MiB, a page is short and its cursor continues. A cursor stays valid while jobs come and
        go.
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
            limit=limit,
        )

    def dead_letters(self, queue: str, *, overflow: bool = False) -> QueueDeadLetters:
        """Dead letters of a queue or, with `overflow`, jobs moved aside when it was full."""
        return QueueDeadLetters(self._client, self._codec, queue, overflow=overflow)

    async def foreign_keys(self, queue: str) -> list[ForeignKey]:
        """Keys of another type under a queue's key names. Two round trips.

        Workers cannot use them and leave them alone: see `rename_foreign` and `delete_foreign`.
        """
        return await find_foreign(self._client, self._keys(queue))

    async def audit(self, queue: str, limit: int = 100) -> list[Act]:
        """Audit log of a queue and its letters, the newest entries first. One round trip."""
        return await read_acts(self._client, self._keys(queue).audit, limit)

    # --- pausing and limits

    async def pause(
        self, queue: str, lane: str | bytes | None = None, *, who: str | None = None
    ) -> bool:
        """Stop a queue, or one of its lanes, from starting jobs; False if it was paused already.

        Running jobs continue, new ones are accepted. One round trip.
        """
        keys = self._keys(queue)
        kind, name = lane_named(lane)
        return await QueueAdminScripts.of(self._client).pause_lane(
            keys=keys, who=who or default_who(), kind=kind, lane=name
        )

    async def resume(
        self, queue: str, lane: str | bytes | None = None, *, who: str | None = None
    ) -> bool:
        """Start jobs again, also of a parked lane; False if it was not paused. One round trip.

        A lane that was paused by itself stays paused when its queue is resumed.
        """
        keys = self._keys(queue)
        kind, name = lane_named(lane)
        return await QueueAdminScripts.of(self._client).resume_lane(
            keys=keys, who=who or default_who(), kind=kind, lane=name
        )

    async def park(
        self, queue: str, group: str, for_s: float | timedelta, *, who: str | None = None
    ) -> int:
        """Skip the turns of a fair lane for `for_s` seconds.

        Returns the end in the server's epoch ms; 0 if the lane is paused and stays so.
        """
        keys = self._keys(queue)
        for_ms = round(_seconds("for_s", for_s) * 1000)
        return await QueueAdminScripts.of(self._client).park_lane(
            keys=keys, who=who or default_who(), lane=lane_name(group), for_ms=for_ms
        )

    async def set_weight(
        self, queue: str, group: str, weight: int, *, who: str | None = None
    ) -> None:
        """Set how many jobs a fair lane gets per turn, 1 to 1,000. One round trip."""
        keys = self._keys(queue)
        whole("weight", weight, 1, MAX_WEIGHT)
        await QueueAdminScripts.of(self._client).weigh_lane(
            keys=keys, who=who or default_who(), lane=lane_name(group), weight=weight
        )

    async def set_limits(
        self,
        queue: str,
        *,
        limit: int | None = None,
        lane_limit: int | None = None,
        who: str | None = None,
    ) -> None:
        """Set how many jobs may run at once over all workers, and in each fair lane.

        0 is no limit, None leaves it unchanged. A worker that starts with limits of its own sets
        those. Two round trips.
        """
        keys = self._keys(queue)
        limits = {"limit": limit, "lane_limit": lane_limit}
        given = {name: value for name, value in limits.items() if value is not None}
        for name, value in given.items():
            whole(name, value, 0, _MAX_LIMIT)
        if not given:
            raise InvalidJob("set_limits: give limit, lane_limit or both")
        texts = {name: str(given.get(name, "")) for name in limits}
        await QueueScripts.of(self._client).declare_queue(keys=keys, side="", levels="", **texts)
        detail = ", ".join(f"{name} {value}" for name, value in given.items())
        await self._record(keys, who, "limit", 1, detail)

    async def drain(self, queue: str, timeout_s: float | timedelta | None = None) -> bool:
        """Wait until no job is waiting, delayed or running; False after `timeout_s`.

        New jobs are still accepted. Three round trips, twice a second.
        """
        wait = None if timeout_s is None else _seconds("timeout_s", timeout_s)
        return await wait_until_idle(self._client, self._keys(queue), wait)

    # --- jobs

    async def purge(
        self,
        queue: str,
        lane: str | bytes | None = None,
        *,
        delayed: bool = False,
        who: str | None = None,
    ) -> int:
        """Delete the waiting jobs of a queue, or of one lane, and with `delayed` delayed ones.

        Their records become `cancelled`, their unique keys are freed. Running jobs and those added
        meanwhile stay. Returns how many; two round trips per page of 200 or fewer, O(jobs).
        """
        keys = self._keys(queue)
        kind, name = lane_named(lane)
        everything = kind == "queue"
        lanes = (*FIXED, *await fair_lanes(self._client, keys)) if everything else (name,)
        counts: list[int] = []
        try:
            passed_over = await purge_lanes(self._client, self._codec, keys, lanes, counts)
            if delayed:
                which = None if everything else name
                counts.append(await purge_delayed(self._client, self._codec, keys, which))
        finally:
            if removed := sum(counts):
                detail = "" if everything else f"lane {shown_lane(name)}"
                await self._record(keys, who, "purge", removed, detail)
        if passed_over is not None:
            raise passed_over
        return removed

    async def move(
        self,
        queue: str,
        to: str,
        *,
        limit: int | None = None,
        ids: Iterable[str] | None = None,
        lane: str | bytes = "",
        to_lane: str | bytes | None = None,
        who: str | None = None,
    ) -> int:
        """Move waiting jobs of a lane to the back of another queue; returns how many.

        The next `limit` jobs, those of `ids` (`JobMissing` if none of them waits there), or all
        that wait now. `to_lane` defaults to `lane`. Records end as `cancelled` here and begin
        there. Limits of the other queue do not apply.

        If this process dies half-way, the jobs that it has claimed return to `queue`: a few may be
        in both, none is lost. Five round trips per page of up to 200; for `ids`, O(waiting jobs).
        """
        keys, target = self._keys(queue), self._keys(to)
        if queue == to:
            raise InvalidJob(f"move: queue {queue!r} is where the jobs are already")
        if limit is not None and ids is not None:
            raise InvalidJob("move: give limit or ids, not both")
        if limit is not None:
            whole("limit", limit, 1)
        if isinstance(ids, str):
            raise InvalidJob(f"ids = {ids[:60]!r}: expected a list of ids")
        wanted = None if ids is None else {checked_id(id_) for id_ in ids}
        move = Move(
            self._client,
            self._codec,
            keys,
            target,
            lane=one_lane(lane),
            to_lane=one_lane(lane if to_lane is None else to_lane),
            who=who or default_who(),
        )
        await register_queue(self._client, to)
        await move.run(limit, wanted)
        return move.moved

    async def cancel(self, queue: str, job_id: str, *, who: str | None = None) -> Cancelled:
        """Cancel a job that has a record, or ask it to stop if it is running; else `JobMissing`.

        Two round trips.
        """
        keys = self._keys(queue)
        status = await QueueScripts.of(self._client).cancel_job(
            keys=keys,
            record=keys.record(checked_id(job_id)),
            job_id=keys.record_name(job_id),
            keep_ms=round(self._client.settings.queues.keep_s * 1000),
        )
        if status is CancelStatus.MISSING:
            raise JobMissing(queue, job_id)
        if status is not CancelStatus.ENDED:
            await self._record(keys, who, "cancel", 1, job_id)
        return Cancelled[status.name]

    async def replay(self, queue: str, job_id: str, *, who: str | None = None) -> None:
        """Replay the dead letter of a failed job; `JobMissing` without one. O(letters)."""
        result = await self.dead_letters(queue).replay([job_id], who=who)
        if not result.replayed:
            raise JobMissing(queue, job_id)

    async def delete(self, queue: str) -> bool:
        """Delete a queue with its jobs, letters, records and schedules; False if there is none.

        `QueueError` while it has workers. If it is interrupted, delete it again. O(jobs).
        """
        return await delete_queue(self._client, self._codec, queue)

    # --- foreign keys and lost lanes

    async def rename_foreign(
        self, queue: str, key: str, to: str, *, who: str | None = None
    ) -> None:
        """Rename a key that `foreign_keys` has found; `QueueError` if `to` exists.

        On a cluster the new name must be in the same hash slot. Six round trips.
        """
        keys = self._keys(queue)
        await rename_foreign(self._client, keys, key, to)
        await self._record(keys, who, "rename foreign key", 1, f"{key} to {to}")

    async def delete_foreign(self, queue: str, key: str, *, who: str | None = None) -> None:
        """Delete a key that `foreign_keys` has found, with its content. Seven round trips."""
        keys = self._keys(queue)
        await delete_foreign(self._client, keys, key)
        await self._record(keys, who, "delete foreign key", 1, key)

    async def relist_lanes(self, queue: str, *, who: str | None = None) -> int:
        """Give fair lanes that have jobs but lost their turns their turns back; returns how many.

        Needed where another program pushed to the list of such a lane, or removed the ring of
        turns. Scans all keys of the server.
        """
        keys = self._keys(queue)
        if relisted := await relist_lanes(self._client, keys):
            await self._record(keys, who, "relist lanes", relisted, "")
        return relisted

    def _keys(self, queue: str) -> QueueKeyring:
        return QueueKeyring.of(self._client.keys, queue)

    async def _record(
        self, keys: QueueKeyring, who: str | None, what: str, count: int, detail: str
    ) -> None:
        await QueueAdminScripts.of(self._client).note_queue_act(
            keys=keys, who=who or default_who(), what=what, count=count, detail=detail
        )


def _seconds(name: str, value: float | timedelta) -> float:
    try:
        seconds = wait_s(value, name)
    except (TypeError, ValueError) as error:
        raise InvalidJob(str(error)) from None
    given = value.total_seconds() if isinstance(value, timedelta) else value
    if given < 0:
        raise InvalidJob(f"{name} = {value!r}: expected 0 or more")
    return seconds
