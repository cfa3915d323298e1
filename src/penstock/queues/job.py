"""A job that was sent, in the hands of its sender."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from penstock.errors import DecodeError, JobFailed, JobMissing
from penstock.queues.records import JobRecord, Progress
from penstock.queues.signature import result_type_of

if TYPE_CHECKING:
    from penstock.queues.queue import Queue

__all__ = ["Job"]

R = TypeVar("R")
_CANCELLED_OR_ASKED = (2, 1)


class Job(Generic[R]):
    """A handle on one job.

        job = await welcome.send(42)
        print(await job.result(timeout=5))

    All but `id` needs the job's record, which is kept where `status=True` says so (of the queue or
    the task) or an `idempotency_key` was given: else `JobMissing`.
    """

    __slots__ = ("_queue", "created", "id", "type")

    def __init__(self, queue: Queue, id: str, created: bool = True, type: Any = Any) -> None:  # noqa: A002
        self.id = id
        self.created = created
        """False if sending it found the same job, or the holder of its unique key."""
        self.type = type
        """Of the result."""
        self._queue = queue

    def __repr__(self) -> str:
        return f"Job({self._queue.name!r}, {self.id!r})"

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return self._queue.name

    async def status(self) -> JobRecord:
        """Look at the record; one round trip."""
        stored = await self._queue.client.call("HGETALL", self._key)
        if not stored:
            raise self._missing()
        return JobRecord.of(self.queue, self.id, stored)

    async def progress(self) -> Progress:
        """How far it is, as it says itself."""
        return (await self.status()).progress

    async def wait(self, timeout: float | None = None) -> str:  # noqa: ASYNC109  it is the promise
        """Wait until the job has ended; how: done, failed, cancelled or expired.

        TimeoutError after `timeout` seconds; the job goes on.
        """
        return (await self._end(timeout))[0]

    async def result(self, timeout: float | None = None) -> R:  # noqa: ASYNC109  as above
        """Wait for what the job's function returned. JobFailed if it ended otherwise."""
        status, result, error = await self._end(timeout)
        if status != "done":
            raise JobFailed(self.queue, self.id, status, error)
        if result is None:
            raise DecodeError(f"job {self.id!r}: {error or 'its result could not be stored'}")
        type_, codec = result_type_of(self.type), self._queue.codec
        if codec.is_large(result):
            return cast("R", await codec.decode_large(result, type_))
        return cast("R", codec.decode(result, type_))

    async def cancel(self) -> bool:
        """End the job if it waits, ask it to stop if it runs; False if it had ended."""
        keys, client = self._queue.keyring, self._queue.client
        verdict = await client.scripts.cancel_job(
            keys=keys,
            record=self._key,
            job_id=keys.record_name(self.id),
            keep_ms=int(client.settings.queues.keep_s * 1000),
        )
        if verdict < 0:
            raise self._missing()
        return verdict in _CANCELLED_OR_ASKED

    async def _end(self, timeout_s: float | None) -> tuple[str, bytes | None, str]:
        async with asyncio.timeout(timeout_s):
            status, result, error = await self._queue.ends.end_of(self.id)
        if status is None:
            raise self._missing()
        return status.decode(), result, (error or b"").decode(errors="replace")

    @property
    def _key(self) -> str:
        return self._queue.keyring.record(self.id)

    def _missing(self) -> JobMissing:
        return JobMissing(self.queue, self.id)
