"""Everything open to one endpoint: a shared wire for each role, and wires lent out one by one."""

from __future__ import annotations

import asyncio
import logging
import math
import resource
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum

from penstock.errors import PenstockError, PoolExhausted, Unreachable
from penstock.redis.address import Endpoint
from penstock.redis.wire import FRESH_S, Wire
from penstock.settings import PoolSettings
from penstock.throttled_log import RateLimitedLog

__all__ = ["Counters", "Node", "Role"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

# A reply that was sent before that to a later question, over another connection, may be on its way.
_STRAGGLER_S = 0.1
# Descriptors that dedicated connections leave to whatever else the process opens.
_SPARE_DESCRIPTORS = 64
# Dedicated connections that are opened at the same time, once the endpoint answers.
_OPENED_TOGETHER = 16
_SERVER_IS_FULL = "max number of clients"


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

    While the endpoint cannot be reached it is tried at most twice a second by all callers together;
    in between they get the last refusal at once.

    A shared wire that misses a reply for `silent_s` is compared with a new one: if the server
    answers there, the old one is half-open, and its commands have an unknown outcome.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        connect: Callable[[Endpoint], Awaitable[Wire]],
        pools: PoolSettings,
        counters: Counters,
        silent_s: float = math.inf,
    ) -> None:
        self.endpoint = endpoint
        self._silent_s = silent_s
        self._connect = connect
        self._pools = pools
        self._counters = counters
        self._shared: dict[Role, Wire] = {}
        self._spare: defaultdict[Role, list[Wire]] = defaultdict(list)
        self._lent: set[Wire] = set()
        self._places = {role: asyncio.Semaphore(self._most_leases(role)) for role in Role}
        self._door = asyncio.Lock()
        self._opening = asyncio.Semaphore(_OPENED_TOGETHER)
        self._answers = False
        """Whether the latest connection was opened, and none has broken since."""
        self._refused: PenstockError | None = None
        self._refused_at = 0.0
        self._closed = False
        self._comparing: dict[Role, asyncio.Task[None]] = {}

    @property
    def refused(self) -> bool:
        """Whether the last try to connect failed."""
        return self._refused is not None

    @property
    def is_over(self) -> bool:
        """Whether it was retired or closed and its last connection has ended."""
        return self._closed and all(wire.ended for wire in self._wires())

    def shared(self, role: Role) -> Wire | None:
        """Return the role's shared wire if it is open now."""
        wire = self._shared.get(role)
        return wire if wire is not None and wire.alive else None

    def owes(self, since: float) -> bool:
        """Whether a shared wire is being opened, or owes a reply to a command sent by then."""
        return self._door.locked() or any(wire.owes(since) for wire in self._shared.values())

    async def wire(self, role: Role) -> Wire:
        """Return the role's shared wire, opened if need be. Send nothing that blocks through it."""
        if role is Role.QUEUE:
            raise ValueError("connections of role queue are lent, not shared: use lease()")
        if wire := self.shared(role):
            return wire
        async with self._door:
            wire = self.shared(role)
            if wire is None:
                if broken := self._shared.pop(role, None):
                    self._note_end(broken)
                wire = await self._open()
                self._share(role, wire)
            return wire

    @asynccontextmanager
    async def lease(self, role: Role) -> AsyncGenerator[Wire]:
        """Lend a wire to one caller alone, for reads that block.

        Raises `PoolExhausted` if the role has none to give for `pools.wait_s`.
        """
        places = self._places[role]
        try:
            async with asyncio.timeout(self._pools.wait_s):
                await places.acquire()
        except TimeoutError:
            raise PoolExhausted(
                f"{self.endpoint}: all {self._size(role)} connections of role {role} were in use "
                f"for {self._pools.wait_s:g} s (setting pools.{role})"
            ) from None
        # From here on nothing that gives the place back may wait: a wait can be cancelled.
        try:
            wire = await self._spare_or_new(role)
            self._lent.add(wire)
            try:
                yield wire
            finally:
                self._take_back(role, wire)
        finally:
            places.release()

    @asynccontextmanager
    async def dedicated(self) -> AsyncGenerator[Wire]:
        """Open a wire for one caller, outside of every pool, and close it at the end of the block.

        Raises `PoolExhausted` if this process or the server has no room for another connection.
        """
        wire = await self._open_dedicated()
        self._lent.add(wire)
        try:
            yield wire
        finally:
            self._lent.discard(wire)
            if wire.alive:
                wire.abort("its user has ended")
            else:
                self._note_end(wire)

    def renew(self) -> None:
        """Let the next caller open a new connection, perhaps to another server behind the address.

        Replies that are owed still come. What was opened just now stays.
        """
        now = asyncio.get_running_loop().time()
        for wire in self._wires():
            if now - wire.opened_at > FRESH_S:
                wire.finish()

    def retire(self) -> None:
        """Open no more connections, and end each when the replies that it owes have come."""
        self._closed = True
        for wire in self._wires():
            wire.finish()

    async def close(self) -> None:
        """End every connection and wait for the end."""
        self._closed = True
        comparing = list(self._comparing.values())
        for task in comparing:
            task.cancel()
        await asyncio.gather(*comparing, return_exceptions=True)
        await asyncio.gather(*(wire.close() for wire in self._wires()))

    def abort(self) -> None:
        """End every connection at once."""
        self._closed = True
        for task in self._comparing.values():
            task.cancel()
        for wire in self._wires():
            wire.abort("it was closed")

    def _size(self, role: Role) -> int:
        return getattr(self._pools, role.value)

    def _most_leases(self, role: Role) -> int:
        """One place stays for the shared wire, so that leases never crowd out quick calls."""
        return self._size(role) - (role is not Role.QUEUE)

    def _wires(self) -> list[Wire]:
        spare = [wire for wires in self._spare.values() for wire in wires]
        return [*self._shared.values(), *spare, *self._lent]

    def _share(self, role: Role, wire: Wire) -> None:
        self._shared[role] = wire
        wire.watch(self._silent_s, lambda: self._compare_soon(role, wire))

    def _compare_soon(self, role: Role, wire: Wire) -> None:
        if role not in self._comparing and not self._closed:
            task = asyncio.create_task(self._compare(role, wire), name=f"compare {self.endpoint}")
            self._comparing[role] = task
            task.add_done_callback(lambda _: self._comparing.pop(role))

    async def _compare(self, role: Role, wire: Wire) -> None:
        """Replace a shared wire that stays silent while the server answers over a new one.

        Then wires that are lent out and silent, too, have most likely met with the same. They may
        as well wait for a blocked command, but who lent them can bear to lose one.
        """
        since, began = wire.quiet_since, asyncio.get_running_loop().time()
        with suppress(PenstockError):
            async with self._door:
                other = await self._open()
            try:
                # As a script it waits, like most of what we send, while writes are paused.
                await other.call("EVAL", "return 1", 0)
                await asyncio.sleep(_STRAGGLER_S)
                if since is not None and wire.quiet_since == since:
                    for silent in (wire, *self._quiet_since(began)):
                        silent.abort("no reply, though the server answers over another connection")
                    if self._shared.get(role) is wire and not self._closed:
                        self._share(role, other)
            finally:
                if self._shared.get(role) is not other:
                    other.abort("it was opened to compare")

    def _quiet_since(self, moment: float) -> list[Wire]:
        """Wires lent out that miss a reply and got nothing since then."""
        return [wire for wire in self._lent if (wire.quiet_since or math.inf) <= moment]

    async def _spare_or_new(self, role: Role) -> Wire:
        while self._spare[role]:
            if (wire := self._spare[role].pop()).alive:
                return wire
        async with self._door:
            return await self._open()

    async def _open_dedicated(self) -> Wire:
        """Open side by side with others while the endpoint answers, else one at a time."""
        try:
            async with self._opening:
                if self._answers:
                    wire = await self._open()
                else:
                    async with self._door:
                        wire = await self._open()
        except Unreachable as error:
            if _SERVER_IS_FULL not in str(error):
                raise
            raise PoolExhausted(
                f"{self.endpoint}: the server accepts no further connection (maxclients)"
            ) from error
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        # Descriptors are numbered from 0, the lowest free number first.
        if most != resource.RLIM_INFINITY and wire.descriptor >= most - _SPARE_DESCRIPTORS:
            wire.abort("too few file descriptors are left")
            raise PoolExhausted(
                f"{self.endpoint}: this process may open {most} files, and fewer than "
                f"{_SPARE_DESCRIPTORS} of them are left (ulimit -n, LimitNOFILE)"
            )
        return wire

    def _take_back(self, role: Role, wire: Wire) -> None:
        self._lent.discard(wire)
        if not wire.alive:
            self._note_end(wire)
        elif wire.idle:
            self._spare[role].append(wire)
            return
        # A reply is still owed to the cancelled caller: no other may get this wire.
        wire.abort("it was given back before its reply came")

    def _note_end(self, wire: Wire) -> None:
        """Count what breaks as soon as it is opened as a refusal, lest we open without end."""
        self._answers = False
        if self._is_recent(wire.opened_at) and not self._closed:
            self._note_refusal(Unreachable(f"{self.endpoint}: {wire.reason}"), wire.opened_at)

    def _note_refusal(self, error: PenstockError, at: float) -> None:
        self._counters.failures += 1
        self._counters.consecutive_failures += 1
        self._answers = False
        self._refused, self._refused_at = error, at
        quiet.warning(f"{self.endpoint} {type(error).__name__}", "cannot connect: %s", error)

    async def _open(self) -> Wire:
        """Open one connection.

        The caller holds the lock, so that attempts come one at a time, unless the endpoint answers.
        """
        refused = self._refused
        if refused is not None and self._is_recent(self._refused_at):
            await asyncio.sleep(0)  # else a caller that simply repeats would stop the whole loop
            raise type(refused)(*refused.args)
        self._fail_if_closed()
        self._counters.attempts += 1
        try:
            wire = await self._connect(self.endpoint)
        except PenstockError as error:
            self._note_refusal(error, asyncio.get_running_loop().time())
            raise
        if self._closed:
            wire.abort("it was closed")
        self._fail_if_closed()
        if self._refused is not None:
            quiet.info(f"{self.endpoint} again", "%s: connected again", self.endpoint)
        self._refused, self._answers = None, True
        self._counters.consecutive_failures = 0
        return wire

    def _fail_if_closed(self) -> None:
        if self._closed:
            raise Unreachable(f"{self.endpoint}: its connections were closed")

    @staticmethod
    def _is_recent(moment: float) -> bool:
        return asyncio.get_running_loop().time() - moment < FRESH_S
