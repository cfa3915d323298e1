"""The scripts of what recurs."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.redis.keys.keyring import QueueKeyring
from penstock.redis.script import ScriptCaller
from penstock.redis.wire import Argument, Reply

__all__ = ["ScheduleScripts"]


class ScheduleScripts(ScriptCaller):
    """Scripts of the schedules of a queue, as calls. Ticks are epoch ms; "inf" is a paused one."""

    async def watch_schedule(self, *, keys: QueueKeyring, names: Sequence[str]) -> list[Reply]:
        """Tell where schedules stand: the server's ms, then next tick and declaration of each."""
        return await self.run("watch_schedule", (keys.schedule, keys.state), tuple(names))

    async def upcoming_ticks(
        self, *, keys: QueueKeyring, start_ms: int, ahead_ms: int, offset: int, count: int
    ) -> list[Reply]:
        """Tell which next ticks are around now: the server's ms, then name and tick of each."""
        arguments = (start_ms, ahead_ms, offset, count)
        return await self.run("upcoming_ticks", (keys.schedule,), arguments)

    async def declare_schedule(
        self, *, keys: QueueKeyring, name: str, found: str, text: str, tick: int
    ) -> bool:
        """Declare a schedule that was found otherwise; False if somebody else was faster."""
        places = (keys.schedule, keys.state)
        return bool(await self.run("declare_schedule", places, (name, found, text, tick)))

    async def move_tick(
        self, *, keys: QueueKeyring, name: str, text: str, found: str, tick: str
    ) -> bool:
        """Give a schedule another next tick; False if it stands elsewhere."""
        places = (keys.schedule, keys.state)
        return bool(await self.run("move_tick", places, (name, text, found, tick)))

    async def remove_schedule(self, *, keys: QueueKeyring, name: str) -> int:
        """Forget a schedule: 0 if there is none, 2 if a worker declared it lately, else 1."""
        return await self.run("remove_schedule", (keys.schedule, keys.state), (name,))

    async def list_schedules(
        self, *, keys: QueueKeyring, cursor: bytes | int, count: int
    ) -> list[bytes | int]:
        """Tell where schedules stand: the next cursor, then name, next tick, declaration, seen."""
        return await self.run("list_schedules", (keys.schedule, keys.state), (cursor, count))

    async def look_at_schedule(self, *, keys: QueueKeyring, name: str) -> list[bytes | int]:
        """Tell where one schedule stands: next tick, declaration, seen; nothing if it does not."""
        return await self.run("look_at_schedule", (keys.schedule, keys.state), (name,))

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
    ) -> list[Reply]:
        """Queue what is due and move on: 1 done, 2 passed over, 0 no room, -1 not now.

        Then follow jobs that had to go and are compressed.

        `fields` are names and values of the jobs' records, None for jobs without; `jobs` has three
        values for each: id, id as it stands in keys, item.
        """
        return await self.run(
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
