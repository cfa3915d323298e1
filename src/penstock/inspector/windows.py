"""Windows that are registered, with their open batches, and closing those before their time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from penstock.app import Penstock
from penstock.coordination.windows.batches import OpenBatch
from penstock.coordination.windows.records import WindowRecord, read_records
from penstock.coordination.windows.targets import Place
from penstock.coordination.windows.window import Window
from penstock.errors import CoordinationError, ServerError, TopicMissing
from penstock.topics.facts import read_facts
from penstock.topics.topic import Topic

__all__ = [
    "BatchView",
    "WindowView",
    "close_all",
    "close_one",
    "list_windows",
    "places_of",
    "registered",
]

_PAGE: Final = 500


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that still takes items. Times are epoch ms by the server's clock."""

    batch_id: str
    key: str
    count: int
    bytes: int
    started_ms: int
    last_ms: int
    due_ms: int
    """When it will be closed unless another item comes."""
    age_ms: int
    due_in_ms: int
    """Negative if it is late: no worker looks, or its queue is full."""


class WindowView(msgspec.Struct, frozen=True, kw_only=True):
    """How a window is set, and its batches that are due first."""

    name: str
    kind: str
    """queue or topic."""
    target: str
    max_age_ms: int
    idle_ms: int
    max_items: int
    max_bytes: int
    open: int
    """How many batches are open."""
    batches: list[BatchView]
    is_missing: bool = False
    """Whether its topic is gone."""


async def list_windows(app: Penstock, most: int = 100) -> list[WindowView]:
    """Every window that was ever used, with at most so many open batches each, by name.

    One round trip, and for each window four, or five if it closes into a topic.
    """
    return [await _view(app, record, most) for record in sorted(await _records(app), key=_order)]


async def registered(app: Penstock, name: str) -> list[WindowRecord]:
    """How the window is set, once for each queue or topic that it has closed into.

    CoordinationError if there is none of this name. One round trip.
    """
    found = [record for record in await _records(app) if record.name == name]
    if not found:
        raise CoordinationError(f"there is no window {name!r}")
    return sorted(found, key=_order)


async def places_of(app: Penstock, record: WindowRecord) -> Sequence[Place]:
    """Where its batches are: one place, or one for each partition; none if the topic is gone.

    No round trip, or two. It does not make a topic.
    """
    async with _opened(app, record) as window:
        return () if window is None else await window.target.places()


async def close_one(app: Penstock, name: str, key: str) -> str | None:
    """Close the open batch of a key: its id, or None if there is none.

    QueueFull if there is no room for it; CoordinationError if there is no such window. Two round
    trips, and more if it closes into a topic.
    """
    for record in await registered(app, name):
        async with _opened(app, record) as window:
            if window is not None and (closed := await window.close(key)) is not None:
                return closed
    return None


async def close_all(app: Penstock, name: str) -> AsyncIterator[str]:
    """Close the batches that are open now: their ids, each when it is closed.

    As `close_one`; one round trip for each, and four for each 500.
    """
    records, now_ms = await registered(app, name), await _now_ms(app)
    for record in records:
        async with _opened(app, record) as window:
            # Others go on adding: what begins later is none of our business.
            while window is not None and (
                page := [
                    one for one in await window.open_batches(_PAGE) if one.started_ms <= now_ms
                ]
            ):
                for batch in page:
                    if (closed := await window.close(batch.key)) is not None:
                        yield closed


async def _view(app: Penstock, record: WindowRecord, most: int) -> WindowView:
    count, batches = 0, list[BatchView]()
    async with _opened(app, record) as window:
        if window is not None:
            count = await _open_in(app, await window.target.places())
            found = await window.open_batches(most) if count else []
            now_ms = await _now_ms(app) if found else 0
            batches = [_batch(batch, now_ms) for batch in found]
    return WindowView(
        name=record.name,
        kind=record.kind,
        target=record.target,
        max_age_ms=record.max_age_ms,
        idle_ms=record.idle_ms,
        max_items=record.max_items,
        max_bytes=record.max_bytes,
        open=count,
        batches=batches,
        is_missing=window is None,
    )


async def _open_in(app: Penstock, places: Sequence[Place]) -> int:
    sizes = await app.redis.pipeline([("ZCARD", place.index.due) for place in places])
    for size in sizes:
        if isinstance(size, ServerError):
            raise size  # could not look: that is not the same as no batches
    return sum(sizes)


def _batch(batch: OpenBatch, now_ms: int) -> BatchView:
    return BatchView(
        batch_id=batch.batch_id,
        key=batch.key,
        count=batch.count,
        bytes=batch.bytes,
        started_ms=batch.started_ms,
        last_ms=batch.last_ms,
        due_ms=batch.due_ms,
        age_ms=now_ms - batch.started_ms,
        due_in_ms=batch.due_ms - now_ms,
    )


async def _records(app: Penstock) -> list[WindowRecord]:
    return await read_records(app.redis)


def _order(record: WindowRecord) -> str:
    return record.field


@asynccontextmanager
async def _opened(app: Penstock, record: WindowRecord) -> AsyncGenerator[Window | None]:
    """The window as whoever registered it uses it; None if its topic is gone."""
    if record.kind == "topic":
        try:
            await read_facts(app.redis, record.target)  # asked, the topic itself would come back
        except TopicMissing:
            yield None
            return
    window = Window.registered(app.redis, app.codec, record)
    try:
        yield window
    finally:
        if isinstance(window.to, Topic):
            await window.to.close()


async def _now_ms(app: Penstock) -> int:
    seconds, micros = await app.redis.call("TIME")
    return int(seconds) * 1000 + int(micros) // 1000
