"""`TopicAdmin`: everything that people do to topics."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from datetime import datetime

import msgspec

from penstock.delivery.queries import as_dict, ask_typed, text
from penstock.delivery.stored import whole_number
from penstock.errors import InvalidName, TopicMissing
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.wire import Command, Reply
from penstock.topics.admin import groups
from penstock.topics.admin.adoption import adopt_stream
from penstock.topics.admin.browsing import browse_topic
from penstock.topics.admin.deletion import delete_topic
from penstock.topics.admin.following import follow_topic
from penstock.topics.admin.growth import grow_topic
from penstock.topics.admin.pending import list_pending
from penstock.topics.admin.retention import trim_partition
from penstock.topics.admin.views import (
    Adopted,
    BrowsePage,
    GroupView,
    MessageView,
    PartitionView,
    PendingPage,
    TopicLine,
    TopicView,
    Trimmed,
)
from penstock.topics.dead_letters.dead_letters import DeadLetters
from penstock.topics.java.consumers import refuse_live_java_consumers
from penstock.topics.partitioners import Partitioner
from penstock.topics.storage.keys import PartitionKeys, TopicKeys, TopicsKeys
from penstock.topics.storage.large_payloads import SHOWN_BYTES
from penstock.topics.storage.message_id import place_id
from penstock.topics.storage.metadata import (
    Options,
    Retention,
    TopicMetadata,
    ensure_topic,
    read_metadata,
)
from penstock.topics.storage.scripts import TopicScripts

__all__ = ["TopicAdmin"]

_FACTS = ("partitionCount", "generation", "growing", "createdAt", "updatedAt")


class TopicAdmin:
    """Makes, shows, changes and deletes topics and their groups.

    What is not there is `TopicMissing` or `GroupMissing`; a server that cannot be asked is a
    `ServerError`. Neither is ever an empty answer.
    """

    def __init__(self, client: Client, codec: Codec) -> None:
        self._client = client
        self._codec = codec

    # --- topics

    async def create(
        self, name: str, partitions: int | None = None, retention: Retention | None = None
    ) -> TopicMetadata:
        """Make a topic, unless it is there with as many partitions (else `TopicMismatch`).

        A retention that is given replaces the topic's. Three round trips and one per partition.
        """
        options = None if retention is None else Options(retention=retention)
        return await ensure_topic(self._client, name, partitions, options)

    async def list(self) -> list[TopicLine]:
        """Every topic by name. Two round trips, O(topics).

        One that was being made or deleted when its process died has 0 partitions.
        """
        members = await self._client.call("SMEMBERS", TopicsKeys.of(self._client.keys).registry)
        names = sorted(map(text, members))
        fit = [name for name in names if self._is_name(name)]
        replies = await ask_typed(
            self._client,
            [("HMGET", TopicKeys.of(self._client.keys, name).meta, *_FACTS) for name in fit],
        )
        lines = [_line(name, reply) for name, reply in zip(fit, replies, strict=True)]
        lines += [TopicLine(name=name, partitions=0) for name in names if name not in fit]
        return sorted(lines, key=lambda line: line.name)

    async def exists(self, name: str) -> bool:
        """Whether there is such a topic. One round trip."""
        meta = TopicKeys.of(self._client.keys, name).meta
        return bool(await self._client.call("HEXISTS", meta, "partitionCount"))

    async def describe(self, name: str) -> TopicView:
        """Show one topic with its partitions. Four round trips, O(partitions)."""
        metadata = await read_metadata(self._client, name)
        length, created, updated = await self._ask_topic(name)
        partitions = await self._partitions(name, metadata.partitions)
        return TopicView(
            name=name,
            partitions=partitions,
            length=sum(part.length for part in partitions),
            bytes=sum(part.bytes for part in partitions),
            delayed=sum(part.delayed for part in partitions),
            lost=sum(part.lost for part in partitions),
            groups=await groups.known_groups(self._client, name, metadata.partitions),
            generation=metadata.generation,
            growing_to=metadata.growing_to,
            dead_letters=length,
            options=metadata.options,
            created_ms=created,
            updated_ms=updated,
        )

    async def delete(self, name: str) -> bool:
        """Delete a topic with everything that belongs to it; False if it does not exist.

        Producers and consumers that run on get `TopicMissing`. If it fails half-way the topic is
        still listed, with 0 partitions: delete it again. Ten round trips, three for each partition
        and one for each group of it.
        """
        return await delete_topic(self._client, name)

    async def set_retention(self, name: str, retention: Retention) -> None:
        """Change how long messages stay. Two round trips; producers hear of it in a moment."""
        metadata = await read_metadata(self._client, name)
        options = msgspec.structs.replace(metadata.options, retention=retention)
        reply = await TopicScripts.of(self._client).create_topic(
            meta=TopicKeys.of(self._client.keys, name).meta,
            partitions=0,
            life=uuid.uuid4().hex,
            options=msgspec.json.encode(options).decode(),
        )
        if not reply[1]:
            raise TopicMissing(name)

    async def trim(
        self,
        name: str,
        *,
        max_length: int | None = None,
        max_age_s: float | None = None,
        max_bytes: int | None = None,
        hard: bool = False,
    ) -> Trimmed:
        """Drop old messages of every partition; without a limit, by the topic's retention.

        A topic without one: what every group is past, `topics.retention_s` after it was sent.

        What a group still needs stays, unless `hard`: then `max_length` holds whatever groups
        needs, and what was lost is counted. Two round trips for each partition, and one more per
        200 to 1,000 messages dropped.
        """
        metadata = await read_metadata(self._client, name)
        wanted = metadata.options.retention
        if hard and not max_length:
            raise ValueError("trim: hard needs a max_length")
        if max_length is not None or max_age_s is not None or max_bytes is not None:
            wanted = Retention(
                max_length=max_length or 0,
                max_age_s=max_age_s or 0,
                max_bytes=max_bytes or 0,
                hard_length=(max_length or 0) if hard else 0,
            )
        totals = [0, 0, 0]
        for index in range(metadata.partitions):
            done = await self._trim_partition(name, index, wanted)
            totals = [total + more for total, more in zip(totals, done, strict=True)]
        return Trimmed(dropped=totals[0], lost=totals[1], freed=totals[2])

    async def grow(self, name: str, partitions: int, *, force: bool = False) -> None:
        """Give a topic more partitions while it is used; the order of each key is kept.

        Producers hold their messages for a moment, groups first handle what came before. Takes
        three times `topics.refresh_s` and a round trip for each partition. If it fails half-way
        producers and consumers complete it. `TopicError` if the number is not larger than what the
        topic has, or another growth is under way; and if consumers of the Java library read the
        topic now, unless `force`: each of their groups gets a message without payload from each
        partition.
        """
        if not force:
            metadata = await read_metadata(self._client, name)
            await refuse_live_java_consumers(self._client, name, metadata.partitions)
        await grow_topic(self._client, name, partitions)

    async def adopt(
        self, topic: str, partitions: int | None = None, partitioner: Partitioner | None = None
    ) -> Adopted:
        """Move a plain stream that is named like the topic into the topic, in order.

        Producers and consumers of the old stream have to be stopped. Messages that each of its
        groups has settled are dropped; the others go where their field `key` belongs. The groups
        are registered on the topic and read all that was moved, so one that was ahead of another
        gets some messages again. The old stream is gone at the end. If it fails half-way call it
        again: nothing is lost or moved twice. `TopicError` if there is no such stream. The
        partitioner has to go by the key, so not by turns or by chance.

        Two round trips per 100 messages and one for each of them, to all partitions at once.
        """
        return await adopt_stream(self._client, topic, partitions, partitioner)

    # --- messages

    async def browse(
        self,
        topic: str,
        partition: int | None = None,
        *,
        start: str | datetime = "-",
        end: str | datetime = "+",
        limit: int = 100,
        reverse: bool = False,
        cursor: str | None = None,
        max_bytes: int = SHOWN_BYTES,
    ) -> BrowsePage:
        """Show messages from `start` to `end`, both included: ids, times, or `-` and `+`.

        Those of all partitions, unless one is named, are merged by id. Five round trips,
        O(partitions × limit). Large payloads stored beside the stream are shown too. A page has
        fewer than `limit` messages, and a cursor, where `limit` of them would be larger than
        `topics.fetch_bytes`.
        """
        return await browse_topic(
            self._client,
            self._codec,
            topic,
            partition=partition,
            start=start,
            end=end,
            limit=limit,
            reverse=reverse,
            cursor=cursor,
            max_bytes=max_bytes,
        )

    async def recent(self, topic: str, limit: int = 20) -> list[MessageView]:
        """Show the last messages, the newest first. As `browse`."""
        return (await self.browse(topic, limit=limit, reverse=True)).messages

    def follow(
        self,
        topic: str,
        partition: int | None = None,
        *,
        start: str | datetime = "$",
        max_bytes: int = SHOWN_BYTES,
    ) -> AsyncIterator[list[MessageView]]:
        """Show messages after `start` (see `resolve_position`) as they come, without an end.

        What is there comes first, then an empty list, then what comes in; more empty lists show
        that it has been quiet for a moment. Messages of a list are in the order of ids. Belongs to
        no group and changes nothing. `TopicMissing` when the topic is gone.
        """
        return follow_topic(
            self._client,
            self._codec,
            topic,
            partition=partition,
            start=start,
            max_bytes=max_bytes,
        )

    def dead_letters(self, topic: str, partitioner: Partitioner | None = None) -> DeadLetters:
        """Dead letters of a topic. Asks nothing yet."""
        return DeadLetters(self._client, self._codec, topic, partitioner)

    # --- groups

    async def groups(self, topic: str) -> list[GroupView]:
        """Every group with its lag, owners and consumers; see `penstock.topics.admin.groups`.

        Five round trips and two for each group, O(partitions × groups).
        """
        return await groups.list_groups(self._client, topic)

    async def lag(self, topic: str, group: str) -> GroupView:
        """Show one group; as `groups`."""
        return (await groups.list_groups(self._client, topic, group))[0]

    async def owners(self, topic: str, group: str) -> dict[int, str | None]:
        """Owner of each partition for a group. As `groups`."""
        view = await self.lag(topic, group)
        return {part.partition: part.owner for part in view.partitions}

    async def pending(
        self, topic: str, group: str, cursor: str | None = None, limit: int = 100
    ) -> PendingPage:
        """List messages delivered to a group but not settled, by partition and id.

        One round trip for each partition touched, O(limit).
        """
        return await list_pending(self._client, topic, group, cursor, limit)

    async def reset_group(
        self, topic: str, group: str, position: str | datetime, *, who: str | None = None
    ) -> None:
        """Let a group continue from "0", "$", an id or a time; what it has pending is dropped.

        Its consumers lose their partitions at once. One round trip for each partition.
        """
        await groups.reset_group(self._client, topic, group, position, who=who)

    async def delete_group(
        self, topic: str, group: str, *, force: bool = False, who: str | None = None
    ) -> None:
        """Forget a group; `TopicError` if it has living consumers and `force` is not given.

        One round trip for each partition.
        """
        await groups.delete_group(self._client, topic, group, force=force, who=who)

    # --- inside

    def _is_name(self, name: str) -> bool:
        try:
            TopicKeys.of(self._client.keys, name)
        except InvalidName:  # another program wrote it into the registry
            return False
        return True

    async def _ask_topic(self, name: str) -> tuple[int, int | None, int | None]:
        keys = TopicKeys.of(self._client.keys, name)
        length, (created, updated) = await ask_typed(
            self._client, [("XLEN", keys.dlq), ("HMGET", keys.meta, "createdAt", "updatedAt")]
        )
        return length or 0, _ms(created), _ms(updated)

    async def _partitions(self, name: str, count: int) -> list[PartitionView]:
        commands: list[Command] = []
        for index in range(count):
            keys = PartitionKeys.of(self._client.keys, name, index)
            commands += [
                ("XINFO", "STREAM", keys.stream),
                ("MEMORY", "USAGE", keys.stream),
                ("ZCARD", keys.delayed),
                ("HGET", keys.counters, "lost"),
            ]
        replies = await ask_typed(self._client, commands, absent=True)
        return [_partition(index, *replies[index * 4 : index * 4 + 4]) for index in range(count)]

    async def _trim_partition(self, name: str, index: int, wanted: Retention) -> list[int]:
        totals = [0, 0, 0]
        while True:
            done = await trim_partition(self._client, name, index, wanted)
            totals = [total + more for total, more in zip(totals, done, strict=True)]
            if not any(done):
                return totals


def _line(name: str, reply: Reply) -> TopicLine:
    if reply is None:
        return TopicLine(name=name, partitions=0)
    count, generation, growing, created, updated = reply
    return TopicLine(
        name=name,
        partitions=whole_number(count),
        generation=whole_number(generation, 1 if count else 0),
        growing_to=whole_number(growing),
        created_ms=_ms(created),
        updated_ms=_ms(updated),
    )


def _partition(
    index: int, stream: Reply, size: int | None, delayed: int | None, lost: bytes | None
) -> PartitionView:
    if stream is None:
        return PartitionView(index=index, length=0, bytes=0, is_missing=True)
    metadata = as_dict(stream)
    first = metadata["first-entry"]
    last = text(metadata["last-generated-id"])
    return PartitionView(
        index=index,
        length=metadata["length"],
        bytes=size or 0,
        first_id=place_id(index, first[0]) if first else None,
        last_id=None if last == "0-0" else place_id(index, last),
        delayed=delayed or 0,
        lost=whole_number(lost),
    )


def _ms(stored: bytes | None) -> int | None:
    ms = whole_number(stored, -1)
    return None if ms < 0 else ms
