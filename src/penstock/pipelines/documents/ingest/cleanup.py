"""Cleaning up after interrupted jobs: a periodic duty of every worker.

The ledger is on disk when a document is done, its vectors up to a second later. After a crash of
the machine the last minute of documents is therefore rechecked: fewer points than chunks means that
the document is indexed again.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from penstock.errors import DocumentError, DocumentRefused, FileMissing, JobMissing, PenstockError
from penstock.pipelines.documents.admin.views import CRASHED, code_of
from penstock.pipelines.documents.config.models import RagConfig
from penstock.pipelines.documents.ingest.failed_documents import FailedDocuments, stored_text
from penstock.pipelines.documents.ingest.finished_files import FinishedFiles
from penstock.pipelines.documents.ingest.job_state import IngestJobState
from penstock.pipelines.documents.ingest.rebuilding import Rebuilder
from penstock.pipelines.documents.ingest.removal import end_cancelled, remove_points
from penstock.pipelines.documents.ledger.tables import DocumentRow, JobRow, RagRow
from penstock.pipelines.documents.parsing.sandbox.spool import purge
from penstock.pipelines.documents.resources import DocumentResources
from penstock.pipelines.documents.submit.job_message import QUEUE
from penstock.pipelines.documents.submit.submitter import (
    SUBMITTED,
    SourceFile,
    SubmitOptions,
    Submitter,
)
from penstock.queues.storage.job_record import JobRecord
from penstock.runtime.duty import Duty
from penstock.stores.files.folder import Identity

__all__ = ["Cleanup", "lacks_points", "recheck", "recheck_documents"]

logger = logging.getLogger(__name__)

_EVERY_S = 5.0
_SETTLED_MS = 10_000
"""Age from which a job that has ended in the queue should have ended in the ledger."""
_SWEEP_S = 3_600.0
"""Interval of the sweep for partial files, and their least age."""
_LOST_MS = 3_600_000
"""Age from which a job without a record counts as deleted from the queue."""
_LOST_COPY_MS = 60_000
"""The same for copies of a rebuild, which are entered before they are queued."""
_LAST_MS = 60_000
"""Period before the last finished document that is rechecked."""
_MOST_RECHECKED = 10_000


class Cleanup(Duty):
    """Ends crashed, cancelled and deleted jobs in the ledger, and completes what they left.

    Also removes points of forgotten documents, advances rebuilds, and deletes old partial files.
    """

    def __init__(self, resources: DocumentResources, finished_files: FinishedFiles) -> None:
        super().__init__("documents: cleanup", self.clean, every_s=_EVERY_S)
        self._resources = resources
        self._failed_documents = FailedDocuments(resources, finished_files)
        self._rebuilder = Rebuilder(resources)
        self._weights: dict[str, int] = {}
        self._rechecked = False
        self._sweep_at = 0.0

    async def clean(self) -> None:
        """One round. A part that fails does not keep the others from running."""
        failures: list[Exception] = []
        parts = (
            self._recheck,
            self._end_jobs,
            self._finish_forgetting,
            self._advance_rebuilds,
            self._set_weights,
            self._remove_old_files,
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
            await recheck(self._resources)
            self._rechecked = True

    async def _end_jobs(self) -> None:
        queue = self._resources.queue
        for row in await self._resources.ledger.jobs.unended(_SETTLED_MS):
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
                await end_cancelled(self._resources, row, record)

    async def _end_lost(self, row: JobRow) -> None:
        rag = await self._resources.ledger.rag(row.rag_id)
        is_copy = rag is not None and bool(rag.shadow) and rag.batch_id == row.batch_id
        older_ms = _LOST_COPY_MS if is_copy else _LOST_MS
        if await self._resources.ledger.jobs.end_older(row.job_id, older_ms):
            logger.warning("job %s is gone from the queue without an end", row.job_id)

    async def _end_failed(self, row: JobRow, record: JobRecord) -> None:
        """End a job that the queue buried because its worker died at every attempt."""
        error = DocumentError(
            record.error or "its worker died at every attempt",
            code_of(record) or CRASHED,
            record.suggestions or ("Replay it: penstock ingest replay JOB",),
        )
        try:
            state = IngestJobState.from_record(self._resources, row, record)
        except DocumentError:
            reason = stored_text(self._resources, str(error))
            await self._resources.ledger.jobs.end(row.job_id, "failed", reason)
            return
        await self._restore(state, row)
        await self._failed_documents.give_up(state, error, moves=state.identity is not None)

    async def _restore(self, state: IngestJobState, row: JobRow) -> None:
        """Restore what the job had begun, and the identity of its file if that is unchanged."""
        document = await self._resources.ledger.document(row.rag_id, row.doc_id)
        if document is not None and document.job_id == row.job_id:
            state.digest = document.new_digest
            state.generation = document.generation if document.state == "processing" else 0
        wanted = state.digest or state.message.digest
        with suppress(DocumentRefused):
            state.identity = await asyncio.to_thread(_identity, state, wanted)

    async def _finish_forgetting(self) -> None:
        for document in await self._resources.ledger.forgetting():
            await remove_points(
                self._resources, document.rag_id, document.doc_id, document.generation
            )

    async def _advance_rebuilds(self) -> None:
        for row in await self._resources.ledger.rags():
            if row.shadow or row.former:
                rag = self._resources.config.rags.get(row.rag_id)
                if rag is None:
                    continue
                if row.shadow:
                    await self._rebuilder.advance(rag)
                else:
                    await self._rebuilder.swap(rag)

    async def _set_weights(self) -> None:
        """Give the lane of each RAG the weight that its file sets."""
        for rag_id, rag in self._resources.config.rags.items():
            if self._weights.get(rag_id, 1) != rag.weight:
                await self._resources.app.queues.set_weight(QUEUE, rag_id, rag.weight)
                self._weights[rag_id] = rag.weight

    async def _remove_old_files(self) -> None:
        """Remove old parts of documents, and copies whose jobs were never queued."""
        older_s = self._resources.settings.spool_hours * 3_600
        await asyncio.to_thread(purge, self._resources.config.work_dir, older_s)
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + _SWEEP_S
            for rag in self._resources.config.rags.values():
                for folder in self._resources.folders(rag)[:3]:
                    await asyncio.to_thread(folder.tidy, older_s=_SWEEP_S)
        for rag in self._resources.config.rags.values():
            place = self._resources.folders(rag).incoming.root / SUBMITTED
            for batch in await asyncio.to_thread(_old_folders, place, older_s):
                if not await self._resources.ledger.jobs.unended_of(batch.name):
                    await asyncio.to_thread(shutil.rmtree, batch, ignore_errors=True)


async def recheck(resources: DocumentResources, *, last_ms: int = _LAST_MS) -> list[str]:
    """Index recent documents again that have lost points; their ids."""
    repaired: list[str] = []
    for row in await resources.ledger.rags():
        rag = resources.config.rags.get(row.rag_id)
        if rag is not None:
            await resources.vectors.create(row.physical, row.dimension)
            latest = await resources.ledger.latest(row.rag_id, last_ms, _MOST_RECHECKED)
            repaired += await recheck_documents(resources, rag, row, latest)
    return repaired


async def recheck_documents(
    resources: DocumentResources, rag: RagConfig, row: RagRow, documents: Sequence[DocumentRow]
) -> list[str]:
    """Index those of these documents again that have lost points; their ids."""
    wrong = [one for one in documents if one.stored and await lacks_points(resources, row, one)]
    if wrong:
        logger.warning("RAG %s: %d documents have lost points", row.rag_id, len(wrong))
        root = resources.folders(rag).processed.root
        files = [
            SourceFile(path=root / one.file, name=one.file, place="processed", document=one.doc_id)
            for one in wrong
        ]
        options = SubmitOptions(reindex=True, skip_validation=True, submitted_by="recheck")
        await Submitter(resources).submit(rag, files, options)
    return [one.doc_id for one in wrong]


async def lacks_points(resources: DocumentResources, row: RagRow, document: DocumentRow) -> bool:
    """Whether points of the searchable version are missing; removes earlier versions first."""
    await resources.vectors.delete_before(row.physical, document.doc_id, document.sealed)
    counts = await resources.vectors.counts(row.physical, [document.doc_id])
    return counts.get(document.doc_id, 0) < document.chunks


def _old_folders(place: Path, older_s: float) -> list[Path]:
    before = time.time() - older_s
    try:
        return [folder for folder in place.iterdir() if folder.stat().st_mtime < before]
    except OSError:
        return []  # it does not exist, or another worker is removing it


def _identity(state: IngestJobState, digest: str) -> Identity:
    with state.place.open(state.name, max_bytes=state.folders.max_bytes) as file:
        if digest and file.digest() != digest:
            raise FileMissing("another file has taken its place")
        return file.identity
