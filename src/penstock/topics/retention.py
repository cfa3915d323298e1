"""Retention, applied to one partition."""

from __future__ import annotations

from penstock.redis.client import Client
from penstock.topics.bodies import payload_prefix
from penstock.topics.facts import Retention

__all__ = ["trim_partition"]


async def trim_partition(
    client: Client, topic: str, partition: int, retention: Retention
) -> tuple[int, int, int]:
    """Drop what retention allows: messages dropped, of these still needed, large bodies freed."""
    keys = client.keys.partition(topic, partition)
    dropped, lost, freed = await client.scripts.trim(
        stream=keys.stream,
        counters=keys.counters,
        payloads=keys.payloads,
        max_length=retention.max_length,
        max_age_ms=round(retention.max_age_s * 1000),
        max_bytes=retention.max_bytes,
        hard_length=retention.hard_length,
        payload_prefix=payload_prefix(keys),
    )
    return dropped, lost, freed
