"""Single flight for many values at once: what is missing is made together, and made once."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from penstock.coordination.leases import Leases
from penstock.coordination.repeating import until_known
from penstock.delivery.looking import is_wrong_type
from penstock.errors import NotOpen, OutcomeUnknown, ServerError
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client
from penstock.redis.keys.coordination import CacheKeys
from penstock.redis.wire import Reply

__all__ = ["FIRST_LOOK_S", "LONGEST_LOOK_S", "MAKE", "WAIT", "MakeMany", "ManyFlights", "Wanted"]

quiet = RateLimitedLog(logging.getLogger(__name__))

FIRST_LOOK_S: Final = 0.02
LONGEST_LOOK_S: Final = 0.2
"""How often to look whether another process has made a value."""
WAIT, MAKE = 0, 1
"""What the server says of a value that is missing."""

MakeMany: TypeAlias = Callable[[list[str]], Awaitable[Mapping[str, bytes]]]
Wanted: TypeAlias = Mapping[str, tuple[CacheKeys, bytes]]
"""By the caller's names: the keys, and a value that is there but of no use."""


class ManyFlights:
    """What one caller asks for in one go; for one call of `values`.

    `here` are the values that are being made for callers in this process. First a caller makes what
    is his to make, and only then he waits for what others make: so two who ask for the same values
    in another order never wait for each other.
    """

    def __init__(
        self,
        client: Client,
        leases: Leases,
        here: dict[str, asyncio.Future[bytes]],
        make: MakeMany,
        ttl_ms: int,
    ) -> None:
        self._client, self._leases, self._here = client, leases, here
        self._make, self._ttl_ms = make, ttl_ms
        self._flight_s = client.settings.cache.flight_s
        self._flight_ms = round(self._flight_s * 1000)
        self._token = secrets.token_hex(16)
        self._may_hold = False
        self._values: dict[str, bytes] = {}

    async def values(self, wanted: Wanted) -> dict[str, bytes]:
        """The values that are there and can be used, or that somebody makes now.

        What `make` leaves out is left out. What it raises reaches its own caller alone: which of
        the values is to blame nobody knows, so others make theirs.
        """
        left = dict(wanted)
        while left:
            ours = {name: one for name, one in left.items() if one[0].value not in self._here}
            theirs = {
                name: self._here[keys.value] for name, (keys, _) in left.items() if name not in ours
            }
            await self._for_all_here(ours)
            if theirs:
                await asyncio.wait(theirs.values())
            # Of some the maker was cancelled, has failed, or knew nothing: we make them.
            left = {name: left[name] for name, shared in theirs.items() if shared.cancelled()}
            for name in theirs.keys() - left.keys():
                self._values[name] = theirs[name].result()
        return self._values

    # inside

    async def _for_all_here(self, wanted: Wanted) -> None:
        """Find or make values; who asks for them in this process meanwhile waits for us."""
        loop = asyncio.get_running_loop()
        shared: dict[str, asyncio.Future[bytes]] = {name: loop.create_future() for name in wanted}
        self._here.update({keys.value: shared[name] for name, (keys, _) in wanted.items()})
        try:
            await self._find_or_make(wanted, shared)
        finally:
            for name, (keys, _) in wanted.items():
                shared[name].cancel()  # which changes nothing if it has its value
                del self._here[keys.value]

    async def _find_or_make(
        self, wanted: Wanted, shared: Mapping[str, asyncio.Future[bytes]]
    ) -> None:
        left, pause_s = dict(wanted), FIRST_LOOK_S
        while left:
            began = time.monotonic()
            said = await self._taken(left)
            found = {name: bytes(value[0]) for name, (_, *value) in said.items() if value}
            ours = {name: left[name][0] for name, (word, *_) in said.items() if word == MAKE}
            if ours:
                found |= await self._made(ours, began)
            for name, value in found.items():
                self._values[name] = value
                shared[name].set_result(value)
            left = {name: left[name] for name, (word, *_) in said.items() if word == WAIT}
            if ours:
                pause_s = FIRST_LOOK_S  # what others made has had time to be ready
            elif left:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, LONGEST_LOOK_S)

    async def _taken(self, left: Wanted) -> dict[str, Reply]:
        """For each, 2 and the value, 1 to make it, or 0 if another process is at it."""
        self._may_hold = False
        try:
            return await until_known(lambda: self._take(left))
        except BaseException:
            if self._may_hold:
                await self._make_way([keys.flight for keys, _ in left.values()])
            raise

    async def _take(self, left: Wanted) -> dict[str, Reply]:
        held, self._may_hold = self._may_hold, True  # we may be cancelled before we know
        replies = await self._client.scripts.take_flights(
            calls=[(keys.value, keys.flight, useless) for keys, useless in left.values()],
            token=self._token,
            flight_ms=self._flight_ms,
        )
        # A key of another type: it cannot be stored, nor can others wait for it.
        replies = [[MAKE] if is_wrong_type(reply) else reply for reply in replies]
        errors = [reply for reply in replies if isinstance(reply, ServerError)]
        self._may_hold = held or any(
            isinstance(reply, OutcomeUnknown)
            or (not isinstance(reply, ServerError) and reply[0] == MAKE)
            for reply in replies
        )
        if errors:
            # A doubt first: who repeats the call has to know of it.
            raise next((error for error in errors if isinstance(error, OutcomeUnknown)), errors[0])
        return dict(zip(left, replies, strict=True))

    async def _made(self, ours: Mapping[str, CacheKeys], began: float) -> dict[str, bytes]:
        flights = [keys.flight for keys in ours.values()]
        lease = self._leases.hold(
            lambda: self._renew(flights),
            self._flight_s / 3,
            lambda: None,  # then others make them, too: what is made here is as good
            ttl_s=self._flight_s,
            began=began,
        )
        try:
            given = await self._make(list(ours))
            made = {name: given[name] for name in ours if name in given}
        except BaseException:
            await lease.end()
            await self._make_way(flights)
            raise
        await lease.end()
        calls = [(ours[name].value, ours[name].flight, data) for name, data in made.items()]
        try:
            replies = await self._client.scripts.land_flights(
                calls=calls, token=self._token, ttl_ms=self._ttl_ms
            )
            errors = [reply for reply in replies if isinstance(reply, ServerError)]
        except NotOpen as error:
            errors = [error]
        if errors:
            # The caller has what it asks for; the next one makes it again.
            quiet.warning("land", "%d values were not stored: %s", len(errors), errors[0])
        if errors or len(made) < len(ours):
            await self._make_way(flights)
        return made

    async def _renew(self, flights: Sequence[str]) -> bool:
        replies = await self._client.scripts.renew_flights(
            flights=flights, token=self._token, flight_ms=self._flight_ms
        )
        for reply in replies:
            if isinstance(reply, ServerError) and not is_wrong_type(reply):
                raise reply
        return any(reply for reply in replies if not is_wrong_type(reply))

    async def _make_way(self, flights: Sequence[str]) -> None:
        """Let others make them now; where that cannot be said, when our time is up."""
        try:
            replies = await self._client.scripts.renew_flights(
                flights=flights, token=self._token, flight_ms=0
            )
            error = next((reply for reply in replies if isinstance(reply, ServerError)), None)
        except NotOpen as closed:
            error = closed
        if error is not None:
            quiet.warning("make way", "others wait for values that nobody makes: %s", error)
