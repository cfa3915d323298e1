"""The scripts by which topics are looked after."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.redis.script import ScriptCaller
from penstock.redis.wire import Argument, Reply

__all__ = ["TopicAdminScripts"]


class TopicAdminScripts(ScriptCaller):
    """Scripts by which people change topics, groups and dead letters, as calls."""

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
    ) -> int:
        """Let a group go on from elsewhere: 1 done, 0 no such group here, -1 no such partition."""
        keys = (stream, epochs, commit, lease, retry, failures)
        return await self.run("reset_group", keys, (group, position, fences))

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
    ) -> int:
        """Remove a partition without groups: 0 nothing is left, 1 call again, -1 it has groups."""
        keys = (stream, epochs, commit, payloads, delayed, delayed_bodies)
        keys = (*keys, dedup, dedup_times, counters)
        return await self.run("drop_partition", keys, (payload_prefix, count))

    async def look_at_pending(
        self,
        *,
        stream: str,
        retry: str,
        failures: str,
        lease: str,
        group: str,
        start: str,
        count: int,
    ) -> Reply:
        """List what a group has pending in a partition, after the owner; -1: no such group."""
        keys = (stream, retry, failures, lease)
        return await self.run("look_at_pending", keys, (group, start, count))

    async def count_after(self, *, stream: str, id_: str, most: int) -> int:
        """Count the messages after an id, up to `most`."""
        return await self.run("count_after", (stream,), (id_, most))

    async def begin_growth(self, *, meta: str, partitions: int, hold_ms: int) -> list[int] | None:
        """Announce a growth: 1, partitions, generation, ms to wait; 0 or -1 and a number: no."""
        return await self.run("begin_growth", (meta,), (partitions, hold_ms))

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
