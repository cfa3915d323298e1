"""The stored contract of topics: every kind of key they have."""

from __future__ import annotations

from typing import Final

from penstock.redis.keys.family import Family, RedisType, Ttl
from penstock.redis.keys.reading import KeyRead, KeyReader
from penstock.topics.storage.keys import TOPIC_ARGUMENTS

__all__ = ["TOPIC_FAMILIES", "read_topic_key"]

STRING, SET, ZSET, HASH, STREAM = (
    RedisType.STRING,
    RedisType.SET,
    RedisType.ZSET,
    RedisType.HASH,
    RedisType.STREAM,
)
NEVER, ALWAYS, WRITER = Ttl.NEVER, Ttl.ALWAYS, Ttl.WRITER

OURS = "Penstock"
JAVA = "the Java library"
BOTH = "Penstock; the Java library"
XADD = "Penstock; the Java library; foreign producers may XADD"
WITH_TOPIC = "removed with the topic"

TOPIC_FAMILIES: Final = (
    Family(
        "topics.registry", "streaming:mq:topics:registry", "streaming:mq:{topics}:registry",
        SET, NEVER, "kept; a topic leaves it when deleted", "topics", BOTH,
    ),
    Family(
        "topics.payload_times", "streaming:mq:payload:ts", "streaming:mq:payload:{topics}:ts",
        ZSET, NEVER, "kept; an entry leaves with its payload", "topics", BOTH,
    ),
    Family(
        "topic.meta", "streaming:mq:topic:<topic>:meta", "streaming:mq:topic:{<topic>}:meta",
        HASH, NEVER, WITH_TOPIC, "topics", BOTH,
    ),
    Family(
        "topic.partitions",
        "streaming:mq:topic:<topic>:partitions", "streaming:mq:topic:{<topic>}:partitions",
        SET, NEVER, WITH_TOPIC, "topics", BOTH,
    ),
    Family(
        "topic.dlq", "stream:topic:<topic>:dlq", "stream:topic:{<topic>}:dlq",
        STREAM, NEVER, "trimmed by its own retention", "topics", BOTH,
    ),
    Family(
        "topic.dlq_index",
        "penstock:topic:<topic>:dlq_index", "penstock:topic:{<topic>}:dlq_index",
        HASH, NEVER, "an entry leaves with its dead letter", "topics", OURS,
    ),
    Family(
        "topic.audit", "penstock:topic:<topic>:audit", "penstock:topic:{<topic>}:audit",
        STREAM, NEVER, "capped", "topics", OURS,
    ),
    Family(
        "topic.groups", "penstock:topic:<topic>:groups", "penstock:topic:{<topic>}:groups",
        HASH, NEVER, WITH_TOPIC, "topics", OURS,
    ),
    Family(
        "topic.members",
        "penstock:topic:<topic>:members:<group>", "penstock:topic:{<topic>}:members:<group>",
        ZSET, NEVER, "a silent consumer leaves it after the lease's time", "topics", OURS,
    ),
    Family(
        "topic.member_info",
        "penstock:topic:<topic>:member_info:<group>",
        "penstock:topic:{<topic>}:member_info:<group>",
        HASH, NEVER, "as the members", "topics", OURS,
    ),
    Family(
        "topic.payload_index",
        "streaming:mq:payload:idx:<topic>", "streaming:mq:payload:idx:{<topic>}",
        SET, NEVER, "an entry leaves with its payload; removed with the topic", "topics", BOTH,
    ),
    Family(
        "topic.letter_payload",
        "streaming:mq:payload:dlq:<topic>:p:0:<payload>",
        "streaming:mq:payload:dlq:{<topic>}:p:0:<payload>",
        STRING, WRITER, "removed with its dead letter or the topic", "topics", JAVA,
    ),
    Family(
        "topic.letter_payload_index",
        "streaming:mq:payload:idx:dlq:<topic>", "streaming:mq:payload:idx:dlq:{<topic>}",
        SET, WRITER, "an entry leaves with its payload; removed with the topic", "topics", JAVA,
    ),
    Family(
        "topic.java_retry", "streaming:mq:retry:<topic>", "streaming:mq:retry:{<topic>}",
        ZSET, WRITER, WITH_TOPIC, "topics", JAVA,
    ),
    Family(
        "topic.java_retry_item",
        "streaming:mq:retry:item:<topic>:<item>", "streaming:mq:retry:item:{<topic>}:<item>",
        HASH, WRITER, WITH_TOPIC, "topics", JAVA,
    ),
    Family(
        "topic.java_retry_lock",
        "streaming:mq:retry:lock:<topic>", "streaming:mq:retry:lock:{<topic>}",
        HASH, WRITER, "half a second", "topics", JAVA,
    ),
    Family(
        "partition.stream", "stream:topic:<topic>:p:<index>", "stream:topic:{<topic>:<index>}",
        STREAM, NEVER, "trimmed by retention, never past what a group needs", "topics", XADD,
    ),
    Family(
        "partition.lease",
        "streaming:mq:lease:<topic>:<group>:<index>",
        "streaming:mq:lease:{<topic>:<index>}:<group>",
        STRING, ALWAYS, "15 s, renewed by the owner; one without TTL is taken over after a minute",
        "topics", BOTH,
    ),
    Family(
        "partition.commit",
        "streaming:mq:commit:<topic>:p:<index>", "streaming:mq:commit:{<topic>:<index>}",
        HASH, NEVER, WITH_TOPIC, "topics", BOTH,
    ),
    Family(
        "partition.java_acks",
        "streaming:mq:acks:<topic>:p:<index>:<message>",
        "streaming:mq:acks:{<topic>:<index>}:<message>",
        SET, WRITER, "a day", "topics", JAVA,
    ),
    Family(
        "partition.payload",
        "streaming:mq:payload:<topic>:p:<index>:<payload>",
        "streaming:mq:payload:{<topic>:<index>}:<payload>",
        STRING, WRITER, "until every group is past its message; swept if orphaned", "topics", BOTH,
    ),
    Family(
        "partition.retry",
        "penstock:topic:<topic>:p:<index>:retry:<group>",
        "penstock:topic:{<topic>:<index>}:retry:<group>",
        ZSET, NEVER, "removed with the group or the topic", "topics", OURS,
    ),
    Family(
        "partition.delayed",
        "penstock:topic:<topic>:p:<index>:delayed", "penstock:topic:{<topic>:<index>}:delayed",
        ZSET, NEVER, "an entry leaves when due", "topics", OURS,
    ),
    Family(
        "partition.delayed_bodies",
        "penstock:topic:<topic>:p:<index>:delayed_bodies",
        "penstock:topic:{<topic>:<index>}:delayed_bodies",
        HASH, NEVER, "an entry leaves when due", "topics", OURS,
    ),
    Family(
        "partition.dedup",
        "penstock:topic:<topic>:p:<index>:dedup", "penstock:topic:{<topic>:<index>}:dedup",
        HASH, NEVER, "an entry leaves when a repeat is no longer recognised", "topics", OURS,
    ),
    Family(
        "partition.dedup_times",
        "penstock:topic:<topic>:p:<index>:dedup_times",
        "penstock:topic:{<topic>:<index>}:dedup_times",
        ZSET, NEVER, "an entry leaves when a repeat is no longer recognised", "topics", OURS,
    ),
    Family(
        "partition.payloads",
        "penstock:topic:<topic>:p:<index>:payloads", "penstock:topic:{<topic>:<index>}:payloads",
        ZSET, NEVER, "an entry leaves with its payload", "topics", OURS,
    ),
    Family(
        "partition.epochs",
        "penstock:topic:<topic>:p:<index>:epochs", "penstock:topic:{<topic>:<index>}:epochs",
        HASH, NEVER, WITH_TOPIC, "topics", OURS,
    ),
    Family(
        "partition.fence",
        "penstock:topic:<topic>:p:<index>:fence:<group>:<epoch>",
        "penstock:topic:{<topic>:<index>}:fence:<group>:<epoch>",
        STREAM, ALWAYS, "as long as the lease", "topics", OURS,
    ),
    Family(
        "partition.failures",
        "penstock:topic:<topic>:p:<index>:failures:<group>",
        "penstock:topic:{<topic>:<index>}:failures:<group>",
        HASH, NEVER, "an entry leaves when its message is settled", "topics", OURS,
    ),
    Family(
        "partition.counters",
        "penstock:topic:<topic>:p:<index>:counters", "penstock:topic:{<topic>:<index>}:counters",
        HASH, NEVER, WITH_TOPIC, "topics", OURS,
    ),
)  # fmt: skip

_READER: Final = KeyReader(TOPIC_FAMILIES, TOPIC_ARGUMENTS)


def read_topic_key(key: str | bytes, namespace: str = "") -> KeyRead | None:
    """Family and arguments of a key of topics in either layout; None if it is not one."""
    return _READER.read(key, namespace)
