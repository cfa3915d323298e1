"""The scripts of cached values."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.redis.node import Role
from penstock.redis.script import ScriptCaller
from penstock.redis.wire import Argument, Reply

__all__ = ["CacheScripts"]


class CacheScripts(ScriptCaller):
    """Scripts of the cache, as calls. Who makes a value is named by a token, its flight."""

    async def take_flight(
        self, *, value: str, flight: str, token: str, flight_ms: int, useless: Argument
    ) -> list[bytes | int]:
        """Read a value or be its maker: 2 and the value, 1 to make it, 0 if another is at it."""
        arguments = (token, flight_ms, useless)
        return await self.run("take_flight", (value, flight), arguments, Role.CACHE)

    async def take_flights(
        self, *, calls: Sequence[tuple[str, str, Argument]], token: str, flight_ms: int
    ) -> list[Reply]:
        """`take_flight` for each value, flight and useless value, in one go."""
        return await self.run_many(
            "take_flight",
            [((value, flight), (token, flight_ms, useless)) for value, flight, useless in calls],
            Role.CACHE,
        )

    async def renew_flight(self, *, flight: str, token: str, flight_ms: int) -> bool:
        """Let others wait so long for the value; False if it is not ours to make any more."""
        return bool(await self.run("renew_flight", (flight,), (token, flight_ms), Role.CACHE))

    async def renew_flights(
        self, *, flights: Sequence[str], token: str, flight_ms: int
    ) -> list[Reply]:
        """`renew_flight` for each, in one go."""
        calls = [((flight,), (token, flight_ms)) for flight in flights]
        return await self.run_many("renew_flight", calls, Role.CACHE)

    async def land_flight(
        self, *, value: str, flight: str, token: str, data: Argument, ttl_ms: int
    ) -> bool:
        """Store what was made; False if it was not ours to make any more."""
        arguments = (token, data, ttl_ms)
        return bool(await self.run("land_flight", (value, flight), arguments, Role.CACHE))

    async def land_flights(
        self, *, calls: Sequence[tuple[str, str, Argument]], token: str, ttl_ms: int
    ) -> list[Reply]:
        """`land_flight` for each value, flight and what was made, in one go."""
        return await self.run_many(
            "land_flight",
            [((value, flight), (token, data, ttl_ms)) for value, flight, data in calls],
            Role.CACHE,
        )

    async def set_cached(
        self, *, value: str, flight: str, data: Argument, ttl_ms: int, nx: int
    ) -> bool:
        """Store a value, whoever makes one; with `nx` only if there is none: False if there is."""
        arguments = (data, ttl_ms, nx)
        return bool(await self.run("set_cached", (value, flight), arguments, Role.CACHE))

    async def add_sorted(self, *, sorted_set: str, ttl_ms: int, pairs: Sequence[Argument]) -> int:
        """Add scores and members to a set that lasts so long; how many are new."""
        return await self.run("add_sorted", (sorted_set,), (ttl_ms, *pairs), Role.CACHE)
