"""Limits and slots for code that does not await: see `penstock.sync`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta

from penstock import app as asynchronous
from penstock.coordination import slot as asynchronous_slot
from penstock.coordination import slots as asynchronous_slots
from penstock.coordination.limits import limit as asynchronous_limit
from penstock.coordination.limits import reservation as asynchronous_reservation
from penstock.coordination.limits.answer import Answer
from penstock.coordination.limits.gate import LimitGate
from penstock.coordination.limits.limit import EVERYONE
from penstock.coordination.limits.setting import LimitSetting
from penstock.portal import Blocking
from penstock.sync_sibling import Application, Bound, Sibling, Within

__all__ = ["Limit", "Reservation", "Slot", "Slots"]


class Reservation(Bound[asynchronous_reservation.Reservation]):
    """`penstock.Reservation`, blocking. Made by `Limit.reserve`."""

    @property
    def cost(self) -> int:
        """What was reserved."""
        return self._target.cost

    @property
    def answer(self) -> Answer:
        """What the limit said."""
        return self._target.answer

    settle = Blocking(asynchronous_reservation.Reservation.settle)
    refund = Blocking(asynchronous_reservation.Reservation.refund)


class Limit(Sibling[asynchronous_limit.Limit]):
    """`penstock.Limit`, blocking. Made by `Penstock.limit`."""

    def __init__(
        self,
        app: Application,
        name: str,
        make: Callable[[asynchronous.Penstock], asynchronous_limit.Limit],
    ) -> None:
        super().__init__(app, make)
        self.name = name

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
        timeout: float | timedelta | None = 0,
        key: str = EVERYONE,
        priority: int = 0,
    ) -> Reservation:
        """Take permits for a cost that is known only later, as `penstock.Limit.reserve`."""
        portal, limit = self.reach()
        made = portal.run(limit.reserve(cost, timeout=timeout, key=key, priority=priority))
        return Reservation(portal, made)

    def reserved(
        self,
        cost: int,
        *,
        timeout: float | timedelta | None = 0,
        key: str = EVERYONE,
        priority: int = 0,
    ) -> AbstractContextManager[Reservation]:
        """`reserve` for a block: an exception in it refunds, its end keeps what is not settled."""
        return Within(
            self,
            lambda limit: limit.reserved(cost, timeout=timeout, key=key, priority=priority),
            Reservation,
        )

    def gate(self, *, key: str = EVERYONE) -> LimitGate:
        """For `app.queue(…, gate=…)`: the workers of this application claim jobs accordingly."""
        return self.declared.gate(key=key)


class Slot(Bound[asynchronous_slot.Slot]):
    """`penstock.Slot`, blocking. Made by `Slots.take` and `Slots.hold`."""

    def __repr__(self) -> str:
        return repr(self._target)

    @property
    def name(self) -> str:
        return self._target.name

    @property
    def fence(self) -> int:
        """Rises over all holders: hand it to a store that refuses smaller ones than it knows."""
        return self._target.fence

    @property
    def id(self) -> str:
        """As in `Holder.id`."""
        return self._target.id

    @property
    def lost(self) -> bool:
        """Whether another holder may have it by now. Costs nothing."""
        return self._target.lost

    check = Blocking(asynchronous_slot.Slot.check)
    release = Blocking(asynchronous_slot.Slot.release)


class Slots(Sibling[asynchronous_slots.Slots]):
    """`penstock.Slots`, blocking. Made by `Penstock.slots`.

    A slot stays renewed while its thread is busy: that is done on Penstock's own.
    """

    def __init__(
        self,
        app: Application,
        name: str,
        make: Callable[[asynchronous.Penstock], asynchronous_slots.Slots],
    ) -> None:
        super().__init__(app, make)
        self.name = name

    def __repr__(self) -> str:
        return repr(self.declared)

    limit = Blocking(asynchronous_slots.Slots.limit)
    set_limit = Blocking(asynchronous_slots.Slots.set_limit)
    reset_limit = Blocking(asynchronous_slots.Slots.reset_limit)
    holders = Blocking(asynchronous_slots.Slots.holders)
    state = Blocking(asynchronous_slots.Slots.state)

    def hold(
        self,
        timeout: float | timedelta | None = None,
        lease: float | timedelta | None = None,
    ) -> AbstractContextManager[Slot]:
        """Hold a slot for the time of a block, as `penstock.Slots.hold`."""
        return Within(self, lambda slots: slots.hold(timeout, lease), Slot)

    def take(
        self,
        timeout: float | timedelta | None = 0,
        lease: float | timedelta | None = None,
    ) -> Slot:
        """Take a slot, as `penstock.Slots.take`; SlotsTaken if there is none in time."""
        portal, slots = self.reach()
        return Slot(portal, portal.run(slots.take(timeout, lease)))
