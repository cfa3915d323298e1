"""Scripts of producers and workers as typed calls, with their replies."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, IntFlag
from functools import lru_cache
from typing import Final, NamedTuple

from penstock.queues.storage.keys import QueueKeyring
from penstock.redis.prepared_call import ScriptCall
from penstock.redis.script import LuaFolder, ScriptCaller
from penstock.redis.wire import Argument, Reply

__all__ = [
    "QUEUE_LUA",
    "AwaitStatus",
    "CancelStatus",
    "PushReply",
    "PushStatus",
    "QueueScripts",
    "SubmitStatus",
]

_SUSPECTS_KEPT_MS = 86_400_000

QUEUE_LUA = LuaFolder("penstock.queues.storage")


class ClaimFlag(IntFlag):
    """What a claim learns about the queue."""

    LANES = 1
    """Fair lanes are in use."""
    CANCELLED = 2
    """Jobs on the lists were cancelled."""
    SUSPECTS = 4
    """There may be jobs that are claimed alone."""
    MORE = 8
    """Jobs were left on the lists for want of bytes."""
    UNTENDED = 16
    """No process tends the queue."""


class ClaimReply(NamedTuple):
    """Reply of `claim_jobs`."""

    now_ms: int
    due_ms: int
    """When the next job is due; 0 if there is none."""
    held: int
    """How many claims the worker has."""
    flags: int
    """A sum of `ClaimFlag`."""
    lanes: list[Reply]
    """A lane and a list of jobs claimed from it, again and again."""


class BeginVerdict(IntEnum):
    """What `begin_jobs` decides about a job."""

    ENDED = 0
    RUN = 1
    CANCELLED = 2


class MoveReply(IntEnum):
    """Reply of `retry_job` and `bury_job`."""

    GIVEN_UP = -1
    """The worker was given up as dead; nothing was done."""
    NOT_CLAIMED = 0
    """An earlier call has moved the job; nothing was done."""
    MOVED = 1


class SetAsideReply(NamedTuple):
    """Reply of `set_aside`."""

    workers: int
    """Live workers of the queue."""
    moved: list[int]
    """For each job 1, or 0 if it has ended and is still claimed."""


class ProgressVerdict(IntEnum):
    """What `note_progress` found."""

    LOST = 0
    """The job is not claimed by this worker; nothing was written."""
    WRITTEN = 1
    CANCELLED = 2
    """Written, and the job is to stop."""


class BeatFlag(IntFlag):
    """Reply to a heartbeat; 0 if the worker was given up."""

    ALIVE = 1
    UNTENDED = 2
    """No process tends the queue."""
    FOREIGN = 4
    """A key of the queue is of another type."""


class TendFlag(IntFlag):
    """State of a queue, as its tender sees it."""

    CAN_CLAIM = 1
    WOKEN = 2
    """A worker was woken."""
    SILENT = 4
    """Workers are silent, or dead ones have claims to be returned."""
    FOREIGN = 8
    """A key of the queue is of another type."""
    PLAIN = 16
    """The plain list has jobs."""
    EMPTY = 32
    """None of the keys exists in which jobs wait."""


class TendReply(NamedTuple):
    """Reply of `tend_queues` for one queue."""

    flags: int
    """A sum of `TendFlag`, or `TENDED_ELSEWHERE`."""
    wait_ms: int
    """Until the next job is due; 0 if there is none."""
    silent_in_ms: int
    """Until the next worker counts as silent; -1 if that was not looked for."""


TENDED_ELSEWHERE: Final = -1


class OpenedClaims(NamedTuple):
    """Reply of `open_claims`."""

    deaths: int
    """Workers that died while they read these claims."""
    trial: bytes
    """The claim that the dead worker had on trial."""
    cursor: bytes = b"0"
    """Where the next page begins; b'0' if there is none."""
    claims: tuple[bytes, ...] = ()


class PushStatus(IntEnum):
    """What `push_jobs` did."""

    FULL = 0
    STORED = 1
    MORE_ROOM = 3
    """Some jobs were moved or dropped; call again to make room for all."""
    TOO_MANY_LANES = 4
    """It would be one more fair lane with jobs."""


class PushReply(NamedTuple):
    """Reply of `push_jobs`."""

    status: int
    length: int
    """Jobs in the list now."""
    moved: int
    """Jobs moved to the overflow."""
    dropped: int
    packed: list[bytes]
    """Moved or dropped jobs that are compressed: see `note_losses`."""


class SubmitStatus(IntEnum):
    """What `submit_jobs` did with one job; in a list where more belongs to it."""

    FULL = 0
    STORED = 1
    TAKEN = 2
    TOO_MANY_LANES = 4
    """It would be one more fair lane with jobs."""
    TOO_MANY_DELAYED = 5


class AwaitStatus(IntEnum):
    """What `await_jobs` returns for a job instead of its end."""

    PENDING = 0
    """Its end will be published."""
    ASK_AGAIN = 1
    """The reply would be too large."""


class CancelStatus(IntEnum):
    """What `cancel_job` did."""

    MISSING = -1
    ENDED = 0
    ASKED = 1
    CANCELLED = 2


class QueueScripts(ScriptCaller):
    """Scripts of a queue's producers and workers, as calls.

    `keys` stands for the queue's keys, and the beginnings of names, in a script's header. Calls
    of a worker return None, if not a status, where it was given up as dead: nothing was done.
    """

    lua = QUEUE_LUA

    async def register_queue(self, *, registry: str, queue: str, most: int) -> bool:
        """Note the name of a queue; False if there are too many."""
        return bool(await self.run("register_queue", (registry,), (queue, most)))

    async def declare_queue(
        self, *, keys: QueueKeyring, side: str, levels: str, limit: str, lane_limit: str
    ) -> bytes:
        """Note how a queue is used; the side that holds."""
        return await self.run("declare_queue", (keys.state,), (side, levels, limit, lane_limit))

    def push_jobs(
        self,
        *,
        keys: QueueKeyring,
        lane: str,
        side: str,
        policy: str,
        max_size: int,
        max_bytes: int,
        max_overflow: int,
        max_lanes: int,
        items: Sequence[Argument],
    ) -> ScriptCall[PushReply]:
        """Add jobs, all or none."""
        limits = (max_size, max_bytes, max_overflow)
        head = self._push_head(keys, lane, side, policy, *limits)
        arguments = (*head, self._keep_ms, max_lanes, *items)
        script, places = self.script("push_jobs"), self._push_keys(keys)
        return ScriptCall(self._client, script, places, arguments, PushReply._make)

    def submit_jobs(
        self,
        *,
        keys: QueueKeyring,
        lane: str,
        side: str,
        policy: str,
        max_size: int,
        max_bytes: int,
        max_overflow: int,
        max_lanes: int,
        max_delayed: int,
        fields: Argument,
        jobs: Sequence[Argument],
    ) -> ScriptCall[list[Reply]]:
        """Add jobs, each by itself: length, delayed jobs, compressed losses, then one for each."""
        limits = (max_size, max_bytes, max_overflow)
        head = (*self._push_head(keys, lane, side, policy, *limits), keys.claims, self._keep_ms)
        counts = (max_lanes, max_delayed)
        others = (keys.delayed, keys.delayed_bodies, keys.workers, keys.dead_workers, keys.aside)
        places = (*self._push_keys(keys), *others)
        script = self.script("submit_jobs")
        return ScriptCall(self._client, script, places, (*head, *counts, fields, *jobs), list)

    async def await_jobs(self, *, keys: QueueKeyring, names: Sequence[str]) -> list[Reply]:
        """Read jobs and mark them as awaited: for each its end, or an `AwaitStatus`."""
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
    ) -> ClaimReply | None:
        """Acknowledge, and claim jobs; None if the worker was given up as dead."""
        reply: list[Reply] | int = await self.run(
            "claim_jobs",
            _claim_keys(keys, worker),
            (
                *(worker, first, most, keys.records, keys.indexes, keys.runnings, keys.claims),
                *(self._client.settings.queues.prefetch_bytes, *done),
            ),
        )
        if isinstance(reply, int):
            return None
        now_ms, due_ms, held, flags, *lanes = reply
        return ClaimReply(now_ms, due_ms, held, flags, lanes)

    async def begin_jobs(
        self, *, keys: QueueKeyring, worker: str, jobs: Sequence[Argument]
    ) -> list[int] | None:
        """Note that jobs are about to run: a `BeginVerdict` for each; None if given up."""
        reply: list[int] | int = await self.run(
            "begin_jobs",
            (keys.workers, keys.claimed(worker), keys.cancelled, keys.suspects),
            (worker, keys.records, keys.indexes, *jobs),
        )
        return None if isinstance(reply, int) else reply

    async def finish_jobs(
        self, *, keys: QueueKeyring, worker: str, keep_ms: int, state: str, jobs: Sequence[Argument]
    ) -> int | None:
        """End jobs with a record or a unique key, all alike: how many were claimed."""
        reply: int = await self.run(
            "finish_jobs",
            (*self._in_hand(keys, worker), keys.counters, keys.cancelled),
            (worker, keys.records, keys.indexes, keys.runnings, keep_ms, state, *jobs),
        )
        return None if reply < 0 else reply

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
    ) -> MoveReply:
        """Let a job wait for its next attempt."""
        reply = await self.run(
            "retry_job",
            (*self._in_hand(keys, worker), keys.delayed, keys.delayed_bodies, keys.counters),
            (
                *(worker, keys.records, keys.indexes, keys.runnings, claim, job_id, item),
                *(wait_ms, counted_as, *fields),
            ),
        )
        return MoveReply(reply)

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
    ) -> MoveReply:
        """Put a job into the dead letters."""
        reply = await self.run(
            "bury_job",
            (*self._in_hand(keys, worker), keys.dead_letters, keys.counters),
            (
                *(worker, keys.records, keys.indexes, keys.runnings, keep_ms, claim, job_id),
                *(unique, letter, *fields),
            ),
        )
        return MoveReply(reply)

    async def give_back(
        self, *, keys: QueueKeyring, worker: str, jobs: Sequence[Argument]
    ) -> int | None:
        """Return jobs to the front, not charged: how many."""
        reply: int = await self.run(
            "give_back",
            (*self._in_hand(keys, worker), keys.state, keys.dead_workers),
            (worker, keys.records, keys.indexes, keys.runnings, *jobs),
        )
        return None if reply < 0 else reply

    async def set_aside(
        self,
        *,
        keys: QueueKeyring,
        worker: str,
        wait_ms: int,
        step_ms: float,
        jobs: Sequence[Argument],
    ) -> SetAsideReply | None:
        """Let jobs wait without a claim; None if the worker was given up."""
        reply: list[int] | int = await self.run(
            "set_aside",
            (
                *self._in_hand(keys, worker),
                *(keys.delayed, keys.delayed_bodies, keys.counters, keys.aside),
            ),
            (worker, keys.records, keys.indexes, keys.runnings, wait_ms, f"{step_ms:.3f}", *jobs),
        )
        return None if isinstance(reply, int) else SetAsideReply(reply[0], reply[1:])

    async def recall_jobs(self, *, keys: QueueKeyring, most: int) -> int:
        """Let jobs that were set aside be due now: how many are."""
        return await self.run("recall_jobs", (keys.delayed, keys.aside), (most,))

    async def join_queue(self, *, keys: QueueKeyring, worker: str) -> int:
        """Become a live worker: the server's ms."""
        return await self.run("join_queue", (keys.workers,), (worker,))

    async def beat_queue(self, *, keys: QueueKeyring, worker: str, paused_ms: int = 0) -> BeatFlag:
        """Send a heartbeat: a sum of `BeatFlag`; 0 if given up."""
        arguments = (worker, self._silence_ms, paused_ms)
        return BeatFlag(await self.run("beat_queue", (keys.workers, keys.state), arguments))

    async def beat_queues(
        self, *, keys: Sequence[QueueKeyring], signs: Sequence[tuple[str, int]]
    ) -> list[Reply]:
        """Give signs of life to queues of one slot: each a worker, and ms of its pauses."""
        named = zip(keys, signs, strict=True)
        arguments = [part for one, sign in named for part in (one.own, *sign)]
        return await self.run("beat_queues", (keys[0].workers,), (self._silence_ms, *arguments))

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
    ) -> OpenedClaims:
        """Note that a claim of a dead worker is read, or all: then also a page of their names."""
        deaths, trial, *page = await self.run(
            "open_claims",
            (keys.claimed(worker), keys.suspects),
            (reader, worker, claim, _SUSPECTS_KEPT_MS, cursor),
        )
        return (
            OpenedClaims(deaths, trial, page[0], tuple(page[1:]))
            if page
            else OpenedClaims(deaths, trial)
        )

    async def tend_queues(
        self, *, keys: Sequence[QueueKeyring], tender: str, lease_ms: int, with_workers: bool
    ) -> list[TendReply]:
        """Look after queues of one hash slot."""
        names = [part for one in keys for part in (one.own, one.waiting)]
        arguments = (tender, lease_ms, self._silence_ms, int(with_workers), *names)
        reply: list[int] = await self.run("tend_queues", (keys[0].state,), arguments)
        return [TendReply(*numbers) for numbers in zip(*[iter(reply)] * 3, strict=True)]

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
    ) -> CancelStatus:
        """Cancel a job that has not started, or ask it to stop."""
        reply = await self.run(
            "cancel_job",
            (record, keys.delayed, keys.delayed_bodies, keys.counters, keys.cancelled),
            (job_id, keys.indexes, keep_ms, keys.uniques),
        )
        return CancelStatus(reply)

    async def note_progress(
        self,
        *,
        keys: QueueKeyring,
        worker: str,
        record: str,
        claim: Argument,
        fields: Sequence[Argument],
    ) -> ProgressVerdict:
        """Write into a running job's record."""
        places = (keys.claimed(worker), record)
        return ProgressVerdict(await self.run("note_progress", places, (claim, *fields)))

    async def sweep_records(self, *, keys: QueueKeyring) -> int:
        """Forget jobs whose records have gone: how many, a bounded number per call."""
        places = tuple(keys.jobs(state) for state in ("done", "failed", "cancelled", "expired"))
        return await self.run("sweep_records", places, (self._keep_ms,))

    @staticmethod
    def _push_keys(keys: QueueKeyring) -> tuple[str, ...]:
        return (keys.waiting, keys.state, keys.counters, keys.overflow, keys.ring, keys.parked)

    @staticmethod
    def _push_head(
        keys: QueueKeyring, lane: str, *side_policy_limits: Argument
    ) -> tuple[Argument, ...]:
        prefixes = (keys.records, keys.indexes, keys.uniques)
        return (lane, keys.queue, *side_policy_limits, *prefixes)

    @property
    def _silence_ms(self) -> int:
        return round(self._client.settings.queues.silence_s * 1000)

    @property
    def _keep_ms(self) -> int:
        return int(self._client.settings.queues.keep_s * 1000)

    @staticmethod
    def _in_hand(keys: QueueKeyring, worker: str) -> tuple[str, ...]:
        return (keys.workers, keys.claimed(worker), keys.waiting, keys.ring, keys.parked)


@lru_cache(maxsize=256)
def _claim_keys(keys: QueueKeyring, worker: str) -> tuple[str, ...]:
    return (
        *(keys.workers, keys.claimed(worker), keys.waiting, keys.ring, keys.parked),
        *(keys.delayed, keys.delayed_bodies, keys.state, keys.counters, keys.weights),
        *(keys.cancelled, keys.suspects, keys.dead_workers),
    )
