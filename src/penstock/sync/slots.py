"""Slots for code that does not await: see `penstock.sync`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import timedelta

from penstock.coordination.slots import slot as asynchronous_slot
from penstock.coordination.slots import slots as asynchronous_slots
from penstock.sync.portal import Blocking
from penstock.sync.sibling import Bound, NamedSibling, Within

__all__ = ["Slot", "Slots"]


class Slot(Bound[asynchronous_slot.Slot]):
    """`coordination.Slot`, blocking. Made by `Slots.take` and `Slots.hold`."""

    def __repr__(self) -> str:
        return repr(self._target)

    @property
    def name(self) -> str:
        return self._target.name

    @property
    def fence(self) -> int:
        """Rises over all holders: pass it to a store that refuses smaller ones."""
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


class Slots(NamedSibling[asynchronous_slots.Slots]):
    """`coordination.Slots`, blocking. Made by `Penstock.slots`.

    A slot stays renewed while its thread is busy: that is done on Penstock's own.
    """

    def __repr__(self) -> str:
        return repr(self.declared)

    limit = Blocking(asynchronous_slots.Slots.limit)
    set_limit = Blocking(asynchronous_slots.Slots.set_limit)
    reset_limit = Blocking(asynchronous_slots.Slots.reset_limit)
    holders = Blocking(asynchronous_slots.Slots.holders)
    state = Blocking(asynchronous_slots.Slots.state)

    def hold(
        self,
        timeout_s: float | timedelta | None = None,
        lease: float | timedelta | None = None,
    ) -> AbstractContextManager[Slot]:
        """Hold a slot for the time of a block, as `coordination.Slots.hold`."""
        return Within(self, lambda slots: slots.hold(timeout_s, lease), Slot)

    def take(
        self,
        timeout_s: float | timedelta | None = 0,
        lease: float | timedelta | None = None,
    ) -> Slot:
        """Take a slot, as `coordination.Slots.take`; SlotsTaken after `timeout`."""
        portal, slots = self.reach()
        return Slot(portal, portal.run(slots.take(timeout_s, lease)))
