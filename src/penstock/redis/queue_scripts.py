"""The scripts by which jobs are queued, claimed and ended."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.redis.keys.keyring import QueueKeyring
from penstock.redis.script import ScriptCaller
from penstock.redis.wire import Argument, Reply

__all__ = ["QueueScripts"]

_SUSPECTS_KEPT_MS = 86_400_000


class QueueScripts(ScriptCaller):
    """Scripts of a queue's producers and workers, as calls.

    `keys` stands for the queue's keys, and the beginnings of names, in a script's header. Where a
    worker is asked for, -1 says that it was given up as dead.
    """

    async def declare_queue(
        self, *, keys: QueueKeyring, side: str, levels: str, limit: str, lane_limit: str
    ) -> bytes:
        """Note how a queue is used; the side that holds."""
        return await self.run("declare_queue", (keys.state,), (side, levels, limit, lane_limit))

    async def push_jobs(
        self,
        *,
        keys: QueueKeyring,
        lane: str,
        queue: str,
        side: str,
        policy: str,
        max_size: int,
        max_bytes: int,
        max_overflow: int,
        items: Sequence[Argument],
    ) -> list[Reply]:
        """Add jobs, all or none: whether, length, moved aside, dropped, compressed ones of them."""
        return await self.run(
            "push_jobs",
            (keys.waiting, keys.state, keys.counters, keys.overflow, keys.ring, keys.parked),
            (
                *(lane, queue, side, policy, max_size, max_bytes, max_overflow),
                *(keys.records, keys.indexes, keys.uniques, self._keep_ms, *items),
            ),
        )

    async def submit_jobs(
        self,
        *,
        keys: QueueKeyring,
        lane: str,
        side: str,
        policy: str,
        max_size: int,
        max_bytes: int,
        max_overflow: int,
        fields: Argument,
        jobs: Sequence[Argument],
    ) -> list[Reply]:
        """Add jobs, each by itself: length, not yet due, compressed losses, then one for each."""
        return await self.run(
            "submit_jobs",
            (
                *(keys.waiting, keys.state, keys.counters, keys.overflow, keys.ring, keys.parked),
                *(keys.delayed, keys.delayed_bodies, keys.workers, keys.dead_workers),
                keys.aside,
            ),
            (
                *(lane, keys.queue, side, policy, max_size, max_bytes, max_overflow),
                *(keys.records, keys.indexes, keys.uniques, keys.claims, self._keep_ms),
                *(fields, *jobs),
            ),
        )

    async def await_jobs(self, *, keys: QueueKeyring, names: Sequence[str]) -> list[Reply]:
        """Look at jobs: for each 0 if its end will be announced, 1 to ask again, else its end."""
        return await self.run("await_jobs", (keys.jobs("queued"),), (keys.records, *names))

    async def note_losses(self, *, keys: QueueKeyring, jobs: Sequence[Argument]) -> int:
        """Tell of jobs that a full queue has dropped: how many had an open record."""
        return await self.run(
            "note_losses",
            (keys.jobs("failed"),),
            (keys.records, keys.indexes, self._keep_ms, *jobs),
        )

    async def claim_jobs(
        self,
        *,
        keys: QueueKeyring,
        worker: str,
        first: int,
        most: int,
        done: Sequence[Argument],
    ) -> list[Reply] | int:
        """Acknowledge, and take jobs in hand: ms, next due, claims held, flags, then lanes."""
        return await self.run(
            "claim_jobs",
            (
                *(keys.workers, keys.claimed(worker), keys.waiting, keys.ring, keys.parked),
                *(keys.delayed, keys.delayed_bodies, keys.state, keys.counters, keys.weights),
                *(keys.cancelled, keys.suspects, keys.dead_workers),
            ),
            (
                *(worker, first, most, keys.records, keys.indexes, keys.runnings, keys.claims),
                *(self._client.settings.queues.prefetch_bytes, *done),
            ),
        )

    async def begin_jobs(
        self, *, keys: QueueKeyring, worker: str, jobs: Sequence[Argument]
    ) -> list[int] | int:
        """Note that jobs are about to run: for each 1 to run it, 2 if cancelled, 0 if not."""
        return await self.run(
            "begin_jobs",
            (keys.workers, keys.claimed(worker), keys.cancelled, keys.suspects),
            (worker, keys.records, keys.indexes, *jobs),
        )

    async def finish_jobs(
        self, *, keys: QueueKeyring, worker: str, keep_ms: int, state: str, jobs: Sequence[Argument]
    ) -> int:
        """End jobs with a record or a unique key, all alike: how many were in hand."""
        return await self.run(
            "finish_jobs",
            (*self._in_hand(keys, worker), keys.counters, keys.cancelled),
            (worker, keys.records, keys.indexes, keys.runnings, keep_ms, state, *jobs),
        )

    async def retry_job(
        self,
        *,
        keys: QueueKeyring,
        worker: str,
        claim: Argument,
        job_id: str,
        item: Argument,
        wait_ms: int,
        counted_as: str,
        fields: Sequence[Argument],
    ) -> int:
        """Let a job wait for its next attempt: 1, or 0 if it was not in hand."""
        return await self.run(
            "retry_job",
            (*self._in_hand(keys, worker), keys.delayed, keys.delayed_bodies, keys.counters),
            (
                *(worker, keys.records, keys.indexes, keys.runnings, claim, job_id, item),
                *(wait_ms, counted_as, *fields),
            ),
        )

    async def bury_job(
        self,
        *,
        keys: QueueKeyring,
        worker: str,
        keep_ms: int,
        claim: Argument,
        job_id: str,
        unique: str,
        letter: Argument,
        fields: Sequence[Argument],
    ) -> int:
        """Put a job into the dead letters: 1, or 0 if it was not in hand."""
        return await self.run(
            "bury_job",
            (*self._in_hand(keys, worker), keys.dead_letters, keys.counters),
            (
                *(worker, keys.records, keys.indexes, keys.runnings, keep_ms, claim, job_id),
                *(unique, letter, *fields),
            ),
        )

    async def give_back(self, *, keys: QueueKeyring, worker: str, jobs: Sequence[Argument]) -> int:
        """Return jobs to the front, not charged: how many."""
        return await self.run(
            "give_back",
            (*self._in_hand(keys, worker), keys.state, keys.dead_workers),
            (worker, keys.records, keys.indexes, keys.runnings, *jobs),
        )

    async def set_aside(
        self,
        *,
        keys: QueueKeyring,
        worker: str,
        wait_ms: int,
        step_ms: float,
        jobs: Sequence[Argument],
    ) -> list[int] | int:
        """Let jobs wait without a claim: live workers, then for each 1, or 0 if it has ended."""
        return await self.run(
            "set_aside",
            (
                *self._in_hand(keys, worker),
                *(keys.delayed, keys.delayed_bodies, keys.counters, keys.aside),
            ),
            (worker, keys.records, keys.indexes, keys.runnings, wait_ms, f"{step_ms:.3f}", *jobs),
        )

    async def recall_jobs(self, *, keys: QueueKeyring, most: int) -> int:
        """Let jobs that were set aside be due now: how many are."""
        return await self.run("recall_jobs", (keys.delayed, keys.aside), (most,))

    async def join_queue(self, *, keys: QueueKeyring, worker: str) -> int:
        """Become a live worker: the server's ms."""
        return await self.run("join_queue", (keys.workers,), (worker,))

    async def beat_queue(self, *, keys: QueueKeyring, worker: str, paused_ms: int = 0) -> int:
        """Give a sign of life: a sum of 1, 2 if untended, 4 if foreign; 0 if given up."""
        silence_ms = round(self._client.settings.queues.silence_s * 1000)
        return await self.run(
            "beat_queue", (keys.workers, keys.state), (worker, silence_ms, paused_ms)
        )

    async def beat_queues(
        self, *, keys: Sequence[QueueKeyring], signs: Sequence[tuple[str, int]]
    ) -> list[Reply]:
        """Give signs of life to queues of one slot: each a worker, and ms of its pauses."""
        silence_ms = round(self._client.settings.queues.silence_s * 1000)
        named = zip(keys, signs, strict=True)
        told = [part for one, sign in named for part in (one.own, *sign)]
        return await self.run("beat_queues", (keys[0].workers,), (silence_ms, *told))

    async def leave_queue(self, *, keys: QueueKeyring, worker: str) -> int:
        """Stop being a worker: how many jobs were still in hand."""
        places = (keys.workers, keys.dead_workers, keys.claimed(worker))
        return await self.run("leave_queue", places, (worker,))

    async def find_dead(
        self, *, keys: QueueKeyring, silence_ms: int, worker: str = "", paused_ms: int = 0
    ) -> list[bytes]:
        """Give up silent workers: dead ones whose claims are to be returned, 100 at the most."""
        return await self.run(
            "find_dead",
            (keys.workers, keys.dead_workers, keys.suspects, keys.state),
            (silence_ms, worker, paused_ms),
        )

    async def open_claims(
        self,
        *,
        keys: QueueKeyring,
        reader: str,
        worker: str,
        claim: Argument = "",
        cursor: Argument = "0",
    ) -> list[Reply]:
        """Note that claims of a dead worker are read: how many died of that, its trial.

        Of all, also where the next page begins (b'0' if there is none), and names of claims.
        """
        return await self.run(
            "open_claims",
            (keys.claimed(worker), keys.suspects),
            (reader, worker, claim, _SUSPECTS_KEPT_MS, cursor),
        )

    async def tend_queues(
        self, *, keys: Sequence[QueueKeyring], tender: str, lease_ms: int, with_workers: bool
    ) -> list[int]:
        """Look after queues of one slot: three numbers for each, -1 first if another does."""
        silence_ms = round(self._client.settings.queues.silence_s * 1000)
        names = [part for one in keys for part in (one.own, one.waiting)]
        told = (tender, lease_ms, silence_ms, int(with_workers), *names)
        return await self.run("tend_queues", (keys[0].state,), told)

    async def stop_tending(self, *, keys: Sequence[QueueKeyring], tender: str) -> int:
        """Let other processes tend queues of one slot: how many this one did."""
        own = (one.own for one in keys)
        return await self.run("stop_tending", (keys[0].state,), (tender, *own))

    async def reap_claims(
        self, *, keys: QueueKeyring, worker: str, keep_ms: int, jobs: Sequence[Argument]
    ) -> int:
        """Return or bury jobs of a dead worker: how many."""
        _, *places = self._in_hand(keys, worker)
        return await self.run(
            "reap_claims",
            (
                keys.dead_workers,
                *places,
                keys.state,
                keys.dead_letters,
                keys.counters,
                keys.suspects,
            ),
            (
                *(worker, keys.records, keys.indexes, keys.runnings, keep_ms, _SUSPECTS_KEPT_MS),
                *(keys.uniques, *jobs),
            ),
        )

    async def cancel_job(
        self, *, keys: QueueKeyring, record: str, job_id: str, keep_ms: int
    ) -> int:
        """Cancel: 2 cancelled, 1 asked to stop, 0 had ended, -1 no such job."""
        return await self.run(
            "cancel_job",
            (record, keys.delayed, keys.delayed_bodies, keys.counters, keys.cancelled),
            (job_id, keys.indexes, keep_ms),
        )

    async def note_progress(
        self,
        *,
        keys: QueueKeyring,
        worker: str,
        record: str,
        claim: Argument,
        fields: Sequence[Argument],
    ) -> int:
        """Write into a running job's record: 1, 2 if it is to stop, 0 if it is not in hand."""
        return await self.run("note_progress", (keys.claimed(worker), record), (claim, *fields))

    async def sweep_records(self, *, keys: QueueKeyring) -> int:
        """Forget jobs whose records have gone: how many, a bounded number per call."""
        places = tuple(keys.jobs(state) for state in ("done", "failed", "cancelled", "expired"))
        return await self.run("sweep_records", places, (self._keep_ms,))

    @property
    def _keep_ms(self) -> int:
        return int(self._client.settings.queues.keep_s * 1000)

    @staticmethod
    def _in_hand(keys: QueueKeyring, worker: str) -> tuple[str, ...]:
        return (keys.workers, keys.claimed(worker), keys.waiting, keys.ring, keys.parked)
