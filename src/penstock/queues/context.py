"""A job in hand, as its function sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING

from penstock.delivery.looking import text
from penstock.errors import ClaimLost, InvalidJob, NotOpen
from penstock.queues.items import Item, new_id
from penstock.queues.records import OWN_FIELDS

if TYPE_CHECKING:
    from penstock.queues.hand import Hand
    from penstock.redis.wire import Argument

__all__ = ["JobContext", "current_job"]

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
        "_id", "abandoned", "attempt", "began", "begun", "claim", "cut", "hand", "interrupted",
        "item", "max_attempts", "noted", "queue", "slot", "tracked",
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
        self.abandoned = False
        """Whether nobody waits any more for the thread that runs it."""
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
        return bool(self.cut) or self.abandoned

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
        fields = {"progress_done": done, "progress_total": total, "progress_note": note}
        if wrong := OWN_FIELDS & counts.keys():
            raise InvalidJob(f"progress: {min(wrong)!r} is a field that Penstock writes")
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


def current_job() -> JobContext:
    """Return the job whose function is running here; `NotOpen` outside of one."""
    try:
        return _current.get()
    except LookupError:
        raise NotOpen("no job is running here: current_job() is for functions of tasks") from None


set_current = _current.set
