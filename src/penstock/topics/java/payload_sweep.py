"""Frees large payloads that the Java library redis-streaming stored and nothing refers to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.delivery.queries import ask, now_ms, text
from penstock.redis.client import Client
from penstock.redis.wire import Command
from penstock.topics.storage.contract import read_topic_key
from penstock.topics.storage.keys import PartitionKeys, TopicKeys, TopicsKeys
from penstock.topics.storage.message_id import id_numbers

__all__ = ["PayloadSweep", "free_letter_payloads"]

_PAGE = 100
_CLOCK_DOUBT_MS = 86_400_000
"""Java stamps its large payloads with its own clock; it is trusted to the day."""


class _Listed(NamedTuple):
    """A large payload as Java has listed it."""

    key: str
    stream: str
    """Where its message, or its dead letter, stands."""


class PayloadSweep:
    """Tidies Java's lists of a topic's large payloads, a page at a time.

    An entry leaves when its payload is gone. A payload goes when everything of its time has left
    its partition (or the dead letters), so that no message refers to it any more.
    """

    def __init__(self, client: Client, topic: str) -> None:
        self._client, self._topic = client, topic
        keys = TopicKeys.of(client.keys, topic)
        self._cursors = dict.fromkeys((keys.payload_index, keys.letter_payload_index), b"0")

    async def run(self) -> int:
        """Check the next page of each list; how many payloads were removed.

        Two commands if Java has listed nothing, else up to six round trips.
        """
        return sum([await self._page(index) for index in self._cursors])

    async def _page(self, index: str) -> int:
        cursor, members = await self._client.call(
            "SSCAN", index, self._cursors[index], "COUNT", _PAGE
        )
        self._cursors[index] = cursor
        listed = [one for member in members if (one := self._read(text(member)))]
        if not listed:
            return 0
        exist = await ask(self._client, [("EXISTS", one.key) for one in listed])
        gone = [one for one, there in zip(listed, exist, strict=True) if not there]
        there = [one for one, is_there in zip(listed, exist, strict=True) if is_there]
        orphans = await self._orphans(there)
        await ask(self._client, [("UNLINK", one.key) for one in orphans])
        if left := [one.key for one in (*gone, *orphans)]:
            times = TopicsKeys.of(self._client.keys).payload_times
            await ask(self._client, [("SREM", index, *left), ("ZREM", times, *left)])
        return len(orphans)

    def _read(self, key: str) -> _Listed | None:
        read = read_topic_key(key, self._client.keys.namespace)
        if read is None or read.arguments.get("topic") != self._topic:
            return None
        if read.family.name == "topic.letter_payload":
            return _Listed(key, TopicKeys.of(self._client.keys, self._topic).dlq)
        if read.family.name == "partition.payload":
            index = int(read.arguments["index"])
            return _Listed(key, PartitionKeys.of(self._client.keys, self._topic, index).stream)
        return None

    async def _orphans(self, listed: Sequence[_Listed]) -> list[_Listed]:
        """Payloads that are older than all that is left in their streams."""
        if not listed:
            return []
        times = TopicsKeys.of(self._client.keys).payload_times
        streams = sorted({one.stream for one in listed})
        clock, stored, *firsts = await ask(
            self._client,
            [
                ("TIME",),
                ("ZMSCORE", times, *(one.key for one in listed)),
                *(("XRANGE", stream, "-", "+", "COUNT", 1) for stream in streams),
            ],
        )
        first_ms = {
            stream: id_numbers(first[0][0])[0] if first else now_ms(clock)
            for stream, first in zip(streams, firsts, strict=True)
        }
        return [
            one
            for one, ms in zip(listed, stored, strict=True)
            if ms is not None and float(ms) < first_ms[one.stream] - _CLOCK_DOUBT_MS
        ]


async def free_letter_payloads(client: Client, topic: str, keys: Sequence[str]) -> None:
    """Remove payloads of dead letters that are gone. One round trip, or none."""
    if keys:
        commands: list[Command] = [("UNLINK", key) for key in keys]
        commands.append(("SREM", TopicKeys.of(client.keys, topic).letter_payload_index, *keys))
        commands.append(("ZREM", TopicsKeys.of(client.keys).payload_times, *keys))
        await ask(client, commands)
