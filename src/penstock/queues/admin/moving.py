"""Moving waiting jobs to another queue.

The two queues may be on different nodes of a cluster, so it takes three steps: the jobs are claimed
as a worker claims them, added to the other queue, and released here. No worker claims them
meanwhile. If this process dies half-way, they return to where they came from once it has been
silent for `queues.silence_s`: jobs that were added by then are in both queues; none is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from penstock.errors import JobMissing, QueueError, Rejected, ServerError
from penstock.queues.storage.admin_scripts import QueueAdminScripts
from penstock.queues.storage.job_signatures import JobSignatures
from penstock.queues.storage.keys import QueueKeyring
from penstock.queues.storage.pages import LanePages
from penstock.queues.storage.scripts import QueueScripts
from penstock.queues.storage.stored_job import Item, job_names, new_id, unique_of, write_item
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.wire import Argument

__all__ = ["Move"]

_JOBS_PER_CALL: Final = 50
"""Jobs that one script moves: more would block the server for too long."""


class Move:
    """One call that moves jobs of a lane."""

    def __init__(
        self,
        client: Client,
        codec: Codec,
        keys: QueueKeyring,
        target: QueueKeyring,
        *,
        lane: str,
        to_lane: str,
        who: str,
    ) -> None:
        self.moved = 0
        self._client, self._codec, self._keys, self._target = client, codec, keys, target
        self._lane, self._to_lane, self._who = lane, to_lane, who
        self._signatures = JobSignatures.of(client, keys.queue)
        self._target_signatures = JobSignatures.of(client, target.queue)
        self._worker = f"mover-{new_id()}"
        self._number = 1
        self._keep_ms = round(client.settings.queues.keep_s * 1000)

    async def run(self, limit: int | None, ids: set[str] | None) -> None:
        """Move the first `limit` jobs, those of `ids`, or all that wait now."""
        pages = LanePages(self._client, self._codec, self._keys, self._lane)
        left, kept = await pages.count(), 0
        if limit is not None:
            left = min(left, limit)
        await QueueScripts.of(self._client).join_queue(keys=self._keys, worker=self._worker)
        try:
            while left > 0 and (ids is None or ids):
                page = await pages.page(kept, left)
                if not page:
                    break
                left -= len(page)
                chosen = [
                    (place, item)
                    for place, item in enumerate(page, start=kept)
                    if ids is None or item.id in ids
                ]
                kept += len(page) - len(chosen)
                await self._move(chosen)
                if ids is not None:
                    ids.difference_update(item.id for _, item in chosen)
        finally:
            with suppress(ServerError):  # its claims are returned after queues.silence_s
                await QueueScripts.of(self._client).leave_queue(
                    keys=self._keys, worker=self._worker
                )
        if ids and not self.moved:
            raise JobMissing(self._keys.queue, min(ids))

    async def _move(self, jobs: Sequence[tuple[int, Item]]) -> None:
        gone = 0
        while gone < len(jobs):
            part = jobs[gone : gone + _JOBS_PER_CALL]
            await QueueScripts.of(self._client).beat_queue(keys=self._keys, worker=self._worker)
            await self._move_part([(max(0, place - gone), item) for place, item in part])
            gone += len(part)

    async def _move_part(self, jobs: Sequence[tuple[int, Item]]) -> None:
        first = self._number
        self._number += len(jobs)
        asked: list[Argument] = []
        for place, item in jobs:
            asked += (item.data, place, job_names(self._keys, item)[0])
        waited = await QueueAdminScripts.of(self._client).take_items(
            keys=self._keys, worker=self._worker, lane=self._lane, first=first, items=asked
        )
        if waited is None:
            raise self._given_up()
        ending = f":{self._lane}" if self._lane else ""
        taken = {f"{first + at}{ending}": item for at, (_, item) in enumerate(jobs) if waited[at]}
        if not taken:
            return
        received: list[Argument] = []
        for item in taken.values():
            received += (self._signed(item), *job_names(self._target, item))
        try:
            await QueueAdminScripts.of(self._client).receive_jobs(
                keys=self._target,
                who=self._who,
                source=self._keys.queue,
                lane=self._to_lane,
                jobs=received,
            )
        except Rejected:
            back: list[Argument] = []
            for claim in taken:
                back += (claim, "", "")
            await QueueScripts.of(self._client).give_back(
                keys=self._keys, worker=self._worker, jobs=back
            )
            raise
        await self._release(taken)

    def _signed(self, item: Item) -> bytes:
        """The job with a signature for the other queue, if it has a valid one here."""
        here, there = self._signatures, self._target_signatures
        if here is None or there is None or item.fault or here.refusal(item) is not None:
            return item.data
        return write_item(item, there.signed_item(item, item.meta), self._codec)

    async def _release(self, taken: dict[str, Item]) -> None:
        released: list[Argument] = []
        for claim, item in taken.items():
            released += (claim, job_names(self._keys, item)[0], unique_of(self._keys, item))
        released_count = await QueueAdminScripts.of(self._client).hand_over(
            keys=self._keys,
            worker=self._worker,
            who=self._who,
            to=self._target.queue,
            keep_ms=self._keep_ms,
            jobs=released,
        )
        if released_count is None:
            raise self._given_up()
        self.moved += released_count

    def _given_up(self) -> QueueError:
        return QueueError(
            f"moving jobs of queue {self._keys.queue!r} took so long that their claim was given "
            "up: some of them may be in both queues"
        )
