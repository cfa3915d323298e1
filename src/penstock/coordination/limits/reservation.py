"""Permits for a cost that is known only later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.coordination.limits.answer import Answer
from penstock.coordination.limits.rates import MOST
from penstock.errors import Rejected, SettingError

if TYPE_CHECKING:
    from penstock.coordination.limits.limit import Limit

__all__ = ["Reservation"]


class Reservation:
    """Permits that were taken for an estimate. Settled once; later words change nothing.

    What the server has refused was not said.
    """

    def __init__(self, limit: Limit, key: str, answer: Answer) -> None:
        self.answer = answer
        self.cost = answer.granted
        """What was reserved."""
        self._limit, self._key = limit, key
        self._settled = False

    async def settle(self, cost: int) -> int:
        """Say what it really was: how much came back, negative if it was more.

        Each window then has counted what was used, as of the time of the reservation.
        """
        if type(cost) is not int or not 0 <= cost <= MOST:
            raise SettingError("cost", cost, f"a whole number from 0 to {MOST}")
        if self._settled:
            return 0
        self._settled = True
        if cost == self.cost or self.answer.permit is None:
            return 0
        permit, logged_ms = self.answer.permit
        try:
            return await self._limit.settle(self._key, (permit, self.cost, cost, logged_ms))
        except Rejected:
            self._settled = False  # nothing was done: it may be said again
            raise

    async def refund(self) -> int:
        """Give it all back: the call was not made."""
        return await self.settle(0)
