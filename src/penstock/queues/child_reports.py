"""Progress that a function reports from its child process, on its way into the job's record."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Any, Self, cast

from penstock.errors import PenstockError
from penstock.queues.context import JobContext
from penstock.quiet import RateLimitedLog

__all__ = ["ChildReports"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)


class ChildReports:
    """Writes reports one after the other; those that come meanwhile are joined into one.

    What was reported is written before the call returns. A report that cannot be written is logged:
    the job goes on.
    """

    def __init__(self, job: JobContext) -> None:
        self._job = job
        self._fields: dict[str, Any] = {}
        self._writing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writing is None:
            return
        if isinstance(error, asyncio.CancelledError):
            self._writing.cancel()
        await asyncio.gather(self._writing, return_exceptions=True)

    def put(self, told: object) -> None:
        """Take a report: fields of the record, by name."""
        self._fields |= cast("dict[str, Any]", told)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(), name="child reports")

    async def _write(self) -> None:
        job = self._job
        while self._fields:
            fields, self._fields = self._fields, {}
            try:
                await job.progress(**fields)
            except PenstockError as error:
                quiet.warning(
                    f"{job.queue} progress {type(error).__name__}",
                    "queue %s: progress of job %s was not written: %s",
                    job.queue,
                    job.id,
                    error,
                )
