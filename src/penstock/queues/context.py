"""A job in hand, as its function sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from penstock.delivery.looking import text
from penstock.errors import ClaimLost, InvalidJob, NotOpen
from penstock.queues import child
from penstock.queues.items import Item, Meta, new_id
from penstock.queues.records import OWN_FIELDS

if TYPE_CHECKING:
    from penstock.queues.hand import Hand
    from penstock.redis.wire import Argument

__all__ = ["IsolatedJob", "JobContext", "current_job"]

_current: ContextVar[JobContext] = ContextVar("penstock job")

OVER = "over"
"""Why a job is told to stop whose record says that it has ended: cancelled before it began."""


class JobContext:
    """The job that is being run: `current_job()`, or a parameter annotated with this class.

    @app.task(status=True)
    async def embed(path: str) -> int:
        job = current_job()
        for n, page in enumerate(pages(path)):
            await job.progress(n, total=len(pages), chunks_created=…)
    """

    __slots__ = (
        "_id", "attempt", "began", "begun", "claim", "cut", "hand", "interrupted",
        "item", "max_attempts", "noted", "queue", "slot", "thread", "tracked",
    )  # fmt: skip

    def __init__(self, hand: Hand, claim: str | bytes, item: Item) -> None:
        self.hand, self.claim, self.item = hand, claim, item
        self.queue = hand.keys.queue
        self._id = item.id
        self.attempt = item.meta.attempts + 1
        """1 at the first attempt."""
        self.max_attempts = 0
        self.tracked = item.meta.tracked
        """Whether the job has a record."""
        self.began = 0.0
        """When its function was called, on the clock of this process."""
        self.begun = False
        """Whether the attempt is noted on the server as begun."""
        self.noted = False
        """Whether its record says that it runs. That of a quick job says so only when it has."""
        self.cut = ""
        """Why the job was told to stop."""
        self.interrupted = False
        """Whether its slot was cancelled for that, once."""
        self.thread: asyncio.Future[Any] | None = None
        """Done when the function has returned, if its attempt ended while it ran in a thread."""
        self.slot: asyncio.Task[None] | None = None
        """What runs it now."""

    def __repr__(self) -> str:
        return f"JobContext({self.queue!r}, {self.id!r}, attempt={self.attempt})"

    @property
    def id(self) -> str:
        """The job's id: that of its handle, at every attempt and in its dead letter.

        A raw job that was pushed without one gets it when it is first needed, and keeps it through
        retries; a crash before its first attempt has failed gives it another.
        """
        if not self._id:
            self._id = new_id()
        return self._id

    @property
    def task(self) -> str:
        """Name of the task; empty for a raw job."""
        return self.item.task

    @property
    def headers(self) -> Mapping[str, str]:
        return self.item.meta.headers

    @property
    def lane(self) -> str:
        """A priority, the encoded name of a group, or nothing."""
        claim = self.claim if isinstance(self.claim, str) else text(self.claim)
        return claim.partition(":")[2]

    @property
    def cancelled(self) -> bool:
        """Whether the job was told to stop: cancelled, timed out, or passed to another worker."""
        return bool(self.cut) or self.thread is not None

    def raise_if_cancelled(self) -> None:
        """For functions in threads, which nobody can interrupt."""
        if self.cancelled:
            raise asyncio.CancelledError(self.cut or "timed out")

    async def progress(
        self,
        done: int | None = None,
        total: int | None = None,
        note: str | None = None,
        **counts: float | str,
    ) -> None:
        """Write how far the job is into its record; raises `ClaimLost` if it is not ours any more.

        One round trip. `counts` become fields of the record. Without a record nothing happens.
        """
        if not self.tracked:
            return
        _check_counts(counts)
        fields = {"progress_done": done, "progress_total": total, "progress_note": note}
        pairs: list[Argument] = []
        for name, value in (*fields.items(), *counts.items()):
            if value is not None:
                pairs += (name, str(value).encode(errors="backslashreplace"))
        if not self.noted and (await self.hand.begin([self]))[0] != 1:
            self.stop(OVER)
            return
        verdict = await self.hand.note_progress(self, pairs)
        if verdict == 0:
            raise ClaimLost(self.queue, self.id)
        if verdict == 2:  # noqa: PLR2004  see note_progress.lua
            self.stop("cancelled")

    def report(
        self,
        done: int | None = None,
        total: int | None = None,
        note: str | None = None,
        **counts: float | str,
    ) -> None:
        """As `progress`, for a function that runs in a thread."""
        told = self.progress(done, total, note, **counts)
        asyncio.run_coroutine_threadsafe(told, self.hand.loop).result()

    def stop(self, why: str) -> None:
        """Tell the job to stop: its coroutine is cancelled, a thread may look at `cancelled`."""
        if not self.cut:
            self.cut = why
            if self.slot is not None:
                self.interrupted = self.slot.cancel()


class IsolatedJob(JobContext):
    """The job as its function sees it in the child process of a task with `isolate=`.

    `progress` and `report` pass through the worker, which writes them into the record: they return
    before that, and of several in quick succession only the last of each field may be written.
    `cancelled` stays False: the process of a job that is told to stop is ended.
    """

    __slots__ = ("_facts",)

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._facts = facts
        meta = Meta(tracked=facts["tracked"], headers=facts["headers"])
        item = Item(b"", id=facts["id"], task=facts["task"], meta=meta)
        keys = SimpleNamespace(queue=facts["queue"])
        super().__init__(cast("Hand", SimpleNamespace(keys=keys)), facts["claim"], item)
        self.attempt, self.max_attempts = facts["attempt"], facts["max_attempts"]

    @classmethod
    def of(cls, job: JobContext) -> IsolatedJob:
        """The job for a child process, where it is sent to as a pickle."""
        return cls(
            {
                "id": job.id,
                "queue": job.queue,
                "task": job.task,
                "claim": job.claim,
                "attempt": job.attempt,
                "max_attempts": job.max_attempts,
                "tracked": job.tracked,
                "headers": dict(job.headers),
            }
        )

    def __reduce__(self) -> tuple[type[IsolatedJob], tuple[Mapping[str, Any]]]:
        return IsolatedJob, (self._facts,)

    async def progress(
        self,
        done: int | None = None,
        total: int | None = None,
        note: str | None = None,
        **counts: float | str,
    ) -> None:
        self.report(done, total, note, **counts)

    def report(
        self,
        done: int | None = None,
        total: int | None = None,
        note: str | None = None,
        **counts: float | str,
    ) -> None:
        if self.tracked:
            _check_counts(counts)
            fields = {"done": done, "total": total, "note": note, **counts}
            if not child.report({name: told for name, told in fields.items() if told is not None}):
                raise NotOpen(f"job {self.id} is not running in this process")


def current_job() -> JobContext:
    """Return the job whose function is running here; `NotOpen` outside of one."""
    try:
        return _current.get()
    except LookupError:
        job = child.context()
        if isinstance(job, JobContext):
            return job
        raise NotOpen("no job is running here: current_job() is for functions of tasks") from None


def _check_counts(counts: Mapping[str, object]) -> None:
    if wrong := OWN_FIELDS & counts.keys():
        raise InvalidJob(f"progress: {min(wrong)!r} is a field that Penstock writes")


set_current = _current.set
