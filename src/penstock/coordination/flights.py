"""Single flight: of all who miss a cached value, one makes it, and the others get what it made."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable

from penstock.coordination.leases import Leases
from penstock.coordination.many_flights import (
    FIRST_LOOK_S,
    LONGEST_LOOK_S,
    MAKE,
    WAIT,
    MakeMany,
    ManyFlights,
    Wanted,
)
from penstock.coordination.repeating import until_known
from penstock.delivery.looking import is_wrong_type
from penstock.errors import CommandRefused, NotOpen, OutcomeUnknown, ServerError
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client
from penstock.redis.keys.coordination import CacheKeys

__all__ = ["Flights"]

quiet = RateLimitedLog(logging.getLogger(__name__))


class Flights:
    """The values that are being made for callers in this process, here or elsewhere."""

    def __init__(self, client: Client, leases: Leases) -> None:
        self._client, self._leases = client, leases
        self._flight_s = client.settings.cache.flight_s
        self._flight_ms = round(self._flight_s * 1000)
        self._here: dict[str, asyncio.Future[bytes]] = {}

    async def value(
        self, keys: CacheKeys, make: Callable[[], Awaitable[bytes]], ttl_ms: int, useless: bytes
    ) -> bytes:
        """The value that is there, unless it is the `useless` one, or that somebody makes now.

        What `make` raises reaches all who wait for it in this process. Those in others make it
        themselves, one after the other, and so do those here if the maker is cancelled.
        """
        while (shared := self._here.get(keys.value)) is not None:
            await asyncio.wait([shared])
            if not shared.cancelled():
                return shared.result()
        shared = self._here[keys.value] = asyncio.get_running_loop().create_future()
        try:
            made = await self._found_or_made(keys, make, ttl_ms, useless)
        except Exception as error:
            shared.set_exception(error)
            shared.exception()  # perhaps nobody waits for it
            raise
        except BaseException:
            shared.cancel()
            raise
        else:
            shared.set_result(made)
            return made
        finally:
            del self._here[keys.value]

    async def values(self, wanted: Wanted, make: MakeMany, ttl_ms: int) -> dict[str, bytes]:
        """`value` for many at once; `make` is asked for all that are ours to make together."""
        return await ManyFlights(self._client, self._leases, self._here, make, ttl_ms).values(
            wanted
        )

    async def _found_or_made(
        self, keys: CacheKeys, make: Callable[[], Awaitable[bytes]], ttl_ms: int, useless: bytes
    ) -> bytes:
        token, pause_s = secrets.token_hex(16), FIRST_LOOK_S
        while True:
            began = time.monotonic()
            try:
                said, *found = await until_known(lambda: self._take(keys, token, useless))
            except (asyncio.CancelledError, OutcomeUnknown):
                await self._make_way(keys, token)  # it may be ours all the same
                raise
            if said == MAKE:
                return await self._made(keys, make, ttl_ms, token, began)
            if said != WAIT:
                return bytes(found[0])
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_LOOK_S)

    async def _made(
        self,
        keys: CacheKeys,
        make: Callable[[], Awaitable[bytes]],
        ttl_ms: int,
        token: str,
        began: float,
    ) -> bytes:
        lease = self._leases.hold(
            lambda: self._renew(keys, token),
            self._flight_s / 3,
            lambda: None,  # then others make it, too: what is made here is as good
            ttl_s=self._flight_s,
            began=began,
        )
        try:
            data = await make()
        except BaseException:
            await lease.end()
            await self._make_way(keys, token)
            raise
        await lease.end()
        try:
            await self._client.scripts.land_flight(
                value=keys.value, flight=keys.flight, token=token, data=data, ttl_ms=ttl_ms
            )
        except (ServerError, NotOpen) as error:
            # The caller has what it asks for; the next one makes it again.
            quiet.warning("land", "a value for the cache was not stored: %s", error)
            await self._make_way(keys, token)
        return data

    async def _take(self, keys: CacheKeys, token: str, useless: bytes) -> list[bytes | int]:
        try:
            return await self._client.scripts.take_flight(
                value=keys.value,
                flight=keys.flight,
                token=token,
                flight_ms=self._flight_ms,
                useless=useless,
            )
        except CommandRefused as error:
            if is_wrong_type(error):
                return [MAKE]  # it cannot be stored, nor can others wait for it
            raise

    async def _renew(self, keys: CacheKeys, token: str) -> bool:
        return await self._client.scripts.renew_flight(
            flight=keys.flight, token=token, flight_ms=self._flight_ms
        )

    async def _make_way(self, keys: CacheKeys, token: str) -> None:
        """Let another make it now; if that cannot be said, when our time is up."""
        try:
            await self._client.scripts.renew_flight(flight=keys.flight, token=token, flight_ms=0)
        except (ServerError, NotOpen) as error:
            quiet.warning("make way", "others wait for a value that nobody makes: %s", error)
