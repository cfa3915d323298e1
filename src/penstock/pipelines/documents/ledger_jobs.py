"""Jobs in the ledger: batches, and what became of each."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.clock import SYSTEM_CLOCK
from penstock.pipelines.documents.ledger_rows import JobRow
from penstock.pipelines.documents.ledger_sql import JOB, made
from penstock.stores.tables.port import Tables

__all__ = ["JobBook"]


class JobBook:
    """`Ledger.jobs`."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def enter(self, rag_id: str, batch_id: str, jobs: Sequence[tuple[str, str]]) -> None:
        """Note jobs (id and document) that were queued together."""
        now = SYSTEM_CLOCK.wall_ms()
        await self._tables.write(
            lambda tables: tables.execute_many(
                "INSERT INTO rag_jobs (job_id, batch_id, rag_id, doc_id, state, submitted_ms) "
                "VALUES (?, ?, ?, ?, 'open', ?) "
                "ON CONFLICT (job_id) DO UPDATE SET batch_id = excluded.batch_id",
                [(job_id, batch_id, rag_id, doc_id, now) for job_id, doc_id in jobs],
            )
        )

    async def of_batch(self, batch_id: str) -> list[JobRow]:
        rows = await self._tables.read(
            lambda tables: tables.execute(
                f"SELECT {JOB} FROM rag_jobs WHERE batch_id = ? ORDER BY doc_id", batch_id
            )
        )
        return [made(JobRow, row) for row in rows]

    async def get(self, job_id: str) -> JobRow | None:
        rows = await self._tables.read(
            lambda tables: tables.execute(f"SELECT {JOB} FROM rag_jobs WHERE job_id = ?", job_id)
        )
        return made(JobRow, rows[0]) if rows else None

    async def unended(self, older_than_ms: int, limit: int = 500) -> list[JobRow]:
        """Jobs of which no end is known, oldest first."""
        before = SYSTEM_CLOCK.wall_ms() - older_than_ms
        rows = await self._tables.read(
            lambda tables: tables.execute(
                f"SELECT {JOB} FROM rag_jobs WHERE state = 'open' AND submitted_ms <= ? "
                "ORDER BY submitted_ms LIMIT ?",
                *(before, limit),
            )
        )
        return [made(JobRow, row) for row in rows]
