"""Delayed messages that belong to another partition since their topic has grown.

What becomes due after a growth is placed by the new number of partitions, as everything that is
sent then. It waits in its new partition from shortly before it is due: it is copied there first,
recognised if that is repeated, and dropped from the old one afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.delivery.queries import text
from penstock.errors import InvalidMessage, PenstockError
from penstock.redis.client import Client
from penstock.redis.wire import Reply
from penstock.topics.admin.growth import OverdueGrowth
from penstock.topics.consumer.growth_barrier import read_markers
from penstock.topics.message import decode_headers
from penstock.topics.partitioners import Crc32, JavaHash, Partitioner, Random, RoundRobin
from penstock.topics.storage.entries import forced_partition
from penstock.topics.storage.keys import PartitionKeys, TopicKeys
from penstock.topics.storage.metadata import TopicMetadata, read_metadata
from penstock.topics.storage.scripts import TOPIC_GREW, AdoptOutcome, TopicScripts

__all__ = ["MOST_READ", "READ_AHEAD_MS", "Rehoming", "TopicGeneration"]

MOST_READ: Final = 100
"""Messages that one call reads."""
READ_AHEAD_MS: Final = 2_000
"""Messages go to their new partition this long before they are due."""
_AT_ONCE = 50
"""Bodies that are read at once: what is large is stored beside them."""
_REMEMBER_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class TopicGeneration:
    """A topic as messages are placed in it now, and as they were before."""

    metadata: TopicMetadata
    counts: frozenset[int]
    """Every number of partitions that it has had."""
    generation: int
    """Up to here markers in its partitions are known: a next one means that it has grown."""


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """What decides where a delayed message belongs."""

    id: bytes
    due: bytes
    wait_ms: int
    key: bytes | None
    headers: bytes
    """Empty if they do not name a partition."""
    body_name: bytes
    names_partition: int

    def place(self, partitioner: Partitioner, partitions: int, stored: int) -> int:
        """Its partition in a topic of so many; where it is if nothing names a place."""
        if self.headers:
            try:
                forced = forced_partition(decode_headers(self.headers), partitions)
            except InvalidMessage:
                forced = None
            if forced is not None:
                return forced
        if self.key is None:
            return stored
        return partitioner.partition(self.key.decode(errors="backslashreplace"), partitions)


class Rehoming:
    """Knows the topics of a process, and moves delayed messages between their partitions."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, TopicGeneration] = {}
        self._partitioners: dict[str, Partitioner] = {}
        self._overdue: dict[str, OverdueGrowth] = {}

    def expect(self, topic: str, partitions: int, partitioner: Partitioner | None) -> None:
        """Note that a topic has this many partitions at least, and what places its messages."""
        if partitioner is not None:
            self._partitioners[topic] = partitioner
        known = self._known.get(topic)
        if known is not None and known.metadata.partitions < partitions:
            del self._known[topic]

    def forget(self, topic: str) -> None:
        """Know nothing of a topic: it was deleted and made again."""
        self._known.pop(topic, None)

    async def know(self, topic: str) -> TopicGeneration:
        """Return what is known of a topic; `TopicMissing`. One or two round trips if it is new."""
        known = self._known.get(topic)
        if known is None:
            metadata = await read_metadata(self._client, topic)
            counts = {metadata.partitions}
            if metadata.generation > 1:
                meta = await self._client.call(
                    "HGETALL", TopicKeys.of(self._client.keys, topic).meta
                )
                counts.update(map(len, read_markers(meta).values()))
            known = TopicGeneration(metadata, frozenset(counts), metadata.generation)
            self._known[topic] = known
        return known

    async def refresh(self, topic: str) -> None:
        """A partition has an unknown marker: check whether its topic has grown."""
        before = self._known.pop(topic, None)
        known = await self.know(topic)
        if known.metadata.growing_to:
            overdue = self._overdue.setdefault(topic, OverdueGrowth(self._client))
            await overdue.complete(known.metadata)
            del self._known[topic]
        elif before is not None and known.metadata.generation == before.metadata.generation:
            # The marker is that of no growth: it holds nothing up.
            self._known[topic] = TopicGeneration(
                known.metadata, known.counts, max(before.generation, known.generation) + 1
            )

    async def move(
        self, known: TopicGeneration, stored: int, rows: Sequence[Reply]
    ) -> tuple[list[bytes], list[tuple[int, int]]] | None:
        """Bring messages of a partition to where they belong.

        Returns the ids of those that are due and belong where they are, and for the others their
        partitions and the ms until they are due; None if the topic has grown since.
        """
        due: list[bytes] = []
        leaving: list[tuple[int, DelayedMessage]] = []
        for row in rows:
            waiting = DelayedMessage(*row)
            home = self._home(known, stored, waiting)
            if home != stored:
                leaving.append((home, waiting))
            elif not waiting.wait_ms:
                due.append(waiting.id)
        for first in range(0, len(leaving), _AT_ONCE):
            if not await self._send_home(known, stored, leaving[first : first + _AT_ONCE]):
                return None
        return due, [(home, waiting.wait_ms) for home, waiting in leaving]

    def _home(self, known: TopicGeneration, stored: int, waiting: DelayedMessage) -> int:
        partitioner = self._partitioners.get(known.metadata.name) or Crc32()
        if isinstance(partitioner, Crc32) and waiting.names_partition:
            partitioner = JavaHash()
        if isinstance(partitioner, RoundRobin | Random) and not waiting.headers:
            return stored
        try:
            # What this partitioner never placed here was placed by another, and stays.
            if all(waiting.place(partitioner, count, stored) != stored for count in known.counts):
                return stored
            home = waiting.place(partitioner, known.metadata.partitions, stored)
            # What others wrote may name a large body as no key is named.
            PartitionKeys.of(self._client.keys, known.metadata.name, stored).payload(
                text(waiting.body_name) or "none"
            )
        except (PenstockError, ValueError):
            return stored
        return home if type(home) is int and 0 <= home < known.metadata.partitions else stored

    async def _send_home(
        self, known: TopicGeneration, stored: int, leaving: Sequence[tuple[int, DelayedMessage]]
    ) -> bool:
        """Let messages wait elsewhere; False if the topic has grown since."""
        old = PartitionKeys.of(self._client.keys, known.metadata.name, stored)
        ids = [waiting.id for _, waiting in leaving]
        bodies = await self._client.call("HMGET", old.delayed_bodies, *ids)
        there = [
            (*one, body) for one, body in zip(leaving, bodies, strict=True) if body is not None
        ]
        adopted = await asyncio.gather(
            *(self._adopt(known, stored, *one) for one in there if not one[1].body_name)
        )
        for one in there:
            if one[1].body_name:  # alone: no more than one large body is in memory
                adopted.append(await self._adopt(known, stored, *one))
        names: Mapping[bytes, bytes] = {waiting.id: waiting.body_name for _, waiting in leaving}
        gone = [
            part
            for id_, done in adopted
            if done in {AdoptOutcome.KNOWN, AdoptOutcome.STORED}
            for part in (id_, names[id_])
        ]
        dropped = 0
        if gone:
            dropped = await TopicScripts.of(self._client).drop_delayed(
                delayed=old.delayed,
                delayed_bodies=old.delayed_bodies,
                payloads=old.payloads,
                payload_prefix=old.payload_prefix,
                gone=gone,
                counters=old.counters,
                markers_upto=known.generation,
            )
        return dropped != TOPIC_GREW and not any(done == TOPIC_GREW for _, done in adopted)

    async def _adopt(
        self, known: TopicGeneration, stored: int, home: int, waiting: DelayedMessage, body: bytes
    ) -> tuple[bytes, AdoptOutcome | None]:
        """Store a message in its new partition; its id, and the outcome."""
        old = PartitionKeys.of(self._client.keys, known.metadata.name, stored)
        new = PartitionKeys.of(self._client.keys, known.metadata.name, home)
        name, large = text(waiting.body_name), b""
        if name:
            large = await self._client.call("GET", old.payload(name)) or b""
        done = await TopicScripts.of(self._client).adopt_delayed(
            stream=new.stream,
            delayed=new.delayed,
            delayed_bodies=new.delayed_bodies,
            dedup=new.dedup,
            dedup_times=new.dedup_times,
            payload=new.payload(name or "none"),
            payloads=new.payloads,
            id_=waiting.id,
            due=waiting.due,
            message=body,
            remember_ms=_REMEMBER_MS,
            payload_name=name,
            body=large,
            old_payload=old.payload(name) if name else "",
            partition=home,
            generation=known.metadata.generation,
            counters=new.counters,
            markers_upto=known.generation,
        )
        return waiting.id, done
