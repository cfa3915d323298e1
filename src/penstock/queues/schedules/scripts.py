"""Scripts of schedules as typed calls, with their replies."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from penstock.queues.storage.keys import QueueKeyring
from penstock.queues.storage.scripts import QUEUE_LUA
from penstock.redis.script import LuaFolder, ScriptCaller
from penstock.redis.wire import Argument, Reply

__all__ = ["FireReply", "FireStatus", "RemovalStatus", "ScheduleScripts"]

_LUA = LuaFolder("penstock.queues.schedules", QUEUE_LUA)


class FireStatus(IntEnum):
    """What `fire_tick` did."""

    STALE = -1
    """Nothing: the tick was fired or changed by another worker, or is not due yet."""
    FULL = 0
    """Nothing: the queue has no room."""
    QUEUED = 1
    UNIQUE_HELD = 2
    """It moved on to the next tick; an unfinished job holds the unique key."""


class FireReply(NamedTuple):
    """Reply of `fire_tick`."""

    status: FireStatus
    packed: list[bytes]
    """Moved or dropped jobs that are compressed: see `note_losses`."""


class RemovalStatus(IntEnum):
    """What `remove_schedule` did."""

    MISSING = 0
    REMOVED = 1
    DECLARED = 2
    """Removed; a worker declared it recently and may do so again."""


class ScheduleScripts(ScriptCaller):
    """Scripts of the schedules of a queue. Ticks are epoch ms; "inf" is a paused one."""

    lua = _LUA

    async def watch_schedule(self, *, keys: QueueKeyring, names: Sequence[str]) -> list[Reply]:
        """Read schedules: the server's ms, then next tick and declaration of each."""
        return await self.run("watch_schedule", (keys.schedule, keys.state), tuple(names))

    async def upcoming_ticks(
        self, *, keys: QueueKeyring, start_ms: int, ahead_ms: int, offset: int, count: int
    ) -> list[Reply]:
        """Next ticks around now: the server's ms, then name and tick of each."""
        arguments = (start_ms, ahead_ms, offset, count)
        return await self.run("upcoming_ticks", (keys.schedule,), arguments)

    async def declare_schedule(
        self, *, keys: QueueKeyring, name: str, found: str, text: str, tick: int
    ) -> bool:
        """Declare a schedule whose declaration was `found`; False if it was changed meanwhile."""
        places = (keys.schedule, keys.state)
        return bool(await self.run("declare_schedule", places, (name, found, text, tick)))

    async def move_tick(
        self, *, keys: QueueKeyring, name: str, text: str, found: str, tick: str
    ) -> bool:
        """Set the next tick of a schedule that is at `found`; False if it has moved."""
        places = (keys.schedule, keys.state)
        return bool(await self.run("move_tick", places, (name, text, found, tick)))

    async def remove_schedule(self, *, keys: QueueKeyring, name: str) -> RemovalStatus:
        """Remove a schedule."""
        reply = await self.run("remove_schedule", (keys.schedule, keys.state), (name,))
        return RemovalStatus(reply)

    async def list_schedules(
        self, *, keys: QueueKeyring, cursor: bytes | int, count: int
    ) -> list[bytes | int]:
        """A page of schedules: the next cursor, then name, next tick, declaration, seen."""
        return await self.run("list_schedules", (keys.schedule, keys.state), (cursor, count))

    async def read_schedule(self, *, keys: QueueKeyring, name: str) -> list[bytes | int]:
        """Read one schedule: next tick, declaration, seen; empty if there is none."""
        return await self.run("read_schedule", (keys.schedule, keys.state), (name,))

    async def fire_tick(
        self,
        *,
        keys: QueueKeyring,
        unique: str,
        name: str,
        text: str,
        found: str,
        due: int,
        next_tick: int,
        lane: str,
        policy: str,
        max_size: int,
        max_bytes: int,
        max_overflow: int,
        keep_ms: int,
        is_unique: bool,
        fields: Sequence[Argument] | None,
        jobs: Sequence[Argument],
    ) -> FireReply:
        """Queue the jobs of a due tick and move on to the next one.

        `fields` are names and values of the jobs' records, None for jobs without; `jobs` has three
        values for each: id, id as spelled in keys, item.
        """
        status, *packed = await self.run(
            "fire_tick",
            (
                *(keys.schedule, keys.state, keys.waiting, keys.counters, keys.overflow),
                *(keys.ring, keys.parked, unique, keys.delayed, keys.workers, keys.dead_workers),
            ),
            (
                *(name, text, found, due, next_tick, lane, keys.queue, policy, max_size),
                *(max_bytes, max_overflow, keys.records, keys.indexes, keep_ms),
                *(keys.uniques, keys.claims, int(is_unique)),
                *(-1 if fields is None else len(fields), *(fields or ()), *jobs),
            ),
        )
        return FireReply(FireStatus(status), packed)
