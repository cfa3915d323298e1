"""A limit that all processes share: several windows at once, in one call."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Literal
from uuid import uuid4

import msgspec

from penstock.coordination.hints import Hints
from penstock.coordination.limits.answer import Answer, Reason, Usage
from penstock.coordination.limits.book import LimitBook
from penstock.coordination.limits.gate import LimitGate
from penstock.coordination.limits.leased import LeasedPermits
from penstock.coordination.limits.rates import MOST
from penstock.coordination.limits.reservation import Reservation
from penstock.coordination.limits.setting import LimitSetting
from penstock.coordination.limits.share import LocalShare
from penstock.errors import LimitReached, NotOpen, ServerError, SettingError
from penstock.redis.client import Client
from penstock.redis.keys.coordination import LimitKeys
from penstock.redis.keys.names import check_name
from penstock.redis.wire import Argument
from penstock.runtime.backoff import retry_delay_s

__all__ = ["EVERYONE", "Away", "Limit"]

EVERYONE: Final = "all"
"""The key of a limit that is not counted for each client apart."""
Away = Literal["closed", "share"]
_REASONS: Final[tuple[Reason, ...]] = ("", "limit", "line", "penalty")
_NOTHING_BACK: Final[tuple[Argument, ...]] = ("", 0, 0, 0)
_HIGHEST_PRIORITY: Final = 1000
_MOST_KNOWN_KEYS: Final = 1024
_AWAY_RETRY_S: Final = 1.0
# A line of so many makes its callers look half as often.
_LONG_LINE: Final = 100


class Limit:
    """At most so many calls in each of several windows, over all processes.

        limit = app.limit("courtlistener", ["5/min", "50/hour", "125/day"])

        answer = await limit.try_acquire()
        if not answer:
            print(f"again in {answer.retry_after_s} s")

        await limit.acquire(timeout=60)         # waits for its turn; LimitReached after a minute

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
        hints: Hints | None = None,
    ) -> None:
        self.name = check_name("limit", name)
        self._client = client
        self._book = LimitBook(client)
        self._declared = setting
        self._known: LimitSetting | None = None
        self._fresh_until = 0.0
        self._arguments: tuple[Argument, ...] = ()
        self._keys: dict[str, LimitKeys] = {}
        self._settings = client.settings.limits
        if type(lease) is not int or not 0 <= lease <= MOST:
            raise SettingError("limit.lease", lease, "how many permits to take in advance, or 0")
        if away not in {"closed", "share"}:
            raise SettingError("limit.away", away, "'closed' or 'share'")
        if (away == "share") != (0 < share <= 1):
            raise SettingError("limit.share", share, "the part of each process, with away='share'")
        self._leased = LeasedPermits(self, lease, hints) if lease else None
        self._local = LocalShare(setting, share) if away == "share" else None

    def __repr__(self) -> str:
        return f"Limit({self.name!r}, {', '.join(map(str, self.setting.rates))})"

    @property
    def setting(self) -> LimitSetting:
        """How it is set, as far as this process knows."""
        return self._known or self._declared

    # ---- permits

    async def try_acquire(self, cost: int = 1, *, key: str = EVERYONE, priority: int = 0) -> Answer:
        """Take permits if there are enough now, and nobody waits for them; never waits itself.

        While the server is away nobody is let through, unless the limit says `away="share"`.
        """
        if self._leased is not None:
            if (answer := self._leased.take(key, cost)) is not None:
                return answer
            return await self._leased.refill(key, cost, priority)
        return await self.ask(key, _checked_cost(cost), priority=priority)

    async def acquire(
        self,
        cost: int = 1,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  part of the answer, not of the waiting
        key: str = EVERYONE,
        priority: int = 0,
    ) -> Answer:
        """Wait for permits: in the order of asking, those of higher `priority` first.

        LimitReached if they will not come within `timeout` seconds; that is known at once.
        """
        if self._leased is not None:
            answer = await self.try_acquire(cost, key=key, priority=priority)
            if answer.allowed:
                return answer
        return await self._wait(_checked_cost(cost), timeout, key, priority)

    async def reserve(
        self,
        cost: int,
        *,
        timeout: float | None = 0,  # noqa: ASYNC109
        key: str = EVERYONE,
        priority: int = 0,
    ) -> Reservation:
        """Take permits for a cost that is known only later; then `settle` it, or `refund` it.

        What is never settled stays spent: nobody can know whether the call was made.
        """
        answer = await self._wait(_checked_cost(cost), timeout, key, priority)
        return Reservation(self, key, answer)

    @asynccontextmanager
    async def reserved(self, cost: int, **options: Any) -> AsyncGenerator[Reservation]:
        """`reserve` for a block: an exception in it refunds, its end keeps what is not settled."""
        reservation = await self.reserve(cost, **options)
        try:
            yield reservation
        except BaseException:
            await reservation.refund()
            raise

    async def peek(self, *, key: str = EVERYONE) -> Answer:
        """What is left, without taking any."""
        return await self.ask(key, 0)

    # ---- what the other side says

    async def penalise(self, retry_after: float, *, key: str = EVERYONE) -> float:
        """Stop everybody for so many seconds; how long it lasts now. 0 lifts a penalty."""
        if not (isinstance(retry_after, int | float) and 0 <= retry_after < MOST):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SettingError("retry_after", retry_after, "a number of seconds from 0 on")
        await self._refresh()
        if self._leased is not None:
            self._leased.drop(key)
        lasts_ms = await self._client.scripts.penalise_limit(
            keys=self.keys(key),
            algorithm=self.setting.algorithm,
            penalty_ms=math.ceil(retry_after * 1000),
            setting=self._arguments,
        )
        return lasts_ms / 1000

    async def reconcile(self, usages: Sequence[Usage], *, key: str = EVERYONE) -> None:
        """Count what the provider has counted besides our calls.

        Its windows are told apart by their length; those that this limit has not are passed over.
        Where it has counted less than we have, ours holds.
        """
        await self._refresh()
        told: list[tuple[int, int]] = []
        for rate, given in zip(self.setting.rates, self.setting.used_rates, strict=True):
            found = [
                usage
                for usage in usages
                if usage.period_s is not None and round(usage.period_s * 1000) == rate.period_ms
            ]
            used = _used(found[0]) if found else -1
            reset = found[0].reset_s if found else None
            # The buffer is not theirs: what they have counted is compared with what we give out.
            told.append((min(used, given.limit), -1 if reset is None else math.ceil(reset * 1000)))
        if all(used < 0 for used, _ in told):
            return
        await self._client.scripts.reconcile_limit(
            keys=self.keys(key),
            algorithm=self.setting.algorithm,
            told=msgspec.json.encode(told),
            setting=self._arguments,
        )

    async def reset(self, *, key: str = EVERYONE) -> None:
        """Forget all that was counted for a key, and its penalty; those who wait go on."""
        keys = self.keys(key)
        if self._leased is not None:
            self._leased.drop(key)
        await self._client.call("DEL", keys.log, keys.state)

    async def edit(self, setting: LimitSetting) -> None:
        """Set the limit anew for all processes, whatever their code says."""
        await self._book.edit(self.name, setting)
        self._fresh_until = 0.0

    def gate(self, *, key: str = EVERYONE) -> LimitGate:
        """For `app.queue(…, gate=…)`: jobs are claimed only as far as there are permits."""
        return LimitGate(self, key)

    async def close(self) -> None:
        """Give back permits that were taken in advance."""
        if self._leased is not None:
            await self._leased.close()

    # ---- for the parts of a limit

    def keys(self, key: str) -> LimitKeys:
        known = self._keys.get(key)
        if known is None:
            known = self._client.keys.limit(self.name, key)
            if len(self._keys) < _MOST_KNOWN_KEYS:
                self._keys[key] = known
        return known

    async def ask(
        self,
        key: str,
        cost: int,
        *,
        fewest: int | None = None,
        share: float = 1,
        hold_ms: int = 0,
        priority: int = 0,
        given_back: Sequence[Argument] = _NOTHING_BACK,
    ) -> Answer:
        """Ask once, without waiting; `Answer.told` has what came back."""
        try:
            answer, _ = await self._ask(key, cost, fewest, share, hold_ms, "", priority, given_back)
        except ServerError as error:
            if not error.transient:
                raise
            return self._without_server(key, cost)
        if self._local is not None:
            self._local.note(key, answer.granted)
        return answer

    async def settle(
        self, key: str, permits: Sequence[Argument], *, as_of_now: bool = False
    ) -> int:
        """Let permits (id, granted, used, ms logged) weigh what was used."""
        await self._refresh()
        return await self._client.scripts.settle_limit(
            keys=self.keys(key),
            algorithm=self.setting.algorithm,
            permits=permits,
            as_of_now="1" if as_of_now else "0",
            setting=self._arguments,
        )

    @property
    def client(self) -> Client:
        return self._client

    # ---- inside

    async def _ask(
        self,
        key: str,
        cost: int,
        fewest: int | None,
        share: float,
        hold_ms: int,
        ticket: str,
        priority: int,
        given_back: Sequence[Argument],
    ) -> tuple[Answer, int]:
        """Ask the server; the answer, and how many wait before."""
        if time.monotonic() >= self._fresh_until:
            await self._refresh()
        if not -_HIGHEST_PRIORITY <= priority <= _HIGHEST_PRIORITY:
            raise SettingError("priority", priority, f"±{_HIGHEST_PRIORITY} at most")
        reply: list[Any] = await self._client.scripts.acquire_limit(
            keys=self.keys(key),
            algorithm=self.setting.algorithm,
            wanted=cost,
            fewest=cost if fewest is None else fewest,
            share=share,
            hold_ms=hold_ms,
            ticket=ticket,
            priority=priority,
            ticket_ms=round((self._settings.recheck_s + self._settings.ticket_s) * 1000),
            given_back=given_back,
            setting=self._arguments,
        )
        granted, wait_ms, logged_ms, permit, why, ahead = reply[:6]
        return Answer(
            granted > 0 or (not cost and not why),
            granted,
            wait_ms / 1000 if wait_ms >= 0 else math.inf,
            _REASONS[int(why)],
            self.setting.used_rates,
            reply[6:],
            (permit, logged_ms),
        ), ahead

    async def _wait(
        self,
        cost: int,
        timeout: float | None,  # noqa: ASYNC109
        key: str,
        priority: int,
    ) -> Answer:
        began = time.monotonic()
        deadline = math.inf if timeout is None else began + timeout
        ticket = uuid4().hex if timeout != 0 else ""
        failures, stands = 0, False
        try:
            while True:
                ahead = 0
                try:
                    stands = bool(ticket)
                    answer, ahead = await self._ask(
                        key, cost, None, 1, 0, ticket, priority, _NOTHING_BACK
                    )
                    failures = 0
                except ServerError as error:
                    if not error.transient:
                        raise
                    answer = self._without_server(key, cost)
                    failures += 1
                if answer.allowed:
                    stands = False
                    if self._local is not None and not failures:
                        self._local.note(key, cost)
                    return answer
                left_s = deadline - time.monotonic()
                never = math.isinf(answer.retry_after_s)
                if left_s <= 0 or never or (answer.retry_after_s > left_s and not failures):
                    raise LimitReached(self.name, key, answer.retry_after_s)
                recheck_s = self._settings.recheck_s * (1 + ahead / _LONG_LINE)
                pause_s = retry_delay_s(failures) if failures else answer.retry_after_s
                await asyncio.sleep(min(pause_s, recheck_s, left_s))
        finally:
            if stands:
                await self._leave_line(key, ticket)

    async def _leave_line(self, key: str, ticket: str) -> None:
        try:
            await self._client.scripts.leave_line(keys=self.keys(key), ticket=ticket)
        except (ServerError, NotOpen):
            return  # the ticket of a silent caller is void after a while

    async def _refresh(self) -> None:
        """Learn how the limit is set now, unless we know."""
        if time.monotonic() < self._fresh_until:
            return
        found = await self._book.find(self.name) if self._known is not None else None
        if found is None:
            found = await self._book.declare(self.name, self._declared)
        if found != self._known or not self._arguments:
            self._known = found
            self._arguments = found.arguments(self._settings.buckets)
        self._fresh_until = time.monotonic() + self._settings.refresh_s

    def _without_server(self, key: str, cost: int) -> Answer:
        if self._local is not None:
            return self._local.take(key, cost)
        return Answer(allowed=False, granted=0, retry_after_s=_AWAY_RETRY_S, reason="away")


def _checked_cost(cost: int) -> int:
    if type(cost) is int and 1 <= cost <= MOST:
        return cost
    raise SettingError("cost", cost, f"a whole number from 1 to {MOST}")


def _used(usage: Usage) -> int:
    if usage.used is not None:
        return max(0, usage.used)
    if usage.limit is not None and usage.remaining is not None:
        return max(0, usage.limit - usage.remaining)
    return -1
