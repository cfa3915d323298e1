"""Keys of topics. Those under `stream:` and `streaming:mq:` are shared with the Java library."""

from __future__ import annotations

from typing import Final, Self

from penstock.redis.keys import names
from penstock.redis.keys.family import FamilyKeys
from penstock.redis.keys.names import check_name, check_number, encode_id
from penstock.redis.keys.reading import any_but
from penstock.redis.keys.space import KeySpace

__all__ = ["RESERVED_TOPICS", "TOPIC_ARGUMENTS", "PartitionKeys", "TopicKeys", "TopicsKeys"]

RESERVED_TOPICS: Final = frozenset({"idx", "item", "lock", "ts"})
"""Reserved: other keys have these where topics have their names."""

TOPIC_ARGUMENTS: Final = {
    "epoch": names.NUMBER,
    "group": names.NAME,
    "index": names.NUMBER,
    "topic": f"{any_but(RESERVED_TOPICS)}{names.NAME}",
}
"""Spelling of the arguments of topics' keys."""


class TopicsKeys(FamilyKeys):
    """Keys of all topics together."""

    __slots__ = ()

    @classmethod
    def of(cls, keys: KeySpace) -> Self:
        return cls(keys.prefix, keys.tag("topics"))

    @property
    def registry(self) -> str:
        """SET: the names of all topics."""
        return f"{self.root}streaming:mq:{self.home}:registry"

    @property
    def payload_times(self) -> str:
        """ZSET: payload keys by the time they were written, in ms."""
        tag = f"{self.home}:" if self._is_tagged else ""
        return f"{self.root}streaming:mq:payload:{tag}ts"


class TopicKeys(FamilyKeys):
    """Keys of one topic that belong to no single partition.

    On a cluster they share a slot with each other, not with the partitions, so that one topic
    spreads over all nodes.
    """

    __slots__ = ()

    @classmethod
    def of(cls, keys: KeySpace, topic: str) -> Self:
        return cls(keys.prefix, keys.tag(check_name("topic", topic, RESERVED_TOPICS)))

    @property
    def meta(self) -> str:
        """HASH: the topic's metadata: `partitionCount` and more."""
        return f"{self.root}streaming:mq:topic:{self.home}:meta"

    @property
    def partitions(self) -> str:
        """SET: the keys of the partitions' streams."""
        return f"{self.root}streaming:mq:topic:{self.home}:partitions"

    @property
    def dlq(self) -> str:
        """STREAM: the topic's dead letters."""
        return f"{self.root}stream:topic:{self.home}:dlq"

    @property
    def dlq_index(self) -> str:
        """HASH: from group, partition and message id to the id of the dead letter."""
        return f"{self.root}penstock:topic:{self.home}:dlq_index"

    @property
    def audit(self) -> str:
        """STREAM: what people did to the topic's dead letters and groups."""
        return f"{self.root}penstock:topic:{self.home}:audit"

    @property
    def groups(self) -> str:
        """HASH: from group to its start position."""
        return f"{self.root}penstock:topic:{self.home}:groups"

    def members(self, group: str) -> str:
        """ZSET: a group's consumers by last heartbeat in server ms."""
        return f"{self.root}penstock:topic:{self.home}:members:{check_name('group', group)}"

    def member_info(self, group: str) -> str:
        """HASH: from consumer to its information; `:version` is that of all members."""
        return f"{self.root}penstock:topic:{self.home}:member_info:{check_name('group', group)}"

    @property
    def payload_index(self) -> str:
        """SET: the keys of the topic's large payloads."""
        return f"{self.root}streaming:mq:payload:idx:{self.home}"

    def letter_payload(self, payload: str) -> str:
        """STRING: the body of a dead letter of the Java library, too large for the stream."""
        place = f"{self.home}:p:0:{encode_id('payload', payload)}"
        return f"{self.root}streaming:mq:payload:dlq:{place}"

    @property
    def letter_payload_prefix(self) -> str:
        """What the keys of such bodies begin with; a name completes the key."""
        return f"{self.root}streaming:mq:payload:dlq:{self.home}:p:0:"

    @property
    def letter_payload_index(self) -> str:
        """SET: the keys of the large bodies of the Java library's dead letters."""
        return f"{self.root}streaming:mq:payload:idx:dlq:{self.home}"

    @property
    def java_retry(self) -> str:
        """ZSET: keys of the Java library's retry items by due time in ms."""
        return f"{self.root}streaming:mq:retry:{self.home}"

    def java_retry_item(self, item: str) -> str:
        """HASH: one message that the Java library will send again."""
        return f"{self.root}streaming:mq:retry:item:{self.home}:{encode_id('retry item', item)}"

    @property
    def java_retry_lock(self) -> str:
        """HASH: lock by which the Java library's processes take turns at moving retries."""
        return f"{self.root}streaming:mq:retry:lock:{self.home}"


class PartitionKeys(FamilyKeys):
    """Keys of one partition; on a cluster they share a slot, so a script may span them."""

    __slots__ = ()

    @classmethod
    def of(cls, keys: KeySpace, topic: str, index: int) -> Self:
        check_name("topic", topic, RESERVED_TOPICS)
        check_number("partition", index)
        home = f"{{{topic}:{index}}}" if keys.cluster else f"{topic}:p:{index}"
        return cls(keys.prefix, home)

    @property
    def stream(self) -> str:
        """STREAM: the partition's messages."""
        return f"{self.root}stream:topic:{self.home}"

    def lease(self, group: str) -> str:
        """STRING: the consumer that owns the partition for a group."""
        check_name("group", group)
        if self._is_tagged:
            return f"{self.root}streaming:mq:lease:{self.home}:{group}"
        # Here, and only here, the Java library puts the group before the partition.
        topic, _, index = self.home.partition(":p:")
        return f"{self.root}streaming:mq:lease:{topic}:{group}:{index}"

    @property
    def commit(self) -> str:
        """HASH: from group to the highest message id it has acknowledged."""
        return f"{self.root}streaming:mq:commit:{self.home}"

    def java_acks(self, message: str) -> str:
        """SET: the groups that have acknowledged a message, as the Java library counts them."""
        return f"{self.root}streaming:mq:acks:{self.home}:{encode_id('message', message)}"

    def payload(self, payload: str) -> str:
        """STRING: the body of a message too large for the stream."""
        return f"{self.root}streaming:mq:payload:{self.home}:{encode_id('payload', payload)}"

    @property
    def payload_prefix(self) -> str:
        """What the keys of large bodies begin with; a name completes the key."""
        return f"{self.root}streaming:mq:payload:{self.home}:"

    @property
    def payloads(self) -> str:
        """ZSET: names of large bodies and the messages they belong to, by the message's ms."""
        return f"{self.root}penstock:topic:{self.home}:payloads"

    @property
    def epochs(self) -> str:
        """HASH: from group to the epoch of its present or last owner; numbers of renewed fences."""
        return f"{self.root}penstock:topic:{self.home}:epochs"

    def fence(self, group: str, epoch: int) -> str:
        """STREAM: empty; a read that names it fails once its owner has lost the partition."""
        check_name("group", group)
        check_number("epoch", epoch)
        return f"{self.root}penstock:topic:{self.home}:fence:{group}:{epoch}"

    def fence_prefix(self, group: str) -> str:
        """What fences of a group begin with; an epoch completes the key."""
        return f"{self.root}penstock:topic:{self.home}:fence:{check_name('group', group)}:"

    @property
    def counters(self) -> str:
        """HASH: what was lost to a hard cap, and the markers of growth."""
        return f"{self.root}penstock:topic:{self.home}:counters"

    def failures(self, group: str) -> str:
        """HASH: from pending message id to how a group's attempts at it have failed."""
        return f"{self.root}penstock:topic:{self.home}:failures:{check_name('group', group)}"

    def retry(self, group: str) -> str:
        """ZSET: pending message ids by the time of a group's next attempt, in server ms."""
        return f"{self.root}penstock:topic:{self.home}:retry:{check_name('group', group)}"

    @property
    def delayed(self) -> str:
        """ZSET: ids of messages not yet due, by due time in server ms."""
        return f"{self.root}penstock:topic:{self.home}:delayed"

    @property
    def delayed_bodies(self) -> str:
        """HASH: from id to the message not yet due."""
        return f"{self.root}penstock:topic:{self.home}:delayed_bodies"

    @property
    def dedup(self) -> str:
        """HASH: from idempotency key to the id of the message sent under it."""
        return f"{self.root}penstock:topic:{self.home}:dedup"

    @property
    def dedup_times(self) -> str:
        """ZSET: idempotency keys by the time they are forgotten, in server ms."""
        return f"{self.root}penstock:topic:{self.home}:dedup_times"
