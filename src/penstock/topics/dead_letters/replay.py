"""How dead letters are sent again: where to, as what, how fast, and never twice."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.delivery.queries import ask_typed, text
from penstock.delivery.stored import whole_number
from penstock.delivery.throttle import Throttle
from penstock.errors import ServerError, TopicError, TopicMissing
from penstock.redis.client import Client
from penstock.redis.wire import Argument
from penstock.topics.admin.views import Replayed
from penstock.topics.consumer.growth_barrier import read_markers
from penstock.topics.dead_letters.letter import Letter
from penstock.topics.message import (
    HEADERS,
    KEY,
    ORIGINAL_ID,
    STORAGE_TYPE,
    STORED_BESIDE,
    TARGET_GROUP,
    Fields,
    encode_headers,
)
from penstock.topics.partitioners import Partitioner, check_partition
from penstock.topics.producer.publish_call import publish_once
from penstock.topics.storage.entries import claimed_fields, message_fields
from penstock.topics.storage.keys import PartitionKeys, TopicKeys
from penstock.topics.storage.large_payloads import without_reference
from penstock.topics.storage.message_id import MESSAGE_ID, id_numbers

__all__ = ["Replay", "foreign_fields"]

_CHUNK = 100
_LONGEST_HOLD_S = 30.0
_LOOK_AGAIN_S = 0.1
_MOST_PARTS = 4_000
"""Names and values that a script can pass to one command: its stack is limited."""
_OURS = (TARGET_GROUP, MESSAGE_ID, HEADERS)
_is_entry_id = re.compile(r"[0-9]{1,20}-[0-9]{1,20}").fullmatch


@dataclass(frozen=True, slots=True)
class _Ready:
    """A letter as it will be sent."""

    letter: Letter
    partition: int
    fields: tuple[Argument, ...]
    payload_name: str = ""
    body: bytes = b""


class _Unfit(Exception):
    """This letter cannot be sent; the text gives the reason."""


class Replay:
    """One replay of letters of one topic. `prepare` comes first."""

    def __init__(
        self,
        client: Client,
        topic: str,
        partitioner: Partitioner,
        *,
        to_group: bool,
        rate: float | None,
    ) -> None:
        self._throttle = Throttle(rate, _CHUNK)
        self.chunk = self._throttle.chunk
        """Letters sent at a time."""
        self.missing = 0
        self.detail = "to the group that failed" if to_group else "to all groups"
        self._client, self._topic, self._partitioner = client, topic, partitioner
        self._to_group = to_group
        self._count = 0
        self._moved_before: dict[int, tuple[int, int]] = {}
        self._groups: frozenset[str] = frozenset()
        self._looked_at = 0.0
        self._matched = self._replayed = self._repeated = 0
        self._skipped: dict[str, str] = {}

    async def prepare(self) -> None:
        """Read the topic; `TopicMissing`, or `TopicError` while it grows. One round trip."""
        looked_at = time.monotonic()
        keys = TopicKeys.of(self._client.keys, self._topic)
        meta, groups = await self._client.pipeline([("HGETALL", keys.meta), ("HKEYS", keys.groups)])
        for reply in (meta, groups):
            if isinstance(reply, ServerError):
                raise reply
        metadata = dict(zip(meta[::2], meta[1::2], strict=True))
        self._count = whole_number(metadata.get(b"partitionCount"))
        if not self._count:
            raise TopicMissing(self._topic)
        if b"growing" in metadata:
            raise TopicError(f"topic {self._topic!r} is growing; replay when that is done")
        self._groups = frozenset(map(text, groups))
        # Messages before these were placed when the topic had fewer partitions.
        markers = read_markers(meta).get(whole_number(metadata.get(b"generation"), 1), {})
        self._moved_before = {index: id_numbers(marker) for index, marker in markers.items()}
        self._looked_at = looked_at

    async def _look_again(self) -> None:
        """Be as certain of the number of partitions as producers are; wait while it changes."""
        refresh_s = self._client.settings.topics.refresh_s
        deadline = time.monotonic() + _LONGEST_HOLD_S
        while time.monotonic() - self._looked_at > refresh_s:
            try:
                await self.prepare()
            except TopicMissing:
                raise
            except TopicError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_LOOK_AGAIN_S)

    def result(self) -> Replayed:
        return Replayed(
            matched=self._matched,
            replayed=self._replayed,
            repeated=self._repeated,
            missing=self.missing,
            skipped=self._skipped,
        )

    async def examine(self, letters: Sequence[Letter]) -> list[_Ready]:
        """Find out what can be sent, and count what cannot."""
        ready: list[_Ready] = []
        for letter in letters:
            self._matched += 1
            try:
                ready.append(await self._ready(letter))
            except _Unfit as reason:
                self._skipped[letter.id] = str(reason)
        return ready

    async def send(self, letters: Sequence[Letter]) -> list[str]:
        """Send letters and return the ids of those that are in their partitions now.

        Partitions go side by side, letters of one partition one after the other.
        """
        await self._throttle.wait(self._replayed + self._repeated)
        await self._look_again()
        routes: dict[int, list[_Ready]] = {}
        for one in await self.examine(letters):
            routes.setdefault(one.partition, []).append(one)
        ends = await asyncio.gather(*map(self._send_lane, routes.values()), return_exceptions=True)
        for end in ends:
            if end is not None:
                raise end
        return [one.letter.id for route in routes.values() for one in route]

    async def _send_lane(self, route: Sequence[_Ready]) -> None:
        for one in route:
            is_new = await publish_once(
                self._client,
                self._topic,
                one.partition,
                fields=one.fields,
                idempotency_key=f"replay/{one.letter.id}",
                payload_name=one.payload_name,
                body=one.body,
            )
            if is_new:
                self._replayed += 1
            else:
                self._repeated += 1

    async def _ready(self, letter: Letter) -> _Ready:
        target = letter.group if self._to_group else None
        if target is not None and target not in self._groups:
            raise _Unfit(f"group {target!r} is not registered (any more)")
        partition = self._place(letter)
        aim: tuple[Argument, ...] = () if target is None else (TARGET_GROUP, target)
        # So that handlers recognise it; a letter that names no message stands for itself.
        more_fields: tuple[Argument, ...] = (
            (MESSAGE_ID, letter.message_id) if letter.message_id else ()
        )
        more_fields += tuple(_checked(letter.later_fields))
        body = letter.payload
        if body is None:
            body = await self._referred(letter)
        if body is None:
            return _Ready(letter, partition, (*aim, *foreign_fields(letter), *more_fields))
        key = letter.raw.get(KEY)
        headers = _headers(letter)
        if len(body) <= self._client.settings.topics.claim_above:
            return _Ready(
                letter, partition, (*aim, *message_fields(body, key, headers), *more_fields)
            )
        name = f"replay-{letter.id}"
        place = PartitionKeys.of(self._client.keys, self._topic, partition).payload(name)
        fields = (*aim, *claimed_fields(place, len(body), key, headers), *more_fields)
        return _Ready(letter, partition, fields, name, body)

    async def _referred(self, letter: Letter) -> bytes | None:
        """Payload that is stored beside the stream; None if the letter speaks of none."""
        if letter.stored_headers.get(STORAGE_TYPE) != STORED_BESIDE:
            return None
        key = letter.body_key(self._client, self._topic)
        body = None
        if key is not None:
            (body,) = await ask_typed(self._client, [("GET", key)])
        if key is None or body is None:
            raise _Unfit("its payload was stored beside the stream and is gone")
        return letter.unquoted(body, key)

    def _place(self, letter: Letter) -> int:
        stored, key = letter.partition, letter.text("key")
        if stored < self._count and not self._has_moved(letter):
            return stored
        if key is None:
            return stored % self._count
        return check_partition(self._partitioner.partition(key, self._count), self._count)

    def _has_moved(self, letter: Letter) -> bool:
        marker = self._moved_before.get(letter.partition)
        if marker is None or not _is_entry_id(letter.entry_id):
            return False
        return id_numbers(letter.entry_id) <= marker


def _headers(letter: Letter) -> dict[str, str]:
    headers = without_reference(letter.stored_headers)
    return {**headers, ORIGINAL_ID: letter.entry_id or letter.id}


def _checked(fields: Fields) -> Fields:
    if len(fields) > _MOST_PARTS:
        raise _Unfit(f"it has {len(fields) // 2:,} fields, more than can be stored again")
    return fields


def foreign_fields(letter: Letter) -> tuple[Argument, ...]:
    """Fields of an entry that had no payload, as they were."""
    stored = letter.raw_fields
    if stored is None:
        raise _Unfit("it has no payload")
    _checked(stored)
    kept = [
        part
        for name, value in zip(stored[::2], stored[1::2], strict=True)
        if name not in _OURS
        for part in (name, value)
    ]
    return (*kept, HEADERS, encode_headers(_headers(letter)))
