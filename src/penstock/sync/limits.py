"""Limits for code that does not await: see `penstock.sync`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import timedelta

from penstock.coordination.limits import hourly as asynchronous_hourly
from penstock.coordination.limits import limit as asynchronous_limit
from penstock.coordination.limits import registry as asynchronous_book
from penstock.coordination.limits.limit import EVERYONE, LimitGate
from penstock.coordination.limits.result import LimitResult
from penstock.coordination.limits.setting import LimitSetting
from penstock.sync.portal import Blocking
from penstock.sync.sibling import Application, Bound, NamedSibling, Sibling, Within

__all__ = ["HourlyLimit", "Limit", "LimitRegistry", "Reservation"]


class Reservation(Bound[asynchronous_limit.Reservation]):
    """`coordination.Reservation`, blocking. Made by `Limit.reserve`."""

    @property
    def cost(self) -> int:
        """What was reserved."""
        return self._target.cost

    @property
    def result(self) -> LimitResult:
        """What the limit granted."""
        return self._target.result

    settle = Blocking(asynchronous_limit.Reservation.settle)
    refund = Blocking(asynchronous_limit.Reservation.refund)


class Limit(NamedSibling[asynchronous_limit.Limit]):
    """`coordination.Limit`, blocking. Made by `Penstock.limit`."""

    def __repr__(self) -> str:
        return f"Limit({self.name!r}, {', '.join(map(str, self.declared.setting.rates))})"

    @property
    def setting(self) -> LimitSetting:
        """How it is set, as far as this process knows."""
        return self.reach()[1].setting

    try_acquire = Blocking(asynchronous_limit.Limit.try_acquire)
    acquire = Blocking(asynchronous_limit.Limit.acquire)
    peek = Blocking(asynchronous_limit.Limit.peek)
    penalise = Blocking(asynchronous_limit.Limit.penalise)
    reconcile = Blocking(asynchronous_limit.Limit.reconcile)
    reset = Blocking(asynchronous_limit.Limit.reset)
    edit = Blocking(asynchronous_limit.Limit.edit)

    def reserve(
        self,
        cost: int,
        *,
        timeout_s: float | timedelta | None = 0,
        key: str = EVERYONE,
        priority: int = 0,
    ) -> Reservation:
        """Take permits for a cost that is known only later, as `coordination.Limit.reserve`."""
        portal, limit = self.reach()
        made = portal.run(limit.reserve(cost, timeout_s=timeout_s, key=key, priority=priority))
        return Reservation(portal, made)

    def reserved(
        self,
        cost: int,
        *,
        timeout_s: float | timedelta | None = 0,
        key: str = EVERYONE,
        priority: int = 0,
    ) -> AbstractContextManager[Reservation]:
        """`reserve` for a block: an exception refunds; else the cost is kept unless settled."""
        return Within(
            self,
            lambda limit: limit.reserved(cost, timeout_s=timeout_s, key=key, priority=priority),
            Reservation,
        )

    def gate(self, *, key: str = EVERYONE) -> LimitGate:
        """For `app.queue(…, gate=…)`: the workers of this application claim jobs accordingly."""
        return self.declared.gate(key=key)


class LimitRegistry(Sibling[asynchronous_book.LimitRegistry]):
    """`coordination.LimitRegistry`, blocking: `Penstock.limits`."""

    def __init__(self, app: Application) -> None:
        super().__init__(app, lambda app: app.limits)

    all = Blocking(asynchronous_book.LimitRegistry.all)
    find = Blocking(asynchronous_book.LimitRegistry.find)
    edit = Blocking(asynchronous_book.LimitRegistry.edit)
    release = Blocking(asynchronous_book.LimitRegistry.release)


class HourlyLimit(Sibling[asynchronous_hourly.HourlyLimit]):
    """`coordination.HourlyLimit`, blocking: `Penstock.hourly_limit`."""

    def __init__(self, app: Application) -> None:
        super().__init__(app, lambda app: app.hourly_limit)

    increment = Blocking(asynchronous_hourly.HourlyLimit.increment)
    status = Blocking(asynchronous_hourly.HourlyLimit.status)
