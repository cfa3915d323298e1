"""Everything open to one endpoint: a shared wire for each role, and wires lent out one by one."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum

from penstock.errors import NotOpen, PoolExhausted, ServerError
from penstock.quiet import RateLimitedLog
from penstock.redis.address import Endpoint
from penstock.redis.wire import Wire
from penstock.settings import PoolSettings

__all__ = ["Counters", "Node", "Role"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

# At most two tries a second, however many callers want in.
_BETWEEN_TRIES_S = 0.5


class Role(StrEnum):
    """What a connection is for. A role never takes a connection from another."""

    CACHE = "cache"
    QUEUE = "queue"
    PUBSUB = "pubsub"
    RATELIMIT = "ratelimit"
    DEFAULT = "default"


@dataclass(slots=True)
class Counters:
    """How connecting has gone so far."""

    attempts: int = 0
    failures: int = 0
    consecutive_failures: int = 0

    @property
    def success_rate(self) -> float:
        return 1 - self.failures / self.attempts if self.attempts else 1.0


class Node:
    """The connections to one endpoint, opened when needed and mended when broken.

    While the endpoint cannot be reached it is tried at most twice a second, whoever asks; callers
    in between get the last refusal at once.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        connect: Callable[[Endpoint], Awaitable[Wire]],
        pools: PoolSettings,
        counters: Counters,
    ) -> None:
        self.endpoint = endpoint
        self._connect = connect
        self._pools = pools
        self._counters = counters
        self._shared: dict[Role, Wire] = {}
        self._spare: defaultdict[Role, list[Wire]] = defaultdict(list)
        self._lent: defaultdict[Role, set[Wire]] = defaultdict(set)
        self._places: defaultdict[Role, int] = defaultdict(int)  # lent, or being opened for it
        self._returned = asyncio.Condition()
        self._door = asyncio.Lock()
        self._refused: ServerError | None = None
        self._refused_at = 0.0
        self._closed = False

    def shared(self, role: Role) -> Wire | None:
        """Return the role's shared wire if it is open now."""
        wire = self._shared.get(role)
        return wire if wire is not None and wire.alive else None

    async def wire(self, role: Role) -> Wire:
        """Return the role's shared wire, opened if need be. Send nothing that blocks through it."""
        if wire := self.shared(role):
            return wire
        async with self._door:
            wire = self.shared(role)
            if wire is None:
                wire = self._shared[role] = await self._open()
            return wire

    @asynccontextmanager
    async def lease(self, role: Role) -> AsyncGenerator[Wire]:
        """Lend a wire to one caller alone, for reads that block.

        Raises `PoolExhausted` if the role has none to give for `pools.wait_s`.
        """
        await self._take_place(role)
        wire: Wire | None = None
        try:
            wire = await self._spare_or_new(role)
            self._lent[role].add(wire)
            yield wire
        finally:
            if wire is not None:
                await self._take_back(role, wire)
            self._places[role] -= 1
            async with self._returned:
                self._returned.notify()

    async def drop(self) -> None:
        """Close every connection; the next caller opens anew, perhaps to another server."""
        wires = [*self._shared.values()]
        for group in (*self._spare.values(), *self._lent.values()):
            wires.extend(group)
        self._shared.clear()
        self._spare.clear()
        await asyncio.gather(*(wire.close() for wire in wires))

    async def close(self) -> None:
        self._closed = True
        await self.drop()

    async def _take_place(self, role: Role) -> None:
        size: int = getattr(self._pools, role.value)

        def free() -> bool:
            return self._places[role] + (self.shared(role) is not None) < size

        try:
            async with asyncio.timeout(self._pools.wait_s), self._returned:
                await self._returned.wait_for(free)
                self._places[role] += 1
        except TimeoutError:
            raise PoolExhausted(
                f"all {size} connections of role {role} were in use for {self._pools.wait_s:g} s "
                f"(setting pools.{role})"
            ) from None

    async def _spare_or_new(self, role: Role) -> Wire:
        while self._spare[role]:
            if (wire := self._spare[role].pop()).alive:
                return wire
        async with self._door:
            return await self._open()

    async def _take_back(self, role: Role, wire: Wire) -> None:
        self._lent[role].discard(wire)
        if wire.alive and wire.idle and not self._closed:
            self._spare[role].append(wire)
        else:
            # A reply is still owed to whoever was cancelled: nobody else may get this wire.
            await wire.close()

    async def _open(self) -> Wire:
        """Open one connection; the caller holds the door, so tries come one at a time."""
        if self._closed:
            raise NotOpen(f"the connection to {self.endpoint} was closed")
        now = asyncio.get_running_loop().time()
        if self._refused is not None and now - self._refused_at < _BETWEEN_TRIES_S:
            raise type(self._refused)(*self._refused.args)
        self._counters.attempts += 1
        try:
            wire = await self._connect(self.endpoint)
        except ServerError as error:
            self._counters.failures += 1
            self._counters.consecutive_failures += 1
            self._refused, self._refused_at = error, asyncio.get_running_loop().time()
            quiet.warning(f"{self.endpoint} {type(error).__name__}", "cannot connect: %s", error)
            raise
        if self._refused is not None:
            logger.info("%s: connected again", self.endpoint)
        self._refused = None
        self._counters.consecutive_failures = 0
        return wire
