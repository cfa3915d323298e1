"""Jobs in the ledger: batches, and what became of each."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.clock import SYSTEM_CLOCK
from penstock.pipelines.documents.ledger_rows import JobRow
from penstock.pipelines.documents.ledger_sql import JOB, for_each_chunk, made, marks
from penstock.stores.tables.port import Row, Tables, Transaction

__all__ = ["JobBook"]

_IN_BATCH = "job_id IN (SELECT job_id FROM rag_batches WHERE batch_id = ?)"


class JobBook:
    """`Ledger.jobs`."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def enter(self, rag_id: str, batch_id: str, jobs: Sequence[tuple[str, str]]) -> None:
        """Note jobs (id and document) that were asked for together; one may be in many batches."""
        now = SYSTEM_CLOCK.wall_ms()

        def work(tables: Transaction) -> None:
            tables.execute_many(
                "INSERT INTO rag_jobs (job_id, batch_id, rag_id, doc_id, state, submitted_ms) "
                "VALUES (?, ?, ?, ?, 'open', ?) ON CONFLICT DO NOTHING",
                [(job_id, batch_id, rag_id, doc_id, now) for job_id, doc_id in jobs],
            )
            tables.execute_many(
                "INSERT INTO rag_batches (batch_id, job_id) VALUES (?, ?) ON CONFLICT DO NOTHING",
                [(batch_id, job_id) for job_id, _ in jobs],
            )

        await self._tables.write(work)

    async def of_batch(self, batch_id: str) -> list[JobRow]:
        rows = await self._tables.read(
            lambda tables: tables.execute(
                f"SELECT {JOB} FROM rag_jobs WHERE {_IN_BATCH} ORDER BY doc_id", batch_id
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

    async def unended_of(self, batch_id: str) -> int:
        """How many jobs of a batch have not ended."""
        return await self._count(batch_id, "open")

    async def failed_of(self, batch_id: str) -> int:
        return await self._count(batch_id, "failed")

    async def _count(self, batch_id: str, state: str) -> int:
        rows = await self._tables.read(
            lambda tables: tables.execute(
                f"SELECT COUNT(*) FROM rag_jobs WHERE {_IN_BATCH} AND state = ?", batch_id, state
            )
        )
        return int(rows[0][0])

    async def end(self, job_id: str, state: str, error: str = "") -> None:
        """Note how a job ended."""
        now = SYSTEM_CLOCK.wall_ms()
        await self._tables.write(
            lambda tables: tables.execute(
                "UPDATE rag_jobs SET state = ?, ended_ms = ?, error = ? "
                "WHERE job_id = ? AND state = 'open'",
                *(state, now, error[:2_000], job_id),
            )
        )

    async def end_older(self, job_id: str, older_than_ms: int) -> bool:
        """Note as lost a job that was entered so long ago, and has not ended."""
        now = SYSTEM_CLOCK.wall_ms()
        rows = await self._tables.write(
            lambda tables: tables.execute(
                "UPDATE rag_jobs SET state = 'lost', ended_ms = ? "
                "WHERE job_id = ? AND state = 'open' AND submitted_ms <= ? RETURNING job_id",
                *(now, job_id, now - older_than_ms),
            )
        )
        return bool(rows)

    async def reopen(self, job_id: str) -> None:
        """Note that a job that had failed was queued again."""
        await self._tables.write(
            lambda tables: tables.execute(
                "UPDATE rag_jobs SET state = 'open', ended_ms = 0, error_code = '', error = '' "
                "WHERE job_id = ?",
                job_id,
            )
        )

    async def failed_in(self, rag_id: str, limit: int = 10_000) -> list[JobRow]:
        """Jobs of a RAG that failed, latest first."""
        rows = await self._tables.read(
            lambda tables: tables.execute(
                f"SELECT {JOB} FROM rag_jobs WHERE rag_id = ? AND state = 'failed' "
                "ORDER BY ended_ms DESC LIMIT ?",
                *(rag_id, limit),
            )
        )
        return [made(JobRow, row) for row in rows]

    async def latest(self) -> JobRow | None:
        """The job that ended last."""
        rows = await self._tables.read(
            lambda tables: tables.execute(
                f"SELECT {JOB} FROM rag_jobs WHERE ended_ms > 0 ORDER BY ended_ms DESC LIMIT 1"
            )
        )
        return made(JobRow, rows[0]) if rows else None

    async def cancelled_among(self, rag_id: str, doc_ids: Sequence[str]) -> dict[str, int]:
        """When jobs of these documents were cancelled, in epoch ms."""

        def work(tables: Transaction) -> list[Row]:
            return for_each_chunk(
                doc_ids,
                lambda some: tables.execute(
                    "SELECT doc_id, MAX(ended_ms) FROM rag_jobs WHERE rag_id = ? "
                    f"AND state = 'cancelled' AND doc_id IN ({marks(len(some))}) GROUP BY doc_id",
                    *(rag_id, *some),
                ),
            )

        return {row[0]: row[1] for row in await self._tables.read(work)}
