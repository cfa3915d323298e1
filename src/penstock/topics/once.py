"""Storing a message once, however often those who do it are cut off."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import TopicMissing
from penstock.redis.client import Client
from penstock.redis.wire import Argument

__all__ = ["publish_once"]

# Long enough for people to come back to what was cut off.
_REMEMBER_MS = 24 * 3600 * 1000


async def publish_once(
    client: Client,
    topic: str,
    partition: int,
    *,
    fields: Sequence[Argument],
    idempotency_key: str,
    payload_name: str = "",
    body: bytes = b"",
) -> bool:
    """Store a message; False if it was stored under this key within the last day. One round trip.

    `body` is stored beside the stream under its name, if there is one.
    """
    keys = client.keys.partition(topic, partition)
    stored = await client.scripts.publish(
        stream=keys.stream,
        dedup=keys.dedup,
        dedup_times=keys.dedup_times,
        payload=keys.payload(payload_name or "none"),
        payloads=keys.payloads,
        delayed=keys.delayed,
        delayed_bodies=keys.delayed_bodies,
        idempotency_key=idempotency_key,
        remember_ms=_REMEMBER_MS,
        payload_name=payload_name,
        body=body,
        waiting_id="",
        wait_ms=0,
        fields=fields,
    )
    if stored is None:
        raise TopicMissing(topic)
    return bool(stored[1])
