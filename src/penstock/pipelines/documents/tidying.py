"""What interrupted processes leave to others: seen to now and then, by every worker."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from contextlib import suppress
from pathlib import Path

from penstock.errors import (
    DocumentError,
    DocumentRefused,
    FileMissing,
    JobMissing,
    PenstockError,
)
from penstock.pipelines.documents.cancelling import end_cancelled
from penstock.pipelines.documents.case import SUBMITTED, Case
from penstock.pipelines.documents.giving_up import GivingUp
from penstock.pipelines.documents.ledger_rows import JobRow
from penstock.pipelines.documents.parsing.spool import purge
from penstock.pipelines.documents.rebuilding import Rebuilding
from penstock.pipelines.documents.rechecking import recheck
from penstock.pipelines.documents.sending import QUEUE
from penstock.pipelines.documents.storing import Storing
from penstock.pipelines.documents.views import CRASHED, code_of
from penstock.pipelines.documents.workshop import Workshop
from penstock.queues.records import JobRecord
from penstock.runtime.duty import Duty
from penstock.stores.files.folder import Identity

__all__ = ["Tidier"]

logger = logging.getLogger(__name__)

_EVERY_S = 5.0
_SETTLED_MS = 10_000
"""A job that ended so long ago without a word to the ledger is not going to say it any more."""
_SWEEP_S = 3_600.0
"""How often, and from what age on, files that were never finished are looked for."""
_LOST_MS = 3_600_000
"""A job without a record for so long was deleted by somebody."""


class Tidier(Duty):
    """Ends in the ledger what ended in the queue: crashed, cancelled or deleted jobs.

    Also removes points of forgotten documents, goes on with rebuilds, and frees old parts.
    """

    def __init__(self, workshop: Workshop, storing: Storing) -> None:
        super().__init__("documents: tidying", self.tidy, every_s=_EVERY_S)
        self._workshop = workshop
        self._giving_up = GivingUp(workshop, storing)
        self._rebuilding = Rebuilding(workshop)
        self._weights: dict[str, int] = {}
        self._rechecked = False
        self._sweep_at = 0.0

    async def tidy(self) -> None:
        """One round. Each part goes on if another fails."""
        failures: list[Exception] = []
        parts = (
            self._recheck,
            self._end_jobs,
            self._finish_forgetting,
            self._advance,
            self._weigh,
            self._purge,
        )
        for part in parts:
            try:
                await part()
            except PenstockError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    async def _recheck(self) -> None:
        if not self._rechecked:
            await recheck(self._workshop)
            self._rechecked = True

    async def _end_jobs(self) -> None:
        queue = self._workshop.queue
        for row in await self._workshop.ledger.jobs.unended(_SETTLED_MS):
            try:
                record = await queue.job(row.job_id).status()
            except JobMissing:
                await self._end_lost(row)
                continue
            if not record.is_final or record.status == "done":
                continue
            if record.status == "failed":
                await self._end_failed(row, record)
            else:
                await end_cancelled(self._workshop, row, record)

    async def _end_lost(self, row: JobRow) -> None:
        if await self._workshop.ledger.jobs.end_older(row.job_id, _LOST_MS):
            logger.warning("job %s has gone from the queue without an end", row.job_id)

    async def _end_failed(self, row: JobRow, record: JobRecord) -> None:
        """A job that was buried without its handler: its process died too often, or ran out."""
        error = DocumentError(
            record.error or "its worker died again and again",
            code_of(record) or CRASHED,
            record.suggestions or ("Queue it again with: penstock ingest retry",),
        )
        try:
            case = Case.of_record(self._workshop, row, record)
        except DocumentError:
            await self._workshop.ledger.jobs.end(row.job_id, "failed", str(error))
            return
        await self._look_at(case, row)
        await self._giving_up.give_up(case, error, moves=case.identity is not None)

    async def _look_at(self, case: Case, row: JobRow) -> None:
        """Find out what the job had begun, and whether its file is still there and the same."""
        document = await self._workshop.ledger.document(row.rag_id, row.doc_id)
        if document is not None and document.job_id == row.job_id:
            case.digest = document.new_digest
            case.generation = document.generation if document.state == "processing" else 0
        wanted = case.digest or case.message.digest
        with suppress(DocumentRefused):
            case.identity = await asyncio.to_thread(_identity, case, wanted)

    async def _finish_forgetting(self) -> None:
        for document in await self._workshop.ledger.forgetting():
            await self._workshop.remove_points(
                document.rag_id, document.doc_id, document.generation
            )

    async def _advance(self) -> None:
        for row in await self._workshop.ledger.rags():
            if row.shadow or row.former:
                rag = self._workshop.config.rags.get(row.rag_id)
                if rag is None:
                    continue
                if row.shadow:
                    await self._rebuilding.advance(rag)
                else:
                    await self._rebuilding.swap(rag)

    async def _weigh(self) -> None:
        """Tell the queue how many documents each RAG may have in one turn."""
        for rag_id, rag in self._workshop.config.rags.items():
            if self._weights.get(rag_id, 1) != rag.weight:
                await self._workshop.app.queues.set_weight(QUEUE, rag_id, rag.weight)
                self._weights[rag_id] = rag.weight

    async def _purge(self) -> None:
        """Remove what nobody comes back for: parts of jobs, and copies that were never queued."""
        older_s = self._workshop.settings.spool_hours * 3_600
        await asyncio.to_thread(purge, self._workshop.config.work_dir, older_s)
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + _SWEEP_S
            for rag in self._workshop.config.rags.values():
                for folder in self._workshop.folders(rag)[:3]:
                    await asyncio.to_thread(folder.tidy, older_s=_SWEEP_S)
        for rag in self._workshop.config.rags.values():
            place = self._workshop.folders(rag).incoming.root / SUBMITTED
            for batch in await asyncio.to_thread(_old_folders, place, older_s):
                if not await self._workshop.ledger.jobs.unended_of(batch.name):
                    await asyncio.to_thread(shutil.rmtree, batch, ignore_errors=True)


def _old_folders(place: Path, older_s: float) -> list[Path]:
    before = time.time() - older_s
    try:
        return [folder for folder in place.iterdir() if folder.stat().st_mtime < before]
    except OSError:
        return []  # there is none, or somebody else is at it


def _identity(case: Case, digest: str) -> Identity:
    with case.place.open(case.name, max_bytes=case.rag.max_bytes) as file:
        if digest and file.digest() != digest:
            raise FileMissing("another file has taken its place")
        return file.identity
