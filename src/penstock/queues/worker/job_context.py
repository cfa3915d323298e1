"""The running job, as its function sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from penstock.errors import InvalidJob, NotOpen
from penstock.queues.isolation import child_program as child
from penstock.queues.storage.job_record import OWN_FIELDS

if TYPE_CHECKING:
    from penstock.queues.worker.claimed_jobs import ClaimedJob

__all__ = ["IsolatedJob", "JobContext", "current_job"]

_current: ContextVar[ClaimedJob] = ContextVar("penstock job")


class JobContext:
    """The job that is being run: `current_job()`, or a parameter annotated with this class.

    @app.task(status=True)
    async def embed(path: str) -> int:
        job = current_job()
        for n, page in enumerate(pages(path)):
            await job.progress(n, total=len(pages), chunks_created=…)
    """

    __slots__ = ("_job",)

    def __init__(self, job: ClaimedJob) -> None:
        self._job = job

    def __repr__(self) -> str:
        return f"JobContext({self.queue!r}, {self.id!r}, attempt={self.attempt})"

    @property
    def id(self) -> str:
        """The job's id: that of its handle, at every attempt and in its dead letter.

        A raw job that was pushed without one gets it when it is first needed, and keeps it through
        retries; a crash before its first attempt has failed gives it another.
        """
        return self._job.id

    @property
    def queue(self) -> str:
        return self._job.queue

    @property
    def task(self) -> str:
        """Name of the task; empty for a raw job."""
        return self._job.task

    @property
    def attempt(self) -> int:
        """1 at the first attempt."""
        return self._job.attempt

    @property
    def max_attempts(self) -> int:
        return self._job.max_attempts

    @property
    def headers(self) -> Mapping[str, str]:
        return self._job.headers

    @property
    def lane(self) -> str:
        """A priority, the encoded name of a group, or empty."""
        return self._job.lane

    @property
    def worker(self) -> str:
        """Name of the worker that runs the job."""
        return self._job.worker

    @property
    def tracked(self) -> bool:
        """Whether the job has a record."""
        return self._job.tracked

    @property
    def cancelled(self) -> bool:
        """Whether the job is to stop: cancelled, timed out, or passed to another worker."""
        return self._job.is_stopping

    def raise_if_cancelled(self) -> None:
        """For functions in threads, which cannot be interrupted."""
        if self.cancelled:
            raise asyncio.CancelledError(self._job.stop_reason or "timed out")

    async def progress(
        self,
        done: int | None = None,
        total: int | None = None,
        note: str | None = None,
        **counts: float | str,
    ) -> None:
        """Write how far the job is into its record; raises `ClaimLost` if another worker has it.

        One round trip. `counts` become fields of the record. Without a record nothing happens.
        """
        if self.tracked:
            _check_counts(counts)
            fields = {"progress_done": done, "progress_total": total, "progress_note": note}
            await self._job.claims.note_progress(self._job, {**fields, **counts})

    def report(
        self,
        done: int | None = None,
        total: int | None = None,
        note: str | None = None,
        **counts: float | str,
    ) -> None:
        """As `progress`, for a function that runs in a thread."""
        writing = self.progress(done, total, note, **counts)
        asyncio.run_coroutine_threadsafe(writing, self._job.claims.loop).result()


@dataclass(frozen=True, slots=True)
class _JobCopy:
    """What a child process gets to know of a job."""

    id: str
    queue: str
    task: str
    attempt: int
    max_attempts: int
    headers: Mapping[str, str]
    lane: str
    worker: str
    tracked: bool
    is_stopping: bool = False


class IsolatedJob(JobContext):
    """The job as its function sees it in the child process of a task with `isolate=`.

    `progress` and `report` pass through the worker, which writes them into the record: they return
    before that, and of several in quick succession only the last of each field may be written.
    `cancelled` stays False: the process of a job that is to stop is ended.
    """

    __slots__ = ()

    @classmethod
    def of(cls, job: ClaimedJob) -> IsolatedJob:
        """The job for a child process, to which it is sent as a pickle."""
        copy = _JobCopy(
            id=job.id,
            queue=job.queue,
            task=job.task,
            attempt=job.attempt,
            max_attempts=job.max_attempts,
            headers=dict(job.headers),
            lane=job.lane,
            worker=job.worker,
            tracked=job.tracked,
        )
        return cls(cast("ClaimedJob", copy))

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
            if not child.report({name: one for name, one in fields.items() if one is not None}):
                raise NotOpen(f"job {self.id} is not running in this process")


def current_job() -> JobContext:
    """Return the job whose function is running here; `NotOpen` outside of one."""
    try:
        return _current.get().context
    except LookupError:
        job = child.context()
        if isinstance(job, JobContext):
            return job
        raise NotOpen("no job is running here: current_job() is for functions of tasks") from None


def _check_counts(counts: Mapping[str, object]) -> None:
    if wrong := OWN_FIELDS & counts.keys():
        raise InvalidJob(f"progress: {min(wrong)!r} is a field that Penstock writes")


set_current = _current.set
