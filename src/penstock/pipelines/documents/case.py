"""A job in hand."""

from __future__ import annotations

from pathlib import PurePosixPath

import msgspec

from penstock.errors import UnsupportedFile
from penstock.pipelines.documents.configuration import RagConfig
from penstock.pipelines.documents.ledger_rows import Attempt, JobRow
from penstock.pipelines.documents.message import JobMessage, now_text, submitted_ms
from penstock.pipelines.documents.parsing.version import parser_version
from penstock.pipelines.documents.progress import Progress
from penstock.pipelines.documents.workshop import Folders, Workshop
from penstock.queues.context import JobContext
from penstock.queues.queue import Queue
from penstock.queues.records import JobRecord
from penstock.stores.files.folder import Folder, Identity

__all__ = ["SUBMITTED", "Case", "check_extension"]

SUBMITTED = ".submitted"
"""Below `incoming/`: copies of files from elsewhere, a folder for each batch. Watchers pass it by:
the jobs of these files are queued by whoever brought them."""


class Case:
    """One job in hand, with what is known of it so far."""

    def __init__(
        self, workshop: Workshop, message: JobMessage, rag: RagConfig, job: JobContext | None
    ) -> None:
        self.message, self.rag = message, rag
        self.folders: Folders = workshop.folders(rag)
        self.place, self.name = workshop.place_of(rag, message.source_path)
        """Where its file is: in `incoming/`, or in `processed/` if it is taken in anew."""
        self.goes_by = _without_batch(self.name)
        """The name of the file, there and wherever it goes."""
        self.doc_id = message.document or Folder.label(self.goes_by)
        self.started_at = now_text()
        self.since_ms = submitted_ms(message.submitted_at)
        """From when the file is, by the server's clock."""
        self.progress = Progress(job)
        self.retries = job.attempt - 1 if job is not None else 0
        self.max_retries = max(job.max_attempts - 1, 0) if job is not None else message.max_retries
        self.digest = self.recipe = ""
        self.size = 0
        self.identity: Identity | None = None
        """Of the file, once it is open: whatever takes its place is not ours to move."""
        self.generation = 0
        """Of this attempt, once it has begun."""

    @classmethod
    def of_record(cls, workshop: Workshop, row: JobRow, record: JobRecord) -> Case:
        """A job that ended without its handler, as its record tells it."""
        fields = record.fields
        message = JobMessage(
            job_id=row.job_id,
            rag_id=row.rag_id,
            source_path=fields.get("source_path", ""),
            source_type=fields.get("source_type", ""),
            filename=fields.get("filename", "") or row.doc_id,
            submitted_at=str(record.seed_view()["submitted_at"]),
            document=row.doc_id,
            batch_id=row.batch_id,
            digest=fields.get("digest", ""),
            target=fields.get("target", ""),
        )
        case = cls(workshop, message, workshop.rag(row.rag_id), None)
        case.retries = max(record.attempt - 1, 0)
        return case

    async def date(self, queue: Queue) -> None:
        """What lies in `incoming/` itself is the latest, whenever its job was submitted."""
        if not (self.is_copy or self.is_stored):
            self.since_ms = await queue.server_ms()

    @property
    def is_stored(self) -> bool:
        """Whether the file is where it belongs when it is done with."""
        return self.place is self.folders.processed

    @property
    def is_copy(self) -> bool:
        """Whether the file is a copy that was made for this job."""
        return self.name.startswith(f"{SUBMITTED}/")

    @property
    def attempt(self) -> Attempt:
        return Attempt(
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
    def forced(self) -> Attempt:
        """As `attempt`, whether anything has changed or not."""
        return msgspec.structs.replace(self.attempt, force=True)

    @property
    def changed_since_submit(self) -> bool:
        return bool(self.message.digest) and self.message.digest != self.digest


def _without_batch(name: str) -> str:
    parts = name.split("/", 2)
    return parts[2] if parts[0] == SUBMITTED and len(parts) > 2 else name  # noqa: PLR2004


def check_extension(rag: RagConfig, name: str) -> None:
    """UnsupportedFile if the RAG does not take files of such a name."""
    extension = PurePosixPath(name).suffix.lower()
    if extension not in rag.sources.extensions:
        raise UnsupportedFile(
            f"{name!r}: RAG {rag.rag_id!r} takes no {extension or 'files without extension'}",
            "ERR_UNSUPPORTED_TYPE",
            (f"It takes {', '.join(rag.sources.extensions)}: see sources.extensions",),
        )
