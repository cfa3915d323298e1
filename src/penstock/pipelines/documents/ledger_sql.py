"""Statements that several parts of the ledger need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from penstock.pipelines.documents.ledger_rows import (
    Attempt,
    DocumentRow,
    JobRow,
    RagRow,
    columns,
)
from penstock.stores.tables.port import Row, Transaction

__all__ = [
    "DOCUMENT",
    "JOB",
    "RAG",
    "document_of",
    "end_job",
    "enter_job",
    "for_each_chunk",
    "is_bad",
    "is_unchanged",
    "locked",
    "made",
    "marks",
    "not_copied",
    "rag_of",
]

T = TypeVar("T", bound=msgspec.Struct)

RAG, DOCUMENT, JOB = columns(RagRow), columns(DocumentRow), columns(JobRow)
_CHUNK = 500


def rag_of(tables: Transaction, rag_id: str) -> RagRow:
    (row,) = tables.execute(f"SELECT {RAG} FROM rag_rags WHERE rag_id = ?", rag_id)
    return made(RagRow, row)


def document_of(tables: Transaction, rag_id: str, doc_id: str) -> DocumentRow | None:
    rows = tables.execute(
        f"SELECT {DOCUMENT} FROM rag_documents WHERE rag_id = ? AND doc_id = ?", rag_id, doc_id
    )
    return made(DocumentRow, rows[0]) if rows else None


def not_copied(tables: Transaction, rag_id: str, shadow: str, limit: int) -> list[Row]:
    """Documents that are found, and not in this state and by its recipe in the shadow."""
    return tables.execute(
        f"SELECT {DOCUMENT} FROM rag_documents d WHERE rag_id = ? AND sealed > 0 AND NOT EXISTS ("
        "SELECT 1 FROM rag_copies c WHERE c.rag_id = d.rag_id AND c.doc_id = d.doc_id "
        "AND c.physical = ? AND c.generation = d.sealed AND c.recipe = ("
        "SELECT r.shadow_recipe FROM rag_rags r WHERE r.rag_id = d.rag_id)) "
        "ORDER BY doc_id LIMIT ?",
        *(rag_id, shadow, limit),
    )


def enter_job(tables: Transaction, attempt: Attempt, now: int) -> None:
    tables.execute(
        "INSERT INTO rag_jobs (job_id, batch_id, rag_id, doc_id, state, submitted_ms) "
        "VALUES (?, ?, ?, ?, 'open', ?) ON CONFLICT (job_id) DO NOTHING",
        *(attempt.job_id, attempt.batch_id, attempt.rag_id, attempt.doc_id, now),
    )


def end_job(
    tables: Transaction,
    attempt: Attempt,
    state: str,
    now: int,
    *,
    chunks: int = 0,
    code: str = "",
    error: str = "",
) -> None:
    enter_job(tables, attempt, now)
    tables.execute(
        "UPDATE rag_jobs SET state = ?, ended_ms = ?, chunks = ?, error_code = ?, error = ? "
        "WHERE job_id = ?",
        *(state, now, chunks, code, error[:2_000], attempt.job_id),
    )


def made(kind: type[T], row: Row) -> T:
    """A row as an object; its columns are those of `columns(kind)`."""
    return kind(**dict(zip(kind.__struct_fields__, row, strict=True)))


def marks(count: int) -> str:
    return ", ".join("?" * count)


def for_each_chunk(ids: Sequence[str], ask: Callable[[Sequence[str]], list[Row]]) -> list[Row]:
    return [row for start in range(0, len(ids), _CHUNK) for row in ask(ids[start : start + _CHUNK])]


def locked(tables: Transaction, attempt: Attempt) -> DocumentRow:
    """The row of a document; nobody else changes it before this transaction ends."""
    (row,) = tables.execute(
        "UPDATE rag_documents SET attempts = attempts WHERE rag_id = ? AND doc_id = ? "
        f"RETURNING {DOCUMENT}",
        *(attempt.rag_id, attempt.doc_id),
    )
    return made(DocumentRow, row)


def is_unchanged(row: DocumentRow, attempt: Attempt) -> bool:
    return (
        row.sealed > 0
        and row.sealed == row.generation
        and (row.digest, row.recipe) == (attempt.digest, attempt.recipe)
    )


def is_bad(row: DocumentRow, attempt: Attempt) -> bool:
    return bool(row.bad_digest) and (
        (row.bad_digest, row.bad_parser) == (attempt.digest, attempt.parser)
    )
