"""A held slot, and views of the slots of a name."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Final

from penstock.coordination.leases import Lease, Leases
from penstock.coordination.slots.keys import SlotKeys
from penstock.coordination.slots.scripts import SlotScripts
from penstock.errors import SlotLost
from penstock.redis.client import Client
from penstock.redis.retry import repeat_until_known
from penstock.throttled_log import RateLimitedLog

__all__ = ["REPEAT_WITHIN_S", "Holder", "Slot", "SlotState"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

REPEAT_WITHIN_S: Final = 2.0
"""How long a call is repeated whose reply was lost; then the lease expires."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a slot."""

    id: str
    fence: int
    until_ms: int
    """End of the lease in server ms, unless it is renewed."""
    about: str
    """Host and process, unless `about` was given."""


@dataclass(frozen=True, slots=True)
class SlotState:
    """Slots of a name: how many there are, are held and are waited for."""

    limit: int
    taken: int
    waiting: int


class Slot:
    """A held slot, renewed until `release()`; made by `Slots.take`.

    A holder is not interrupted by the loss of its slot. So read `lost` (or call `check()`) before a
    step that must not happen twice, or pass `fence` to a store that refuses lower ones.
    """

    def __init__(
        self, client: Client, name: str, *, token: str, fence: int, lease_s: float
    ) -> None:
        self.name, self.fence = name, fence
        self.lease_s = lease_s
        self._client, self._keys, self._token = client, SlotKeys.of(client.keys, name), token
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
        """Whether another holder may have it by now. No round trip; may be read in any thread."""
        return self._released or self._lease is None or self._lease.lost

    async def check(self) -> None:
        """Renew the lease now; raises `SlotLost` if another may have the slot."""
        asked = time.monotonic()
        if self.lost or self._lease is None:
            raise SlotLost(self.name, self.fence)
        if not await self.renew():
            await self._lease.end()
            self._lease.lose()
            raise SlotLost(self.name, self.fence)
        self._lease.renewed(asked)

    async def release(self) -> bool:
        """Release it; False if it was lost or released before. May be called twice.

        If the server cannot be reached, that is raised, and the slot is free after its lease.
        """
        if self._released:
            return False
        if self._lease is not None:
            await self._lease.end()
        released = await repeat_until_known(
            lambda: SlotScripts.of(self._client).release_slot(
                keys=self._keys, holder=self._holder, token=self._token
            ),
            within_s=REPEAT_WITHIN_S,
        )
        self._released = True
        return released

    # for Slots

    async def renew(self) -> bool:
        return await SlotScripts.of(self._client).renew_slot(
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
