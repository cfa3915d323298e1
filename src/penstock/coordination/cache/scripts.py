"""The scripts of cached values."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from penstock.coordination.cache.keys import CacheKeys
from penstock.errors import ServerError
from penstock.redis.node import Role
from penstock.redis.script import LuaFolder, ScriptCaller
from penstock.redis.wire import Argument, Reply

__all__ = ["CacheScripts", "FlightReply", "FlightStatus"]

_LUA = LuaFolder("penstock.coordination.cache")


class FlightStatus(IntEnum):
    """What becomes of a value that is missing."""

    TAKEN = 0
    """Another caller makes it."""
    OURS = 1
    """It is ours to make."""
    FOUND = 2
    """It is stored."""


class FlightReply(NamedTuple):
    """The reply to `take_flight` for one value."""

    status: FlightStatus
    value: bytes | None = None


class CacheScripts(ScriptCaller):
    """Scripts of the cache, as calls.

    The token in a flight's key names the caller that makes the value. Calls for flights take any
    number of values, each with its own reply or error.
    """

    lua = _LUA

    async def take_flight(
        self,
        *,
        keys: Sequence[CacheKeys],
        useless: Sequence[Argument],
        token: str,
        flight_ms: int,
    ) -> list[FlightReply | ServerError]:
        """Read each value, unless it is the `useless` one, or become its maker."""
        calls = [
            ((one.value, one.flight), (token, flight_ms, unusable))
            for one, unusable in zip(keys, useless, strict=True)
        ]
        return [
            reply if isinstance(reply, ServerError) else _flight_reply(*reply)
            for reply in await self.run_many("take_flight", calls, Role.CACHE)
        ]

    async def renew_flight(
        self, *, keys: Sequence[CacheKeys], token: str, flight_ms: int
    ) -> list[Reply]:
        """Let others wait longer for each value, or no more with 0 ms; 0 if it is not ours."""
        calls = [((one.flight,), (token, flight_ms)) for one in keys]
        return await self.run_many("renew_flight", calls, Role.CACHE)

    async def land_flight(
        self, *, keys: Sequence[CacheKeys], data: Sequence[Argument], token: str, ttl_ms: int
    ) -> list[Reply]:
        """Store each value that was made; 0 if it was not ours to make any more."""
        calls = [
            ((one.value, one.flight), (token, made, ttl_ms))
            for one, made in zip(keys, data, strict=True)
        ]
        return await self.run_many("land_flight", calls, Role.CACHE)

    async def set_cached(
        self, *, value: str, flight: str, data: Argument, ttl_ms: int, nx: int
    ) -> bool:
        """Store a value; with `nx` only if the key is free: False if it is not."""
        arguments = (data, ttl_ms, nx)
        return bool(await self.run("set_cached", (value, flight), arguments, Role.CACHE))

    async def add_sorted(self, *, sorted_set: str, ttl_ms: int, pairs: Sequence[Argument]) -> int:
        """Add scores and members to a set that lasts so long; how many are new."""
        return await self.run("add_sorted", (sorted_set,), (ttl_ms, *pairs), Role.CACHE)


def _flight_reply(status: int, value: bytes | None = None) -> FlightReply:
    return FlightReply(FlightStatus(status), value)
