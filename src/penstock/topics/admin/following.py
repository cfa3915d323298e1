"""Messages of a topic as they arrive, for display."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime

from penstock.delivery.message_sizes import MessageSizes
from penstock.delivery.queries import as_dict, ask, text
from penstock.delivery.times import EARLIEST, LATEST, resolve_position
from penstock.errors import InvalidMessage
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.node import Role
from penstock.redis.wire import Command, Reply
from penstock.topics.admin.browsing import Place, show_entries
from penstock.topics.admin.views import MessageView
from penstock.topics.message import Fields
from penstock.topics.storage.keys import PartitionKeys
from penstock.topics.storage.large_payloads import SHOWN_BYTES
from penstock.topics.storage.message_id import id_numbers
from penstock.topics.storage.metadata import read_metadata

__all__ = ["follow_topic"]

_COUNT = 100
"""Messages of one partition in one read, unless they are large."""
_BLOCK_S = 1.0
_MARGIN_S = 5.0
# A cluster cannot block on streams of several nodes with one command.
_POLL_S = 0.2


async def follow_topic(
    client: Client,
    codec: Codec,
    topic: str,
    *,
    partition: int | None = None,
    start: str | datetime = LATEST,
    max_bytes: int = SHOWN_BYTES,
) -> AsyncIterator[list[MessageView]]:
    """See `TopicAdmin.follow`."""
    known = _Positions(client, topic, partition)
    await known.begin(resolve_position(start))
    block = False
    while True:
        entries = await known.read(block=block)
        yield await show_entries(client, codec, topic, entries, max_bytes)
        block = not entries
        if block:
            await known.look_for_more()
            if client.keys.cluster:
                await asyncio.sleep(_POLL_S)


class _Positions:
    """How far each partition has been read."""

    def __init__(self, client: Client, topic: str, partition: int | None) -> None:
        self._client, self._topic, self._only = client, topic, partition
        self._after: dict[int, str] = {}
        self._sizes = MessageSizes(client.settings.topics.fetch_bytes, first=16)

    async def begin(self, position: str) -> None:
        count = (await read_metadata(self._client, self._topic)).partitions
        if self._only is not None and not 0 <= self._only < count:
            raise InvalidMessage(
                f"topic {self._topic!r} has partitions 0 to {count - 1}: {self._only!r}"
            )
        indexes = range(count) if self._only is None else (self._only,)
        self._after = dict.fromkeys(indexes, position)
        if position == LATEST:
            commands: list[Command] = [("XINFO", "STREAM", self._stream(one)) for one in indexes]
            replies = await ask(self._client, commands, absent=True)
            for index, metadata in zip(indexes, replies, strict=True):
                last = (
                    EARLIEST if metadata is None else text(as_dict(metadata)["last-generated-id"])
                )
                self._after[index] = last

    async def look_for_more(self) -> None:
        """Read new partitions from their beginning, or raise `TopicMissing`. One round trip."""
        count = (await read_metadata(self._client, self._topic)).partitions
        if self._only is None:
            for index in range(count):
                self._after.setdefault(index, EARLIEST)

    async def read(self, *, block: bool) -> list[tuple[Place, Fields]]:
        """What comes next, by id; with `block`, wait a moment for it (not on a cluster)."""
        placed: list[tuple[Place, Fields]] = []
        count = max(1, min(_COUNT, self._sizes.fitting() // max(1, len(self._after))))
        for index, entries in await self._ask(count, block=block):
            self._sizes.note_entries(entries)
            placed += [((id_numbers(id_), index), fields) for id_, fields in entries]
            self._after[index] = text(entries[-1][0])
        return sorted(placed, key=lambda entry: entry[0])

    async def _ask(self, count: int, *, block: bool) -> list[tuple[int, Reply]]:
        if self._client.keys.cluster:
            commands: list[Command] = [
                ("XREAD", "COUNT", count, "STREAMS", self._stream(index), after)
                for index, after in self._after.items()
            ]
            replies = await ask(self._client, commands)
            return [
                (index, reply[0][1])
                for index, reply in zip(self._after, replies, strict=True)
                if reply
            ]
        streams = [self._stream(index) for index in self._after]
        wait = ("BLOCK", int(_BLOCK_S * 1000)) if block else ()
        command = ("XREAD", "COUNT", count, *wait, "STREAMS", *streams, *self._after.values())
        async with self._client.lease(Role.QUEUE) as wire:
            reply = await wire.call(*command, timeout_s=_BLOCK_S + _MARGIN_S)
        indexes = {
            stream.encode(): index for stream, index in zip(streams, self._after, strict=True)
        }
        return [(indexes[stream], entries) for stream, entries in reply or ()]

    def _stream(self, index: int) -> str:
        return PartitionKeys.of(self._client.keys, self._topic, index).stream
