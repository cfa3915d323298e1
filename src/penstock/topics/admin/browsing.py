"""Messages of a topic, for people."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from penstock.delivery.queries import ask, ask_typed, text
from penstock.delivery.stored import whole_number
from penstock.errors import InvalidMessage
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.wire import Command
from penstock.topics.admin.views import BrowsePage, MessageView
from penstock.topics.message import (
    HEADERS,
    KEY,
    PAYLOAD,
    TARGET_GROUP,
    Fields,
    decode_headers,
    field_of,
    is_marker,
    without_retry_quotes,
)
from penstock.topics.storage.keys import PartitionKeys
from penstock.topics.storage.large_payloads import (
    SHOWN_BYTES,
    ShownBody,
    body_key,
    fetch_shown,
    show_body,
    without_reference,
)
from penstock.topics.storage.message_id import MESSAGE_ID, id_numbers, identify, position_in
from penstock.topics.storage.metadata import read_metadata

__all__ = ["Place", "browse_topic", "show_entries", "show_entry"]

_MOST = 1_000

_CURSOR = re.compile(r"([0-9]{1,20})-([0-9]{1,20})/([0-9]{1,6})")
Place = tuple[tuple[int, int], int]
"""Where a message stands among those of all partitions: id, partition."""


async def browse_topic(
    client: Client,
    codec: Codec,
    topic: str,
    *,
    partition: int | None = None,
    start: str | datetime = "-",
    end: str | datetime = "+",
    limit: int = 100,
    reverse: bool = False,
    cursor: str | None = None,
    max_bytes: int = SHOWN_BYTES,
) -> BrowsePage:
    """See `TopicAdmin.browse`."""
    if not 1 <= limit <= _MOST:
        raise ValueError(f"limit = {limit!r}: expected a number from 1 to {_MOST}")
    partitions = (await read_metadata(client, topic)).partitions
    indexes = range(partitions) if partition is None else (partition,)
    if partition is not None and not 0 <= partition < partitions:
        raise InvalidMessage(f"topic {topic!r} has partitions 0 to {partitions - 1}: {partition!r}")
    streams = {index: PartitionKeys.of(client.keys, topic, index).stream for index in indexes}
    limit = min(limit, await _fitting(client, list(streams.values())))
    bounds = (_bound(start), _bound(end))
    after = None if cursor is None else _read_cursor(cursor)
    commands: list[Command] = []
    for index, stream in streams.items():
        low, high = _narrowed(bounds, index, after, reverse=reverse)
        if reverse:
            commands.append(("XREVRANGE", stream, high, low, "COUNT", limit))
        else:
            commands.append(("XRANGE", stream, low, high, "COUNT", limit))
    entries: list[tuple[Place, Fields]] = [
        ((id_numbers(id_), index), fields)
        for index, entries in zip(indexes, await ask(client, commands), strict=True)
        for id_, fields in entries
    ]
    entries.sort(key=lambda entry: entry[0], reverse=reverse)
    shown = entries[:limit]
    views = await show_entries(client, codec, topic, shown, max_bytes)
    full = len(shown) == limit
    return BrowsePage(messages=views, cursor=_write_cursor(shown[-1][0]) if full else None)


async def _fitting(client: Client, streams: Sequence[str]) -> int:
    """How many messages of each partition may be read at once, by their size on average."""
    commands: list[Command] = [
        command for one in streams for command in (("MEMORY", "USAGE", one), ("XLEN", one))
    ]
    replies = await ask_typed(client, commands, absent=True)
    sizes = zip(replies[::2], replies[1::2], strict=True)
    together = sum(size / length for size, length in sizes if size and length)
    return max(1, int(client.settings.topics.fetch_bytes / max(together, 1)))


async def show_entries(
    client: Client,
    codec: Codec,
    topic: str,
    entries: Sequence[tuple[Place, Fields]],
    max_bytes: int = SHOWN_BYTES,
) -> list[MessageView]:
    """Entries as people see them.

    Two round trips if payloads are stored beside, more if these are large; else none.
    """
    keys = [
        body_key(
            PartitionKeys.of(client.keys, topic, index), decode_headers(field_of(fields, HEADERS))
        )
        for (_, index), fields in entries
    ]
    views: list[MessageView] = []
    async for body in fetch_shown(client, keys, max_bytes):
        place, fields = entries[len(views)]
        views.append(show_entry(codec, place, fields, body, max_bytes))
    return views


def show_entry(
    codec: Codec, place: Place, fields: Fields, body: ShownBody | None, max_bytes: int
) -> MessageView:
    """One entry as people see it; `body` is its payload, if that is stored beside."""
    (ms, sequence), partition = place
    raw = field_of(fields, PAYLOAD)
    raw = raw and without_retry_quotes(raw, fields)
    payload = show_body(codec, raw, body, max_bytes)
    key, target = field_of(fields, KEY), field_of(fields, TARGET_GROUP)
    texts = [text(part) for part in fields]
    return MessageView(
        partition=partition,
        id=identify(partition, f"{ms}-{sequence}", field_of(fields, MESSAGE_ID)),
        sent_ms=ms,
        payload=payload,
        key=None if key is None else text(key),
        headers=without_reference(decode_headers(field_of(fields, HEADERS))),
        target_group=None if target is None else text(target),
        barrier=whole_number(fields[1]) if is_marker(fields) else None,
        fields=dict(zip(texts[::2], texts[1::2], strict=False)) if payload.is_missing else None,
    )


def _bound(bound: str | datetime) -> str:
    """Spell one end of a range; a time means every message of its millisecond."""
    if not isinstance(bound, datetime):
        return position_in(bound)
    if bound.utcoffset() is None:
        raise ValueError(f"{bound!r}: no time zone; add one, as in datetime.now(UTC)")
    return str(max(0, (bound - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)))


def _narrowed(
    bounds: tuple[str, str], index: int, after: Place | None, *, reverse: bool
) -> tuple[str, str]:
    """Range of one partition that a page after the cursor covers."""
    low, high = bounds
    if after is None:
        return low, high
    (ms, sequence), partition = after
    passed = index >= partition if reverse else index <= partition
    edge = f"({ms}-{sequence}" if passed else f"{ms}-{sequence}"
    return (low, edge) if reverse else (edge, high)


def _write_cursor(place: Place) -> str:
    (ms, sequence), partition = place
    return f"{ms}-{sequence}/{partition}"


def _read_cursor(cursor: str) -> Place:
    match = _CURSOR.fullmatch(cursor)
    if not match:
        raise InvalidMessage(f"cursor {cursor[:60]!r}: expected one that a page came with")
    ms, sequence, partition = map(int, match.groups())
    return (ms, sequence), partition
