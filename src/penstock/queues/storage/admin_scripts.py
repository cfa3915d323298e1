"""Scripts of the admin API and dead letters as typed calls."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.queues.storage.keys import QueueKeyring
from penstock.queues.storage.scripts import QUEUE_LUA
from penstock.redis.script import ScriptCaller
from penstock.redis.wire import Argument, Reply

__all__ = ["QueueAdminScripts"]


class QueueAdminScripts(ScriptCaller):
    """Scripts that change queues and their dead letters on behalf of people.

    `keys` provides the queue's keys and prefixes that a script's header lists.
    """

    lua = QUEUE_LUA

    async def replay_letters(
        self,
        *,
        keys: QueueKeyring,
        letters: str,
        who: str,
        detail: str,
        jobs: Sequence[Argument],
    ) -> list[bool]:
        """Turn dead letters into jobs again: for each whether it was there."""
        reply: list[int] = await self.run(
            "replay_letters",
            (letters, keys.waiting, keys.ring, keys.parked, keys.state, keys.counters, keys.audit),
            (who, detail, keys.records, keys.indexes, keys.queue, *jobs),
        )
        return list(map(bool, reply))

    async def remove_queue_letters(
        self,
        *,
        keys: QueueKeyring,
        letters: str,
        who: str,
        detail: str,
        oldest: int,
        exactly: Sequence[Argument],
    ) -> int:
        """Take dead letters away, so many of the oldest or certain ones; how many there were."""
        return await self.run(
            "remove_queue_letters", (letters, keys.audit), (who, detail, oldest, *exactly)
        )

    async def find_letters(
        self, *, letters: str, first: int, count: int, ids: Sequence[str]
    ) -> list[Reply]:
        """Search the letters of jobs: number examined, then index and letter of each."""
        return await self.run("find_letters", (letters,), (first, count, *ids))

    async def edit_queue_letter(
        self,
        *,
        keys: QueueKeyring,
        letters: str,
        who: str,
        detail: str,
        letter: bytes,
        place: int,
        new: bytes,
    ) -> bool:
        """Replace a dead letter; False if it is not there."""
        places = (letters, keys.audit)
        arguments = (who, detail, letter, place, new)
        return bool(await self.run("edit_queue_letter", places, arguments))

    async def note_queue_act(
        self, *, keys: QueueKeyring, who: str, what: str, count: int, detail: str
    ) -> None:
        """Write to a queue's audit log."""
        await self.run("note_queue_act", (keys.audit,), (who, what, count, detail))

    async def pause_lane(self, *, keys: QueueKeyring, who: str, kind: str, lane: str) -> bool:
        """Let no job be claimed; False if that was so."""
        places = (keys.state, keys.ring, keys.parked, keys.audit)
        return bool(await self.run("pause_lane", places, (who, kind, lane)))

    async def resume_lane(self, *, keys: QueueKeyring, who: str, kind: str, lane: str) -> bool:
        """Let jobs be claimed again; False if they were."""
        places = (keys.state, keys.ring, keys.parked, keys.audit, keys.waiting)
        return bool(await self.run("resume_lane", places, (who, kind, lane)))

    async def relist_lane(self, *, keys: QueueKeyring, lane: bytes, is_listed: bool) -> bool:
        """Give a fair lane with jobs its turns again; False if it had them, as if `is_listed`."""
        places = (keys.state, keys.ring, keys.parked, keys.waiting)
        return bool(await self.run("relist_lane", places, (lane, int(is_listed))))

    async def park_lane(self, *, keys: QueueKeyring, who: str, lane: str, for_ms: int) -> int:
        """Keep a fair lane waiting: until which ms, 0 if it is paused."""
        places = (keys.state, keys.ring, keys.parked, keys.audit)
        return await self.run("park_lane", places, (who, lane, for_ms))

    async def weigh_lane(self, *, keys: QueueKeyring, who: str, lane: str, weight: int) -> None:
        """Set how many jobs a fair lane may have in one turn."""
        await self.run("weigh_lane", (keys.weights, keys.audit), (who, lane, weight))

    async def purge_jobs(
        self, *, keys: QueueKeyring, lane: str, keep_ms: int, jobs: Sequence[Argument]
    ) -> int:
        """Take waiting jobs out of a lane; how many."""
        return await self.run(
            "purge_jobs",
            (keys.waiting, keys.ring, keys.state, keys.counters),
            (lane, keys.records, keys.indexes, keep_ms, *jobs),
        )

    async def purge_delayed(
        self, *, keys: QueueKeyring, keep_ms: int, jobs: Sequence[Argument]
    ) -> int:
        """Take away jobs that are not yet due; how many."""
        return await self.run(
            "purge_delayed",
            (keys.delayed, keys.delayed_bodies, keys.counters),
            (keys.records, keys.indexes, keep_ms, *jobs),
        )

    async def take_items(
        self,
        *,
        keys: QueueKeyring,
        worker: str,
        lane: str,
        first: int,
        items: Sequence[Argument],
    ) -> list[bool] | None:
        """Claim certain jobs: for each whether it waited; None if the worker was given up."""
        reply: list[int] | int = await self.run(
            "take_items",
            (
                *(keys.workers, keys.claimed(worker), keys.waiting, keys.ring, keys.state),
                *(keys.counters, keys.cancelled),
            ),
            (worker, lane, first, *items),
        )
        return None if isinstance(reply, int) else list(map(bool, reply))

    async def receive_jobs(
        self,
        *,
        keys: QueueKeyring,
        who: str,
        source: str,
        lane: str,
        jobs: Sequence[Argument],
    ) -> int:
        """Add jobs from another queue; how many wait in the lane now."""
        return await self.run(
            "receive_jobs",
            (keys.waiting, keys.ring, keys.parked, keys.state, keys.counters, keys.audit),
            (who, source, lane, keys.records, keys.indexes, keys.queue, *jobs),
        )

    async def hand_over(
        self,
        *,
        keys: QueueKeyring,
        worker: str,
        who: str,
        to: str,
        keep_ms: int,
        jobs: Sequence[Argument],
    ) -> int | None:
        """Release claimed jobs that are in another queue now; how many, None if given up."""
        count: int = await self.run(
            "hand_over",
            (keys.workers, keys.claimed(worker), keys.counters, keys.audit),
            (worker, who, to, keys.records, keys.indexes, keep_ms, *jobs),
        )
        return count if count >= 0 else None
