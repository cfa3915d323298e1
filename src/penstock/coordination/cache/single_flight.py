"""Single flight: of all callers that miss a cached value, one makes it and the others wait."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from penstock.coordination.cache.keys import CacheKeys
from penstock.coordination.cache.scripts import CacheScripts, FlightReply, FlightStatus
from penstock.coordination.leases import Leases
from penstock.delivery.queries import is_wrong_type
from penstock.errors import NotOpen, OutcomeUnknown, ServerError
from penstock.redis.client import Client
from penstock.redis.retry import repeat_until_known
from penstock.throttled_log import RateLimitedLog

__all__ = ["SingleFlight"]

quiet = RateLimitedLog(logging.getLogger(__name__))

# How often to check whether another process has made a value.
_FIRST_POLL_S: Final = 0.02
_LONGEST_POLL_S: Final = 0.2
_ONLY: Final = ""
_OURS: Final = FlightReply(FlightStatus.OURS)

MakeMany: TypeAlias = Callable[[list[str]], Awaitable[Mapping[str, bytes]]]
Wanted: TypeAlias = Mapping[str, tuple[CacheKeys, bytes]]
"""By the caller's names: the keys, and a stored value that cannot be used."""


class SingleFlight:
    """The values that are being made for callers in this process, here or in another one."""

    def __init__(self, client: Client, leases: Leases) -> None:
        self._client, self._leases = client, leases
        self._here: dict[str, asyncio.Future[bytes]] = {}

    async def value(
        self, keys: CacheKeys, make: Callable[[], Awaitable[bytes]], ttl_ms: int, useless: bytes
    ) -> bytes:
        """Return the stored value, unless it is the `useless` one, or what a caller makes now.

        What `make` raises reaches all callers that wait for it in this process. Those in others
        make it themselves, one after the other, and so do those here if the maker is cancelled.
        """
        while (shared := self._here.get(keys.value)) is not None:
            await asyncio.wait([shared])
            if not shared.cancelled():
                return shared.result()
        shared = self._here[keys.value] = asyncio.get_running_loop().create_future()

        async def make_only(_: list[str]) -> dict[str, bytes]:
            return {_ONLY: await make()}

        flights = _Flights(self._client, self._leases, make_only, ttl_ms)
        try:
            await flights.find_or_make({_ONLY: (keys, useless)}, {_ONLY: shared})
        except Exception as error:
            shared.set_exception(error)
            shared.exception()  # there may be no other caller to retrieve it
            raise
        except BaseException:
            shared.cancel()
            raise
        finally:
            del self._here[keys.value]
        return shared.result()

    async def values(self, wanted: Wanted, make: MakeMany, ttl_ms: int) -> dict[str, bytes]:
        """Return the stored values that can be used, and those that callers make now.

        `make` is called with all that are ours to make together; what it leaves out is left out.
        What it raises reaches its own caller alone: any of the values may be to blame, so others
        make theirs. A caller first makes its own and only then waits for what others make: two that
        want the same values in another order never wait for each other.
        """
        values: dict[str, bytes] = {}
        flights = _Flights(self._client, self._leases, make, ttl_ms)
        left = dict(wanted)
        while left:
            ours = {name: one for name, one in left.items() if one[0].value not in self._here}
            theirs = {
                name: self._here[keys.value] for name, (keys, _) in left.items() if name not in ours
            }
            values |= await self._find_or_make(flights, ours)
            if theirs:
                await asyncio.wait(theirs.values())
            # The maker of some was cancelled, failed, or left them out: we make them.
            left = {name: left[name] for name, shared in theirs.items() if shared.cancelled()}
            values |= {name: theirs[name].result() for name in theirs.keys() - left.keys()}
        return values

    async def _find_or_make(self, flights: _Flights, wanted: Wanted) -> dict[str, bytes]:
        """Find or make values; other callers of this process wait for them meanwhile."""
        loop = asyncio.get_running_loop()
        shared: dict[str, asyncio.Future[bytes]] = {name: loop.create_future() for name in wanted}
        self._here.update({keys.value: shared[name] for name, (keys, _) in wanted.items()})
        try:
            await flights.find_or_make(wanted, shared)
        finally:
            for name, (keys, _) in wanted.items():
                shared[name].cancel()  # without effect on those that have their value
                del self._here[keys.value]
        return {name: one.result() for name, one in shared.items() if not one.cancelled()}


class _Flights:
    """The flights of one call: taken, renewed, landed or given up together, by one token."""

    def __init__(self, client: Client, leases: Leases, make: MakeMany, ttl_ms: int) -> None:
        self._scripts, self._leases = CacheScripts.of(client), leases
        self._make, self._ttl_ms = make, ttl_ms
        self._flight_s = client.settings.cache.flight_s
        self._flight_ms = round(self._flight_s * 1000)
        self._token = secrets.token_hex(16)
        self._may_hold = False

    async def find_or_make(
        self, wanted: Wanted, found: Mapping[str, asyncio.Future[bytes]]
    ) -> None:
        """Set the result of each future as soon as its value is there; unset if it was left out."""
        left, pause_s = dict(wanted), _FIRST_POLL_S
        while left:
            began = time.monotonic()
            replies = await self._take_surely(left)
            values = {name: one.value for name, one in replies.items() if one.value is not None}
            ours = {name: left[name][0] for name, one in replies.items() if _is_ours(one)}
            if ours:
                values |= await self._make_ours(ours, began)
            for name, value in values.items():
                found[name].set_result(value)
            left = {
                name: left[name]
                for name, one in replies.items()
                if one.status is FlightStatus.TAKEN
            }
            if ours:
                pause_s = _FIRST_POLL_S  # what others make has had time to be ready
            elif left:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_POLL_S)

    async def _take_surely(self, left: Wanted) -> dict[str, FlightReply]:
        self._may_hold = False
        try:
            return await repeat_until_known(lambda: self._take(left))
        except BaseException:
            if self._may_hold:
                await self._give_up([keys for keys, _ in left.values()])
            raise

    async def _take(self, left: Wanted) -> dict[str, FlightReply]:
        held, self._may_hold = self._may_hold, True  # we may be cancelled before we know
        replies = await self._scripts.take_flight(
            keys=[keys for keys, _ in left.values()],
            useless=[useless for _, useless in left.values()],
            token=self._token,
            flight_ms=self._flight_ms,
        )
        # A key of another type: the value cannot be stored, nor can others wait for it.
        replies = [_OURS if is_wrong_type(reply) else reply for reply in replies]
        errors = [reply for reply in replies if isinstance(reply, ServerError)]
        self._may_hold = held or any(
            isinstance(reply, OutcomeUnknown) or _is_ours(reply) for reply in replies
        )
        if errors:
            # An unknown outcome first: it makes the difference for who repeats the call.
            raise next((error for error in errors if isinstance(error, OutcomeUnknown)), errors[0])
        return {
            name: reply
            for name, reply in zip(left, replies, strict=True)
            if not isinstance(reply, ServerError)
        }

    async def _make_ours(self, ours: Mapping[str, CacheKeys], began: float) -> dict[str, bytes]:
        flights = list(ours.values())
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
            await self._give_up(flights)
            raise
        await lease.end()
        try:
            replies = await self._scripts.land_flight(
                keys=[ours[name] for name in made],
                data=list(made.values()),
                token=self._token,
                ttl_ms=self._ttl_ms,
            )
            errors = [reply for reply in replies if isinstance(reply, ServerError)]
        except NotOpen as error:
            errors = [error]
        if errors:
            # The caller has its values; the next one makes them again.
            quiet.warning("land", "%d values were not stored: %s", len(errors), errors[0])
        if errors or len(made) < len(ours):
            await self._give_up(flights)
        return made

    async def _renew(self, flights: Sequence[CacheKeys]) -> bool:
        replies = await self._scripts.renew_flight(
            keys=flights, token=self._token, flight_ms=self._flight_ms
        )
        for reply in replies:
            if isinstance(reply, ServerError) and not is_wrong_type(reply):
                raise reply
        return any(reply for reply in replies if not is_wrong_type(reply))

    async def _give_up(self, flights: Sequence[CacheKeys]) -> None:
        """Let others make the values now; if the server is away, when the flights expire."""
        try:
            replies = await self._scripts.renew_flight(keys=flights, token=self._token, flight_ms=0)
            error = next((reply for reply in replies if isinstance(reply, ServerError)), None)
        except NotOpen as closed:
            error = closed
        if error is not None:
            quiet.warning("give up", "others wait for values that no caller makes: %s", error)


def _is_ours(reply: object) -> bool:
    return isinstance(reply, FlightReply) and reply.status is FlightStatus.OURS
