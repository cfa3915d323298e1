"""The workers, as the server knows them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.errors import ServerError
from penstock.redis.client import Client
from penstock.redis.wire import Command, Reply
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
    rows, now = await _ask(
        client, [("ZRANGE", keys.heartbeats, 0, -1, "REV", "WITHSCORES"), ("TIME",)]
    )
    now_ms = int(now[0]) * 1000 + int(now[1]) // 1000
    ids = [row.decode(errors="backslashreplace") for row in rows[::2]]
    records = await _ask(client, [("HGET", keys.info(id_), "about") for id_ in ids])
    return [
        WorkerView(
            id=id_,
            alive=record is not None,
            silent_ms=max(0, now_ms - int(float(beat_ms))),
            about=_about(record),
        )
        for id_, beat_ms, record in zip(ids, rows[1::2], records, strict=True)
    ]


async def _ask(client: Client, commands: Sequence[Command]) -> list[Reply]:
    replies = await client.pipeline(commands)
    for reply in replies:
        if isinstance(reply, ServerError):
            raise reply  # could not look: that is not the same as nobody there
    return replies


def _about(record: bytes | None) -> WorkerAbout | None:
    """What a worker said; None, too, if it speaks of itself as we do not understand."""
    try:
        return msgspec.json.decode(record or b"", type=WorkerAbout)
    except msgspec.DecodeError:
        return None
