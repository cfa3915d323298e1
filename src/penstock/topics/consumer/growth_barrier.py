"""Barriers of a growth: what was sent later waits for what was sent before, in every partition."""

from __future__ import annotations

import asyncio
import re

from penstock.errors import ServerError
from penstock.redis.client import Client
from penstock.redis.wire import Command, Reply
from penstock.topics.consumer.owned_partition import OwnedPartition
from penstock.topics.storage.keys import PartitionKeys, TopicKeys
from penstock.topics.storage.message_id import id_numbers

__all__ = ["GrowthBarriers", "read_markers"]

_LOOK_EVERY_S = 0.1

_is_place = re.compile(rb"barrier:([0-9]{1,9}):([0-9]{1,9})").fullmatch
_is_entry_id = re.compile(rb"[0-9]{1,20}-[0-9]{1,20}").fullmatch

Markers = dict[int, dict[int, bytes]]
"""From generation to the id of its marker in each partition that was there before."""


def read_markers(meta: list[bytes]) -> Markers:
    """Markers among a topic's metadata, as HGETALL returns them. Other fields are left out."""
    markers: Markers = {}
    for name, value in zip(meta[::2], meta[1::2], strict=True):
        place = _is_place(name)
        if place and _is_entry_id(value):
            markers.setdefault(int(place[1]), {})[int(place[2])] = value
    return markers


class GrowthBarriers:
    """Waits until a group has handled all that precedes the markers of a growth."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def passed(
        self, owned: OwnedPartition, generation: int, marker: bytes | None = None
    ) -> bool:
        """Wait for the barrier to open; False if the partition is to be given up meanwhile.

        `marker` is the entry that was met. One that the growth did not write holds nothing up.
        What this partition has done is settled first, so that others can see it.
        """
        while not owned.closing:
            await owned.flush_acks()
            meta: list[bytes] = (
                await owned.until_answered("read the barrier", lambda: self._meta(owned)) or []
            )
            markers = read_markers(meta).get(generation)
            if markers is None and b"growing" not in meta[::2]:
                return True  # a foreign entry that resembles a marker
            own = markers and markers.get(owned.source.partition)
            if markers is not None and marker is not None and marker != own:
                return True
            # Without markers in the metadata the growth itself is not finished.
            if markers is not None and await self._is_open(owned, markers):
                return True
            await asyncio.sleep(_LOOK_EVERY_S)
        return False

    async def passed_all_before(self, owned: OwnedPartition) -> bool:
        """Wait until a partition that was added by a growth may be read."""
        meta: list[bytes] = (
            await owned.until_answered("read the barriers", lambda: self._meta(owned)) or []
        )
        for generation, before in read_markers(meta).items():
            if owned.source.partition not in before and not await self.passed(owned, generation):
                return False
        return True

    async def _meta(self, owned: OwnedPartition) -> list[bytes]:
        return await self._client.call(
            "HGETALL", TopicKeys.of(self._client.keys, owned.source.topic).meta
        )

    async def _is_open(self, owned: OwnedPartition, markers: dict[int, bytes]) -> bool:
        group = owned.source.group
        streams = {
            index: PartitionKeys.of(self._client.keys, owned.source.topic, index).stream
            for index in markers
        }
        commands: list[Command] = []
        for stream in streams.values():
            commands += [("XINFO", "GROUPS", stream), ("XPENDING", stream, group)]
        replies = await self._client.pipeline(commands)
        for index, known, pending in zip(markers, replies[::2], replies[1::2], strict=True):
            if not _is_past(markers[index], group, known, pending):
                return False
        return True


def _is_past(marker: bytes, group: str, groups: Reply, pending: Reply) -> bool:
    if isinstance(groups, ServerError) or isinstance(pending, ServerError):
        return False  # not known
    for info in groups:
        known = dict(zip(info[::2], info[1::2], strict=True))
        if known[b"name"] == group.encode():
            lowest = pending[1]
            delivered = id_numbers(known[b"last-delivered-id"]) >= id_numbers(marker)
            return delivered and (lowest is None or id_numbers(lowest) >= id_numbers(marker))
    return True  # a group that is not registered there waits for nothing
