"""The stored contract of queues: every kind of key they have."""

from __future__ import annotations

from typing import Final

from penstock.redis.keys.family import Family, RedisType, Ttl

__all__ = ["QUEUE_FAMILIES"]

STRING, LIST, SET, ZSET, HASH, STREAM = (
    RedisType.STRING,
    RedisType.LIST,
    RedisType.SET,
    RedisType.ZSET,
    RedisType.HASH,
    RedisType.STREAM,
)
NEVER, ALWAYS, TERMINAL, CHOSEN = Ttl.NEVER, Ttl.ALWAYS, Ttl.TERMINAL, Ttl.CHOSEN

OURS = "Penstock"
PUSH = "Penstock; foreign producers may RPUSH (LPUSH if the queue says so)"

QUEUE_FAMILIES: Final = (
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
