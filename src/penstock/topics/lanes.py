"""One partition as a producer sees it, and how commands get there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import hiredis

from penstock.errors import (
    ClusterDown,
    ReadOnlyReplica,
    Redirected,
    ScriptMissing,
    ServerError,
    Unreachable,
)
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client
from penstock.redis.keys import PartitionKeys, key_slot
from penstock.redis.script import load_script
from penstock.redis.wire import Command, Reply, Wire
from penstock.topics.entries import add_head
from penstock.topics.facts import Retention
from penstock.topics.identity import is_delayed

__all__ = ["ELSEWHERE", "Direct", "Lane", "Route", "Trimmer"]

ELSEWHERE = (Redirected, Unreachable, ReadOnlyReplica, ClusterDown)
"""Nothing was stored, and the client knows by now, or finds out, where to go instead."""

_SMALL = 10
_MOST_BETWEEN = 1000

quiet = RateLimitedLog(logging.getLogger(__name__))


class Lane:
    """A partition's keys and the connection that its messages take."""

    __slots__ = (
        *("id_head", "index", "keys", "publish_keys", "slot", "stream", "to_add", "to_add_keyed"),
        *("untrimmed", "wire"),
    )

    def __init__(self, client: Client, topic: str, index: int) -> None:
        self.index = index
        self.keys: PartitionKeys = client.keys.partition(topic, index)
        self.stream = self.keys.stream.encode()
        self.to_add = add_head(self.stream, fields=1)
        self.to_add_keyed = add_head(self.stream, fields=2)
        self.slot = key_slot(self.keys.stream) if client.keys.cluster else None
        self.publish_keys: tuple[str, ...] = ()
        """Made when the script `publish` is first called, which most producers never do."""
        self.wire: Wire | None = None
        self.untrimmed = 0
        """Messages sent since the last trim."""
        self.id_head = f"{index}-"
        """What ids of messages begin with that are named after their place."""

    def message_id(self, reply: bytes | list[Any]) -> str:
        """Return the id of a message from the reply to the command that stored it."""
        if isinstance(reply, bytes):
            return self.id_head + reply.decode()
        stored: bytes = reply[0]
        id_ = stored.decode(errors="backslashreplace")
        return id_ if is_delayed(stored) else self.id_head + id_


class Route(Protocol):
    """A way for packed commands of one partition; each has its own end in the list."""

    async def begin(self, lane: Lane, commands: Sequence[bytes]) -> asyncio.Future[list[Reply]]:
        """Send `commands`, in this order; waits while the connection is behind."""
        ...

    async def mend(self, lane: Lane, commands: Sequence[bytes]) -> list[Reply]:
        """Send once more what was refused because its place is elsewhere now."""
        ...

    async def close(self) -> None:
        """End what goes on in the background. May come twice."""
        ...


class Direct:
    """Straight to the partition's owner over the shared connection; a reply means accepted."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def ready(self, lane: Lane) -> Wire | None:
        """Return the connection to the partition's owner if it is open and keeps up."""
        wire = lane.wire
        return wire if wire is not None and wire.alive and not wire.behind else None

    async def wire_of(self, lane: Lane) -> Wire:
        """Return an open connection to the partition's owner."""
        wire = lane.wire
        if wire is None or not wire.alive:
            lane.wire = wire = await self._client.wire(slot=lane.slot)
        return wire

    async def begin(self, lane: Lane, commands: Sequence[bytes]) -> asyncio.Future[list[Reply]]:
        try:
            wire = await self.wire_of(lane)
            await wire.writable()
            return wire.send_packed(commands)
        except ELSEWHERE:
            done: asyncio.Future[list[Reply]] = asyncio.get_running_loop().create_future()
            done.set_result(await self.mend(lane, commands))
            return done

    async def mend(self, lane: Lane, commands: Sequence[bytes]) -> list[Reply]:
        lane.wire = None
        return await self._client.pipeline([_unpacked(command) for command in commands])

    async def close(self) -> None:
        """The connections are the client's."""


def _unpacked(command: bytes) -> Command:
    """Undo `pack`; a command has the form of a reply."""
    reader = hiredis.Reader()
    reader.feed(command)
    words: list[bytes] = reader.gets()
    return tuple(words)


class Trimmer:
    """Applies a topic's retention while it is written to. Nobody waits for it."""

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

    def sent(self, lane: Lane, count: int) -> None:
        """Count messages, and trim when it is time."""
        lane.untrimmed += count
        wire = lane.wire
        if lane.untrimmed >= self.every and wire is not None and wire.alive:
            lane.untrimmed = 0
            call = self._call(lane)
            sent = wire.send((load_script("trim").by_digest(self._client.server_version, *call),))
            sent.add_done_callback(partial(self._ended, lane))

    def _call(self, lane: Lane) -> tuple[tuple[str, ...], tuple[str | int, ...]]:
        keys, limits = lane.keys, self._retention
        return (
            (keys.stream, keys.counters, keys.payloads),
            (
                limits.max_length,
                int(limits.max_age_s * 1000),
                limits.max_bytes,
                limits.hard_length,
                keys.payload("0")[:-1],
                0,
            ),
        )

    def _ended(self, lane: Lane, done: asyncio.Future[list[Reply]]) -> None:
        reply = done.result()[0]
        if isinstance(reply, ScriptMissing) and lane.wire is not None and lane.wire.alive:
            text = load_script("trim").by_text(self._client.server_version, *self._call(lane))
            lane.wire.send((text,)).add_done_callback(partial(self._ended, lane))
        elif isinstance(reply, ServerError):
            quiet.warning(
                f"{self._topic} {type(reply).__name__}",
                "topic %s, partition %d: not trimmed: %s",
                self._topic,
                lane.index,
                reply,
            )


def _between_trims(retention: Retention) -> int:
    if not retention.is_set:
        return 0
    limit = retention.max_length or retention.hard_length
    if not limit:
        return _MOST_BETWEEN
    return 1 if limit <= _SMALL else min(_MOST_BETWEEN, limit // _SMALL)
