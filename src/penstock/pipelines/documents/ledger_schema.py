"""The tables of the ledger, in SQL that SQLite and PostgreSQL both know."""

from __future__ import annotations

from penstock.stores.tables.port import Transaction

__all__ = ["has_tables", "make_tables"]

_TABLES = (
    """
    CREATE TABLE IF NOT EXISTS rag_rags (
        rag_id TEXT PRIMARY KEY,
        version BIGINT NOT NULL,
        physical TEXT NOT NULL,
        model TEXT NOT NULL,
        dimension BIGINT NOT NULL,
        embeddings TEXT NOT NULL,
        shadow TEXT NOT NULL DEFAULT '',
        shadow_model TEXT NOT NULL DEFAULT '',
        shadow_dimension BIGINT NOT NULL DEFAULT 0,
        shadow_embeddings TEXT NOT NULL DEFAULT '',
        shadow_recipe TEXT NOT NULL DEFAULT '',
        batch_id TEXT NOT NULL DEFAULT '',
        former TEXT NOT NULL DEFAULT ''
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS rag_documents (
        rag_id TEXT NOT NULL,
        doc_id TEXT NOT NULL,
        state TEXT NOT NULL,
        generation BIGINT NOT NULL,
        sealed BIGINT NOT NULL DEFAULT 0,
        digest TEXT NOT NULL DEFAULT '',
        recipe TEXT NOT NULL DEFAULT '',
        chunks BIGINT NOT NULL DEFAULT 0,
        size BIGINT NOT NULL DEFAULT 0,
        type TEXT NOT NULL DEFAULT '',
        stored TEXT NOT NULL DEFAULT '',
        source TEXT NOT NULL DEFAULT '',
        metadata TEXT NOT NULL DEFAULT '',
        duplicate_of TEXT NOT NULL DEFAULT '',
        job_id TEXT NOT NULL,
        new_digest TEXT NOT NULL,
        new_recipe TEXT NOT NULL,
        attempts BIGINT NOT NULL,
        submitted_ms BIGINT NOT NULL,
        begun_ms BIGINT NOT NULL,
        done_ms BIGINT NOT NULL DEFAULT 0,
        bad_digest TEXT NOT NULL DEFAULT '',
        bad_parser TEXT NOT NULL DEFAULT '',
        error_code TEXT NOT NULL DEFAULT '',
        error TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (rag_id, doc_id)
    )
    """,
    "CREATE INDEX IF NOT EXISTS rag_documents_by_digest ON rag_documents (rag_id, digest)",
    "CREATE INDEX IF NOT EXISTS rag_documents_by_state ON rag_documents (state, rag_id)",
    """
    CREATE TABLE IF NOT EXISTS rag_copies (
        rag_id TEXT NOT NULL,
        doc_id TEXT NOT NULL,
        physical TEXT NOT NULL,
        generation BIGINT NOT NULL,
        recipe TEXT NOT NULL,
        chunks BIGINT NOT NULL,
        PRIMARY KEY (rag_id, doc_id, physical)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS rag_jobs (
        job_id TEXT PRIMARY KEY,
        batch_id TEXT NOT NULL DEFAULT '',
        rag_id TEXT NOT NULL,
        doc_id TEXT NOT NULL,
        state TEXT NOT NULL,
        submitted_ms BIGINT NOT NULL,
        ended_ms BIGINT NOT NULL DEFAULT 0,
        chunks BIGINT NOT NULL DEFAULT 0,
        error_code TEXT NOT NULL DEFAULT '',
        error TEXT NOT NULL DEFAULT ''
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS rag_batches (
        batch_id TEXT NOT NULL,
        job_id TEXT NOT NULL,
        PRIMARY KEY (batch_id, job_id)
    )
    """,
    "CREATE INDEX IF NOT EXISTS rag_jobs_by_end ON rag_jobs (ended_ms)",
    "CREATE INDEX IF NOT EXISTS rag_jobs_by_rag ON rag_jobs (rag_id, state)",
    "CREATE INDEX IF NOT EXISTS rag_jobs_by_state ON rag_jobs (state, submitted_ms)",
)


def has_tables(tables: Transaction) -> None:
    """StoreError if they have not been made yet."""
    tables.execute("SELECT batch_id FROM rag_batches LIMIT 1")


def make_tables(tables: Transaction) -> None:
    """Make what is not there yet."""
    for statement in _TABLES:
        tables.execute(statement)
