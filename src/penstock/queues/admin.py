"""`QueueAdmin`: everything that people do to queues."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from enum import StrEnum

from penstock.delivery.audit import default_who
from penstock.delivery.looking import is_wrong_type
from penstock.delivery.times import wait_s
from penstock.errors import CommandRefused, InvalidJob, JobMissing
from penstock.queues.choice import checked_id, whole
from penstock.queues.deletion import delete_queue
from penstock.queues.foreign_keys import delete_foreign, rename_foreign
from penstock.queues.in_hand import wait_until_idle
from penstock.queues.lanes import FIXED, fair_lanes, lane_named, one_lane, shown_lane
from penstock.queues.looks import QueueLooks
from penstock.queues.lost_lanes import relist_lanes
from penstock.queues.moving import Move
from penstock.queues.purging import purge_delayed, purge_lane
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


class QueueAdmin(QueueLooks):
    """Shows, pauses, empties, moves and deletes queues and their jobs.

    A queue that was never used has zeros and `known=False`; a server that cannot be asked is a
    `ServerError`, a name that no queue can have `InvalidName`. A lane is "" (the plain list), a
    priority or the group of a fair lane; bytes are the name of a lane as it stands in keys. Each
    act is on record; `who` names the person there; without it, that is this process's user and
    host.
    """

    # --- stopping and going on

    async def pause(
        self, queue: str, lane: str | bytes | None = None, *, who: str | None = None
    ) -> bool:
        """Let no job of a queue, or of one of its lanes, begin; False if that was so.

        Jobs in hand run on, new ones are taken in. One round trip.
        """
        keys = self._keys(queue)
        kind, name = lane_named(keys, lane)
        return await self._client.scripts.pause_lane(
            keys=keys, who=who or default_who(), kind=kind, lane=name
        )

    async def resume(
        self, queue: str, lane: str | bytes | None = None, *, who: str | None = None
    ) -> bool:
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
        lane: str | bytes | None = None,
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
        removed, passed_over = 0, None
        try:
            for one in lanes:
                try:
                    removed += await purge_lane(self._client, self._codec, keys, one)
                except CommandRefused as error:
                    if not everything or not is_wrong_type(error):
                        raise
                    passed_over = error  # no lane keeps the others from being emptied
            if delayed:
                which = None if everything else name
                removed += await purge_delayed(self._client, self._codec, keys, which)
        finally:
            if removed:
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
        count: int | None = None,
        ids: Iterable[str] | None = None,
        lane: str | bytes = "",
        to_lane: str | bytes | None = None,
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
            lane=one_lane(keys, lane),
            to_lane=one_lane(target, lane if to_lane is None else to_lane),
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

    # --- keys in the way

    async def rename_foreign(
        self, queue: str, key: str, to: str, *, who: str | None = None
    ) -> None:
        """Rename a key that `foreign_keys` has found; `QueueError` if `to` exists.

        On a cluster the new name has to be in the same slot. Six round trips.
        """
        keys = self._keys(queue)
        await rename_foreign(self._client, keys, key, to)
        await self._record(keys, who, "rename foreign key", 1, f"{key} to {to}")

    async def delete_foreign(self, queue: str, key: str, *, who: str | None = None) -> None:
        """Delete a key that `foreign_keys` has found, with all that it holds. Seven round trips."""
        keys = self._keys(queue)
        await delete_foreign(self._client, keys, key)
        await self._record(keys, who, "delete foreign key", 1, key)

    async def relist_lanes(self, queue: str, *, who: str | None = None) -> int:
        """Let jobs of fair lanes be claimed that have lost their turns; how many lanes had.

        Another program has pushed to the list of such a lane, or removed the ring of turns. Walks
        over all keys of the server.
        """
        keys = self._keys(queue)
        if found := await relist_lanes(self._client, keys):
            await self._record(keys, who, "relist lanes", found, "")
        return found

    # --- inside

    async def _record(
        self, keys: QueueKeyring, who: str | None, what: str, count: int, detail: str
    ) -> None:
        await self._client.scripts.note_queue_act(
            keys=keys, who=who or default_who(), what=what, count=count, detail=detail
        )


def _seconds(name: str, value: float | timedelta) -> float:
    try:
        seconds = wait_s(value, name)
    except (TypeError, ValueError) as error:
        raise InvalidJob(str(error)) from None
    asked = value.total_seconds() if isinstance(value, timedelta) else value
    if asked < 0:
        raise InvalidJob(f"{name} = {value!r}: expected 0 or more")
    return seconds
