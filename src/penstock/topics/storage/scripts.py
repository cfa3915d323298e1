"""Scripts of producers and consumers of topics, as typed calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, Self, TypeVar

from penstock.redis.prepared_call import ScriptCall
from penstock.redis.script import LuaFolder, ScriptCaller
from penstock.redis.wire import Argument, Reply
from penstock.topics.storage.keys import PartitionKeys

__all__ = [
    "CONSUMER",
    "NONE_WAITS",
    "STALE",
    "TOPIC_GREW",
    "TOPIC_LUA",
    "AcquireRefusal",
    "AdoptOutcome",
    "DueMessages",
    "GroupOutcome",
    "MovedMessages",
    "OpenOutcome",
    "PartitionOwner",
    "PublishKeys",
    "PublishRefusal",
    "PublishedMessage",
    "TopicScripts",
    "TrimmedMessages",
]

CONSUMER: Final = "penstock"
"""The name under which all messages are pending: the lease names their owner, so no names of dead
consumers pile up in the group."""
STALE: Final = -1
"""The reply of a script that compares epochs: another consumer owns the partition by now."""
NONE_WAITS: Final = -1
"""In place of the ms until the next delayed message is due: the partition has none."""
TOPIC_GREW: Final = -2
"""The topic has grown since the generation that the caller knows; nothing was written."""

T = TypeVar("T")

_MOST_BYTES = 16 * 1024 * 1024


TOPIC_LUA = LuaFolder("penstock.topics.storage")


class OpenOutcome(IntEnum):
    """What `open_partition` found."""

    EXISTS = 0
    CREATED = 1
    UNFINISHED = 2
    """Payloads of an earlier life are left: call again."""


class GroupOutcome(IntEnum):
    """What `register_group` found."""

    NO_STREAM = -1
    KNOWN = 0
    NEW = 1
    RECREATED = 2
    """The server had lost the group."""


class AcquireRefusal(IntEnum):
    """Why `acquire_partition` granted no epoch."""

    NOT_REGISTERED = -1
    TAKEN = 0


class AdoptOutcome(IntEnum):
    """What `adopt_delayed` did."""

    TOPIC_GREW = TOPIC_GREW
    KNOWN = 0
    STORED = 1


class PartitionOwner(NamedTuple):
    """Keys and arguments of the calls of a partition's owner."""

    stream: str
    epochs: str
    commit: str
    lease: str
    retry: str
    failures: str
    fence: str
    """The owner's first."""
    fences: str
    """What all fences of the group begin with."""
    group: str
    name: str
    epoch: int

    @classmethod
    def of(cls, keys: PartitionKeys, group: str, name: str, epoch: int) -> Self:
        lease, retry, failures = keys.lease(group), keys.retry(group), keys.failures(group)
        fence, fences = keys.fence(group, epoch), keys.fence_prefix(group)
        of_all = (keys.stream, keys.epochs, keys.commit)
        return cls(*of_all, lease, retry, failures, fence, fences, group, name, epoch)


class PublishKeys(NamedTuple):
    """Keys of `publish_message`."""

    stream: str
    dedup: str
    dedup_times: str
    payload: str
    """Of this message, if its payload is stored outside the stream."""
    payloads: str
    delayed: str
    delayed_bodies: str

    @classmethod
    def of(cls, keys: PartitionKeys, payload_name: str = "") -> Self:
        dedup, payload = (keys.dedup, keys.dedup_times), keys.payload(payload_name or "none")
        delayed = (keys.delayed, keys.delayed_bodies)
        return cls(keys.stream, *dedup, payload, keys.payloads, *delayed)


class PublishRefusal(IntEnum):
    """Why `publish_message` stored nothing."""

    TOO_MANY_DELAYED = 1
    TOO_MANY_REMEMBERED = 2


class PublishedMessage(NamedTuple):
    """A message that `publish_message` stored."""

    id: bytes
    """Of its entry; of a delayed message its own."""
    is_new: bool
    """False: it was stored before, under the same idempotency key."""
    wait_ms: int
    """Until it is due."""


class TrimmedMessages(NamedTuple):
    """What `trim_partition` dropped."""

    dropped: int
    lost: int
    """Of these, messages that a group still needed."""
    freed: int
    """Large payloads."""


class MovedMessages(NamedTuple):
    """What `move_due` stored."""

    moved: int
    next_ms: int
    """Until the next is due; `NONE_WAITS`, or `TOPIC_GREW`."""


class DueMessages(NamedTuple):
    """Delayed messages that are due or soon will be."""

    next_ms: int
    """Until the next is due; `NONE_WAITS`."""
    life: bytes
    rows: list[Reply]
    """What decides where each of them belongs."""


def _published(reply: Reply) -> PublishedMessage | None:
    return None if reply is None else PublishedMessage(reply[0], bool(reply[1]), reply[2])


def _due(reply: Reply) -> DueMessages:
    next_ms, life, *rows = reply
    return DueMessages(next_ms, life, rows)


class TopicScripts(ScriptCaller):
    """Scripts of producers and consumers.

    Those that take a `PartitionOwner` compare its epoch: `STALE`, or False, once it is over.
    """

    lua = TOPIC_LUA

    def call(
        self,
        name: str,
        keys: tuple[str, ...],
        arguments: tuple[Argument, ...],
        read: Callable[[Reply], T],
    ) -> ScriptCall[T]:
        """A call that producers pack for their own connections, and others await."""
        return ScriptCall(self._client, self.script(name), keys, arguments, read)

    async def register_topic(self, *, registry: str, topic: str, most: int) -> bool:
        """Note the name of a topic; False if there are too many."""
        return bool(await self.run("register_topic", (registry,), (topic, most)))

    async def create_topic(self, *, meta: str, partitions: int, life: str, options: str) -> Reply:
        """Note a new topic, or return the metadata of the one that is there."""
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
    ) -> OpenOutcome:
        """Create the stream unless it exists, and remove what an earlier life of the topic left."""
        keys = (stream, counters, epochs, commit, payloads, delayed, delayed_bodies)
        keys = (*keys, dedup, dedup_times)
        return OpenOutcome(await self.run("open_partition", keys, (life, payload_prefix, count)))

    async def note_group(
        self, *, groups: str, group: str, registration: bytes, most: int
    ) -> bytes | None:
        """Note where a group begins, or return what is noted; None if there are too many."""
        return await self.run("note_group", (groups,), (group, registration, most))

    async def register_group(
        self, *, stream: str, epochs: str, commit: str, group: str, start: str
    ) -> GroupOutcome:
        """Create a group in a partition unless it exists."""
        return GroupOutcome(
            await self.run("register_group", (stream, epochs, commit), (group, start))
        )

    async def acquire_partition(
        self,
        *,
        lease: str,
        epochs: str,
        group: str,
        owner: str,
        ttl_ms: int,
        fences: str,
        dead_owner: str,
    ) -> int | AcquireRefusal:
        """Take a partition; returns the new epoch."""
        arguments = (group, owner, ttl_ms, fences, dead_owner)
        epoch: int = await self.run("acquire_partition", (lease, epochs), arguments)
        return epoch if epoch > 0 else AcquireRefusal(epoch)

    async def refence_partition(self, owner: PartitionOwner, *, number: int, ttl_ms: int) -> bool:
        """Let no read sent until now deliver a message; False if the partition is not ours."""
        keys = (owner.lease, owner.epochs)
        arguments = (owner.group, owner.name, owner.epoch, owner.fences, number, ttl_ms)
        return bool(await self.run("refence_partition", keys, arguments))

    async def renew_partition(self, owner: PartitionOwner, *, ttl_ms: int) -> bool:
        """Extend a lease; False if the partition has another owner."""
        keys = (owner.lease, owner.epochs, owner.fence)
        arguments = (owner.group, owner.name, owner.epoch, ttl_ms)
        return bool(await self.run("renew_partition", keys, arguments))

    async def release_partition(
        self, owner: PartitionOwner, *, unbegun: Sequence[Argument]
    ) -> bool:
        """Give a partition up; False if it had another owner."""
        keys = (owner.lease, owner.epochs, owner.fence, owner.stream)
        arguments = (owner.group, owner.name, owner.epoch, CONSUMER, *unbegun)
        return bool(await self.run("release_partition", keys, arguments))

    async def ack_messages(
        self, owner: PartitionOwner, *, failed_before: int, ids: Sequence[Argument]
    ) -> int:
        """Acknowledge messages; the retries of the first `failed_before` of them are removed."""
        keys = (owner.epochs, owner.stream, owner.commit, owner.retry, owner.failures)
        return await self.run("ack_messages", keys, (owner.group, owner.epoch, failed_before, *ids))

    async def retry_later(self, owner: PartitionOwner, *, failed: Sequence[Argument]) -> int:
        """Note failed messages, each as id, delay in ms and failures: the server's time in ms."""
        keys = (owner.epochs, owner.retry, owner.failures)
        return await self.run("retry_later", keys, (owner.group, owner.epoch, *failed))

    async def begin_messages(
        self, owner: PartitionOwner, *, not_attempts: int, known: Sequence[Argument]
    ) -> Reply:
        """Count attempts before they are made; `known` are ids and the attempts known of each.

        For each the number of its attempt, 0 if it is not pending any more.
        """
        keys = (owner.epochs, owner.stream, owner.retry)
        arguments = (owner.group, owner.epoch, CONSUMER, not_attempts, *known)
        return await self.run("begin_messages", keys, arguments)

    async def uncharge_messages(self, owner: PartitionOwner, *, ids: Sequence[Argument]) -> int:
        """Take back one attempt of each, without a check of the owner: how many."""
        arguments = (owner.group, CONSUMER, *ids)
        return await self.run("uncharge_messages", (owner.stream,), arguments)

    async def park_messages(self, owner: PartitionOwner, *, ids: Sequence[Argument]) -> int:
        """Let messages that were not begun wait on the server: how many."""
        arguments = (owner.group, owner.epoch, CONSUMER, *ids)
        return await self.run("park_messages", (owner.epochs, owner.stream), arguments)

    async def unpark_messages(self, owner: PartitionOwner, *, ids: Sequence[Argument]) -> Reply:
        """Deliver parked messages as if for the first time: id and fields of each."""
        arguments = (owner.group, owner.epoch, CONSUMER, *ids)
        return await self.run("unpark_messages", (owner.epochs, owner.stream), arguments)

    async def pending_page(
        self, owner: PartitionOwner, *, start: str, count: int, most_bytes: int = _MOST_BYTES
    ) -> Reply:
        """List what is pending in the order of ids. Ends early after `most_bytes`."""
        keys = (owner.epochs, owner.stream, owner.retry, owner.failures)
        arguments = (owner.group, owner.epoch, start, count, most_bytes)
        return await self.run("pending_page", keys, arguments)

    async def due_retries(
        self,
        owner: PartitionOwner,
        *,
        count: int,
        ids: Sequence[Argument],
        most_bytes: int = _MOST_BYTES,
    ) -> Reply:
        """List failed messages that are due, or are named. Ends early after `most_bytes`."""
        keys = (owner.epochs, owner.stream, owner.retry, owner.failures)
        arguments = (owner.group, owner.epoch, count, most_bytes, *ids)
        return await self.run("due_retries", keys, arguments)

    async def bury_message(
        self, *, dlq: str, dlq_index: str, meta: str, letter: str, fields: Sequence[Argument]
    ) -> bytes | None:
        """Write a dead letter, once; its id, or None if the topic is gone."""
        return await self.run("bury_message", (dlq, dlq_index, meta), (letter, *fields))

    def publish_message(
        self,
        *,
        keys: PublishKeys,
        idempotency_key: str,
        remember_ms: int,
        fields: Sequence[Argument],
        payload_name: str = "",
        body: bytes = b"",
        waiting_id: str = "",
        wait_ms: int = 0,
        max_delayed: int = 0,
        max_remembered: int = 0,
    ) -> ScriptCall[PublishedMessage | None]:
        """Store one message; None if there is no such topic.

        Limits are for calls that are sent packed: the reply may be a `PublishRefusal`.
        """
        body_and_wait = (payload_name, body, waiting_id, wait_ms)
        limits = (max_delayed, max_remembered)
        arguments = (idempotency_key, remember_ms, *body_and_wait, *limits, *fields)
        return self.call("publish_message", keys, arguments, _published)

    def move_due(
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
    ) -> ScriptCall[MovedMessages]:
        """Store delayed messages that are due, or these."""
        keys = (stream, delayed, delayed_bodies, payloads, counters)
        return self.call(
            "move_due", keys, (count, generation, *ids), lambda reply: MovedMessages(*reply)
        )

    def read_due(
        self,
        *,
        stream: str,
        delayed: str,
        delayed_bodies: str,
        counters: str,
        count: int,
        ahead_ms: int,
    ) -> ScriptCall[DueMessages]:
        """Read delayed messages that are due, and what decides where they belong."""
        keys = (stream, delayed, delayed_bodies, counters)
        return self.call("read_due", keys, (count, ahead_ms), _due)

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
    ) -> AdoptOutcome | None:
        """Let a delayed message of another partition wait here; None if there is no such topic."""
        keys = (stream, delayed, delayed_bodies, dedup, dedup_times, payload, payloads, counters)
        about_body = (payload_name, body, old_payload)
        place = (partition, generation, markers_upto)
        outcome: int | None = await self.run(
            "adopt_delayed", keys, (id_, due, message, remember_ms, *about_body, *place)
        )
        return None if outcome is None else AdoptOutcome(outcome)

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

        `TOPIC_GREW`: nothing was forgotten.
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
        """Record a heartbeat: version of the members, metadata of the topic; None: no topic.

        Unless the version is the known one, the live members and their information follow.
        """
        keys = (members, member_info, meta)
        return await self.run("beat_member", keys, (member, about, ttl_ms, version))

    async def stay_member(self, *, members: str, member: str) -> bool:
        """Repeat the heartbeat of a consumer; False if it is not on the list."""
        return bool(await self.run("stay_member", (members,), (member,)))

    async def leave_group(self, *, members: str, member_info: str, member: str) -> bool:
        """Take a consumer off the list; False if it was not on it."""
        return bool(await self.run("leave_group", (members, member_info), (member,)))

    def trim_partition(
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
    ) -> ScriptCall[TrimmedMessages]:
        """Drop messages beyond the limits that no group needs, and payloads of dropped ones."""
        keys = (stream, counters, payloads)
        limits = (max_length, max_age_ms, max_bytes, hard_length)
        arguments = (*limits, payload_prefix, int(needs_group))
        return self.call("trim_partition", keys, arguments, lambda reply: TrimmedMessages(*reply))
