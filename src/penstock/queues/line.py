"""The shortest way for jobs to the server that holds a queue."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import (
    ClusterDown,
    ReadOnlyReplica,
    Redirected,
    ScriptMissing,
    ServerError,
    Unreachable,
)
from penstock.redis.client import Client
from penstock.redis.keys import PRIORITIES, QueueKeyring, key_slot
from penstock.redis.script import load_script
from penstock.redis.wire import Argument, Reply, Wire, pack

__all__ = ["Line", "Room"]

_ELSEWHERE = (Redirected, Unreachable, ReadOnlyReplica, ClusterDown)
"""Nothing was stored, and the client finds out where to go instead."""
_NAME = "push_jobs"
_CACHED_LANES = frozenset({"", *PRIORITIES})

Room = tuple[str, str, str, int, int, int]
"""Lane, side, policy, most jobs, most bytes, most jobs in the overflow."""


class Line:
    """Pushes jobs over the connection that all callers share; whatever is refused is raised."""

    def __init__(self, client: Client, keys: QueueKeyring) -> None:
        self._client, self._queue = client, keys.queue
        self._keys = (
            *(keys.waiting, keys.state, keys.counters, keys.overflow, keys.ring, keys.parked),
        )
        keep_ms = int(client.settings.queues.keep_s * 1000)
        self._told = (keys.records, keys.indexes, keys.uniques, keep_ms)
        self._slot = key_slot(keys.waiting) if client.keys.cluster else None
        self._script = load_script(_NAME)
        self._wire: Wire | None = None
        self._heads: dict[Room, bytes] = {}
        self._version: tuple[int, ...] = ()

    async def push_one(self, room: Room, item: bytes) -> list[Reply]:
        """Run `push_jobs` for one job."""
        wire = self._wire
        if wire is None or not wire.alive or wire.behind:
            return await self.push(room, (item,))
        if self._version != self._client.server_version:
            self._version = self._client.server_version
            self._heads.clear()
        head = self._heads.get(room)
        if head is None:
            head = pack(self._by_digest(room, (b"",)))[: -len(b"$0\r\n\r\n")]
            if room[0] in _CACHED_LANES:
                self._heads[room] = head
        reply = (await wire.send_packed((b"%b$%d\r\n%b\r\n" % (head, len(item), item),)))[0]
        if isinstance(reply, ServerError):
            return await self._again(reply, room, (item,))
        return reply

    async def push(self, room: Room, items: Sequence[bytes]) -> list[Reply]:
        """Run `push_jobs`."""
        try:
            wire = self._wire
            if wire is None or not wire.alive:
                self._wire = wire = await self._client.wire(slot=self._slot)
            await wire.writable()
            reply: Reply = (await wire.send((self._by_digest(room, items),)))[0]
        except _ELSEWHERE as error:
            reply = error
        if isinstance(reply, ServerError):
            return await self._again(reply, room, items)
        return reply

    async def _again(self, refusal: ServerError, room: Room, items: Sequence[bytes]) -> list[Reply]:
        """Ask once more if the server has done nothing, and another way may do."""
        if isinstance(refusal, _ELSEWHERE):
            self._wire = None
            try:
                return await self._client.call(*self._by_digest(room, items))
            except ScriptMissing as error:
                refusal = error
        if isinstance(refusal, ScriptMissing):
            command = self._script.by_text(
                self._client.server_version, self._keys, self._arguments(room, items)
            )
            return await self._client.call(*command)
        raise refusal

    def _by_digest(self, room: Room, items: Sequence[bytes]) -> tuple[Argument, ...]:
        arguments = self._arguments(room, items)
        return self._script.by_digest(self._client.server_version, self._keys, arguments)

    def _arguments(self, room: Room, items: Sequence[bytes]) -> tuple[Argument, ...]:
        lane, *rest = room
        return (lane, self._queue, *rest, *self._told, *items)
