"""Reads new messages of many partitions with one blocking command."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock.errors import CommandRefused, PermissionRefused, ServerError
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client
from penstock.redis.keys import key_slot
from penstock.redis.node import Role
from penstock.redis.wire import Argument, Reply, Wire
from penstock.runtime.backoff import retry_delay_s
from penstock.topics.held import CONSUMER, Held
from penstock.topics.pace import Pace

__all__ = ["Reader"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

# Beyond the server's own limit for a blocking read, the reply may be this much on its way.
_MARGIN_S = 5.0
_UNBLOCK_AGAIN_S = 0.05
_LEAST_BLOCK_S = 0.05


class Reader:
    """Fetches messages of some partitions of one group, as long as there is room for them.

    The next read is under way while what came before is handled. Each read names the fences of its
    partitions: if one has passed to another consumer, the server refuses the read as a whole.
    """

    def __init__(
        self,
        client: Client,
        group: str,
        helds: Callable[[], Sequence[Held]],
        pace: Pace,
        *,
        max_inflight: int,
        poll_s: float,
        slot_key: str | None = None,
    ) -> None:
        self._client, self._group, self._helds, self._pace = client, group, helds, pace
        self._max_inflight, self._poll_s = max_inflight, poll_s
        self._slot = None if slot_key is None else key_slot(slot_key)
        self._fetch = client.settings.topics.fetch
        self.changed = asyncio.Event()
        """Set when partitions come or go, or room becomes free."""
        self.trouble: str | None = None
        self._refusals = 0
        self._asked: Sequence[Held] = ()
        """Partitions that the read under way names."""
        self._answered = asyncio.Event()
        self._connection = 0

    async def run(self) -> None:
        """Read until cancelled; a server that is away is waited for."""
        while True:
            try:
                async with self._client.lease(Role.QUEUE, slot=self._slot) as wire:
                    self._connection = await wire.call("CLIENT", "ID")
                    await self._read_for_ever(wire)
            except ServerError as error:
                if not error.transient:
                    raise
                self._refusals += 1
                self.trouble = f"cannot read: {error}"
                quiet.warning(f"{self._group} read", "group %s cannot read: %s", self._group, error)
                self._suspect_strays()
                await asyncio.sleep(retry_delay_s(self._refusals))

    async def leave_out(self, held: Held) -> None:
        """Return when no read is under way that may still deliver messages of a closed partition.

        What came until then is queued. Else they would be charged an attempt that nobody makes;
        before Redis 7.2 a blocked read even outlives its fence.
        """
        while held in self._asked:
            self._answered.clear()
            wire = await self._client.wire(slot=self._slot)
            with suppress(CommandRefused, PermissionRefused):  # then it ends by itself, later
                await wire.call("CLIENT", "UNBLOCK", self._connection)
            with suppress(TimeoutError):
                # It may have come before the read: so it is repeated.
                async with asyncio.timeout(_UNBLOCK_AGAIN_S):
                    await self._answered.wait()

    async def _read_for_ever(self, wire: Wire) -> None:
        while True:
            helds = self._with_room()
            if not helds:
                await self._until_room()
                continue
            await self._read(wire, helds)
            self._refusals, self.trouble = 0, None

    async def _until_room(self) -> None:
        self.changed.clear()
        for held in self._helds():
            held.freed = self.changed.set
        await self.changed.wait()
        for held in self._helds():
            held.freed = None

    def _with_room(self) -> list[Held]:
        helds = [held for held in self._helds() if held.readable and not held.closing]
        if sum(held.buffered for held in helds) >= self._max_inflight:
            return []
        return [held for held in helds if held.buffered <= self._count(len(helds))]

    def _count(self, partitions: int) -> int:
        return max(self._pace.least, min(self._pace.count, self._fetch // partitions))

    async def _read(self, wire: Wire, helds: Sequence[Held]) -> None:
        streams = [held.stream for held in helds]
        fences = [held.fence for held in helds]
        command: tuple[Argument, ...] = (
            *("XREADGROUP", "GROUP", self._group, CONSUMER, "COUNT", self._count(len(helds))),
            *("BLOCK", round(self._block_s(helds) * 1000), "STREAMS", *streams, *fences),
            *([">"] * (2 * len(helds))),
        )
        self._asked = helds
        try:
            reply = await wire.call(*command, timeout_s=self._poll_s + _MARGIN_S)
            self._hand_out(reply or (), helds)
        except CommandRefused as error:
            if not str(error).startswith(("NOGROUP", "UNBLOCKED")):
                raise
            # A fence is gone. Whose, the renewal of the leases tells.
            await asyncio.gather(*(held.renew() for held in helds))
        finally:
            self._asked = ()
            self._answered.set()

    def _block_s(self, helds: Sequence[Held]) -> float:
        """How long to wait for messages: no longer than the partitions are surely ours."""
        sure_s = min(held.deadline for held in helds) - time.monotonic()
        return max(_LEAST_BLOCK_S, min(self._poll_s, sure_s))

    def _hand_out(self, reply: Reply, helds: Sequence[Held]) -> None:
        by_stream = {held.stream.encode(): held for held in helds}
        for stream, entries in reply:
            by_stream[stream].put(entries)

    def _suspect_strays(self) -> None:
        """A read whose answer was lost may have delivered messages: they are looked for first."""
        for held in self._helds():
            if held.readable:
                held.readable = False
                held.strayed.set()
