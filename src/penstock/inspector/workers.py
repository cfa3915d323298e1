"""The workers, as the server knows them."""

from __future__ import annotations

from typing import cast

import msgspec

from penstock.redis.client import Client
from penstock.runtime.heartbeat import WorkerAbout

__all__ = ["WorkerView", "list_workers"]


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """One worker as the server knows it."""

    id: str
    alive: bool
    """Whether it beat within `worker.heartbeat_ttl_s`."""
    silent_ms: int
    about: WorkerAbout | None = None
    """What it said last; gone once it counts as dead."""


async def list_workers(client: Client) -> list[WorkerView]:
    """Workers of the last day, the liveliest first. Two round trips, O(workers)."""
    keys = client.keys.workers()
    rows, now = await client.pipeline(
        [("ZRANGE", keys.heartbeats, 0, -1, "REV", "WITHSCORES"), ("TIME",)]
    )
    now_ms = int(now[0]) * 1000 + int(now[1]) // 1000
    ids = [row.decode() for row in rows[::2]]
    records = await client.pipeline([("HGET", keys.info(id_), "about") for id_ in ids])
    return [
        WorkerView(
            id=id_,
            alive=record is not None,
            silent_ms=max(0, now_ms - int(float(beat_ms))),
            about=msgspec.json.decode(cast("bytes", record), type=WorkerAbout) if record else None,
        )
        for id_, beat_ms, record in zip(ids, rows[1::2], records, strict=True)
    ]
