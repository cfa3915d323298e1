"""Workers that are registered on the server."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.errors import CommandRefused, InvalidName, ServerError
from penstock.redis.client import Client
from penstock.redis.wire import Command, Reply
from penstock.runtime.heartbeat import WorkerAbout
from penstock.runtime.keys import WorkersKeys

__all__ = ["WorkerView", "list_workers", "worker_view"]


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker with its last heartbeat."""

    id: str
    alive: bool
    """Whether it beat within `worker.heartbeat_ttl_s`."""
    silent_ms: int
    about: WorkerAbout | None = None
    """Its last report; None once it counts as dead."""


async def list_workers(client: Client) -> list[WorkerView]:
    """Workers of the last day, latest heartbeat first. Two round trips, O(workers)."""
    keys = WorkersKeys.of(client.keys)
    rows, now = await _ask(
        client, [("ZRANGE", keys.heartbeats, 0, -1, "REV", "WITHSCORES"), ("TIME",)]
    )
    now_ms = int(now[0]) * 1000 + int(now[1]) // 1000
    record_keys = [_record_key(keys, name) for name in rows[::2]]
    known = await _ask(
        client, [("HGET", key, "about") for key in record_keys if key], spare_odd=True
    )
    records = [known.pop(0) if key else None for key in record_keys]
    return [
        worker_view(id_, beat_ms, record, now_ms=now_ms)
        for id_, beat_ms, record in zip(rows[::2], rows[1::2], records, strict=True)
    ]


def worker_view(name: bytes, beat_ms: bytes, record: bytes | None, *, now_ms: int) -> WorkerView:
    """View of one worker. Never raises."""
    beat = min(max(float(beat_ms), 0.0), float(now_ms))
    return WorkerView(
        id=name.decode(errors="backslashreplace"),
        alive=record is not None,
        silent_ms=now_ms - int(beat),
        about=_about(record),
    )


def _record_key(keys: WorkersKeys, name: bytes) -> str:
    """Key of the record of a worker; empty for an invalid name."""
    try:
        return keys.info(name.decode())
    except (UnicodeDecodeError, InvalidName):
        return ""


async def _ask(
    client: Client, commands: Sequence[Command], *, spare_odd: bool = False
) -> list[Reply]:
    """Send commands; with `spare_odd`, a key of another type counts as missing."""
    replies = await client.pipeline(commands)
    for place, reply in enumerate(replies):
        if spare_odd and isinstance(reply, CommandRefused):
            replies[place] = None
        elif isinstance(reply, ServerError):
            raise reply  # a failed read does not mean that there are no workers
    return replies


def _about(record: bytes | None) -> WorkerAbout | None:
    """Report of a worker; None if it cannot be decoded."""
    try:
        return msgspec.json.decode(record or b"", type=WorkerAbout)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
