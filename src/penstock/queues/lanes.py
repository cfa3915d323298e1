"""Lanes of a queue as callers name them, and as they stand in keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

from penstock.delivery.looking import ask, exact, text
from penstock.errors import InvalidJob
from penstock.redis.client import Client
from penstock.redis.keys import QueueKeyring
from penstock.redis.keys.names import decode_id
from penstock.redis.keys.queues import PRIORITIES

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


def lane_named(keys: QueueKeyring, lane: str | bytes | None) -> tuple[LaneKind, str]:
    """Tell what a caller means, and how that lane stands in keys.

    None is the whole queue, "" its plain list, "high", "normal" and "low" are the priorities, any
    other is the group of a fair lane. Bytes are the name of a lane as it stands in keys.
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
    return "fair", keys.lane(lane)


def one_lane(keys: QueueKeyring, lane: str | bytes) -> str:
    """How a lane, and not the whole queue, stands in keys."""
    kind, name = lane_named(keys, lane)
    if kind == "queue":
        raise InvalidJob("lane: expected a lane; '' is the plain list")
    return name


def shown_lane(lane: str) -> str:
    """A lane, or a job's id in keys, as callers name it; what is not UTF-8 is shown escaped."""
    stored = lane.encode(errors="surrogateescape")
    return decode_id(text(stored)).encode(errors="backslashreplace").decode()


def paused_lanes(state: Mapping[str, bytes]) -> frozenset[str]:
    """Which of the fixed lanes are paused, as the queue's state tells."""
    return frozenset(map(text, _named(state.get("paused_lanes", b""))))


async def fair_lanes(client: Client, keys: QueueKeyring) -> list[str]:
    """Every fair lane that has jobs or is kept from its turns. A round trip per 1,000."""
    found: dict[str, None] = {}
    for start in range(0, 10**9, _PAGE):
        stop = start + _PAGE - 1
        ring, parked = await ask(
            client,
            [("LRANGE", keys.ring, start, stop), ("ZRANGE", keys.parked, start, stop)],
        )
        found |= dict.fromkeys(map(exact, (*ring, *parked)))
        if max(len(ring), len(parked)) < _PAGE:
            break
    return list(found)
