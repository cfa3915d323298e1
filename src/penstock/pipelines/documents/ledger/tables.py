"""Tables of the ledger: their rows, the schema, and reading rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Literal, TypeVar

import msgspec

from penstock.stores.files.naming import unescaped
from penstock.stores.tables.port import Row, Tables, Transaction, Value

__all__ = ["BadFile", "BeginResult", "DocumentRow", "DocumentVersion", "IngestAttempt", "JobRow"]
__all__ += ["LedgerTables", "RagRow", "SealResult", "columns", "has_tables", "made"]
__all__ += ["make_tables", "marks", "rows"]

DocumentState = Literal[
    "processing", "sealed", "indexed", "failed", "cancelled", "forgetting", "forgotten"
]


class RagRow(msgspec.Struct, frozen=True, kw_only=True):
    """A RAG: the collection that serves it, and the shadow that a rebuild fills."""

    rag_id: str
    version: int
    physical: str
    model: str
    dimension: int
    embeddings: str
    """Settings of its vectors as JSON: the file of the RAG may have changed since."""
    shadow: str = ""
    shadow_model: str = ""
    shadow_dimension: int = 0
    shadow_embeddings: str = ""
    shadow_recipe: str = ""
    """Of all copies in the shadow, so that chunks of two recipes are never mixed."""
    batch_id: str = ""
    """Batch of the jobs that fill the shadow."""
    former: str = ""
    """The collection that was replaced, until it is dropped."""


class DocumentRow(msgspec.Struct, frozen=True, kw_only=True):
    """A document: its searchable version, and the attempt that began last."""

    rag_id: str
    doc_id: str
    state: DocumentState
    generation: int
    """Of the attempt that began last."""
    sealed: int
    """The searchable generation, 0 if none; the fields up to `metadata` describe it."""
    digest: str
    recipe: str
    chunks: int
    size: int
    type: str
    stored: str
    source: str
    metadata: str
    duplicate_of: str
    job_id: str
    """Job of the last attempt; the fields below describe that attempt."""
    new_digest: str
    new_recipe: str
    attempts: int
    submitted_ms: int
    begun_ms: int
    done_ms: int
    bad_digest: str
    """Digest of a file that `bad_parser` could not read."""
    bad_parser: str
    error_code: str
    error: str

    @property
    def file(self) -> str:
        """Name of the searchable version in `processed/`; `stored` is its escaped form."""
        return unescaped(self.stored)


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    batch_id: str
    rag_id: str
    doc_id: str
    state: str
    """open, done, failed or cancelled."""
    submitted_ms: int
    ended_ms: int
    chunks: int
    error_code: str
    error: str


class IngestAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a job at a document."""

    rag_id: str
    doc_id: str
    job_id: str
    batch_id: str
    digest: str
    recipe: str
    parser: str
    source: str
    submitted_ms: int
    """Older submissions are ignored once a newer one has started."""
    force: bool
    """Index the document also if it is unchanged, or known to be unreadable."""


class BadFile(msgspec.Struct, frozen=True):
    """Why a file is not read again."""

    error_code: str
    error: str


class BeginResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an attempt may go on, and with which generation."""

    verdict: Literal["go", "unchanged", "bad", "superseded"]
    rag: RagRow
    generation: int
    """Of this attempt; if unchanged, of the version that is searchable."""
    former: DocumentRow | None
    """The document before this attempt; None if it is new."""
    bad: BadFile | None = None
    """With `bad`: why the file is known to be unreadable."""

    @property
    def known(self) -> DocumentRow:
        """`former` of a verdict other than `go`: only a new document has none."""
        if self.former is None:
            raise AssertionError(f"a verdict {self.verdict!r} on a document without a row")
        return self.former


class DocumentVersion(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a version that is sealed."""

    chunks: int
    size: int
    type: str
    metadata: str


class SealResult(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Literal["sealed", "superseded", "moved"]
    """`superseded`: a later attempt has begun; `moved`: another collection serves the RAG now."""
    duplicate_of: str = ""


@cache
def columns(row: type[msgspec.Struct]) -> str:
    """Columns of a row for a SELECT, in the order of its fields."""
    return ", ".join(row.__struct_fields__)


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
    """
    CREATE TABLE IF NOT EXISTS rag_parser_deaths (
        digest TEXT NOT NULL,
        parser TEXT NOT NULL,
        deaths BIGINT NOT NULL,
        error_code TEXT NOT NULL,
        error TEXT NOT NULL,
        PRIMARY KEY (digest, parser)
    )
    """,
    "CREATE INDEX IF NOT EXISTS rag_jobs_by_end ON rag_jobs (ended_ms)",
    "CREATE INDEX IF NOT EXISTS rag_jobs_by_rag ON rag_jobs (rag_id, state)",
    "CREATE INDEX IF NOT EXISTS rag_jobs_by_state ON rag_jobs (state, submitted_ms)",
)


def has_tables(tables: Transaction) -> None:
    """StoreError if the tables do not exist."""
    tables.execute("SELECT digest FROM rag_parser_deaths LIMIT 1")  # the newest table


def make_tables(tables: Transaction) -> None:
    """Create the tables and indexes that do not exist."""
    for statement in _TABLES:
        tables.execute(statement)


T = TypeVar("T", bound=msgspec.Struct)
_NAMES: dict[type[msgspec.Struct], str] = {
    RagRow: "rag_rags",
    DocumentRow: "rag_documents",
    JobRow: "rag_jobs",
}
_MOST_IDS = 500


def rows(tables: Transaction, kind: type[T], clauses: str, *values: Value) -> list[T]:
    """Rows of one kind, by the clauses of a SELECT behind the name of their table."""
    found = tables.execute(f"SELECT {columns(kind)} FROM {_NAMES[kind]} {clauses}", *values)
    return [made(kind, row) for row in found]


class LedgerTables:
    """Statements that need no transaction with others; base of the ledger's parts."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def _select(self, kind: type[T], clauses: str, *values: Value) -> list[T]:
        """As `rows`."""
        return await self._tables.read(lambda tables: rows(tables, kind, clauses, *values))

    async def _read(self, statement: str, *values: Value) -> list[Row]:
        return await self._tables.read(lambda tables: tables.execute(statement, *values))

    async def _write(self, statement: str, *values: Value) -> list[Row]:
        return await self._tables.write(lambda tables: tables.execute(statement, *values))

    async def _read_by_id(self, statement: str, rag_id: str, ids: Sequence[str]) -> list[Row]:
        """Read with `{}` for the marks of ids, which may be more than one statement takes."""

        def work(tables: Transaction) -> list[Row]:
            found: list[Row] = []
            for start in range(0, len(ids), _MOST_IDS):
                some = ids[start : start + _MOST_IDS]
                found += tables.execute(statement.format(marks(len(some))), rag_id, *some)
            return found

        return await self._tables.read(work)


def made(kind: type[T], row: Row) -> T:
    """A row with the columns `columns(kind)` as an object."""
    return kind(**dict(zip(kind.__struct_fields__, row, strict=True)))


def marks(count: int) -> str:
    return ", ".join("?" * count)
