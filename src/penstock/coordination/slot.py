"""A slot that is held, and what is told of those that others hold."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Final

from penstock.coordination.leases import Lease, Leases
from penstock.coordination.repeating import until_known
from penstock.errors import SlotLost
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client

__all__ = ["REPEAT_WITHIN_S", "Holder", "Slot", "SlotState"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

REPEAT_WITHIN_S: Final = 2.0
"""For so long it is found out what became of a call whose answer was lost; then its lease ends."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a slot."""

    id: str
    fence: int
    until_ms: int
    """End of the lease in server ms, unless it is renewed."""
    about: str
    """What the holder says of itself."""


@dataclass(frozen=True, slots=True)
class SlotState:
    """How a name stands."""

    limit: int
    taken: int
    waiting: int


class Slot:
    """A slot that is held, and renewed until `release()`; `Slots.take` gives it.

    Nobody can be stopped from going on after a loss. So ask `lost` (or `check()`) before a step
    that must not happen twice, or hand `fence` to a store that refuses smaller ones than it knows.
    """

    def __init__(
        self, client: Client, name: str, *, token: str, fence: int, lease_s: float
    ) -> None:
        self.name, self.fence = name, fence
        self.lease_s = lease_s
        self._client, self._keys, self._token = client, client.keys.slot(name), token
        self._holder = f"{fence}:{token}"
        self._lease: Lease | None = None
        self._released = False

    def __repr__(self) -> str:
        return f"Slot({self.name!r}, fence={self.fence})"

    @property
    def id(self) -> str:
        """As in `Holder.id`."""
        return self._token.partition(":")[0]

    @property
    def lost(self) -> bool:
        """Whether another holder may have it by now. Costs nothing; may be asked in any thread."""
        return self._released or self._lease is None or self._lease.lost

    async def check(self) -> None:
        """Ask the server and renew the lease; raises `SlotLost` if another may have the slot."""
        asked = time.monotonic()
        if self.lost or self._lease is None:
            raise SlotLost(self.name, self.fence)
        if not await self.renew():
            await self._lease.end()
            self._lease.lose()
            raise SlotLost(self.name, self.fence)
        self._lease.renewed(asked)

    async def release(self) -> bool:
        """Give it back; False if it was lost or given back before. May come twice.

        If the server cannot be told, that is raised, and the slot comes back with its lease.
        """
        if self._released:
            return False
        if self._lease is not None:
            await self._lease.end()
        released = await until_known(
            lambda: self._client.scripts.release_slot(
                keys=self._keys, holder=self._holder, token=self._token
            ),
            within_s=REPEAT_WITHIN_S,
        )
        self._released = True
        return released

    # for Slots

    async def renew(self) -> bool:
        return await self._client.scripts.renew_slot(
            holders=self._keys.holders,
            holder=self._holder,
            lease_ms=round(self.lease_s * 1000),
        )

    def hold(self, leases: Leases, began: float) -> None:
        self._lease = leases.hold(
            self.renew, self.lease_s / 3, self._note_loss, ttl_s=self.lease_s, began=began
        )

    def _note_loss(self) -> None:
        quiet.warning("lost", "lost %r: the lease of %g s has ended", self, self.lease_s)
