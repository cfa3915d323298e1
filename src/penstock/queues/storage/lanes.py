"""Lanes of a queue: names as callers give them, and as spelled in keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

from penstock.delivery.queries import ask, exact, text
from penstock.errors import InvalidJob
from penstock.queues.storage.keys import PRIORITIES, QueueKeyring, lane_name
from penstock.redis.client import Client
from penstock.redis.keys.names import decode_id

__all__ = [
    "FIXED",
    "LaneKind",
    "fair_lanes",
    "lane_named",
    "one_lane",
    "paused_lanes",
    "shown_lane",
]

FIXED: Final = ("", *PRIORITIES)
"""Lanes that every queue has: the plain list, and the priorities."""
LaneKind = Literal["queue", "priority", "fair"]

_PAGE = 1_000
_named = re.compile(rb"<([a-z]*)>").findall


def lane_named(lane: str | bytes | None) -> tuple[LaneKind, str]:
    """Return the kind of a lane that a caller names, and its name as spelled in keys.

    None is the whole queue, "" its plain list, "high", "normal" and "low" are the priorities, any
    other is the group of a fair lane. Bytes are the name of a lane as spelled in keys.
    """
    if lane is None:
        return "queue", ""
    if isinstance(lane, bytes):
        name = exact(lane)
        return ("priority" if name in FIXED else "fair"), name
    if not isinstance(lane, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidJob(f"lane = {lane!r}: expected text")
    if lane in FIXED:
        return "priority", lane
    return "fair", lane_name(lane)


def one_lane(lane: str | bytes) -> str:
    """Name of a lane as spelled in keys; InvalidJob for the whole queue."""
    kind, name = lane_named(lane)
    if kind == "queue":
        raise InvalidJob("lane: expected a lane; '' is the plain list")
    return name


def shown_lane(lane: str) -> str:
    """A lane, or a job's id in keys, as callers name it; what is not UTF-8 is shown escaped."""
    stored = lane.encode(errors="surrogateescape")
    return decode_id(text(stored)).encode(errors="backslashreplace").decode()


def paused_lanes(state: Mapping[str, bytes]) -> frozenset[str]:
    """Fixed lanes that are paused, by the queue's state."""
    return frozenset(map(text, _named(state.get("paused_lanes", b""))))


async def fair_lanes(client: Client, keys: QueueKeyring) -> list[str]:
    """Every fair lane that has jobs, in the order of turns, then parked ones.

    A round trip per 1,000.
    """
    in_ring: dict[str, None] = {}
    kept_out: dict[str, None] = {}
    for start in range(0, 10**9, _PAGE):
        stop = start + _PAGE - 1
        ring, parked = await ask(
            client,
            [("LRANGE", keys.ring, start, stop), ("ZRANGE", keys.parked, start, stop)],
        )
        in_ring |= dict.fromkeys(map(exact, ring))
        kept_out |= dict.fromkeys(map(exact, parked))
        if max(len(ring), len(parked)) < _PAGE:
            break
    return list(in_ring | kept_out)
