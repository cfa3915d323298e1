"""Open batches, read without changing them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, TypeGuard

from penstock.coordination.windows.batches import OpenBatch
from penstock.coordination.windows.targets import Place
from penstock.delivery.looking import exact, text
from penstock.errors import CommandRefused, ServerError, SettingError
from penstock.redis.client import Client
from penstock.redis.wire import Reply

__all__ = ["batch_facts", "batch_of", "open_batches", "stored_ms"]

_FACTS: Final = ("started_at", "last_activity", "bytes")
_MOST_SHOWN: Final = 1_000_000
_MOST_DIGITS: Final = 20


async def batch_of(client: Client, place: Place, window: str, key: str) -> OpenBatch | None:
    """The open batch of one window."""
    batch, due = _checked(
        await client.pipeline([("GET", place.current(window)), ("ZSCORE", place.index.due, window)])
    )
    if batch is None:
        return None
    found = await _read(client, [(place, batch, key, due)])
    return found[0] if found else None


async def open_batches(
    client: Client, places: Sequence[Place], key_of: Callable[[str], str], limit: int
) -> list[OpenBatch]:
    """Open batches of all windows of one name, by the time at which they are due."""
    if type(limit) is not int or not 1 <= limit <= _MOST_SHOWN:
        raise SettingError("limit", limit, f"a whole number from 1 to {_MOST_SHOWN}")
    pages = _checked(
        await client.pipeline(
            [("ZRANGE", place.index.due, 0, limit - 1, "WITHSCORES") for place in places]
        )
    )
    waiting = [
        (float(page[at + 1]), place, page[at])
        for place, page in zip(places, pages, strict=True)
        for at in range(0, len(page), 2)
    ]
    first = sorted(waiting, key=lambda one: (one[0], one[2]))[:limit]
    ids = _readable(
        await client.pipeline([("GET", place.current(exact(window))) for _, place, window in first])
    )
    wanted = [
        (place, batch, key_of(text(window)), due)
        for (due, place, window), batch in zip(first, ids, strict=True)
        if batch is not None
    ]
    return await _read(client, wanted)


async def _read(
    client: Client, wanted: Sequence[tuple[Place, bytes, str, float | bytes | None]]
) -> list[OpenBatch]:
    """What is stored of batches; those that were closed meanwhile are left out.

    So are those of which others have made something else: one of them hides no other.
    """
    if not wanted:
        return []
    replies = _readable(
        await client.pipeline(
            [
                command
                for place, batch, _, _ in wanted
                for command in (
                    ("MGET", *(place.batch(exact(batch), fact) for fact in _FACTS)),
                    ("LLEN", place.batch(exact(batch), "detections")),
                )
            ]
        )
    )
    found = [
        batch_facts(text(batch), key, replies[2 * at], replies[2 * at + 1], due)
        for at, (_, batch, key, due) in enumerate(wanted)
    ]
    return [one for one in found if one is not None]


def batch_facts(
    batch: str,
    key: str,
    facts: Sequence[bytes | None] | None,
    count: int | None,
    due: float | bytes | None,
) -> OpenBatch | None:
    """Read what is stored of one batch; None if it was closed meanwhile."""
    started, last, size = facts or (None, None, None)
    if not count or started is None:
        return None
    started_ms = stored_ms(started)
    return OpenBatch(
        batch_id=batch,
        key=key,
        count=count,
        bytes=int(size) if size and _is_digits(size) else 0,
        started_ms=started_ms,
        last_ms=stored_ms(last) if last else started_ms,
        due_ms=int(float(due)) if _is_time(due) else started_ms,
    )


def stored_ms(text: bytes) -> int:
    """Read a time by its digits, as scripts do: a float is not exact. 0 for what is no time."""
    seconds, _, parts = text.partition(b".")
    if not _is_digits(seconds) or (parts and not _is_digits(parts)):
        return 0
    return int(seconds + parts[:3].ljust(3, b"0"))


def _is_digits(text: bytes) -> bool:
    return text.isdigit() and len(text) <= _MOST_DIGITS


def _is_time(due: float | bytes | None) -> TypeGuard[float | bytes]:
    return due is not None and math.isfinite(float(due))


def _readable(replies: list[Reply]) -> list[Reply]:
    """As `_checked`, with None where a key is not what it should be."""
    return _checked([None if isinstance(one, CommandRefused) else one for one in replies])


def _checked(replies: list[Reply]) -> list[Reply]:
    for reply in replies:
        if isinstance(reply, ServerError):
            raise reply
    return replies
