"""The scripts by which topics are written and read."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.redis.script import ScriptCaller
from penstock.redis.wire import Argument, Reply

__all__ = ["TopicScripts"]

_MOST_BYTES = 16 * 1024 * 1024


class TopicScripts(ScriptCaller):
    """Scripts of producers and consumers, as calls. Where an epoch is asked for, -1 says stale."""

    async def create_topic(self, *, meta: str, partitions: int, life: str, options: str) -> Reply:
        """Note a new topic, or return the facts of the one that is there."""
        return await self.run("create_topic", (meta,), (partitions, life, options))

    async def open_partition(
        self,
        *,
        stream: str,
        counters: str,
        epochs: str,
        commit: str,
        payloads: str,
        delayed: str,
        delayed_bodies: str,
        dedup: str,
        dedup_times: str,
        life: str,
        payload_prefix: str,
        count: int,
    ) -> int:
        """Make sure that the stream is there: 1 it was made, 0 it was there, 2 call again."""
        keys = (stream, counters, epochs, commit, payloads, delayed, delayed_bodies)
        keys = (*keys, dedup, dedup_times)
        return await self.run("open_partition", keys, (life, payload_prefix, count))

    async def register_group(
        self, *, stream: str, epochs: str, commit: str, group: str, start: str
    ) -> int:
        """Make sure that a group is known: 1 new, 0 known, 2 lost and made again, -1 no stream."""
        return await self.run("register_group", (stream, epochs, commit), (group, start))

    async def acquire(
        self,
        *,
        lease: str,
        epochs: str,
        group: str,
        owner: str,
        ttl_ms: int,
        fences: str,
        dead_owner: str,
    ) -> int:
        """Take a partition: the new epoch, 0 if it is taken, -1 if the group is not registered."""
        arguments = (group, owner, ttl_ms, fences, dead_owner)
        return await self.run("acquire", (lease, epochs), arguments)

    async def refence(
        self,
        *,
        lease: str,
        epochs: str,
        group: str,
        owner: str,
        epoch: int,
        fences: str,
        number: int,
        ttl_ms: int,
    ) -> bool:
        """Let no read sent until now deliver a message; False if the partition is not ours."""
        arguments = (group, owner, epoch, fences, number, ttl_ms)
        return bool(await self.run("refence", (lease, epochs), arguments))

    async def renew(
        self,
        *,
        lease: str,
        epochs: str,
        fence: str,
        group: str,
        owner: str,
        epoch: int,
        ttl_ms: int,
    ) -> bool:
        """Hold a partition for longer; False if it has passed to somebody else."""
        keys = (lease, epochs, fence)
        return bool(await self.run("renew", keys, (group, owner, epoch, ttl_ms)))

    async def release(
        self,
        *,
        lease: str,
        epochs: str,
        fence: str,
        stream: str,
        group: str,
        owner: str,
        epoch: int,
        consumer: str,
        unbegun: Sequence[Argument],
    ) -> bool:
        """Give a partition up; False if it had passed to somebody else."""
        keys = (lease, epochs, fence, stream)
        return bool(await self.run("release", keys, (group, owner, epoch, consumer, *unbegun)))

    async def settle(
        self,
        *,
        epochs: str,
        stream: str,
        commit: str,
        retry: str,
        failures: str,
        group: str,
        epoch: int,
        failed_before: int,
        ids: Sequence[Argument],
    ) -> int:
        """Acknowledge messages; the first `failed_before` of them are taken off the retries."""
        keys = (epochs, stream, commit, retry, failures)
        return await self.run("settle", keys, (group, epoch, failed_before, *ids))

    async def retry_later(
        self,
        *,
        epochs: str,
        retry: str,
        failures: str,
        group: str,
        epoch: int,
        failed: Sequence[Argument],
    ) -> int:
        """Note failed messages, each as id, delay in ms and failures: the server's time in ms."""
        return await self.run("retry_later", (epochs, retry, failures), (group, epoch, *failed))

    async def begin(
        self,
        *,
        epochs: str,
        stream: str,
        retry: str,
        group: str,
        epoch: int,
        consumer: str,
        not_attempts: int,
        known: Sequence[Argument],
    ) -> list[int] | int:
        """Count attempts before they are made; `known` are ids and the attempts known of each.

        For each the number of its attempt, 0 if it is not pending any more.
        """
        keys = (epochs, stream, retry)
        return await self.run("begin", keys, (group, epoch, consumer, not_attempts, *known))

    async def uncharge(
        self, *, stream: str, group: str, consumer: str, ids: Sequence[Argument]
    ) -> int:
        """Take back one attempt of each, though somebody else owns the partition: how many."""
        return await self.run("uncharge", (stream,), (group, consumer, *ids))

    async def park(
        self,
        *,
        epochs: str,
        stream: str,
        group: str,
        epoch: int,
        consumer: str,
        ids: Sequence[Argument],
    ) -> int:
        """Let messages that were not begun wait on the server: how many; -1 if stale."""
        return await self.run("park", (epochs, stream), (group, epoch, consumer, *ids))

    async def unpark(
        self,
        *,
        epochs: str,
        stream: str,
        group: str,
        epoch: int,
        consumer: str,
        ids: Sequence[Argument],
    ) -> Reply:
        """Deliver parked messages as if for the first time: id and fields of each; -1 if stale."""
        return await self.run("unpark", (epochs, stream), (group, epoch, consumer, *ids))

    async def pending_page(
        self,
        *,
        epochs: str,
        stream: str,
        retry: str,
        failures: str,
        group: str,
        epoch: int,
        start: str,
        count: int,
        most_bytes: int = _MOST_BYTES,
    ) -> Reply:
        """List what is pending in the order of ids; -1 if stale. Ends early after `most_bytes`."""
        keys = (epochs, stream, retry, failures)
        return await self.run("pending_page", keys, (group, epoch, start, count, most_bytes))

    async def due_retries(
        self,
        *,
        epochs: str,
        stream: str,
        retry: str,
        failures: str,
        group: str,
        epoch: int,
        count: int,
        ids: Sequence[Argument],
        most_bytes: int = _MOST_BYTES,
    ) -> Reply:
        """List failed messages whose time has come, or are named; -1 if stale.

        Ends early after `most_bytes`.
        """
        keys = (epochs, stream, retry, failures)
        return await self.run("due_retries", keys, (group, epoch, count, most_bytes, *ids))

    async def bury(
        self, *, dlq: str, dlq_index: str, meta: str, letter: str, fields: Sequence[Argument]
    ) -> bytes | None:
        """Write a dead letter, once; its id, or None if the topic is gone."""
        return await self.run("bury", (dlq, dlq_index, meta), (letter, *fields))

    async def publish(
        self,
        *,
        stream: str,
        dedup: str,
        dedup_times: str,
        payload: str,
        payloads: str,
        delayed: str,
        delayed_bodies: str,
        idempotency_key: str,
        remember_ms: int,
        payload_name: str,
        body: bytes,
        waiting_id: str,
        wait_ms: int,
        fields: Sequence[Argument],
    ) -> Reply:
        """Store one message: id, 1 if it was stored now, ms until it is due; None: no topic."""
        keys = (stream, dedup, dedup_times, payload, payloads, delayed, delayed_bodies)
        arguments = (idempotency_key, remember_ms, payload_name, body, waiting_id, wait_ms)
        return await self.run("publish", keys, (*arguments, *fields))

    async def move_due(
        self,
        *,
        stream: str,
        delayed: str,
        delayed_bodies: str,
        payloads: str,
        counters: str,
        count: int,
        generation: int,
        ids: Sequence[Argument] = (),
    ) -> list[int]:
        """Store delayed messages that are due, or these: how many, ms until the next (-1: none).

        -2: the topic has grown since this generation, and nothing was stored.
        """
        keys = (stream, delayed, delayed_bodies, payloads, counters)
        return await self.run("move_due", keys, (count, generation, *ids))

    async def look_at_due(
        self,
        *,
        stream: str,
        delayed: str,
        delayed_bodies: str,
        counters: str,
        count: int,
        ahead_ms: int,
    ) -> Reply:
        """Ms until the next delayed message is due (-1: none), and where those belong that are."""
        keys = (stream, delayed, delayed_bodies, counters)
        return await self.run("look_at_due", keys, (count, ahead_ms))

    async def adopt_delayed(
        self,
        *,
        stream: str,
        delayed: str,
        delayed_bodies: str,
        dedup: str,
        dedup_times: str,
        payload: str,
        payloads: str,
        id_: Argument,
        due: Argument,
        message: bytes,
        remember_ms: int,
        payload_name: str,
        body: bytes,
        old_payload: str,
        partition: int,
        generation: int,
        counters: str,
        markers_upto: int,
    ) -> int | None:
        """Let a delayed message of another partition wait here: 1 now, 0 before; None: no topic.

        -2: the topic has grown since.
        """
        keys = (stream, delayed, delayed_bodies, dedup, dedup_times, payload, payloads, counters)
        about_body = (payload_name, body, old_payload)
        place = (partition, generation, markers_upto)
        return await self.run(
            "adopt_delayed", keys, (id_, due, message, remember_ms, *about_body, *place)
        )

    async def drop_delayed(
        self,
        *,
        delayed: str,
        delayed_bodies: str,
        payloads: str,
        payload_prefix: str,
        gone: Sequence[Argument],
        counters: str,
        markers_upto: int,
    ) -> int:
        """Forget delayed messages that wait elsewhere, each an id and the name of its body.

        -2: the topic has grown since, and nothing was forgotten.
        """
        keys = (delayed, delayed_bodies, payloads, counters)
        return await self.run("drop_delayed", keys, (payload_prefix, markers_upto, *gone))

    async def beat_member(
        self,
        *,
        members: str,
        member_info: str,
        meta: str,
        member: str,
        about: bytes,
        ttl_ms: int,
        version: bytes = b"",
    ) -> list[Reply] | None:
        """Record a heartbeat: version of the list of members, facts of the topic; None: no topic.

        Unless the version is the known one, all who live follow, and what they say of themselves.
        """
        keys = (members, member_info, meta)
        return await self.run("beat_member", keys, (member, about, ttl_ms, version))

    async def stay_member(self, *, members: str, member: str) -> bool:
        """Repeat the heartbeat of a consumer; False if it is not on the list."""
        return bool(await self.run("stay_member", (members,), (member,)))

    async def leave_group(self, *, members: str, member_info: str, member: str) -> bool:
        """Take a consumer off the list; False if it was not on it."""
        return bool(await self.run("leave_group", (members, member_info), (member,)))

    async def trim(
        self,
        *,
        stream: str,
        counters: str,
        payloads: str,
        max_length: int,
        max_age_ms: int,
        max_bytes: int,
        hard_length: int,
        payload_prefix: str,
        needs_group: bool = False,
    ) -> list[int]:
        """Drop what no group needs: messages dropped, lost to the hard cap, large bodies freed."""
        keys = (stream, counters, payloads)
        limits = (max_length, max_age_ms, max_bytes, hard_length)
        return await self.run("trim", keys, (*limits, payload_prefix, int(needs_group)))
