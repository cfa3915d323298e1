"""One partition as a producer sees it, and how commands get there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import hiredis

from penstock.errors import ScriptMissing, ServerError
from penstock.redis.client import Client
from penstock.redis.keys.hash_slot import key_slot
from penstock.redis.prepared_call import ELSEWHERE, ScriptCall
from penstock.redis.wire import Command, Reply, Wire
from penstock.throttled_log import RateLimitedLog
from penstock.topics.message import PAYLOAD
from penstock.topics.producer.publish_call import PublishCalls
from penstock.topics.storage.keys import PartitionKeys
from penstock.topics.storage.message_id import is_delayed
from penstock.topics.storage.metadata import Retention
from penstock.topics.storage.scripts import TopicScripts, TrimmedMessages

__all__ = ["DirectTransport", "PartitionRoute", "Transport", "Trimmer"]

_SMALL = 10
_MOST_BETWEEN = 1000

quiet = RateLimitedLog(logging.getLogger(__name__))


class PartitionRoute:
    """A partition's keys and the connection that its messages take."""

    __slots__ = (
        *("_client", "_publish_calls", "id_head", "index", "keys", "slot", "stream"),
        *("_keyed_head", "_plain_head", "untrimmed", "wire"),
    )

    def __init__(self, client: Client, topic: str, index: int) -> None:
        self.index = index
        self.keys: PartitionKeys = PartitionKeys.of(client.keys, topic, index)
        self.stream = self.keys.stream.encode()
        self._plain_head = _head_of_entry(self.stream, fields=1)
        self._keyed_head = _head_of_entry(self.stream, fields=2)
        self.slot = key_slot(self.keys.stream) if client.keys.cluster else None
        self._client = client
        self._publish_calls: PublishCalls | None = None
        self.wire: Wire | None = None
        self.untrimmed = 0
        """Messages sent since the last trim."""
        self.id_head = f"{index}-"
        """What ids of messages begin with that are named after their place."""

    def add_plain(self, data: bytes) -> bytes:
        """The packed command that stores a message without key or headers."""
        return b"%b%d\r\n%b\r\n" % (self._plain_head, len(data), data)

    def add_keyed(self, data: bytes, key: bytes) -> bytes:
        """The same with a key."""
        return b"%b%d\r\n%b\r\n$3\r\nkey\r\n$%d\r\n%b\r\n" % (
            self._keyed_head,
            len(data),
            data,
            len(key),
            key,
        )

    @property
    def publish_calls(self) -> PublishCalls:
        """Made when first needed: most producers never are."""
        if self._publish_calls is None:
            self._publish_calls = PublishCalls(self._client, self.keys)
        return self._publish_calls

    def message_id(self, reply: bytes | list[Any]) -> str:
        """Return the id of a message from the reply to the command that stored it."""
        if isinstance(reply, bytes):
            return self.id_head + reply.decode()
        stored: bytes = reply[0]
        id_ = stored.decode(errors="backslashreplace")
        return id_ if is_delayed(stored) else self.id_head + id_


def _head_of_entry(stream: bytes, fields: int) -> bytes:
    """Begin of a packed `XADD stream NOMKSTREAM * payload …`, up to the payload's length.

    Packing each argument takes longer than all else that a short message needs.
    """
    parts = (b"XADD", stream, b"NOMKSTREAM", b"*", PAYLOAD)
    packed = b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
    return b"*%d\r\n%b$" % (4 + 2 * fields, packed)


class Transport(Protocol):
    """A way for packed commands of one partition; each has its own end in the list."""

    async def begin(
        self, route: PartitionRoute, commands: Sequence[bytes]
    ) -> asyncio.Future[list[Reply]]:
        """Send `commands`, in this order; waits while the connection is behind."""
        ...

    async def mend(self, route: PartitionRoute, commands: Sequence[bytes]) -> list[Reply]:
        """Send once more what was refused because its place is elsewhere now."""
        ...

    async def close(self) -> None:
        """End background tasks. Repeatable."""
        ...


class DirectTransport:
    """Straight to the partition's owner over the shared connection; a reply means accepted."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def ready(self, route: PartitionRoute) -> Wire | None:
        """Return the connection to the partition's owner if it is open and keeps up."""
        wire = route.wire
        return wire if wire is not None and wire.alive and not wire.behind else None

    async def wire_of(self, route: PartitionRoute) -> Wire:
        """Return an open connection to the partition's owner."""
        wire = route.wire
        if wire is None or not wire.alive:
            route.wire = wire = await self._client.wire(slot=route.slot)
        return wire

    async def begin(
        self, route: PartitionRoute, commands: Sequence[bytes]
    ) -> asyncio.Future[list[Reply]]:
        try:
            wire = await self.wire_of(route)
            await wire.writable()
            return wire.send_packed(commands)
        except ELSEWHERE:
            done: asyncio.Future[list[Reply]] = asyncio.get_running_loop().create_future()
            done.set_result(await self.mend(route, commands))
            return done

    async def mend(self, route: PartitionRoute, commands: Sequence[bytes]) -> list[Reply]:
        route.wire = None
        return await self._client.pipeline([_unpacked(command) for command in commands])

    async def close(self) -> None:
        """The connections are the client's."""


def _unpacked(command: bytes) -> Command:
    """Undo `pack`; a command has the form of a reply."""
    reader = hiredis.Reader()
    reader.feed(command)
    parts: list[bytes] = reader.gets()
    return tuple(parts)


class Trimmer:
    """Applies a topic's retention while it is written to; senders do not wait for it."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client, self._topic = client, topic
        self._retention: Retention = Retention()
        self.every = 0
        """Messages to a partition between two trims; 0: never."""

    def follow(self, retention: Retention) -> None:
        """Take over what is stored with the topic."""
        if retention is not self._retention:
            self._retention = retention
            self.every = _between_trims(retention)

    def sent(self, route: PartitionRoute, count: int) -> None:
        """Count messages, and trim when it is time."""
        route.untrimmed += count
        wire = route.wire
        if route.untrimmed >= self.every and wire is not None and wire.alive:
            route.untrimmed = 0
            sent = wire.send_packed((self._trim(route).packed(),))
            sent.add_done_callback(partial(self._ended, route))

    def _trim(self, route: PartitionRoute) -> ScriptCall[TrimmedMessages]:
        keys, limits = route.keys, self._retention
        return TopicScripts.of(self._client).trim_partition(
            stream=keys.stream,
            counters=keys.counters,
            payloads=keys.payloads,
            max_length=limits.max_length,
            max_age_ms=int(limits.max_age_s * 1000),
            max_bytes=limits.max_bytes,
            hard_length=limits.hard_length,
            payload_prefix=keys.payload_prefix,
        )

    def _ended(self, route: PartitionRoute, done: asyncio.Future[list[Reply]]) -> None:
        reply = done.result()[0]
        if isinstance(reply, ScriptMissing) and route.wire is not None and route.wire.alive:
            again = route.wire.send_packed((self._trim(route).packed(by_text=True),))
            again.add_done_callback(partial(self._ended, route))
        elif isinstance(reply, ServerError):
            quiet.warning(
                f"{self._topic} {type(reply).__name__}",
                "topic %s, partition %d: not trimmed: %s",
                self._topic,
                route.index,
                reply,
            )


def _between_trims(retention: Retention) -> int:
    if not retention.is_set:
        return 0
    limit = retention.max_length or retention.hard_length
    if not limit:
        return _MOST_BETWEEN
    return 1 if limit <= _SMALL else min(_MOST_BETWEEN, limit // _SMALL)
