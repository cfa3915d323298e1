"""Looking at queues and their jobs, without changing anything."""

from __future__ import annotations

from datetime import datetime

from penstock.delivery.audit import Act, read_acts
from penstock.delivery.foreign_keys import ForeignKey
from penstock.delivery.looking import exact
from penstock.delivery.payloads import SHOWN_BYTES
from penstock.queues.choice import MOST_AT_ONCE, whole
from penstock.queues.dead_letters import QueueDeadLetters
from penstock.queues.facts import list_queues, queue_workers, read_facts
from penstock.queues.foreign_keys import find_foreign
from penstock.queues.in_hand import read_claims
from penstock.queues.lane_pages import LanePages
from penstock.queues.lanes import one_lane, shown_lane
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

__all__ = ["QueueLooks"]


class QueueLooks:
    """Shows queues and their jobs."""

    def __init__(self, client: Client, codec: Codec) -> None:
        self._client, self._codec = client, codec

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
        """What a worker has in hand, the oldest claims first. O(its claims).

        A round trip, and two per page of 100 or fewer.
        """
        keys = self._keys(queue)
        whole("count", count, 1, MOST_AT_ONCE)
        return await read_claims(self._client, self._codec, keys, worker, count)

    async def peek(
        self,
        queue: str,
        lane: str | bytes = "",
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
        pages = LanePages(self._client, self._codec, keys, one_lane(keys, lane))
        shown = lane if isinstance(lane, str) else shown_lane(exact(lane))
        left = min(count, await pages.count() - start)
        jobs: list[JobView] = []
        while len(jobs) < left:
            place = start + len(jobs)
            page = await pages.page(place, left - len(jobs))
            if not page:
                break
            jobs += [
                show_job(item, lane=shown, place=place + at, most_bytes=most_bytes)
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
        and `until` say when the state was taken. Three round trips per 100 jobs looked at, 10,000
        at most, and more for large results: where few match, or results have 64 MiB, a page is
        short and its cursor goes on. A cursor stays good while jobs come and go.
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

    async def foreign_keys(self, queue: str) -> list[ForeignKey]:
        """Keys under a queue's names that hold something of another type. Two round trips.

        Workers cannot use them and leave them alone: see `rename_foreign` and `delete_foreign`.
        """
        return await find_foreign(self._client, self._keys(queue))

    async def audit(self, queue: str, count: int = 100) -> list[Act]:
        """What people did to a queue and its letters, the newest first. One round trip."""
        return await read_acts(self._client, self._keys(queue).audit, count)

    def _keys(self, queue: str) -> QueueKeyring:
        return QueueKeyring.of(self._client.keys, queue)
