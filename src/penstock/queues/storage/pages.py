"""Reading jobs in pages bounded by bytes as well as by number."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

from penstock.delivery.queries import ask, text
from penstock.errors import ServerError
from penstock.queues.storage.keys import QueueKeyring
from penstock.queues.storage.stored_job import Item, read_item
from penstock.redis.client import Client
from penstock.redis.codec import Codec

__all__ = ["MOST_AT_ONCE", "LanePages", "PageSize", "job_pages", "read_jobs"]

MOST_AT_ONCE: Final = 100
"""Hash fields or letters on one page."""
_FIRST: Final = 8
_LANE_PAGE: Final = 200
_PAGE_BYTES: Final = 4 * 1024 * 1024
"""Bytes on one page, unless a single job has more."""


class PageSize:
    """How many entries to read next, learned from the sizes of those read so far."""

    def __init__(self) -> None:
        self.count = _FIRST

    def note(self, entries: Iterable[bytes]) -> None:
        """Learn from a page. Pages grow slowly: the next entries may be larger."""
        sizes = [len(entry) for entry in entries]
        if sizes:
            fitting = max(1, _PAGE_BYTES * len(sizes) // max(1, sum(sizes)))
            self.count = min(MOST_AT_ONCE, fitting, 4 * self.count)


class LanePages:
    """Waiting jobs of one lane, from the end where workers claim them."""

    def __init__(self, client: Client, codec: Codec, keys: QueueKeyring, lane: str) -> None:
        self.lane = lane
        self._client, self._codec, self._keys = client, codec, keys
        self._from_right = False
        self._count = _FIRST

    async def count(self) -> int:
        """Number of waiting jobs. One round trip; call it first: it also reads the push side."""
        side, length = await ask(
            self._client,
            [("HGET", self._keys.state, "side"), ("LLEN", self._keys.list_of(self.lane))],
        )
        self._from_right = text(side or b"") == "left"
        return length

    async def page(self, start: int, limit: int) -> list[Item]:
        """Jobs from an index on, as many as fit a page. One round trip, O(start)."""
        first, last = start, start + min(self._count, limit) - 1
        if self._from_right:
            first, last = -last - 1, -first - 1
        stored = await self._client.call("LRANGE", self._keys.list_of(self.lane), first, last)
        if stored:
            each = 1 + sum(map(len, stored)) // len(stored)
            self._count = max(1, min(_LANE_PAGE, _PAGE_BYTES // each))
        items = [read_item(data, self._codec) for data in stored]
        return items[::-1] if self._from_right else items


async def job_pages(
    client: Client, key: str, fields: Sequence[bytes], at_once: int = MOST_AT_ONCE
) -> AsyncIterator[list[bytes]]:
    """Fields of a hash of jobs whose values fit one page. A round trip per `at_once`."""
    for place in range(0, len(fields), at_once):
        page = fields[place : place + at_once]
        sizes = await client.pipeline([("HSTRLEN", key, field) for field in page])
        some, size = list[bytes](), 0
        for field, length in zip(page, sizes, strict=True):
            if isinstance(length, ServerError):
                raise length
            if some and size + length > _PAGE_BYTES:
                yield some
                some, size = [], 0
            some.append(field)
            size += length
        yield some


async def read_jobs(
    client: Client, key: str, fields: Sequence[bytes]
) -> AsyncIterator[tuple[bytes, bytes]]:
    """Fields of a hash of jobs with their values, without absent ones. Two round trips a page."""
    async for page in job_pages(client, key, fields):
        for field, data in zip(page, await client.call("HMGET", key, *page), strict=True):
            if data is not None:
                yield field, data
