"""How far a job is, told not too often."""

from __future__ import annotations

import time

from penstock.queues.context import JobContext

__all__ = ["Progress"]

_EVERY_S = 0.5


class Progress:
    """Writes into a job's record; quick jobs write once, at their end."""

    def __init__(self, job: JobContext | None) -> None:
        self._job = job
        self._told_at = time.monotonic()

    async def tell(
        self,
        done: int | None = None,
        total: int | None = None,
        note: str | None = None,
        *,
        force: bool = False,
        **counts: float | str,
    ) -> None:
        """As `JobContext.progress`, unless it was told a moment ago."""
        now = time.monotonic()
        if self._job is None:
            return
        if force or now - self._told_at >= _EVERY_S:
            self._told_at = now
            await self._job.progress(done, total, note, **counts)
