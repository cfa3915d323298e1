"""Ends of claimed jobs, as a worker reports them: done, to be retried, dead."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from penstock.queues.storage.scripts import MoveReply
from penstock.queues.worker.claimed_jobs import MOST_JOBS, ClaimedJob, ClaimedJobs
from penstock.redis.wire import Argument

__all__ = ["PASSED_OVER", "JobEnd", "bury", "flush_ended", "retry"]

PASSED_OVER: Final = "passed_over"
"""End of a job that had ended, cancelled perhaps, before it was begun here."""
_MOST_BYTES = 4 * 1024 * 1024
"""Results per call."""
_CONCURRENT_ENDS = 2


@dataclass(slots=True)
class JobEnd:
    """How a job with a record or a unique key has ended."""

    job: ClaimedJob
    state: str
    took: str = "0"
    """Seconds for which it ran."""
    result: bytes = b""


async def flush_ended(claims: ClaimedJobs) -> None:
    """Write the ends of jobs with a record or a unique key, and of those that end meanwhile.

    By few calls at a time: the next claims have to wait behind them.
    """

    async def write() -> None:
        while claims.ended:
            await _finish(claims, _some_ended(claims))

    await asyncio.gather(*(write() for _ in range(_CONCURRENT_ENDS)))


def _some_ended(claims: ClaimedJobs) -> list[JobEnd]:
    """Take some that have come to the same end."""
    ended = claims.ended
    state, count, size = ended[0].state, 1, len(ended[0].result)
    for end in ended[1:MOST_JOBS]:
        size += len(end.result)
        if end.state != state or size > _MOST_BYTES:
            break
        count += 1
    some, claims.ended = ended[:count], ended[count:]
    return some


async def _finish(claims: ClaimedJobs, ends: Sequence[JobEnd]) -> None:
    state, arguments = ends[0].state, list[Argument]()
    for end in ends:
        job = end.job
        late = 0 if job.run_noted or state == "expired" else 1
        arguments += (job.claim, job.record_name, job.unique_key, late, end.took, end.result)
    call = partial(
        claims.scripts.finish_jobs,
        keys=claims.keys,
        worker=claims.worker,
        keep_ms=claims.keep_ms,
        state=state,
        jobs=arguments,
    )
    if await claims.repeat("finish", call) is None:
        claims.refused(len(ends))
    else:
        claims.drop(end.job for end in ends)


async def retry(
    job: ClaimedJob,
    item: bytes,
    wait_s: float,
    fields: Sequence[Argument],
    counted_as: str = "retried",
) -> None:
    """Let a job wait for its next attempt."""
    claims = job.claims
    call = partial(
        claims.scripts.retry_job,
        keys=claims.keys,
        worker=claims.worker,
        claim=job.claim,
        job_id=job.record_name,
        item=item,
        wait_ms=round(wait_s * 1000),
        counted_as=counted_as,
        fields=fields,
    )
    reply = await claims.repeat("retry", call)
    if reply is MoveReply.MOVED:
        claims.expect_due(wait_s)
    _moved(job, reply)


async def bury(job: ClaimedJob, letter: bytes, fields: Sequence[Argument]) -> None:
    """Put a job into the dead letters."""
    claims = job.claims
    call = partial(
        claims.scripts.bury_job,
        keys=claims.keys,
        worker=claims.worker,
        keep_ms=claims.keep_ms,
        claim=job.claim,
        job_id=job.record_name,
        unique=job.unique_key,
        letter=letter,
        fields=fields,
    )
    _moved(job, await claims.repeat("bury", call))


def _moved(job: ClaimedJob, reply: MoveReply) -> None:
    if reply is MoveReply.GIVEN_UP:
        job.claims.refused(1)
    else:
        job.claims.drop([job])
