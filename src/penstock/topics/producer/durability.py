"""How safe a message is when its send returns."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from penstock.errors import (
    CommandRefused,
    ConfigError,
    DurabilityMissed,
    DurabilityUnavailable,
    OutcomeUnknown,
    PenstockError,
    ServerError,
    Unreachable,
)
from penstock.redis.address import Endpoint
from penstock.redis.client import Client
from penstock.redis.embedded import keeper
from penstock.redis.node import Role
from penstock.redis.prepared_call import ELSEWHERE
from penstock.redis.wire import Command, Reply, Wire, pack
from penstock.topics.producer.routes import DirectTransport, PartitionRoute, Transport

__all__ = ["Durability", "Replicated", "replicated", "transport_for"]


@dataclass(frozen=True, slots=True)
class Replicated:
    """Held in memory by this many replicas besides the primary."""

    replicas: int

    def __post_init__(self) -> None:
        if type(self.replicas) is not int or self.replicas < 1:
            raise ConfigError(f"replicated({self.replicas!r}): expected a whole number from 1")


def replicated(replicas: int) -> Replicated:
    """A send returns when this many replicas have the message."""
    return Replicated(replicas)


Durability: TypeAlias = Literal["accepted", "synced"] | Replicated
"""accepted: the server has it, and writes it to its file as it is set up to; synced: it is on the
server's disk; replicated(n): n replicas have it."""

# Enough for the server to be busy while a group waits; more would make the first ones wait.
_MOST_TOGETHER = 2_000
_MEND_EVERY_S = 0.05


def transport_for(client: Client, direct: DirectTransport, durability: Durability) -> Transport:
    """Return the way that keeps what `durability` promises."""
    if durability == "accepted":
        return direct
    if durability == "synced":
        if client.embedded is not None:
            return GroupCommit(client, direct, _OwnSync(client, client.embedded.home))
        return GroupCommit(client, direct, _ServerSync(client))
    if isinstance(durability, Replicated):  # pyright: ignore[reportUnnecessaryIsInstance]
        return GroupCommit(client, direct, _Replicas(client, durability.replicas))
    raise ConfigError(
        f"durability = {durability!r}: expected 'accepted', 'synced' or replicated(n)"
    )


class _Promise(ABC):
    """What makes a group of writes safe."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.limit_s = client.settings.topics.durability_s

    @abstractmethod
    async def check(self, wire: Wire) -> None:
        """Raise `DurabilityUnavailable` if the promise cannot be kept here."""

    @abstractmethod
    async def keep(self, wire: Wire, commands: list[bytes]) -> tuple[list[Reply], str]:
        """Send `commands`; their replies, and what is missing of the promise, '' for nothing."""

    async def _send_with(
        self, wire: Wire, commands: list[bytes], last: Command
    ) -> tuple[list[Reply], Reply]:
        command_s = self.client.settings.timeouts.command_s
        replies = await wire.send_packed(
            [*commands, pack(last)], timeout_s=self.limit_s + command_s
        )
        return replies[:-1], replies[-1]

    @property
    def limit_ms(self) -> int:
        return max(1, int(self.limit_s * 1000))


class _Replicas(_Promise):
    """WAIT: the replicas have acknowledged it."""

    def __init__(self, client: Client, wanted: int) -> None:
        super().__init__(client)
        self._wanted = wanted

    async def check(self, wire: Wire) -> None:
        role = await wire.call("ROLE")
        present = len(role[2]) if role[0] == b"master" else 0
        if present < self._wanted:
            raise DurabilityUnavailable(
                f"{wire.endpoint}: the server has {present} replicas, {self._wanted} must have "
                "the message"
            )

    async def keep(self, wire: Wire, commands: list[bytes]) -> tuple[list[Reply], str]:
        replies, had = await self._send_with(wire, commands, ("WAIT", self._wanted, self.limit_ms))
        if isinstance(had, ServerError):
            return replies, f"how many replicas have it is not known: {had}"
        if had < self._wanted:
            return replies, f"{had} of {self._wanted} replicas had it after {self.limit_s:g} s"
        return replies, ""


class _ServerSync(_Promise):
    """WAITAOF: the server has synced its file."""

    async def check(self, wire: Wire) -> None:
        # Where CONFIG is not permitted, WAITAOF itself shows it.
        policy = (await wire.send([("CONFIG", "GET", "appendfsync")]))[0]
        if isinstance(policy, list) and policy[-1:] == [b"no"]:
            raise DurabilityUnavailable(
                f"{wire.endpoint}: the server leaves it to the system when its file reaches the "
                "disk (appendfsync no)"
            )
        try:
            await wire.call("WAITAOF", 1, 0, 1)
        except CommandRefused as error:
            reason = "it writes no append-only file" if "appendonly" in str(error) else str(error)
            if "unknown command" in reason:
                reason = "it is older than 7.2 and has no WAITAOF"
            raise DurabilityUnavailable(f"{wire.endpoint}: {reason}") from error

    async def keep(self, wire: Wire, commands: list[bytes]) -> tuple[list[Reply], str]:
        replies, had = await self._send_with(wire, commands, ("WAITAOF", 1, 0, self.limit_ms))
        if isinstance(had, ServerError):
            return replies, f"whether it is on the disk is not known: {had}"
        if had[0] < 1:
            return replies, f"it was not on the disk after {self.limit_s:g} s"
        return replies, ""


class _OwnSync(_Promise):
    """The embedded server has written to its file before it replies; we sync the file.

    It has no use for WAITAOF: its file is synced by its keeper, once a second.
    """

    def __init__(self, client: Client, home: Path) -> None:
        super().__init__(client)
        self._home = home

    async def check(self, wire: Wire) -> None:
        del wire  # the embedded server is always set up for it

    async def keep(self, wire: Wire, commands: list[bytes]) -> tuple[list[Reply], str]:
        replies = await wire.send_packed(commands)
        try:
            await asyncio.to_thread(keeper.sync_data, self._home)
        except OSError as error:
            return replies, f"its file could not be synced: {error.strerror}"
        return replies, ""


@dataclass(slots=True)
class _Entry:
    """Commands of one caller, waiting for their turn."""

    route: PartitionRoute
    commands: Sequence[bytes]
    future: asyncio.Future[list[Reply]]

    def end(self, replies: list[Reply]) -> None:
        if not self.future.done():
            self.future.set_result(replies)


@dataclass(slots=True)
class _Queue:
    """What waits for one node, and the task that serves it while there is any."""

    waiting: list[_Entry] = field(default_factory=list["_Entry"])
    task: asyncio.Task[None] | None = None
    checked: Wire | None = None
    """The connection whose server is known to be able to keep the promise."""


class GroupCommit:
    """Makes writes safe together: those that come while one group waits form the next.

    Each node has a connection of its own for that, as waiting blocks it.
    """

    def __init__(self, client: Client, direct: DirectTransport, promise: _Promise) -> None:
        self._client, self._direct, self._promise = client, direct, promise
        self._queues: dict[Endpoint, _Queue] = {}

    async def begin(
        self, route: PartitionRoute, commands: Sequence[bytes]
    ) -> asyncio.Future[list[Reply]]:
        future: asyncio.Future[list[Reply]] = asyncio.get_running_loop().create_future()
        try:
            node = (await self._direct.wire_of(route)).endpoint
        except ELSEWHERE as error:
            future.set_result([error] * len(commands))
            return future
        queue = self._queues.setdefault(node, _Queue())
        queue.waiting.append(_Entry(route, commands, future))
        if queue.task is None or queue.task.done():
            # No group: senders come and go, the next group is sent for all. `close` awaits it.
            queue.task = asyncio.create_task(self._serve(queue), name=f"group commit {node}")
        return future

    async def mend(self, route: PartitionRoute, commands: Sequence[bytes]) -> list[Reply]:
        """Let the client find the partition's owner, until the command timeout."""
        deadline = time.monotonic() + self._client.settings.timeouts.command_s
        while True:
            route.wire = None
            try:
                await self._client.call("EXISTS", route.stream)
            except ServerError as error:
                return [error] * len(commands)
            replies = await (await self.begin(route, commands))
            if not isinstance(replies[0], ELSEWHERE) or time.monotonic() > deadline:
                return replies
            await asyncio.sleep(_MEND_EVERY_S)

    async def close(self) -> None:
        """End the tasks. What was sent by then has an unknown end. May come twice."""
        tasks = [queue.task for queue in self._queues.values() if queue.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _serve(self, queue: _Queue) -> None:
        group: list[_Entry] = []
        try:
            while queue.waiting:
                slot = queue.waiting[0].route.slot
                async with self._client.lease(Role.DEFAULT, slot=slot) as wire:
                    if queue.checked is not wire:
                        await self._promise.check(wire)
                        queue.checked = wire
                    while queue.waiting and wire.alive:
                        await wire.writable()
                        group = queue.waiting[:_MOST_TOGETHER]
                        queue.waiting = queue.waiting[_MOST_TOGETHER:]
                        await self._keep(wire, group)
                        group = []
        except PenstockError as error:
            self._fail([*group, *queue.waiting], error)
            queue.waiting = []
        except BaseException:
            self._fail(group, OutcomeUnknown("the sender was closed before the reply came"))
            self._fail(queue.waiting, Unreachable("the sender was closed before it was sent"))
            queue.waiting = []
            raise

    async def _keep(self, wire: Wire, group: list[_Entry]) -> None:
        commands = [command for entry in group for command in entry.commands]
        replies, missing = await self._promise.keep(wire, commands)
        start = 0
        for entry in group:
            end = start + len(entry.commands)
            own = replies[start:end]
            entry.end([_missed(entry.route, reply, missing) for reply in own] if missing else own)
            start = end

    @staticmethod
    def _fail(entries: list[_Entry], error: PenstockError) -> None:
        for entry in entries:
            if isinstance(error, ServerError):
                entry.end([error] * len(entry.commands))
            elif not entry.future.done():
                entry.future.set_exception(error)


def _missed(route: PartitionRoute, reply: Reply, missing: str) -> Reply:
    """Replace the reply of a stored message by what is missing; a refusal stays."""
    if reply is None or isinstance(reply, ServerError):
        return reply
    return DurabilityMissed(f"stored as {route.message_id(reply)}, but {missing}")
