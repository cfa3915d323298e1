"""Open batches, read without changing them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from penstock.coordination.windows.batches import OpenBatch
from penstock.coordination.windows.targets import Place
from penstock.errors import ServerError, SettingError
from penstock.redis.client import Client
from penstock.redis.wire import Reply

__all__ = ["batch_of", "open_batches"]

_FACTS: Final = ("started_at", "last_activity", "bytes")
_MOST_SHOWN: Final = 1_000_000


async def batch_of(client: Client, place: Place, window: str, key: str) -> OpenBatch | None:
    """The open batch of one window."""
    batch, due = _checked(
        await client.pipeline([("GET", place.current(window)), ("ZSCORE", place.index.due, window)])
    )
    if batch is None:
        return None
    found = await _read(client, [(place, batch.decode(), key, due)])
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
        (float(page[at + 1]), place, page[at].decode())
        for place, page in zip(places, pages, strict=True)
        for at in range(0, len(page), 2)
    ]
    first = sorted(waiting, key=lambda one: (one[0], one[2]))[:limit]
    ids = _checked(
        await client.pipeline([("GET", place.current(window)) for _, place, window in first])
    )
    wanted = [
        (place, batch.decode(), key_of(window), due)
        for (due, place, window), batch in zip(first, ids, strict=True)
        if batch is not None
    ]
    return await _read(client, wanted)


async def _read(
    client: Client, wanted: Sequence[tuple[Place, str, str, float | bytes | None]]
) -> list[OpenBatch]:
    """What is stored of batches; those that were closed meanwhile are left out."""
    if not wanted:
        return []
    replies = _checked(
        await client.pipeline(
            [
                command
                for place, batch, _, _ in wanted
                for command in (
                    ("MGET", *(place.batch(batch, fact) for fact in _FACTS)),
                    ("LLEN", place.batch(batch, "detections")),
                )
            ]
        )
    )
    found: list[OpenBatch] = []
    for at, (_, batch, key, due) in enumerate(wanted):
        (started, last, size), count = replies[2 * at], replies[2 * at + 1]
        if not count or started is None:
            continue
        started_ms = _ms(started)
        found.append(
            OpenBatch(
                batch_id=batch,
                key=key,
                count=count,
                bytes=int(size or 0),
                started_ms=started_ms,
                last_ms=_ms(last) if last else started_ms,
                due_ms=int(float(due)) if due is not None else started_ms,
            )
        )
    return found


def _ms(text: bytes) -> int:
    """By its digits, as scripts read it: as a number it is not exact."""
    seconds, _, parts = text.decode().partition(".")
    return int(f"{seconds}{parts[:3]:0<3}")


def _checked(replies: list[Reply]) -> list[Reply]:
    for reply in replies:
        if isinstance(reply, ServerError):
            raise reply
    return replies
