"""Views of jobs, batches and RAGs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from penstock.pipelines.documents.ledger.tables import JobRow
from penstock.pipelines.documents.submit.job_message import STATUS_FIELDS
from penstock.queues.storage.job_record import JobRecord

__all__ = ["CRASHED", "DocumentBatchView", "FileView", "RagView", "code_of", "status_of"]


class FileView(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a batch."""

    job_id: str
    document: str
    status: str
    """submitted, queued, processing, retrying, done, failed or cancelled."""
    stage: str = ""
    done: int | None = None
    total: int | None = None
    chunks_created: int = 0
    embeddings_generated: int = 0
    tokens_used: int = 0
    error: str = ""
    error_code: str = ""

    @property
    def part(self) -> float:
        """Completed share, from 0 to 1."""
        if self.status in _ENDED:
            return 1.0
        return min(1.0, (self.done or 0) / self.total) if self.total else 0.0


class DocumentBatchView(msgspec.Struct, frozen=True, kw_only=True):
    """A batch: its files, and all of them together."""

    batch_id: str
    rag_id: str
    files: tuple[FileView, ...]
    age_ms: int = 0
    """Since its first file was submitted."""

    @property
    def part(self) -> float:
        """Completed share of the batch, from 0 to 1."""
        return sum(file.part for file in self.files) / len(self.files) if self.files else 1.0

    @property
    def estimated_remaining_s(self) -> float | None:
        """Extrapolated from the time so far; None while nothing is completed."""
        part = self.part
        return round(self.age_ms / 1000 * (1 - part) / part, 1) if part else None

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(file.status for file in self.files))

    @property
    def ended(self) -> int:
        """Number of files that have ended."""
        return sum(file.status in _ENDED for file in self.files)

    @property
    def is_final(self) -> bool:
        return self.ended == len(self.files)

    @property
    def status(self) -> str:
        """queued, processing, or how it ended: failed if any file has, cancelled if all were."""
        if not self.is_final:
            return "processing" if self.ended or self.counts.get("processing") else "queued"
        ended = {file.status for file in self.files}
        if ended - {"done", "cancelled"}:
            return "failed"
        return "cancelled" if ended == {"cancelled"} else "done"

    def as_json(self) -> dict[str, Any]:
        return {
            "batch_id": self.batch_id,
            "rag_id": self.rag_id,
            "status": self.status,
            "total": len(self.files),
            "ended": self.ended,
            "counts": self.counts,
            "chunks_created": sum(file.chunks_created for file in self.files),
            "embeddings_generated": sum(file.embeddings_generated for file in self.files),
            "tokens_used": sum(file.tokens_used for file in self.files),
            "estimated_remaining_seconds": self.estimated_remaining_s,
            "files": msgspec.to_builtins(self.files),
        }


class RagView(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration and contents of a RAG."""

    rag_id: str
    description: str
    collection: str
    model: str
    dimension: int
    documents: dict[str, int]
    """Number of documents by state."""
    chunks: int
    folder: str
    rebuilding: str = ""
    """Collection of a rebuild under way."""
    needs_reindex: str = ""
    """Why the index does not match the RAG's file."""
    trouble: str = ""
    """Why it cannot be used: the error of its embedder."""


CRASHED = "ERR_WORKER_CRASHED"
"""Code of a document whose worker died at its last attempt."""
_DIED = "Crashed"
"""Error type that the queue sets then."""
_ENDED = frozenset({"done", "failed", "cancelled", "expired", "lost"})


def file_view(row: JobRow, record: JobRecord | None) -> FileView:
    """View of a job by its record, or by the ledger if the record has expired."""
    if record is None:
        status = {"open": "queued"}.get(row.state, row.state)
        return FileView(
            job_id=row.job_id,
            document=row.doc_id,
            status=status,
            chunks_created=row.chunks,
            error=row.error,
            error_code=row.error_code,
        )
    counts = record.progress.counts
    return FileView(
        job_id=row.job_id,
        document=row.doc_id,
        status=record.status,
        stage=record.progress.note,
        done=record.progress.done,
        total=record.progress.total,
        chunks_created=row.chunks or int(counts.get("chunks_created", 0)),
        embeddings_generated=int(counts.get("embeddings_generated", 0)),
        tokens_used=int(counts.get("tokens_used", 0)),
        error=record.error if record.status != "done" else "",
        error_code=code_of(record) if record.status != "done" else "",
    )


def code_of(record: JobRecord) -> str:
    """Error code of a failed job, also if its worker died."""
    # The record may still have the code of an earlier attempt.
    return CRASHED if record.error_type == _DIED else record.error_code


def status_of(record: JobRecord) -> dict[str, Any]:
    """Status body of a job, with the fields of docs/contracts.md and its progress."""
    view = record.contract_view()
    # Fields of the message stay strings, even if they look like numbers.
    view |= {name: record.fields[name] for name in STATUS_FIELDS if name in record.fields}
    if view["error_type"]:
        view["error_type"] = view["error_type"].rpartition(".")[2]
    for name in ("chunks_created", "embeddings_generated", "tokens_used"):
        view.setdefault(name, 0)
    if record.status in {"processing", "retrying"} and record.error_code:
        # The reason of the retry.
        view |= {"error_code": record.error_code, "suggestions": list(record.suggestions)}
    if record.status == "failed":
        view["error_code"] = code_of(record) or None
    progress = record.progress
    if record.status in {"processing", "retrying"}:
        view["stage"] = progress.note or record.status
        view["progress"] = {"done": progress.done, "total": progress.total}
    return view
