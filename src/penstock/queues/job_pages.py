"""Values of a hash of jobs, read in pages that are bounded by bytes as well as by number."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from penstock.errors import ServerError
from penstock.redis.client import Client

__all__ = ["MOST_AT_ONCE", "job_pages", "read_jobs"]

MOST_AT_ONCE: Final = 100
_MOST_BYTES: Final = 4 * 1024 * 1024
"""Of jobs that are read at once, unless one alone has more."""


async def job_pages(
    client: Client, key: str, fields: Sequence[bytes], at_once: int = MOST_AT_ONCE
) -> AsyncIterator[list[bytes]]:
    """Fields whose values may be read together. A round trip per `at_once`."""
    for place in range(0, len(fields), at_once):
        page = fields[place : place + at_once]
        sizes = await client.pipeline([("HSTRLEN", key, field) for field in page])
        some, size = list[bytes](), 0
        for field, length in zip(page, sizes, strict=True):
            if isinstance(length, ServerError):
                raise length
            if some and size + length > _MOST_BYTES:
                yield some
                some, size = [], 0
            some.append(field)
            size += length
        yield some


async def read_jobs(
    client: Client, key: str, fields: Sequence[bytes]
) -> AsyncIterator[tuple[bytes, bytes]]:
    """Fields with their values; those that are gone are left out. Two round trips per page."""
    async for page in job_pages(client, key, fields):
        for field, data in zip(page, await client.call("HMGET", key, *page), strict=True):
            if data is not None:
                yield field, data
