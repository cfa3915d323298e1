"""Jobs, batches and RAGs as callers see them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from penstock.pipelines.documents.ledger_rows import JobRow
from penstock.pipelines.documents.message import STATUS_FIELDS
from penstock.queues.records import JobRecord

__all__ = ["CRASHED", "BatchView", "FileView", "RagView", "code_of", "status_of"]


class FileView(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a batch."""

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
        """How much of it is done with, from 0 to 1."""
        if self.status in _ENDED:
            return 1.0
        return min(1.0, (self.done or 0) / self.total) if self.total else 0.0


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """A batch: its files, and all of them together."""

    batch_id: str
    rag_id: str
    files: tuple[FileView, ...]
    age_ms: int = 0
    """Since its first file was submitted."""

    @property
    def part(self) -> float:
        """How much of the batch is done with, from 0 to 1."""
        return sum(file.part for file in self.files) / len(self.files) if self.files else 1.0

    @property
    def estimated_remaining_s(self) -> float | None:
        """If it goes on as it went so far; None if nobody can tell yet."""
        part = self.part
        return round(self.age_ms / 1000 * (1 - part) / part, 1) if part else None

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(file.status for file in self.files))

    @property
    def ended(self) -> int:
        """How many files are done with, one way or another."""
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
    """A RAG as it is configured and as it is."""

    rag_id: str
    description: str
    collection: str
    model: str
    dimension: int
    documents: dict[str, int]
    """How many there are in each state."""
    chunks: int
    folder: str
    rebuilding: str = ""
    """The collection that is being built."""
    needs_reindex: str = ""
    """Why what is indexed is not what its file asks for."""
    trouble: str = ""
    """Why it cannot be used now: its embedder cannot be opened."""


CRASHED = "ERR_WORKER_CRASHED"
"""The code of a document whose worker died at its last attempt."""
_DIED = "Crashed"
"""What the queue says then."""
_ENDED = frozenset({"done", "failed", "cancelled", "expired", "lost"})


def file_view(row: JobRow, record: JobRecord | None) -> FileView:
    """A job by its record, and by the ledger where that has gone."""
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
    """Why a job has failed, also if nobody was left to say so."""
    # What it may have failed of before is still in its record.
    return CRASHED if record.error_type == _DIED else record.error_code


def status_of(record: JobRecord) -> dict[str, Any]:
    """The status body of seed 002, with how far the job is."""
    view = record.seed_view()
    # Texts of the message, however much they look like numbers.
    view |= {name: record.fields[name] for name in STATUS_FIELDS if name in record.fields}
    if view["error_type"]:
        view["error_type"] = view["error_type"].rpartition(".")[2]
    for name in ("chunks_created", "embeddings_generated", "tokens_used"):
        view.setdefault(name, 0)
    if record.status in {"processing", "retrying"} and record.error_code:
        # Why it is tried again: the same words as when it is given up.
        view |= {"error_code": record.error_code, "suggestions": list(record.suggestions)}
    if record.status == "failed":
        view["error_code"] = code_of(record) or None
    progress = record.progress
    if record.status in {"processing", "retrying"}:
        view["stage"] = progress.note or record.status
        view["progress"] = {"done": progress.done, "total": progress.total}
    return view
