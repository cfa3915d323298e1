"""Searching jobs that have a record, by state, time, name and error."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from penstock.delivery.queries import ask, exact, is_wrong_type, text
from penstock.errors import InvalidJob, JobMissing
from penstock.queues.admin.views import JobPage
from penstock.queues.dead_letters.filters import MOST_AT_ONCE, checked_id, holds, whole
from penstock.queues.storage.job_record import STATES, JobRecord, JobState
from penstock.queues.storage.keys import QueueKeyring
from penstock.queues.storage.lanes import shown_lane
from penstock.redis.client import Client
from penstock.redis.codec.escaping import escaped, unescaped
from penstock.redis.wire import Reply

__all__ = ["read_job", "search_jobs"]

_PAGE: Final = 100
_SEARCHED: Final = 10_000
"""Jobs that one search examines."""
_AT_ONCE_BYTES: Final = 4 * 1024 * 1024
"""Of results that are read at once, unless one alone has more."""
_MOST_BYTES: Final = 64 * 1024 * 1024
"""Of results in one page of a search."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_LATEST_S = 253_402_300_799  # the end of the year 9999

_is_cursor = re.compile(
    r"(?P<state>[a-z]+)/(?P<ms>-?(?:inf|[0-9.]+(?:e[+-]?[0-9]+)?))/(?P<member>.*)", re.DOTALL
).fullmatch

Place = tuple[float, bytes]
"""Position of a search within a state: time in ms, and the job's id as spelled in keys."""


async def read_job(client: Client, queue: str, job_id: str) -> JobRecord:
    """The record of one job; `JobMissing` if it has none (any more). One round trip."""
    keys = QueueKeyring.of(client.keys, queue)
    stored = await client.call("HGETALL", keys.record(checked_id(job_id)))
    if not stored:
        raise JobMissing(queue, job_id)
    return JobRecord.of(queue, job_id, stored)


async def search_jobs(
    client: Client,
    queue: str,
    *,
    state: JobState | None = None,
    name: str | None = None,
    error: str | None = None,
    since: datetime | float | None = None,
    until: datetime | float | None = None,
    cursor: str | None = None,
    limit: int = _PAGE,
) -> JobPage:
    """See `QueueAdmin.jobs`."""
    keys = QueueKeyring.of(client.keys, queue)
    whole("limit", limit, 1, MOST_AT_ONCE)
    if state is not None and state not in STATES:
        raise InvalidJob(f"state = {state!r}: expected one of {', '.join(STATES)}")
    for label, value in (("name", name), ("error", error)):
        if value is not None and not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidJob(f"{label} = {value!r}: expected text")
    first_ms, last_ms = _moment_ms("since", since), _moment_ms("until", until)
    states = STATES if state is None else (state,)
    begin, place = _read_cursor(cursor, states)
    search = _Search(client, keys, name, error)
    jobs: list[JobRecord] = []
    for now_at in states[begin:]:
        async for chunk in _places(client, keys, now_at, place, first_ms, last_ms):
            async for at, record in search.fetch(now_at, chunk):
                place = at
                if record is not None:
                    jobs.append(record)
                    if len(jobs) == limit or search.fetched_bytes >= _MOST_BYTES:
                        return JobPage(jobs=jobs, cursor=_cursor(now_at, place))
            if search.examined >= _SEARCHED:
                return JobPage(jobs=jobs, cursor=_cursor(now_at, place))
        place = None
    return JobPage(jobs=jobs)


class _Search:
    """Fetches records and applies the filters."""

    def __init__(
        self, client: Client, keys: QueueKeyring, name: str | None, error: str | None
    ) -> None:
        self.examined = 0
        self.fetched_bytes = 0
        """Of results, which are what can be large in a record."""
        self._client, self._keys, self._name, self._error = client, keys, name, error

    async def fetch(
        self, state: str, places: Sequence[Place]
    ) -> AsyncIterator[tuple[Place, JobRecord | None]]:
        """Each with its record, None if it does not fit. Two round trips, more for large results.

        With filters one more.
        """
        self.examined += len(places)
        names = [exact(member) for _, member in places]
        if self._name is not None or self._error is not None:
            replies = await ask(
                self._client,
                [
                    ("HMGET", self._keys.records + name, "task", "error", "error_type")
                    for name in names
                ],
                typed=True,
            )
            fits = [
                not is_wrong_type(parts) and self._fits(*(text(part or b"") for part in parts))
                for parts in replies
            ]
        else:
            fits = [True] * len(names)
        wanted = [name for name, fit in zip(names, fits, strict=True) if fit]
        sizes = await ask(
            self._client,
            [("HSTRLEN", self._keys.records + name, "result") for name in wanted],
            typed=True,
        )
        size_of = {
            name: 0 if is_wrong_type(size) else size
            for name, size in zip(wanted, sizes, strict=True)
        }
        found: dict[str, Reply] = {}
        for index, (place, name) in enumerate(zip(places, names, strict=True)):
            if name in size_of and name not in found:
                found = await self._read(names[index:], size_of)
                self.fetched_bytes += sum(size_of[one] for one in found)
            yield place, self._record(state, name, found.get(name))

    async def _read(self, names: Sequence[str], size_of: Mapping[str, int]) -> dict[str, Reply]:
        """Records of the first few, as many as may be read at once."""
        some, size = list[str](), 0
        for name in names:
            if name not in size_of:
                continue
            if some and size + size_of[name] > _AT_ONCE_BYTES:
                break
            some.append(name)
            size += size_of[name]
        stored = await ask(
            self._client, [("HGETALL", self._keys.records + name) for name in some], typed=True
        )
        return dict(zip(some, stored, strict=True))

    def _fits(self, task: str, error: str, error_type: str) -> bool:
        return holds(self._name, task) and holds(self._error, error, error_type)

    def _record(self, state: str, name: str, stored: Reply) -> JobRecord | None:
        if not stored:
            return None
        job_id = shown_lane(name)
        if is_wrong_type(stored):
            return JobRecord(job_id=job_id, queue=self._keys.queue, status=state, error=str(stored))
        record = JobRecord.of(self._keys.queue, job_id, stored)
        # It may have moved on, or have been kept for its time, since the index was read.
        return record if record.status == state else None


async def _places(
    client: Client,
    keys: QueueKeyring,
    state: str,
    after: Place | None,
    first_ms: int | None,
    last_ms: int | None,
) -> AsyncIterator[list[Place]]:
    """Entries of the index of a state, the newest first, in pages."""
    low = "-inf" if first_ms is None else first_ms
    offset = 0
    while True:
        high = after[0] if after else "+inf" if last_ms is None else last_ms
        reply = await client.call(
            *("ZREVRANGEBYSCORE", keys.jobs(state), high, low, "WITHSCORES"),
            *("LIMIT", offset, _PAGE),
        )
        found = [
            (float(score), member) for member, score in zip(reply[::2], reply[1::2], strict=True)
        ]
        new = [place for place in found if after is None or place < after]
        if new:
            yield new
            after, offset = new[-1], 0
        elif len(found) < _PAGE:
            return
        else:  # more than a page took the state in the same millisecond
            offset += len(found)


def _cursor(state: str, place: Place | None) -> str:
    ms, member = place or (0.0, b"")
    return f"{state}/{ms:.17g}/{escaped(member)}"


def _read_cursor(cursor: str | None, states: Sequence[str]) -> tuple[int, Place | None]:
    if cursor is None:
        return 0, None
    found = _is_cursor(cursor) if isinstance(cursor, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    with suppress(ValueError):
        if found and found["state"] in states:
            return states.index(found["state"]), (float(found["ms"]), unescaped(found["member"]))
    raise InvalidJob(f"cursor = {str(cursor)[:60]!r}: expected one of this search")


def _moment_ms(name: str, moment: datetime | float | None) -> int | None:
    if moment is None:
        return None
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidJob(f"{name} = {moment!r}: it has no time zone")
        return (moment - _EPOCH) // _MS
    if type(moment) not in (int, float) or not math.isfinite(moment) or abs(moment) > _LATEST_S:
        raise InvalidJob(f"{name} = {moment!r}: expected an aware datetime or epoch seconds")
    return math.floor(moment * 1000)
