"""Windows that are registered, with their open batches, and closing those before their time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec

from penstock.coordination.access import Coordination
from penstock.coordination.windows.batches import OpenBatch, stored_ms
from penstock.coordination.windows.records import WindowRecord, read_records
from penstock.coordination.windows.targets import BatchStore
from penstock.coordination.windows.window import Window
from penstock.delivery.queries import exact, server_ms
from penstock.errors import (
    CommandRefused,
    ConfigError,
    CoordinationError,
    InvalidName,
    ScriptFailed,
    ServerError,
    TopicMissing,
)

__all__ = [
    "ClosedBatch",
    "OpenBatchView",
    "WindowView",
    "batch_view",
    "close_all",
    "close_one",
    "list_windows",
    "registered",
    "stores_of",
]

_PAGE: Final = 500
_REASON: Final = "asked"


class OpenBatchView(msgspec.Struct, frozen=True, kw_only=True):
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
    batches: list[OpenBatchView]
    is_missing: bool = False
    """Whether its topic is gone."""
    problem: str = ""
    """Why its batches cannot be shown: their keys hold other data."""


class ClosedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a batch that was to be closed."""

    key: str
    """Empty if none of the batches of a queue or topic can be closed."""
    batch_id: str = ""
    """Empty if it could not be closed."""
    problem: str = ""
    """Why it could not be closed."""


async def list_windows(app: Coordination, limit: int = 100) -> list[WindowView]:
    """Every window that was ever used, with at most `limit` open batches each, by name.

    One round trip, and for each window five, or six if it closes into a topic.
    """
    return [await _view(app, record, limit) for record in sorted(await _records(app), key=_order)]


async def registered(app: Coordination, name: str) -> list[WindowRecord]:
    """How the window is set, once for each queue or topic that it has closed into.

    CoordinationError if there is none of this name. One round trip.
    """
    found = [record for record in await _records(app) if record.name == name]
    if not found:
        raise CoordinationError(f"there is no window {name!r}")
    return sorted(found, key=_order)


async def stores_of(app: Coordination, record: WindowRecord) -> Sequence[BatchStore]:
    """Where its batches are: one store, or one for each partition; none if the topic is gone.

    No round trip, or one.
    """
    return await _stores(_opened(app, record))


async def close_one(app: Coordination, name: str, key: str) -> str | None:
    """Close the open batch of a key: its id, or None if there is none.

    QueueFull if there is no room for it; CoordinationError if there is no such window. Two round
    trips, and one for each partition if it closes into a topic.
    """
    for record in await registered(app, name):
        if (closed := await _close(_opened(app, record), key)) is not None:
            return closed
    return None


async def close_all(
    app: Coordination, name: str, *, page: int = _PAGE
) -> AsyncIterator[ClosedBatch]:
    """Close the batches that are open now; yields what became of each, one by one.

    Every batch that was open before and after the call is seen, however many cannot be closed.
    QueueFull as soon as there is no room; CoordinationError if there is no such window. One round
    trip for each batch, and three for each `page` of them.
    """
    records, now_ms = await registered(app, name), await server_ms(app.redis)
    for record in records:
        try:
            window = _opened(app, record)
            for store in await _stores(window):
                async for one in _close_at(app, window, store, now_ms, page):
                    yield one
        except (CommandRefused, ConfigError, InvalidName) as error:  # one target hides no other
            yield ClosedBatch(key="", problem=f"into {record.kind} {record.target}: {error}")


async def _close_at(
    app: Coordination, window: Window, store: BatchStore, now_ms: int, page: int
) -> AsyncIterator[ClosedBatch]:
    """Close the batches in one store. By ZSCAN: what is postponed meanwhile is still seen."""
    cursor, refused = b"0", set[bytes]()
    while True:
        cursor, flat = await app.redis.call("ZSCAN", store.index.due, cursor, "COUNT", page)
        due = dict(zip(flat[::2], map(float, flat[1::2]), strict=True))
        names = sorted(due.keys() - refused, key=lambda name: (due[name], name))
        for start in range(0, len(names), page):  # a small set comes as one, whatever its size
            part = names[start : start + page]
            for one, began in zip(part, await _began(app, store, part), strict=True):
                if began > now_ms:
                    continue  # others go on adding: it began after we did
                try:
                    closed = await window.close_named(store, _REASON, one)
                except (CommandRefused, ScriptFailed) as error:
                    refused.add(one)
                    yield ClosedBatch(key=_key_of(window, one), problem=str(error))
                else:
                    if closed:
                        yield ClosedBatch(key=_key_of(window, one), batch_id=closed)
        if cursor == b"0":
            return


async def _began(app: Coordination, store: BatchStore, names: Sequence[bytes]) -> list[int]:
    """When batches began, in ms; 0 where that cannot be read. Two round trips."""
    ids = await app.redis.pipeline([("GET", store.current(exact(one))) for one in names])
    for reply in ids:
        if isinstance(reply, ServerError) and not isinstance(reply, CommandRefused):
            raise reply  # could not look: that is not the same as a batch of others
    batches = [exact(reply) if isinstance(reply, bytes) else "" for reply in ids]
    times = await app.redis.pipeline(
        [("GET", store.batch(batch, "started_at")) for batch in batches]
    )
    return [stored_ms(text) if isinstance(text, bytes) else 0 for text in times]


def _key_of(window: Window, name: bytes) -> str:
    key = window.items.key(name.decode(errors="backslashreplace"))
    return key.encode(errors="backslashreplace").decode()


async def _view(app: Coordination, record: WindowRecord, limit: int) -> WindowView:
    count, found, now_ms, is_missing, problem = 0, list[OpenBatch](), 0, False, ""
    try:
        window = _opened(app, record)
        stores = await _stores(window)
        is_missing = not stores
        count = await _open_in(app, stores)
        found = await _open_batches(window, limit) if count else []
        now_ms = await server_ms(app.redis) if found else 0
    except (CommandRefused, ConfigError, InvalidName) as error:  # one window hides no other
        problem = str(error)
    return WindowView(
        name=record.name,
        kind=record.kind,
        target=record.target,
        max_age_ms=record.max_age_ms,
        idle_ms=record.idle_ms,
        max_items=record.max_items,
        max_bytes=record.max_bytes,
        open=count,
        batches=[batch_view(batch, now_ms) for batch in found],
        is_missing=is_missing,
        problem=problem,
    )


async def _open_batches(window: Window, limit: int) -> list[OpenBatch]:
    try:
        return await window.open_batches(limit)
    except TopicMissing:
        return []


async def _open_in(app: Coordination, stores: Sequence[BatchStore]) -> int:
    if not stores:
        return 0
    sizes = await app.redis.pipeline([("ZCARD", store.index.due) for store in stores])
    for size in sizes:
        if isinstance(size, ServerError):
            raise size  # could not look: that is not the same as no batches
    return sum(sizes)


def batch_view(batch: OpenBatch, now_ms: int) -> OpenBatchView:
    """Return a batch as people look at it."""
    return OpenBatchView(
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


async def _records(app: Coordination) -> list[WindowRecord]:
    return await read_records(app.redis)


def _order(record: WindowRecord) -> str:
    return record.field


async def _close(window: Window, key: str) -> str | None:
    """Close the batch of a key, wherever it is: only its programs know the topic's partitioner."""
    name, _ = window.items.window(key)
    for store in await _stores(window):
        if (closed := await window.close_named(store, _REASON, name)) is not None:
            return closed
    return None


async def _stores(window: Window) -> Sequence[BatchStore]:
    try:
        return await window.target.stores()
    except TopicMissing:
        return ()


def _opened(app: Coordination, record: WindowRecord) -> Window:
    return Window.registered(app.redis, app.codec, record)
