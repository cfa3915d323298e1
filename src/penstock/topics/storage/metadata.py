"""A topic's metadata: partitions, generation, options; and its creation on first use."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass

import msgspec

from penstock.delivery.queries import text
from penstock.delivery.stored import read_json
from penstock.errors import InvalidMessage, TooMany, TopicError, TopicMismatch, TopicMissing
from penstock.redis.client import Client
from penstock.redis.wire import Reply
from penstock.throttled_log import RateLimitedLog
from penstock.topics.storage.keys import PartitionKeys, TopicKeys, TopicsKeys
from penstock.topics.storage.scripts import OpenOutcome, TopicScripts

__all__ = [
    "MOST_PARTITIONS",
    "Options",
    "Retention",
    "TopicMetadata",
    "ensure_topic",
    "metadata_of",
    "read_metadata",
]

MOST_PARTITIONS = 4096
_BODIES_AT_ONCE = 500

quiet = RateLimitedLog(logging.getLogger(__name__))


class Retention(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How long messages stay. Without a hard cap none is dropped that a group still needs.

    A topic without any limit keeps messages that every group is past for `topics.retention_s`, and
    all of them as long as it has no group.
    """

    max_length: int = 0
    """Messages per partition; 0 for any number."""
    max_age_s: float = 0
    max_bytes: int = 0
    """Bytes per partition, as the server estimates them."""
    hard_length: int = 0
    """Messages per partition above which even needed ones are dropped, and counted as lost."""
    forever: bool = False
    """Keep all messages, although there is no limit: `topics.retention_s` does not apply."""

    def __post_init__(self) -> None:
        for name in ("max_length", "max_age_s", "max_bytes", "hard_length"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
                raise ValueError(f"retention {name} = {value!r}: expected 0 or more")
        if self.hard_length and self.max_length > self.hard_length:
            raise ValueError(
                f"retention max_length = {self.max_length}: expected at most hard_length "
                f"({self.hard_length})"
            )
        if self.forever and self.is_set:
            raise ValueError("retention forever = True: expected no limit beside it")

    @property
    def is_set(self) -> bool:
        """Whether there is a limit."""
        return any((self.max_length, self.max_age_s, self.max_bytes, self.hard_length))


class Options(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is stored with a topic, so that every process treats it alike."""

    retention: Retention = Retention()
    dead_letters: Retention = Retention()
    """Their own: length and age only. Without it they stay until people deal with them."""


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic as the server knows it at one moment."""

    name: str
    partitions: int
    generation: int
    """Grows by one each time that the topic grows."""
    life: str
    """Another one after the topic was deleted and made again."""
    growing_to: int
    """Partitions that it is about to have; 0 if it is not growing."""
    switch_ms: int
    """While it is growing: ms until producers have to wait for the new number."""
    options: Options
    created: bool = False


async def read_metadata(client: Client, topic: str) -> TopicMetadata:
    """Return the metadata of a topic, or raise `TopicMissing`. One round trip."""
    metadata = await _ask(client, topic, partitions=0, options=None)
    if not metadata.partitions:
        raise TopicMissing(topic)
    return metadata


async def ensure_topic(
    client: Client, topic: str, partitions: int | None = None, options: Options | None = None
) -> TopicMetadata:
    """Make the topic unless it is there; `TopicMismatch` if it has other partitions than asked.

    TooMany if it is new and the namespace has `topics.max_topics`.

    The number to which it is growing matches as well: the caller may have to complete the growth.

    May be called by any number of processes at once, and again after a crash half-way.
    """
    if partitions is not None and not (
        type(partitions) is int and 1 <= partitions <= MOST_PARTITIONS
    ):
        raise InvalidMessage(
            f"topic {topic!r}: partitions = {partitions!r}: expected a whole number from 1 to "
            f"{MOST_PARTITIONS}"
        )
    keys = TopicKeys.of(client.keys, topic)
    count = partitions or client.settings.topics.partitions
    # First the registry: a topic that is not listed could not be deleted.
    most = client.settings.topics.max_topics
    registry = TopicsKeys.of(client.keys).registry
    if not await TopicScripts.of(client).register_topic(registry=registry, topic=topic, most=most):
        raise TooMany("topics", most, "topics.max_topics")
    metadata = await _ask(client, topic, partitions=count, options=options)
    if partitions is not None and partitions not in {metadata.partitions, metadata.growing_to}:
        raise TopicMismatch(topic, metadata.partitions, partitions)
    await open_partitions(client, topic, range(metadata.partitions), metadata.life)
    streams = [
        PartitionKeys.of(client.keys, topic, index).stream for index in range(metadata.partitions)
    ]
    await client.call("SADD", keys.partitions, *streams)
    return metadata


async def open_partitions(
    client: Client, topic: str, indexes: range, life: str | None = None
) -> None:
    """Make the streams that are not there, and remove what an earlier life of the topic left."""
    if life is None:
        life = (await read_metadata(client, topic)).life
    for index in indexes:
        keys = PartitionKeys.of(client.keys, topic, index)
        while (
            await TopicScripts.of(client).open_partition(
                stream=keys.stream,
                counters=keys.counters,
                epochs=keys.epochs,
                commit=keys.commit,
                payloads=keys.payloads,
                delayed=keys.delayed,
                delayed_bodies=keys.delayed_bodies,
                dedup=keys.dedup,
                dedup_times=keys.dedup_times,
                life=life,
                payload_prefix=keys.payload_prefix,
                count=_BODIES_AT_ONCE,
            )
            is OpenOutcome.UNFINISHED
        ):
            pass


async def _ask(
    client: Client, topic: str, *, partitions: int, options: Options | None
) -> TopicMetadata:
    reply: Reply = await TopicScripts.of(client).create_topic(
        meta=TopicKeys.of(client.keys, topic).meta,
        partitions=partitions,
        life=uuid.uuid4().hex,
        options="" if options is None else msgspec.json.encode(options).decode(),
    )
    created, *fields = reply
    return metadata_of(client, topic, fields, created=bool(created))


def metadata_of(
    client: Client, topic: str, fields: Reply, *, created: bool = False
) -> TopicMetadata:
    """Decode the fields that scripts return; `TopicError` if partitionCount is invalid."""
    count, generation, life, growing_to, switch_ms, stored = fields
    if not 0 <= count <= MOST_PARTITIONS:
        raise TopicError(
            f"topic {topic!r} has no readable number of partitions: partitionCount in the hash "
            f"{TopicKeys.of(client.keys, topic).meta} is not from 1 to {MOST_PARTITIONS}"
        )
    return TopicMetadata(
        name=topic,
        partitions=count,
        generation=max(1, generation) if count else 0,
        life=text(life),
        growing_to=growing_to if 0 < growing_to <= MOST_PARTITIONS else 0,
        switch_ms=max(0, switch_ms),
        options=read_options(topic, stored),
        created=created,
    )


def read_options(topic: str, stored: bytes) -> Options:
    """Return the stored options; some by which nothing is dropped if they are garbled."""
    options: Options | None = read_json(stored, Options) if stored else Options()
    if options is None:
        quiet.warning(
            f"{topic} options",
            "the options stored with topic %s cannot be read, so nothing of it is trimmed",
            topic,
        )
    return options or Options(retention=Retention(forever=True))
