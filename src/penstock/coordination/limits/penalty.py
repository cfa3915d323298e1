"""Penalties that a provider asks for in an answer: bounded, logged, and shown later."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

import msgspec

from penstock.coordination.limits.limit import EVERYONE, Limit
from penstock.errors import ServerError
from penstock.redis.node import Role
from penstock.throttled_log import RateLimitedLog

__all__ = ["PenaltyNote", "find_note", "obey"]

quiet = RateLimitedLog(logging.getLogger(__name__))
_SAME_S: Final = 1.0
"""Ends of a penalty and its note that are no further apart belong together."""


class PenaltyNote(msgspec.Struct, frozen=True, kw_only=True):
    """Who asked for a penalty. Stored until it ends; a new field carries a default."""

    host: str
    status: int
    asked_s: float | None = None
    """None if the answer had no time."""


async def obey(
    limit: Limit, asked_s: float | None, *, host: str, status: int, key: str = EVERYONE
) -> float:
    """Penalise as an answer of a host asks: how long that lasts now.

    At most `limits.longest_penalty_s`: headers are words of others, and one answer would stop all
    processes for a year. Without a time, as blocked accounts get, it is `limits.blocked_s`; 0 asks
    for nothing. A longer penalty that is there stays.
    """
    settings = limit.client.settings.limits
    wait_s = settings.blocked_s if asked_s is None else min(asked_s, settings.longest_penalty_s)
    if not wait_s:
        return 0.0
    quiet.warning(
        f"{limit.name} {host} {status}",
        "limit %r stops for %g s: %s answered %d%s",
        limit.name,
        wait_s,
        host,
        status,
        _asked(asked_s, wait_s),
    )
    lasts_s = await limit.penalise(wait_s, key=key)
    if lasts_s <= wait_s + _SAME_S:
        note = msgspec.json.encode(PenaltyNote(host=host, status=status, asked_s=asked_s))
        place = limit.keys(key).penalty
        lasts_ms = max(1, round(lasts_s * 1000))
        with suppress(ServerError):  # a full server: the penalty holds without it
            await limit.client.call("SET", place, note, "PX", lasts_ms, role=Role.RATELIMIT)
    return lasts_s


async def find_note(limit: Limit, key: str, penalty_s: float) -> PenaltyNote | None:
    """Who asked for the penalty that lasts so long; None if code did, or an older version."""
    place = limit.keys(key).penalty
    commands = [("GET", place), ("PTTL", place)]
    stored, ttl_ms = await limit.client.pipeline(commands, role=Role.RATELIMIT)
    if not isinstance(stored, bytes) or abs(ttl_ms / 1000 - penalty_s) > _SAME_S:
        return None
    try:
        return msgspec.json.decode(stored, type=PenaltyNote)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # of another program


def _asked(asked_s: float | None, wait_s: float) -> str:
    if asked_s is None:
        return " without a time to come back, as for blocked accounts"
    if asked_s > wait_s:
        return f", and asked for {asked_s:g} s (limits.longest_penalty_s)"
    return ""
