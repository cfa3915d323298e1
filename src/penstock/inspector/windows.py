"""Windows that are registered, with their open batches, and closing those before their time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec

from penstock.app import Penstock
from penstock.coordination.windows.batches import OpenBatch
from penstock.coordination.windows.looking import stored_ms
from penstock.coordination.windows.records import WindowRecord, read_records
from penstock.coordination.windows.targets import Place
from penstock.coordination.windows.window import Window
from penstock.delivery.looking import exact
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
    "BatchView",
    "ClosedBatch",
    "WindowView",
    "batch_view",
    "close_all",
    "close_one",
    "list_windows",
    "places_of",
    "registered",
]

_PAGE: Final = 500
_REASON: Final = "asked"


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
    problem: str = ""
    """Why its batches cannot be shown: others have stored something else in its place."""


class ClosedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a batch that was to be closed."""

    key: str
    """Empty if none of the batches of a queue or topic can be closed."""
    batch_id: str = ""
    """Empty if it could not be closed."""
    problem: str = ""
    """Why it could not be closed."""


async def list_windows(app: Penstock, most: int = 100) -> list[WindowView]:
    """Every window that was ever used, with at most so many open batches each, by name.

    One round trip, and for each window five, or six if it closes into a topic.
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

    No round trip, or one.
    """
    return await _places(_opened(app, record))


async def close_one(app: Penstock, name: str, key: str) -> str | None:
    """Close the open batch of a key: its id, or None if there is none.

    QueueFull if there is no room for it; CoordinationError if there is no such window. Two round
    trips, and one for each partition if it closes into a topic.
    """
    for record in await registered(app, name):
        if (closed := await _close(_opened(app, record), key)) is not None:
            return closed
    return None


async def close_all(app: Penstock, name: str, *, page: int = _PAGE) -> AsyncIterator[ClosedBatch]:
    """Close the batches that are open now; yields what became of each, one by one.

    Every batch that was open before and after the call is seen, however many cannot be closed.
    QueueFull as soon as there is no room; CoordinationError if there is no such window. One round
    trip for each batch, and three for each `page` of them.
    """
    records, now_ms = await registered(app, name), await _now_ms(app)
    for record in records:
        try:
            window = _opened(app, record)
            for place in await _places(window):
                async for one in _close_at(app, window, place, now_ms, page):
                    yield one
        except (CommandRefused, ConfigError, InvalidName) as error:  # one target hides no other
            yield ClosedBatch(key="", problem=f"into {record.kind} {record.target}: {error}")


async def _close_at(
    app: Penstock, window: Window, place: Place, now_ms: int, page: int
) -> AsyncIterator[ClosedBatch]:
    """Close the batches at one place. By ZSCAN: what is put off meanwhile moves, and is seen."""
    cursor, refused = b"0", set[bytes]()
    while True:
        cursor, flat = await app.redis.call("ZSCAN", place.index.due, cursor, "COUNT", page)
        due = dict(zip(flat[::2], map(float, flat[1::2]), strict=True))
        names = sorted(due.keys() - refused, key=lambda name: (due[name], name))
        for start in range(0, len(names), page):  # a small set comes as one, whatever its size
            part = names[start : start + page]
            for one, began in zip(part, await _began(app, place, part), strict=True):
                if began > now_ms:
                    continue  # others go on adding: it began after we did
                try:
                    closed = await window.close_named(place, _REASON, one)
                except (CommandRefused, ScriptFailed) as error:
                    refused.add(one)
                    yield ClosedBatch(key=_key_of(window, one), problem=str(error))
                else:
                    if closed:
                        yield ClosedBatch(key=_key_of(window, one), batch_id=closed)
        if cursor == b"0":
            return


async def _began(app: Penstock, place: Place, names: Sequence[bytes]) -> list[int]:
    """When batches began, in ms; 0 where that cannot be read. Two round trips."""
    ids = await app.redis.pipeline([("GET", place.current(exact(one))) for one in names])
    for reply in ids:
        if isinstance(reply, ServerError) and not isinstance(reply, CommandRefused):
            raise reply  # could not look: that is not the same as a batch of others
    batches = [exact(reply) if isinstance(reply, bytes) else "" for reply in ids]
    times = await app.redis.pipeline(
        [("GET", place.batch(batch, "started_at")) for batch in batches]
    )
    return [stored_ms(text) if isinstance(text, bytes) else 0 for text in times]


def _key_of(window: Window, name: bytes) -> str:
    key = window.items.key(name.decode(errors="backslashreplace"))
    return key.encode(errors="backslashreplace").decode()


async def _view(app: Penstock, record: WindowRecord, most: int) -> WindowView:
    count, found, now_ms, is_missing, problem = 0, list[OpenBatch](), 0, False, ""
    try:
        window = _opened(app, record)
        places = await _places(window)
        is_missing = not places
        count = await _open_in(app, places)
        found = await _open_batches(window, most) if count else []
        now_ms = await _now_ms(app) if found else 0
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


async def _open_batches(window: Window, most: int) -> list[OpenBatch]:
    try:
        return await window.open_batches(most)
    except TopicMissing:
        return []


async def _open_in(app: Penstock, places: Sequence[Place]) -> int:
    if not places:
        return 0
    sizes = await app.redis.pipeline([("ZCARD", place.index.due) for place in places])
    for size in sizes:
        if isinstance(size, ServerError):
            raise size  # could not look: that is not the same as no batches
    return sum(sizes)


def batch_view(batch: OpenBatch, now_ms: int) -> BatchView:
    """Return a batch as people look at it."""
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


async def _close(window: Window, key: str) -> str | None:
    """Close the batch of a key, wherever it is: only its programs know the topic's partitioner."""
    name, _ = window.items.window(key)
    for place in await _places(window):
        if (closed := await window.close_named(place, _REASON, name)) is not None:
            return closed
    return None


async def _places(window: Window) -> Sequence[Place]:
    try:
        return await window.target.places()
    except TopicMissing:
        return ()


def _opened(app: Penstock, record: WindowRecord) -> Window:
    return Window.registered(app.redis, app.codec, record)


async def _now_ms(app: Penstock) -> int:
    seconds, micros = await app.redis.call("TIME")
    return int(seconds) * 1000 + int(micros) // 1000
