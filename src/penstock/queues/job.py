"""Handle on a job that was sent."""

from __future__ import annotations

import asyncio
from typing import Any, Generic, TypeVar, cast

from penstock.errors import DecodeError, JobFailed, JobMissing
from penstock.queues.declared_queue import DeclaredQueue
from penstock.queues.signature import result_type_of
from penstock.queues.storage.job_record import JobProgress, JobRecord
from penstock.queues.storage.scripts import CancelStatus, QueueScripts

__all__ = ["Job"]

R = TypeVar("R")


class Job(Generic[R]):
    """A handle on one job.

        job = await welcome.send(42)
        print(await job.result(timeout_s=5))

    Its methods need the job's record, which is kept with `status=True` (of the queue or the task)
    or an `idempotency_key`; else they raise `JobMissing`.
    """

    __slots__ = ("_queue", "created", "id", "type")

    def __init__(
        self,
        queue: DeclaredQueue,
        id: str,  # noqa: A002
        created: bool = True,
        type: Any = Any,  # noqa: A002
    ) -> None:
        self.id = id
        self.created = created
        """False if the id or the unique key was taken: the handle is on the holder."""
        self.type = type
        """Type of the result."""
        self._queue = queue

    def __repr__(self) -> str:
        return f"Job({self._queue.name!r}, {self.id!r})"

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return self._queue.name

    async def status(self) -> JobRecord:
        """Read the record; one round trip."""
        stored = await self._queue.client.call("HGETALL", self._key)
        if not stored:
            raise self._missing()
        return JobRecord.of(self.queue, self.id, stored)

    async def progress(self) -> JobProgress:
        """Progress as reported by the job itself."""
        return (await self.status()).progress

    async def wait(self, timeout_s: float | None = None) -> str:
        """Wait until the job has ended: done, failed, cancelled or expired.

        TimeoutError after `timeout_s` seconds; the job continues.
        """
        return (await self._end(timeout_s))[0]

    async def result(self, timeout_s: float | None = None) -> R:
        """Wait for the return value of the job's function. JobFailed if it ended otherwise."""
        status, result, error = await self._end(timeout_s)
        if status != "done":
            raise JobFailed(self.queue, self.id, status, error)
        if result is None:
            raise DecodeError(f"job {self.id!r}: {error or 'its result could not be stored'}")
        type_, codec = result_type_of(self.type), self._queue.codec
        if codec.is_large(result):
            return cast("R", await codec.decode_large(result, type_))
        return cast("R", codec.decode(result, type_))

    async def cancel(self) -> bool:
        """Cancel the job if it waits, ask it to stop if it runs; False if it had ended."""
        keys, client = self._queue.keyring, self._queue.client
        status = await QueueScripts.of(client).cancel_job(
            keys=keys,
            record=self._key,
            job_id=keys.record_name(self.id),
            keep_ms=int(client.settings.queues.keep_s * 1000),
        )
        if status == CancelStatus.MISSING:
            raise self._missing()
        return status != CancelStatus.ENDED

    async def _end(self, timeout_s: float | None) -> tuple[str, bytes | None, str]:
        async with asyncio.timeout(timeout_s):
            status, result, error = await self._queue.results.end_of(self.id)
        if status is None:
            raise self._missing()
        return status.decode(), result, (error or b"").decode(errors="replace")

    @property
    def _key(self) -> str:
        return self._queue.keyring.record(self.id)

    def _missing(self) -> JobMissing:
        return JobMissing(self.queue, self.id)
