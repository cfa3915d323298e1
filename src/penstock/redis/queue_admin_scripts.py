"""The scripts by which queues are looked after."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.redis.keys.keyring import QueueKeyring
from penstock.redis.script import ScriptCaller
from penstock.redis.wire import Argument, Reply

__all__ = ["QueueAdminScripts"]


class QueueAdminScripts(ScriptCaller):
    """Scripts by which people change queues and their dead letters, as calls.

    `keys` stands for the queue's keys, and the beginnings of names, in a script's header.
    """

    async def requeue_letters(
        self,
        *,
        keys: QueueKeyring,
        letters: str,
        who: str,
        detail: str,
        jobs: Sequence[Argument],
    ) -> list[int]:
        """Turn dead letters into jobs again: for each 1, or 0 if it is not there."""
        return await self.run(
            "requeue_letters",
            (letters, keys.waiting, keys.ring, keys.parked, keys.state, keys.counters, keys.audit),
            (who, detail, keys.records, keys.indexes, keys.queue, *jobs),
        )

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
        """Look for the letters of jobs: how many were looked at, then places and letters."""
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
        said = (who, detail, letter, place, new)
        return bool(await self.run("edit_queue_letter", places, said))

    async def note_queue_act(
        self, *, keys: QueueKeyring, who: str, what: str, count: int, detail: str
    ) -> int:
        """Note what somebody did to a queue: 1."""
        return await self.run("note_queue_act", (keys.audit,), (who, what, count, detail))

    async def pause_lane(self, *, keys: QueueKeyring, who: str, kind: str, lane: str) -> bool:
        """Let no job be claimed; False if that was so."""
        places = (keys.state, keys.ring, keys.parked, keys.audit)
        return bool(await self.run("pause_lane", places, (who, kind, lane)))

    async def resume_lane(self, *, keys: QueueKeyring, who: str, kind: str, lane: str) -> bool:
        """Let jobs be claimed again; False if they were."""
        places = (keys.state, keys.ring, keys.parked, keys.audit, keys.waiting)
        return bool(await self.run("resume_lane", places, (who, kind, lane)))

    async def relist_lane(self, *, keys: QueueKeyring, lane: bytes) -> int:
        """Give a fair lane with jobs its turns again: 1, or 0 if it had them."""
        places = (keys.state, keys.ring, keys.parked, keys.waiting)
        return await self.run("relist_lane", places, (lane,))

    async def park_lane(self, *, keys: QueueKeyring, who: str, lane: str, for_ms: int) -> int:
        """Keep a fair lane waiting: until which ms, 0 if it is paused."""
        places = (keys.state, keys.ring, keys.parked, keys.audit)
        return await self.run("park_lane", places, (who, lane, for_ms))

    async def weigh_lane(self, *, keys: QueueKeyring, who: str, lane: str, weight: int) -> int:
        """Say how many jobs a fair lane may have in one turn: 1."""
        return await self.run("weigh_lane", (keys.weights, keys.audit), (who, lane, weight))

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
    ) -> list[int] | int:
        """Take certain jobs in hand: for each 1, or 0 if it did not wait; -1 if dead."""
        return await self.run(
            "take_items",
            (
                *(keys.workers, keys.claimed(worker), keys.waiting, keys.ring, keys.state),
                *(keys.counters, keys.cancelled),
            ),
            (worker, lane, first, *items),
        )

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
    ) -> int:
        """Let jobs go that stand in another queue by now; how many, -1 if dead."""
        return await self.run(
            "hand_over",
            (keys.workers, keys.claimed(worker), keys.counters, keys.audit),
            (worker, who, to, keys.records, keys.indexes, keep_ms, *jobs),
        )
