"""Retention, applied to one partition."""

from __future__ import annotations

from penstock.redis.client import Client
from penstock.topics.storage.keys import PartitionKeys
from penstock.topics.storage.metadata import Retention
from penstock.topics.storage.scripts import TopicScripts

__all__ = ["apply_retention", "trim_partition"]

# After a call that dropped so many, or freed so many large bodies, there may be as many again.
_MANY_DROPPED, _MANY_FREED = 1_000, 200


async def apply_retention(client: Client, topic: str, partition: int, retention: Retention) -> int:
    """Trim a partition until little is left to drop; how many messages were lost to a group."""
    total = 0
    while True:
        dropped, lost, freed = await trim_partition(client, topic, partition, retention)
        total += lost
        if dropped < _MANY_DROPPED and freed < _MANY_FREED:
            return total


async def trim_partition(
    client: Client, topic: str, partition: int, retention: Retention
) -> tuple[int, int, int]:
    """Drop what retention allows: messages dropped, of these still needed, large bodies freed.

    One call is bounded work for the server: see `trim_partition.lua`. Where no limit is set,
    messages that every group is past are dropped after `topics.retention_s`, and none while there
    is no group.
    """
    keys = PartitionKeys.of(client.keys, topic, partition)
    by_default = not retention.is_set and not retention.forever
    max_age_s = client.settings.topics.retention_s if by_default else retention.max_age_s
    dropped, lost, freed = await TopicScripts.of(client).trim_partition(
        stream=keys.stream,
        counters=keys.counters,
        payloads=keys.payloads,
        max_length=retention.max_length,
        max_age_ms=round(max_age_s * 1000),
        max_bytes=retention.max_bytes,
        hard_length=retention.hard_length,
        payload_prefix=keys.payload_prefix,
        needs_group=by_default,
    )
    return dropped, lost, freed
