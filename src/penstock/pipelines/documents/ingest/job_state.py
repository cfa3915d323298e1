"""State of one ingest job: its message, its file, and what the attempt has found out so far."""

from __future__ import annotations

import time

import msgspec

from penstock.pipelines.documents.config.models import RagConfig
from penstock.pipelines.documents.ledger.tables import IngestAttempt, JobRow
from penstock.pipelines.documents.parsing.chunks import parser_version
from penstock.pipelines.documents.resources import DocumentResources, RagFolders
from penstock.pipelines.documents.submit.job_message import JobMessage, now_text, submitted_ms
from penstock.pipelines.documents.submit.submitter import is_copy, without_batch
from penstock.queues.queue import Queue
from penstock.queues.storage.job_record import JobRecord
from penstock.queues.worker.job_context import JobContext
from penstock.stores.files.folder import Folder, Identity
from penstock.stores.files.naming import suffix_of

__all__ = ["IngestJobState", "ProgressReporter"]

_EVERY_S = 0.5


class ProgressReporter:
    """Writes progress into a job's record, at most every `_EVERY_S`."""

    def __init__(self, job: JobContext | None) -> None:
        self._job = job
        self._reported_at = time.monotonic()

    async def report(
        self,
        done: int | None = None,
        total: int | None = None,
        note: str | None = None,
        *,
        force: bool = False,
        **counts: float | str,
    ) -> None:
        """As `JobContext.progress`; skipped after a recent report, unless with `force`."""
        now = time.monotonic()
        if self._job is None:
            return
        if force or now - self._reported_at >= _EVERY_S:
            self._reported_at = now
            await self._job.progress(done, total, note, **counts)


class IngestJobState:
    """One job while it is processed. The attempt fills `identity`, `digest` and `generation`."""

    def __init__(
        self,
        resources: DocumentResources,
        message: JobMessage,
        rag: RagConfig,
        job: JobContext | None,
    ) -> None:
        self.message, self.rag = message, rag
        self.folders: RagFolders = resources.folders(rag)
        self.place, self.name = resources.place_of(rag, message.source_path)
        """The file: in `incoming/`, or in `processed/` if the document is indexed again."""
        self.final_name = without_batch(self.name)
        """Path of the file in `processed/` or `failed/`."""
        self.suffix = suffix_of(message.job_id)
        """Of the file's name there, if another file has it."""
        self.doc_id = message.document or Folder.label(self.final_name)
        self.started_at = now_text()
        self.since_ms = submitted_ms(message.submitted_at)
        """Server time of the submission: later submissions of a document win."""
        self.progress = ProgressReporter(job)
        self.retries = job.attempt - 1 if job is not None else 0
        self.max_retries = max(job.max_attempts - 1, 0) if job is not None else message.max_retries
        self.digest = self.recipe = ""
        self.size = 0
        self.identity: Identity | None = None
        """Of the opened file. A file that replaces it at the same path must not be moved."""
        self.generation = 0
        """Of this attempt; 0 until the ledger has begun it."""

    @classmethod
    def from_record(
        cls, resources: DocumentResources, row: JobRow, record: JobRecord
    ) -> IngestJobState:
        """State of a job whose handler did not end it, restored from the job's record."""
        fields = record.fields
        message = JobMessage(
            job_id=row.job_id,
            rag_id=row.rag_id,
            source_path=fields.get("source_path", ""),
            source_type=fields.get("source_type", ""),
            filename=fields.get("filename", "") or row.doc_id,
            submitted_at=str(record.contract_view()["submitted_at"]),
            document=row.doc_id,
            batch_id=row.batch_id,
            digest=fields.get("digest", ""),
            target=fields.get("target", ""),
        )
        state = cls(resources, message, resources.rag(row.rag_id), None)
        state.retries = max(record.attempt - 1, 0)
        return state

    async def date_file(self, queue: Queue) -> None:
        """Count a file that lies in `incoming/` itself as submitted now: it is the latest one."""
        if not (self.is_copy or self.is_stored):
            self.since_ms = await queue.server_ms()

    @property
    def is_stored(self) -> bool:
        """Whether the file is in `processed/`."""
        return self.place is self.folders.processed

    @property
    def is_copy(self) -> bool:
        """Whether the file is a copy that was made for this job."""
        return is_copy(self.name)

    @property
    def attempt(self) -> IngestAttempt:
        return IngestAttempt(
            rag_id=self.rag.rag_id,
            doc_id=self.doc_id,
            job_id=self.message.job_id,
            batch_id=self.message.batch_id,
            digest=self.digest,
            recipe=self.recipe,
            parser=parser_version(),
            source=self.message.source,
            submitted_ms=self.since_ms,
            force=self.message.options.reindex,
        )

    @property
    def forced(self) -> IngestAttempt:
        """As `attempt`, also for an unchanged document."""
        return msgspec.structs.replace(self.attempt, force=True)

    @property
    def changed_since_submit(self) -> bool:
        return bool(self.message.digest) and self.message.digest != self.digest
