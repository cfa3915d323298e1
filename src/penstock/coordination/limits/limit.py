"""A limit that all processes share: several windows at once, in one call."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, Literal, Self, Unpack

import msgspec

from penstock.coordination.hints import Hints
from penstock.coordination.limits.answer import Answer, Usage
from penstock.coordination.limits.asking import Asker, Question, check_priority
from penstock.coordination.limits.gate import LimitGate
from penstock.coordination.limits.leased import LeasedPermits
from penstock.coordination.limits.lines import LocalLines
from penstock.coordination.limits.provider import counted_by_provider
from penstock.coordination.limits.rates import MOST, Windows, parse_rates
from penstock.coordination.limits.reservation import Reservation
from penstock.coordination.limits.setting import LimitSetting, SettingWords, setting_of
from penstock.coordination.limits.share import LocalShare
from penstock.coordination.saying import seconds_of
from penstock.errors import LimitReached, NotOpen, ServerError, SettingError
from penstock.redis.client import Client
from penstock.redis.keys.coordination import LimitKeys
from penstock.redis.keys.names import check_name
from penstock.redis.wire import Argument

__all__ = ["EVERYONE", "Away", "Limit", "LimitWords"]

EVERYONE: Final = "all"
"""The key of a limit that is not counted for each client apart."""
Away = Literal["closed", "share"]
_AWAY_RETRY_S: Final = 1.0


class LimitWords(SettingWords, total=False):
    """What can be said about a limit besides its windows: see `Penstock.limit`."""

    lease: int
    away: Away
    share: float


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
        self.client = client
        self._asker = Asker(client, name, setting)
        if type(lease) is not int or not 0 <= lease <= MOST:
            raise SettingError("limit.lease", lease, "how many permits to take in advance, or 0")
        if away not in {"closed", "share"}:
            raise SettingError("limit.away", away, "'closed' or 'share'")
        if (away == "share") != (0 < share <= 1):
            raise SettingError("limit.share", share, "the part of each process, with away='share'")
        self._leased = LeasedPermits(self, lease, hints) if lease else None
        self._local = LocalShare(setting, share) if away == "share" else None
        self._lines = LocalLines(self, self._asker)

    @classmethod
    def of(
        cls,
        client: Client,
        name: str,
        windows: Windows,
        hints: Hints | None = None,
        **words: Unpack[LimitWords],
    ) -> Self:
        """Make a limit of the words that `Penstock.limit` takes."""
        told: dict[str, Any] = {**words}
        own = {word: told.pop(word) for word in ("lease", "away", "share") if word in told}
        return cls(client, name, setting_of(windows, **told), hints=hints, **own)

    def __repr__(self) -> str:
        return f"Limit({self.name!r}, {', '.join(map(str, self.setting.rates))})"

    @property
    def setting(self) -> LimitSetting:
        """How it is set, as far as this process knows."""
        return self._asker.setting

    # ---- permits

    async def try_acquire(self, cost: int = 1, *, key: str = EVERYONE, priority: int = 0) -> Answer:
        """Take permits if there are enough now, and nobody waits for them; never waits itself.

        While the server is away nobody is let through, unless the limit says `away="share"`.
        """
        if self._leased is not None:
            if (answer := self._leased.take(key, cost)) is not None:
                return answer
            return await self._leased.refill(key, _checked_cost(cost), priority)
        try:
            answer = await self._asker.plain(key, _checked_cost(cost), priority)
        except ServerError as error:
            return self.unanswered(error, key, cost)
        self.note(key, answer.granted)
        return answer

    async def acquire(
        self,
        cost: int = 1,
        *,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109  part of the answer, not of the waiting
        key: str = EVERYONE,
        priority: int = 0,
    ) -> Answer:
        """Wait for permits: in the order of asking, those of higher `priority` first.

        LimitReached if they will not come within `timeout` seconds; mostly that is known at once.
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
        timeout: float | timedelta | None = 0,  # noqa: ASYNC109
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
            with suppress(ServerError, NotOpen):  # then it stays spent
                await reservation.refund()
            raise

    async def peek(self, *, key: str = EVERYONE) -> Answer:
        """What is left, without taking any."""
        return await self.ask(Question(key, 0))

    # ---- what the other side says

    async def penalise(self, retry_after: float | timedelta, *, key: str = EVERYONE) -> float:
        """Stop everybody for so many seconds; how long it lasts now. 0 lifts a penalty."""
        penalty_ms = _whole_ms(retry_after)
        if self._leased is not None:
            self._leased.drop(key)
        setting = await self._asker.refresh()
        lasts_ms = await self.client.scripts.penalise_limit(
            keys=self.keys(key),
            algorithm=self.setting.algorithm,
            penalty_ms=penalty_ms,
            setting=setting,
        )
        return lasts_ms / 1000

    async def reconcile(self, usages: Sequence[Usage], *, key: str = EVERYONE) -> None:
        """Count what the provider has counted besides our calls.

        Its windows are told apart by their length; those that this limit has not are passed over.
        Where it has counted less than we have, ours holds. What makes no sense is passed over.
        """
        setting = await self._asker.refresh()
        told = counted_by_provider(usages, self.setting)
        if all(used < 0 for used, _ in told):
            return
        await self.client.scripts.reconcile_limit(
            keys=self.keys(key),
            algorithm=self.setting.algorithm,
            told=msgspec.json.encode(told),
            setting=setting,
        )

    async def reset(self, *, key: str = EVERYONE) -> None:
        """Forget all that was counted for a key, and its penalty; those who wait go on.

        Whatever is stored in the place of the line and is not one is removed as well.
        """
        keys = self.keys(key)
        if self._leased is not None:
            self._leased.drop(key)
        foreign = [
            place
            for place, kind in ((keys.waiting, b"zset"), (keys.tickets, b"hash"))
            if await self.client.call("TYPE", place) != kind
        ]
        await self.client.call("DEL", keys.log, keys.state, *foreign)

    async def edit(self, setting: LimitSetting | Windows) -> None:
        """Set the limit anew for all processes, whatever their code says.

        Windows such as `["10/min", "100/hour"]` leave the rest as it is; a `LimitSetting` says all.
        """
        if not isinstance(setting, LimitSetting):
            setting = replace(await self._asker.current(), rates=parse_rates(setting))
        await self._asker.book.edit(self.name, setting)
        self._asker.forget()

    def gate(self, *, key: str = EVERYONE) -> LimitGate:
        """For `app.queue(…, gate=…)`: jobs are claimed only as far as there are permits."""
        return LimitGate(self, key)

    async def close(self) -> None:
        """Give back permits that were taken in advance."""
        if self._leased is not None:
            await self._leased.close()

    # ---- for the parts of a limit

    def keys(self, key: str) -> LimitKeys:
        return self._asker.keys(key)

    async def ask(self, question: Question) -> Answer:
        """Ask once, without waiting."""
        try:
            answer = await self._asker.ask(question)
        except ServerError as error:
            return self.unanswered(error, question.key, question.cost)
        self.note(question.key, answer.granted)
        return answer

    async def settle(
        self, key: str, permits: Sequence[Argument], *, as_of_now: bool = False
    ) -> int:
        """Let permits (id, granted, used, ms logged) weigh what was used."""
        setting = await self._asker.refresh()
        return await self.client.scripts.settle_limit(
            keys=self.keys(key),
            algorithm=self.setting.algorithm,
            permits=permits,
            as_of_now="1" if as_of_now else "0",
            setting=setting,
        )

    def note(self, key: str, cost: int) -> None:
        """Count permits that this process was granted, for a share of its own."""
        if self._local is not None:
            self._local.note(key, cost)

    def unanswered(self, error: ServerError, key: str, cost: int) -> Answer:
        """Answer in the place of a server that is away."""
        if not error.transient:
            raise error
        if self._local is not None:
            return self._local.take(key, cost)
        return Answer(allowed=False, granted=0, retry_after_s=_AWAY_RETRY_S, reason="away")

    # ---- inside

    async def _wait(
        self,
        cost: int,
        timeout: float | timedelta | None,  # noqa: ASYNC109
        key: str,
        priority: int,
    ) -> Answer:
        patience_s = math.inf if timeout is None else seconds_of(timeout, "timeout")
        check_priority(priority)
        if patience_s > 0:
            return await self._lines.wait(key, priority, cost, patience_s)
        answer = await self.ask(Question(key, cost, priority))
        if not answer.allowed:
            raise LimitReached(self.name, key, answer.retry_after_s)
        return answer


def _checked_cost(cost: int) -> int:
    if type(cost) is int and 1 <= cost <= MOST:
        return cost
    raise SettingError("cost", cost, f"a whole number from 1 to {MOST}")


def _whole_ms(retry_after: float | timedelta) -> int:
    seconds = seconds_of(retry_after, "retry_after")
    if seconds == 0 and retry_after not in (0, timedelta(0)):
        raise SettingError("retry_after", retry_after, "seconds from 0 on")
    return math.ceil(seconds * 1000)
