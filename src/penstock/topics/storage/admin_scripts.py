"""Scripts that change topics, groups and dead letters, as typed calls."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from penstock.redis.script import ScriptCaller
from penstock.redis.wire import Argument, Reply
from penstock.topics.storage.scripts import TOPIC_LUA

__all__ = [
    "DropOutcome",
    "GrowthOutcome",
    "GrowthReply",
    "PendingReply",
    "ResetOutcome",
    "TopicAdminScripts",
]

_NO_GROUP = -1


class ResetOutcome(IntEnum):
    """What `reset_group` did in a partition."""

    NO_PARTITION = -1
    NO_GROUP = 0
    RESET = 1


class DropOutcome(IntEnum):
    """What `drop_partition` did."""

    HAS_GROUPS = -1
    DROPPED = 0
    UNFINISHED = 1
    """Large payloads are left: call again."""


class GrowthOutcome(IntEnum):
    """What `begin_growth` found."""

    OTHER_GROWTH = -1
    """The topic is growing to another number of partitions."""
    NOT_MORE = 0
    """The topic has as many partitions, or more."""
    ANNOUNCED = 1


class GrowthReply(NamedTuple):
    """A growth that was announced, or why it was not."""

    outcome: GrowthOutcome
    partitions: int
    """Present ones; of `OTHER_GROWTH`, those to which the topic is growing."""
    generation: int = 0
    wait_ms: int = 0
    """Until producers have stopped."""


class PendingReply(NamedTuple):
    """Pending messages of one partition."""

    owner: bytes | None
    has_more: bool
    rows: list[Reply]


class TopicAdminScripts(ScriptCaller):
    """Scripts by which people change topics, groups and dead letters, as calls."""

    lua = TOPIC_LUA

    async def remove_letters(
        self,
        *,
        dlq: str,
        dlq_index: str,
        audit: str,
        who: str,
        what: str,
        detail: str,
        ids: Sequence[str],
    ) -> int:
        """Take dead letters away; how many there were."""
        return await self.run("remove_letters", (dlq, dlq_index, audit), (who, what, detail, *ids))

    async def trim_letters(
        self,
        *,
        dlq: str,
        dlq_index: str,
        audit: str,
        max_length: int,
        max_age_ms: int,
        count: int,
        who: str,
        what: str,
    ) -> int:
        """Drop up to `count` of the oldest dead letters; how many were dropped. -1: no limit."""
        arguments = (max_length, max_age_ms, count, who, what)
        return await self.run("trim_letters", (dlq, dlq_index, audit), arguments)

    async def edit_letter(
        self,
        *,
        dlq: str,
        dlq_index: str,
        audit: str,
        id_: str,
        who: str,
        index_field: str,
        fields: Sequence[Argument],
    ) -> bytes | None:
        """Replace a dead letter; the id of the new one, None if it is not there."""
        keys = (dlq, dlq_index, audit)
        return await self.run("edit_letter", keys, (id_, who, index_field, *fields))

    async def reset_group(
        self,
        *,
        stream: str,
        epochs: str,
        commit: str,
        lease: str,
        retry: str,
        failures: str,
        group: str,
        position: str,
        fences: str,
    ) -> ResetOutcome:
        """Let a group continue from another position in one partition."""
        keys = (stream, epochs, commit, lease, retry, failures)
        return ResetOutcome(await self.run("reset_group", keys, (group, position, fences)))

    async def drop_group(
        self,
        *,
        stream: str,
        epochs: str,
        commit: str,
        lease: str,
        retry: str,
        failures: str,
        group: str,
        fences: str,
    ) -> bool:
        """Forget a group in one partition; whether it was known there."""
        keys = (stream, epochs, commit, lease, retry, failures)
        return bool(await self.run("drop_group", keys, (group, fences)))

    async def drop_partition(
        self,
        *,
        stream: str,
        epochs: str,
        commit: str,
        payloads: str,
        delayed: str,
        delayed_bodies: str,
        dedup: str,
        dedup_times: str,
        counters: str,
        payload_prefix: str,
        count: int,
    ) -> DropOutcome:
        """Remove a partition that has no groups."""
        keys = (stream, epochs, commit, payloads, delayed, delayed_bodies)
        keys = (*keys, dedup, dedup_times, counters)
        return DropOutcome(await self.run("drop_partition", keys, (payload_prefix, count)))

    async def read_pending(
        self,
        *,
        stream: str,
        retry: str,
        failures: str,
        lease: str,
        group: str,
        start: str,
        count: int,
    ) -> PendingReply | None:
        """List what a group has pending in a partition; None if there is no such group."""
        keys = (stream, retry, failures, lease)
        reply = await self.run("read_pending", keys, (group, start, count))
        if reply == _NO_GROUP:
            return None
        owner, has_more, *rows = reply
        return PendingReply(owner, bool(has_more), rows)

    async def count_after(self, *, stream: str, id_: str, most: int) -> int:
        """Count the messages after an id, up to `most`."""
        return await self.run("count_after", (stream,), (id_, most))

    async def begin_growth(self, *, meta: str, partitions: int, hold_ms: int) -> GrowthReply | None:
        """Announce a growth; None if there is no such topic."""
        reply = await self.run("begin_growth", (meta,), (partitions, hold_ms))
        return None if reply is None else GrowthReply(GrowthOutcome(reply[0]), *reply[1:])

    async def mark_barrier(self, *, stream: str, counters: str, generation: int) -> bytes | None:
        """Mark where a partition's topic grew; the marker's id, None if there is no partition."""
        return await self.run("mark_barrier", (stream, counters), (generation,))

    async def finish_growth(
        self, *, meta: str, partitions: int, generation: int, markers: Sequence[bytes]
    ) -> bool:
        """Let a topic have more partitions; False if that growth is not under way."""
        return bool(await self.run("finish_growth", (meta,), (partitions, generation, *markers)))

    async def drop_legacy(self, *, stream: str) -> bool:
        """Remove a stream that is empty; False if it is not."""
        return bool(await self.run("drop_legacy", (stream,), ()))
