"""The stored contract: every kind of key, in one place.

`docs/contracts.md` shows the same table to people; a test keeps the two equal, and another one
proves that each key property has its entry here.
"""

from __future__ import annotations

from typing import Final

from penstock.redis.keys.coordination_contract import COORDINATION
from penstock.redis.keys.family import Family, RedisType, Ttl
from penstock.redis.keys.names import QUEUE_WORD

__all__ = ["AREA_WORDS", "FAMILIES", "RESERVED"]

STRING, LIST, SET = RedisType.STRING, RedisType.LIST, RedisType.SET
ZSET, HASH, STREAM = RedisType.ZSET, RedisType.HASH, RedisType.STREAM
NEVER, ALWAYS, TERMINAL = Ttl.NEVER, Ttl.ALWAYS, Ttl.TERMINAL
CHOSEN, WRITER = Ttl.CHOSEN, Ttl.WRITER

OURS = "Penstock"
JAVA = "the Java library"
BOTH = "Penstock; the Java library"
XADD = "Penstock; the Java library; foreign producers may XADD"
PUSH = "Penstock; foreign producers may RPUSH (LPUSH if the queue says so)"
WITH_TOPIC = "removed with the topic"

_TOPICS = (
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

_QUEUES = (
    Family(
        "queues.registry", "penstock:queues:registry", "penstock:{queues}:registry",
        SET, NEVER, "kept; a queue leaves it when deleted", "queues", OURS,
    ),
    Family(
        "queue.waiting", "<queue>", "{<queue>}",
        LIST, NEVER, "a job leaves when claimed", "queues", PUSH,
    ),
    Family(
        "queue.priority", "<queue>:<priority>", "{<queue>}:<priority>",
        LIST, NEVER, "a job leaves when claimed", "queues", PUSH,
    ),
    Family(
        "queue.lane", "<queue>:<lane>", "{<queue>}:<lane>",
        LIST, NEVER, "a job leaves when claimed", "queues", OURS,
    ),
    Family(
        "queue.dead_letters", "dlq:<queue>", "dlq:{<queue>}",
        LIST, NEVER, "until replayed or purged", "queues", OURS,
    ),
    Family(
        "queue.overflow", "dlq:overflow:<queue>", "dlq:overflow:{<queue>}",
        LIST, NEVER, "until replayed or purged; bounded", "queues", OURS,
    ),
    Family(
        "queue.state",
        "penstock:queue:<queue>:state", "penstock:queue:{<queue>}:state",
        HASH, NEVER, "kept; a queue has one while it is used", "queues", OURS,
    ),
    Family(
        "queue.counters",
        "penstock:queue:<queue>:counters", "penstock:queue:{<queue>}:counters",
        HASH, NEVER, "kept", "queues", OURS,
    ),
    Family(
        "queue.workers",
        "penstock:queue:<queue>:workers", "penstock:queue:{<queue>}:workers",
        ZSET, NEVER, "a worker leaves when it ends, or after its silence", "queues", OURS,
    ),
    Family(
        "queue.dead_workers",
        "penstock:queue:<queue>:dead_workers", "penstock:queue:{<queue>}:dead_workers",
        ZSET, NEVER, "a worker leaves when its claims are returned", "queues", OURS,
    ),
    Family(
        "queue.suspects",
        "penstock:queue:<queue>:suspects", "penstock:queue:{<queue>}:suspects",
        HASH, ALWAYS, "they leave when the job has begun or ended; a day", "queues", OURS,
    ),
    Family(
        "queue.claimed",
        "penstock:queue:<queue>:claimed:<worker>", "penstock:queue:{<queue>}:claimed:<worker>",
        HASH, NEVER, "a job leaves when finished, or when its worker is dead", "queues", OURS,
    ),
    Family(
        "queue.delayed",
        "penstock:queue:<queue>:delayed", "penstock:queue:{<queue>}:delayed",
        ZSET, NEVER, "a job leaves when due", "queues", OURS,
    ),
    Family(
        "queue.delayed_bodies",
        "penstock:queue:<queue>:delayed_bodies", "penstock:queue:{<queue>}:delayed_bodies",
        HASH, NEVER, "a job leaves when due", "queues", OURS,
    ),
    Family(
        "queue.aside",
        "penstock:queue:<queue>:aside", "penstock:queue:{<queue>}:aside",
        ZSET, ALWAYS, "a job leaves after it was due; five minutes", "queues", OURS,
    ),
    Family(
        "queue.ring",
        "penstock:queue:<queue>:ring", "penstock:queue:{<queue>}:ring",
        LIST, NEVER, "a lane leaves when it is empty", "queues", OURS,
    ),
    Family(
        "queue.wakeup",
        "penstock:queue:<queue>:wakeup", "penstock:queue:{<queue>}:wakeup",
        LIST, NEVER, "taken by the worker that it wakes; one or two at most", "queues", OURS,
    ),
    Family(
        "queue.lanes",
        "penstock:queue:<queue>:lanes", "penstock:queue:{<queue>}:lanes",
        SET, NEVER, "a lane leaves when it is empty", "queues", OURS,
    ),
    Family(
        "queue.busy",
        "penstock:queue:<queue>:busy", "penstock:queue:{<queue>}:busy",
        ZSET, NEVER, "a worker leaves when it has none; only with `limit=`", "queues", OURS,
    ),
    Family(
        "queue.parked",
        "penstock:queue:<queue>:parked", "penstock:queue:{<queue>}:parked",
        ZSET, NEVER, "a lane leaves when it may go on", "queues", OURS,
    ),
    Family(
        "queue.weights",
        "penstock:queue:<queue>:weights", "penstock:queue:{<queue>}:weights",
        HASH, NEVER, "kept", "queues", OURS,
    ),
    Family(
        "queue.running",
        "penstock:queue:<queue>:running:<lane>", "penstock:queue:{<queue>}:running:<lane>",
        SET, NEVER, "a claim leaves with its job", "queues", OURS,
    ),
    Family(
        "queue.unique",
        "penstock:queue:<queue>:unique:<key>", "penstock:queue:{<queue>}:unique:<key>",
        STRING, CHOSEN, "none: freed with the job's end; or `unique_for`", "queues", OURS,
    ),
    Family(
        "queue.jobs",
        "penstock:queue:<queue>:jobs:<state>", "penstock:queue:{<queue>}:jobs:<state>",
        ZSET, NEVER, "a job leaves with its state; final ones after 7 days", "queues", OURS,
    ),
    Family(
        "queue.cancelled",
        "penstock:queue:<queue>:cancelled", "penstock:queue:{<queue>}:cancelled",
        SET, NEVER, "a job leaves when passed over, or with its list", "queues", OURS,
    ),
    Family(
        "queue.schedule",
        "penstock:queue:<queue>:schedule", "penstock:queue:{<queue>}:schedule",
        ZSET, NEVER, "a name leaves when it is removed", "queues", OURS,
    ),
    Family(
        "queue.audit",
        "penstock:queue:<queue>:audit", "penstock:queue:{<queue>}:audit",
        STREAM, NEVER, "capped", "queues", OURS,
    ),
    Family(
        "job.status",
        "penstock:queue:<queue>:job:<job>", "penstock:queue:{<queue>}:job:<job>",
        HASH, TERMINAL, "7 days from the final state", "queues", OURS, also="<area>:job:<job>",
    ),
)  # fmt: skip

_WORKERS = (
    Family(
        "workers.heartbeats", "penstock:workers:heartbeats", "penstock:{workers}:heartbeats",
        ZSET, NEVER, "kept; dead workers are swept out of it", "runtime", OURS,
    ),
    Family(
        "workers.info", "penstock:workers:info:<worker>", "penstock:{workers}:info:<worker>",
        HASH, ALWAYS, "renewed with each heartbeat", "runtime", OURS,
    ),
    Family(
        "probe.value", "penstock:probe:<tag>", "penstock:probe:{<tag>}",
        STRING, ALWAYS, "seconds", "health", OURS,
    ),
)  # fmt: skip

_UPLOADS = (
    Family(
        "upload.state", "upload:<upload>:state", "upload:{<upload>}:state",
        HASH, TERMINAL, "24 hours from the final state", "uploads", OURS,
    ),
    Family(
        "upload.metadata", "upload:<upload>:metadata", "upload:{<upload>}:metadata",
        HASH, TERMINAL, "24 hours from the final state", "uploads", OURS,
    ),
    Family(
        "upload.parts", "upload:<upload>:parts", "upload:{<upload>}:parts",
        HASH, TERMINAL, "24 hours from the final state", "uploads", OURS,
    ),
    Family(
        "upload.chunk", "upload:<upload>:chunks:<chunk>", "upload:{<upload>}:chunks:<chunk>",
        STRING, TERMINAL, "until its part is stored; an hour from the final state", "uploads", OURS,
    ),
)  # fmt: skip

FAMILIES: Final[tuple[Family, ...]] = (*(*_TOPICS, *_QUEUES, *_WORKERS, *COORDINATION, *_UPLOADS),)


def _reserved(argument: str) -> frozenset[str]:
    """Words that stand in other keys where this argument stands in its own."""
    patterns = [
        pattern.split(":")
        for family in FAMILIES
        for pattern in (family.pattern, family.also)
        if pattern
    ]
    return frozenset(
        other[position]
        for parts in patterns
        for position, part in enumerate(parts)
        if part == f"<{argument}>"
        for other in patterns
        if other[:position] == parts[:position] and len(other) > position
        if not other[position].startswith("<")
    )


# A topic may be called dlq: what follows tells its payloads from those of dead letters.
RESERVED: Final = {"topic": _reserved("topic") - {"dlq"}, "queue": _reserved("queue")}
"""Names refused to topics, and first parts refused to queues."""

AREA_WORDS: Final = frozenset(
    family.also.split(":")[1] for family in FAMILIES if family.also.startswith("<area>:")
) | {QUEUE_WORD}
"""Parts refused to queues before their last colon."""
