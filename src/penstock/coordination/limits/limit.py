"""A limit that all processes share: several windows at once, in one call."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, Literal, Self, Unpack

import msgspec

from penstock.coordination.limits.client import AcquireRequest, LimitClient, check_priority
from penstock.coordination.limits.keys import LimitKeys
from penstock.coordination.limits.local_fallback import LocalFallback
from penstock.coordination.limits.prefetched import PrefetchedPermits
from penstock.coordination.limits.rates import MOST, Windows, parse_rates
from penstock.coordination.limits.result import LimitResult, Usage, counted_by_provider
from penstock.coordination.limits.scripts import LimitScripts, PermitUse
from penstock.coordination.limits.setting import LimitSetting, LimitSettingKwargs, setting_of
from penstock.coordination.limits.waiters import LimitWaiters
from penstock.coordination.values import seconds_of
from penstock.coordination.wakeups import Wakeups
from penstock.errors import LimitReached, NotOpen, Rejected, ServerError, SettingError
from penstock.queues.options import GateDecision
from penstock.redis.client import Client
from penstock.redis.keys.names import check_name

__all__ = ["EVERYONE", "Away", "Limit", "LimitGate", "LimitKwargs", "Reservation"]

EVERYONE: Final = "all"
"""The key of a limit that is not counted for each client apart."""
Away = Literal["closed", "share"]
_AWAY_RETRY_S: Final = 1.0


class LimitKwargs(LimitSettingKwargs, total=False):
    """Options of a limit besides its windows: see `Penstock.limit`."""

    lease: int
    away: Away
    share: float


class Limit:
    """At most so many calls in each of several windows, over all processes.

        limit = app.limit("search-api", ["5/min", "50/hour", "125/day"])

        result = await limit.try_acquire()
        if not result:
            print(f"again in {result.retry_after_s} s")

        await limit.acquire(timeout_s=60)       # waits for its turn; LimitReached after a minute

    `key` counts for each client, account or address apart. A cost above 1 weighs more.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        setting: LimitSetting,
        *,
        lease: int = 0,
        away: Away = "closed",
        share: float = 0.0,
        wakeups: Wakeups | None = None,
    ) -> None:
        self.name = check_name("limit", name)
        self.client = client
        self._server = LimitClient(client, name, setting)
        if type(lease) is not int or not 0 <= lease <= MOST:
            raise SettingError("limit.lease", lease, "how many permits to take in advance, or 0")
        if away not in {"closed", "share"}:
            raise SettingError("limit.away", away, "'closed' or 'share'")
        if (away == "share") != (0 < share <= 1):
            raise SettingError("limit.share", share, "the part of each process, with away='share'")
        self._prefetched = PrefetchedPermits(self, lease, wakeups) if lease else None
        self._fallback = LocalFallback(setting, share) if away == "share" else None
        self._waiters = LimitWaiters(self, self._server)

    @classmethod
    def of(
        cls,
        client: Client,
        name: str,
        windows: Windows,
        wakeups: Wakeups | None = None,
        **options: Unpack[LimitKwargs],
    ) -> Self:
        """Make a limit with the options that `Penstock.limit` takes."""
        setting: dict[str, Any] = {**options}
        own = {name: setting.pop(name) for name in ("lease", "away", "share") if name in setting}
        return cls(client, name, setting_of(windows, **setting), wakeups=wakeups, **own)

    def __repr__(self) -> str:
        return f"Limit({self.name!r}, {', '.join(map(str, self.setting.rates))})"

    @property
    def setting(self) -> LimitSetting:
        """The windows and the algorithm, as this process last read them."""
        return self._server.setting

    # ---- permits

    async def try_acquire(
        self, cost: int = 1, *, key: str = EVERYONE, priority: int = 0
    ) -> LimitResult:
        """Take permits if there are enough now and no caller waits for them; does not wait.

        While the server is away every call is refused, unless the limit has `away="share"`.
        """
        if self._prefetched is not None:
            if (result := self._prefetched.take(key, cost)) is not None:
                return result
            return await self._prefetched.refill(key, _checked_cost(cost), priority)
        try:
            result = await self._server.plain(key, _checked_cost(cost), priority)
        except ServerError as error:
            return self.fall_back(error, key, cost)
        self.note(key, result.granted)
        return result

    async def acquire(
        self,
        cost: int = 1,
        *,
        timeout_s: float | timedelta | None = None,
        key: str = EVERYONE,
        priority: int = 0,
    ) -> LimitResult:
        """Wait for permits: first come, first served, callers of higher `priority` first.

        LimitReached if they will not come within `timeout_s`; mostly that is known at once.
        """
        if self._prefetched is not None:
            result = await self.try_acquire(cost, key=key, priority=priority)
            if result.allowed:
                return result
        return await self._wait(_checked_cost(cost), timeout_s, key, priority)

    async def reserve(
        self,
        cost: int,
        *,
        timeout_s: float | timedelta | None = 0,
        key: str = EVERYONE,
        priority: int = 0,
    ) -> Reservation:
        """Take permits for a cost that is known only later; then `settle` it, or `refund` it.

        What is never settled stays spent: the call may have been made.
        """
        result = await self._wait(_checked_cost(cost), timeout_s, key, priority)
        return Reservation(self, key, result)

    @asynccontextmanager
    async def reserved(self, cost: int, **options: Any) -> AsyncGenerator[Reservation]:
        """`reserve` for a block: an exception in it refunds, else what is not settled is spent."""
        reservation = await self.reserve(cost, **options)
        try:
            yield reservation
        except BaseException:
            with suppress(ServerError, NotOpen):  # then it stays spent
                await reservation.refund()
            raise

    async def peek(self, *, key: str = EVERYONE) -> LimitResult:
        """Read what is left, without taking any."""
        return await self.ask(AcquireRequest(key, 0))

    # ---- what the provider reports

    async def penalise(self, retry_after: float | timedelta, *, key: str = EVERYONE) -> float:
        """Refuse all calls for so many seconds; how long that lasts now. 0 lifts a penalty."""
        penalty_ms = _whole_ms(retry_after)
        if self._prefetched is not None:
            self._prefetched.drop(key)
        setting = await self._server.refresh()
        lasts_ms = await LimitScripts.of(self.client).penalise_limit(
            keys=self.keys(key),
            algorithm=self.setting.algorithm,
            penalty_ms=penalty_ms,
            setting=setting,
        )
        return lasts_ms / 1000

    async def reconcile(self, usages: Sequence[Usage], *, key: str = EVERYONE) -> None:
        """Add what the provider has counted besides our calls.

        Windows are matched by their length; those that this limit does not have, and values that
        make no sense, are ignored. Where the provider has counted less than we have, ours holds.
        """
        setting = await self._server.refresh()
        counted = counted_by_provider(usages, self.setting)
        if all(used < 0 for used, _ in counted):
            return
        await LimitScripts.of(self.client).reconcile_limit(
            keys=self.keys(key),
            algorithm=self.setting.algorithm,
            counted=msgspec.json.encode(counted),
            setting=setting,
        )

    async def reset(self, *, key: str = EVERYONE) -> None:
        """Delete all that was counted for a key, and its penalty; callers that wait keep waiting.

        Keys of another type in the place of the waiting list are deleted as well.
        """
        keys = self.keys(key)
        if self._prefetched is not None:
            self._prefetched.drop(key)
        foreign = [
            place
            for place, kind in ((keys.waiting, b"zset"), (keys.tickets, b"hash"))
            if await self.client.call("TYPE", place) != kind
        ]
        await self.client.call("DEL", keys.log, keys.state, keys.penalty, *foreign)

    async def edit(self, setting: LimitSetting | Windows) -> None:
        """Change the limit for all processes, whatever their code declares.

        Windows such as `["10/min", "100/hour"]` keep all else; a `LimitSetting` replaces it.
        """
        if not isinstance(setting, LimitSetting):
            setting = replace(await self._server.current(), rates=parse_rates(setting))
        await self._server.registry.edit(self.name, setting)
        self._server.forget()

    def gate(self, *, key: str = EVERYONE) -> LimitGate:
        """For `app.queue(…, gate=…)`: workers claim only as many jobs as there are permits."""
        return LimitGate(self, key)

    async def close(self) -> None:
        """Refuse callers that wait with `NotOpen`, and return prefetched permits."""
        await self._waiters.close()
        if self._prefetched is not None:
            await self._prefetched.close()

    # ---- for the parts of a limit

    def keys(self, key: str) -> LimitKeys:
        return self._server.keys(key)

    async def ask(self, request: AcquireRequest) -> LimitResult:
        """Ask once, without waiting."""
        try:
            result = await self._server.ask(request)
        except ServerError as error:
            return self.fall_back(error, request.key, request.cost)
        self.note(request.key, result.granted)
        return result

    async def settle(self, key: str, permits: PermitUse, *, as_of_now: bool = False) -> int:
        """Count permits as what was used of them: how many came back."""
        setting = await self._server.refresh()
        return await LimitScripts.of(self.client).settle_limit(
            keys=self.keys(key),
            algorithm=self.setting.algorithm,
            permits=permits,
            as_of_now=as_of_now,
            setting=setting,
        )

    def note(self, key: str, cost: int) -> None:
        """Count permits that this process was granted towards its fallback share."""
        if self._fallback is not None:
            self._fallback.note(key, cost)

    def fall_back(self, error: ServerError, key: str, cost: int) -> LimitResult:
        """Decide without the server; raises the error unless the server is just away."""
        if not error.transient:
            raise error
        if self._fallback is not None:
            return self._fallback.take(key, cost)
        return LimitResult(allowed=False, granted=0, retry_after_s=_AWAY_RETRY_S, reason="away")

    # ---- inside

    async def _wait(
        self,
        cost: int,
        timeout_s: float | timedelta | None,
        key: str,
        priority: int,
    ) -> LimitResult:
        patience_s = math.inf if timeout_s is None else seconds_of(timeout_s, "timeout_s")
        check_priority(priority)
        if patience_s > 0:
            return await self._waiters.wait(key, priority, cost, patience_s)
        result = await self.ask(AcquireRequest(key, cost, priority))
        if not result.allowed:
            raise LimitReached(self.name, key, result.retry_after_s)
        return result


class Reservation:
    """Permits taken for an estimated cost; settled once, later calls have no effect.

    A settlement that the server rejects may be repeated.
    """

    def __init__(self, limit: Limit, key: str, result: LimitResult) -> None:
        self.result = result
        self.cost = result.granted
        """What was reserved."""
        self._limit, self._key = limit, key
        self._settled = False

    async def settle(self, cost: int) -> int:
        """Report the real cost: how much came back, negative if it was more.

        Each window then counts what was used, as of the time of the reservation.
        """
        if type(cost) is not int or not 0 <= cost <= MOST:
            raise SettingError("cost", cost, f"a whole number from 0 to {MOST}")
        if self._settled:
            return 0
        self._settled = True
        if cost == self.cost or self.result.permit is None:
            return 0
        try:
            return await self._limit.settle(self._key, self.result.used(cost))
        except Rejected:
            self._settled = False  # nothing was done: it may be repeated
            raise

    async def refund(self) -> int:
        """Return all permits: the call was not made."""
        return await self.settle(0)


class LimitGate:
    """A limit in front of a queue: its workers claim as many jobs as there are permits."""

    def __init__(self, limit: Limit, key: str) -> None:
        self._limit, self._key = limit, key
        self._granted: dict[str, LimitResult] = {}

    async def admit(self, queue: str, wanted: int) -> GateDecision:
        """Take up to `wanted` permits."""
        result = await self._limit.ask(AcquireRequest(self._key, wanted, fewest=1))
        self._granted[queue] = result
        return GateDecision(result.granted, result.retry_after_s)

    async def give_back(self, queue: str, count: int) -> None:
        """Return permits of the last grant: the queue had fewer jobs."""
        granted = self._granted.pop(queue, None)
        if granted is not None and granted.permit is not None:
            await self._limit.settle(self._key, granted.used(max(0, granted.granted - count)))


def _checked_cost(cost: int) -> int:
    if type(cost) is int and 1 <= cost <= MOST:
        return cost
    raise SettingError("cost", cost, f"a whole number from 1 to {MOST}")


def _whole_ms(retry_after: float | timedelta) -> int:
    seconds = seconds_of(retry_after, "retry_after")
    if seconds == 0 and retry_after not in (0, timedelta(0)):
        raise SettingError("retry_after", retry_after, "seconds from 0 on")
    return math.ceil(seconds * 1000)
