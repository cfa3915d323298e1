"""The ledger: facts of each document, and which attempt at it is searchable.

An attempt *begins* with a generation, one higher than any before. When all its points are written
it *seals*: from then on searches use this generation only. Only the attempt that began last can
seal, so of two concurrent ones the later wins. The last step of a job is *done*. Each of these is
one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from penstock.clock import SYSTEM_CLOCK
from penstock.errors import StoreAway, StoreError
from penstock.pipelines.documents.ledger.rebuilds import RebuildLedger
from penstock.pipelines.documents.ledger.tables import (
    BadFile,
    BeginResult,
    DocumentRow,
    DocumentVersion,
    IngestAttempt,
    JobRow,
    LedgerTables,
    RagRow,
    SealResult,
    columns,
    has_tables,
    made,
    make_tables,
    marks,
    rows,
)
from penstock.stores.files.naming import escaped
from penstock.stores.tables.port import Tables, Transaction

__all__ = ["DEADLY", "DocumentLedger", "JobLedger"]

DEADLY: Final = 2
"""Deaths of a parser by one file after which it is known to be unreadable."""
_RAG, _DOCUMENT = "WHERE rag_id = ?", "WHERE rag_id = ? AND doc_id = ?"


class DocumentLedger(LedgerTables):
    """One ledger for all RAGs, in the store of tables."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self.jobs = JobLedger(tables)
        self.rebuilds = RebuildLedger(tables)

    async def open(self) -> None:
        await self._tables.open()
        try:
            await self._tables.read(has_tables)
        except StoreAway:
            raise
        except StoreError:  # reading first, as a write would wait for other writers
            await self._tables.write(make_tables)

    async def close(self) -> None:
        await self._tables.close()

    async def prove(self) -> None:
        """Write without a change; StoreError if the store cannot be written to."""
        await self._write("UPDATE rag_rags SET version = version")

    # ---- RAGs

    async def ensure_rag(self, row: RagRow) -> RagRow:
        """Enter a new RAG; the row in force."""

        def work(tables: Transaction) -> RagRow:
            values = msgspec.structs.astuple(row)
            tables.execute(
                f"INSERT INTO rag_rags ({columns(RagRow)}) VALUES ({marks(len(values))}) "
                "ON CONFLICT DO NOTHING",
                *values,
            )
            return rows(tables, RagRow, _RAG, row.rag_id)[0]

        return await self._tables.write(work)

    async def rag(self, rag_id: str) -> RagRow | None:
        found = await self._select(RagRow, _RAG, rag_id)
        return found[0] if found else None

    async def rags(self) -> list[RagRow]:
        return await self._select(RagRow, "ORDER BY rag_id")

    # ---- one document, step by step

    async def begin(self, attempt: IngestAttempt) -> BeginResult:
        """Begin an attempt, unless the document is unchanged, known bad or superseded."""

        def work(tables: Transaction) -> BeginResult:
            [rag] = rows(tables, RagRow, _RAG, attempt.rag_id)
            now = SYSTEM_CLOCK.wall_ms()
            _enter_job(tables, attempt, now)
            bad = None if attempt.force else _deadly(tables, attempt)
            if bad is not None and not rows(
                tables, DocumentRow, _DOCUMENT, attempt.rag_id, attempt.doc_id
            ):
                return BeginResult(verdict="bad", rag=rag, generation=0, former=None, bad=bad)
            if tables.execute(
                "INSERT INTO rag_documents (rag_id, doc_id, state, generation, job_id, "
                "new_digest, new_recipe, attempts, submitted_ms, begun_ms, source) "
                "VALUES (?, ?, 'processing', 1, ?, ?, ?, 1, ?, ?, ?) "
                "ON CONFLICT DO NOTHING RETURNING generation",
                *(attempt.rag_id, attempt.doc_id, attempt.job_id, attempt.digest),
                *(attempt.recipe, attempt.submitted_ms, now, attempt.source),
            ):
                return BeginResult(verdict="go", rag=rag, generation=1, former=None)
            row = _locked(tables, attempt)
            if row.submitted_ms > attempt.submitted_ms and row.job_id != attempt.job_id:
                return BeginResult(
                    verdict="superseded", rag=rag, generation=row.generation, former=row
                )
            if not attempt.force and _is_unchanged(row, attempt):
                return BeginResult(verdict="unchanged", rag=rag, generation=row.sealed, former=row)
            if not attempt.force and _is_bad(row, attempt):
                bad = BadFile(row.error_code, row.error)
            if bad is not None:
                return BeginResult(
                    verdict="bad", rag=rag, generation=row.generation, former=row, bad=bad
                )
            again = row.state == "processing" and (
                (row.job_id, row.new_digest, row.new_recipe)
                == (attempt.job_id, attempt.digest, attempt.recipe)
            )
            generation = row.generation if again else row.generation + 1
            tables.execute(
                "UPDATE rag_documents SET state = 'processing', generation = ?, job_id = ?, "
                "new_digest = ?, new_recipe = ?, attempts = ?, submitted_ms = ?, begun_ms = ?, "
                "source = ? "
                "WHERE rag_id = ? AND doc_id = ?",
                *(generation, attempt.job_id, attempt.digest, attempt.recipe),
                *(row.attempts + 1 if again else 1, attempt.submitted_ms, now),
                attempt.source or row.source,
                *(attempt.rag_id, attempt.doc_id),
            )
            return BeginResult(verdict="go", rag=rag, generation=generation, former=row)

        return await self._tables.write(work)

    async def seal(
        self, rag_id: str, doc_id: str, generation: int, physical: str, version: DocumentVersion
    ) -> SealResult:
        """Make a generation searchable, if it is the latest and its collection is in use."""

        def work(tables: Transaction) -> SealResult:
            # Written to, and so locked: a swap comes before or after this, never in between.
            (held,) = tables.execute(
                "UPDATE rag_rags SET version = version WHERE rag_id = ? RETURNING physical", rag_id
            )
            if held[0] != physical:
                return SealResult(verdict="moved")
            sealed = tables.execute(
                # A done document may be sealed again by the same job, in a worker taken for dead.
                # The verdict "superseded" would make it remove the searchable points.
                "UPDATE rag_documents SET sealed = generation, "
                "state = CASE WHEN state = 'indexed' THEN 'indexed' ELSE 'sealed' END, "
                "digest = new_digest, recipe = new_recipe, chunks = ?, size = ?, type = ?, "
                "metadata = ? WHERE rag_id = ? AND doc_id = ? AND generation = ? "
                "AND state IN ('processing', 'sealed', 'indexed') RETURNING digest",
                *(version.chunks, version.size, version.type, version.metadata),
                *(rag_id, doc_id, generation),
            )
            if not sealed:
                return SealResult(verdict="superseded")
            same = tables.execute(
                "SELECT doc_id FROM rag_documents WHERE rag_id = ? AND digest = ? AND doc_id <> ? "
                "AND sealed > 0 ORDER BY doc_id LIMIT 1",
                *(rag_id, sealed[0][0], doc_id),
            )
            return SealResult(verdict="sealed", duplicate_of=same[0][0] if same else "")

        return await self._tables.write(work)

    async def done(
        self,
        attempt: IngestAttempt,
        generation: int,
        *,
        stored: str,
        chunks: int,
        duplicate_of: str = "",
    ) -> None:
        """End a job whose document is indexed and its file moved."""

        def work(tables: Transaction) -> None:
            now = SYSTEM_CLOCK.wall_ms()
            tables.execute(
                "UPDATE rag_documents SET state = 'indexed', stored = ?, duplicate_of = ?, "
                "done_ms = ?, bad_digest = '', bad_parser = '', error_code = '', error = '' "
                "WHERE rag_id = ? AND doc_id = ? AND sealed = ? AND state IN ('sealed', 'indexed')",
                *(escaped(stored), duplicate_of, now, attempt.rag_id, attempt.doc_id, generation),
            )
            # One that was superseded meanwhile has been stored all the same.
            tables.execute(
                "UPDATE rag_documents SET stored = ? "
                "WHERE rag_id = ? AND doc_id = ? AND sealed = ? AND state = 'processing'",
                *(escaped(stored), attempt.rag_id, attempt.doc_id, generation),
            )
            _end_job(tables, attempt, "done", now, chunks=chunks)

        await self._tables.write(work)

    async def copied(
        self, attempt: IngestAttempt, physical: str, generation: int, chunks: int
    ) -> None:
        """Note that a collection that is being built has a document's generation."""

        def work(tables: Transaction) -> None:
            tables.execute(
                "INSERT INTO rag_copies (rag_id, doc_id, physical, generation, recipe, chunks) "
                "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (rag_id, doc_id, physical) DO UPDATE SET "
                "generation = excluded.generation, recipe = excluded.recipe, "
                "chunks = excluded.chunks WHERE rag_copies.generation <= excluded.generation",
                *(attempt.rag_id, attempt.doc_id, physical, generation, attempt.recipe, chunks),
            )
            _end_job(tables, attempt, "done", SYSTEM_CLOCK.wall_ms(), chunks=chunks)

        await self._tables.write(work)

    async def failed(
        self, attempt: IngestAttempt, generation: int, code: str, error: str, *, is_bad: bool
    ) -> bool:
        """Note that a document was given up; `is_bad` if no repetition would read this file.

        False if another worker has come to another end with it. Its job ends when its file has
        been moved: `end_job`.
        """
        found = await self._write(
            "UPDATE rag_documents SET state = 'failed', bad_digest = ?, bad_parser = ?, "
            "error_code = ?, error = ? WHERE rag_id = ? AND doc_id = ? "
            "AND generation = ? AND state IN ('processing', 'failed') RETURNING generation",
            *(attempt.digest if is_bad else "", attempt.parser if is_bad else ""),
            *(code, error[:2_000], attempt.rag_id, attempt.doc_id, generation),
        )
        return bool(found)

    async def parser_died(self, attempt: IngestAttempt, code: str, error: str) -> bool:
        """Count a death of a parser by this file; whether it was one too many."""
        found = await self._write(
            "INSERT INTO rag_parser_deaths (digest, parser, deaths, error_code, error) "
            "VALUES (?, ?, 1, ?, ?) ON CONFLICT (digest, parser) DO UPDATE SET "
            "deaths = rag_parser_deaths.deaths + 1, error_code = excluded.error_code, "
            "error = excluded.error RETURNING deaths",
            *(attempt.digest, attempt.parser, code, error[:2_000]),
        )
        return bool(found[0][0] >= DEADLY)

    async def acquit(self, digest: str) -> None:
        """Forget deaths of parsers by this file: it was read, so they had other causes."""
        await self._write("DELETE FROM rag_parser_deaths WHERE digest = ?", digest)

    async def cancelled(self, rag_id: str, doc_id: str, job_id: str) -> int:
        """Mark the attempt of a job as cancelled; its generation, 0 if it began nothing.

        An earlier version stays searchable.
        """
        found = await self._write(
            "UPDATE rag_documents SET state = 'cancelled' WHERE rag_id = ? AND doc_id = ? "
            "AND job_id = ? AND state = 'processing' RETURNING generation",
            *(rag_id, doc_id, job_id),
        )
        return found[0][0] if found else 0

    async def pardon(self, rag_id: str, doc_id: str) -> None:
        """Clear the marks of an unreadable file, so that it is read again."""

        def work(tables: Transaction) -> None:
            tables.execute(
                "DELETE FROM rag_parser_deaths WHERE digest IN "
                "(SELECT new_digest FROM rag_documents WHERE rag_id = ? AND doc_id = ?)",
                *(rag_id, doc_id),
            )
            tables.execute(
                "UPDATE rag_documents SET bad_digest = '', bad_parser = '' "
                "WHERE rag_id = ? AND doc_id = ?",
                *(rag_id, doc_id),
            )

        await self._tables.write(work)

    async def end_job(
        self, attempt: IngestAttempt, state: str, code: str = "", error: str = ""
    ) -> None:
        """Note how a job ended."""
        await self._tables.write(
            lambda tables: _end_job(
                tables, attempt, state, SYSTEM_CLOCK.wall_ms(), code=code, error=error
            )
        )

    # ---- documents

    async def document(self, rag_id: str, doc_id: str) -> DocumentRow | None:
        found = await self._select(DocumentRow, _DOCUMENT, rag_id, doc_id)
        return found[0] if found else None

    async def documents(
        self, rag_id: str, *, states: Sequence[str] = (), after: str = "", limit: int = 1_000
    ) -> list[DocumentRow]:
        """A page of a RAG's documents in the order of their ids."""
        among = f"AND state IN ({marks(len(states))}) " if states else ""
        return await self._select(
            DocumentRow,
            f"WHERE rag_id = ? AND doc_id > ? {among}ORDER BY doc_id LIMIT ?",
            *(rag_id, after, *states, limit),
        )

    async def latest(self, rag_id: str, last_ms: int, limit: int) -> list[DocumentRow]:
        """Documents that were done within `last_ms` before the very last one."""
        return await self._select(
            DocumentRow,
            "WHERE rag_id = ? AND state = 'indexed' "
            "AND done_ms >= (SELECT COALESCE(MAX(done_ms), 0) FROM rag_documents "
            "WHERE rag_id = ?) - ? ORDER BY done_ms DESC LIMIT ?",
            *(rag_id, rag_id, last_ms, limit),
        )

    async def known(self, rag_id: str) -> dict[str, tuple[str, str, str, str]]:
        """Digest, recipe, source and state of every document that is indexed or failed."""
        found = await self._read(
            "SELECT doc_id, CASE WHEN state = 'failed' THEN bad_digest ELSE digest END, "
            "recipe, source, state FROM rag_documents "
            "WHERE rag_id = ? AND state IN ('indexed', 'failed')",
            rag_id,
        )
        return {row[0]: (row[1], row[2], row[3], row[4]) for row in found}

    async def visible(self, rag_id: str, doc_ids: Iterable[str]) -> dict[str, int]:
        """The searchable generation of each of these documents that has one."""
        ids = list(dict.fromkeys(doc_ids))
        return dict(
            await self._read_by_id(
                "SELECT doc_id, sealed FROM rag_documents "
                "WHERE rag_id = ? AND sealed > 0 AND doc_id IN ({})",
                *(rag_id, ids),
            )
        )

    async def counts(self, rag_id: str) -> dict[str, int]:
        """Number of documents by state, and of searchable chunks."""

        def work(tables: Transaction) -> dict[str, int]:
            found = tables.execute(
                "SELECT state, COUNT(*) FROM rag_documents WHERE rag_id = ? GROUP BY state", rag_id
            )
            (chunks,) = tables.execute(
                "SELECT COALESCE(SUM(chunks), 0) FROM rag_documents "
                "WHERE rag_id = ? AND sealed > 0",
                rag_id,
            )[0]
            return {**{row[0]: row[1] for row in found}, "chunks": int(chunks)}

        return await self._tables.read(work)

    async def forget(self, rag_id: str, doc_ids: Sequence[str], now_ms: int) -> list[DocumentRow]:
        """Make documents unsearchable; their former rows. Their points are removed after that."""

        def work(tables: Transaction) -> list[DocumentRow]:
            found: list[DocumentRow] = []
            for doc_id in doc_ids:
                [row, *_] = rows(tables, DocumentRow, _DOCUMENT, rag_id, doc_id) or [None]
                if row is None or row.state == "forgotten":
                    continue
                tables.execute(
                    "UPDATE rag_documents SET state = 'forgetting', sealed = 0, chunks = 0, "
                    "generation = generation + 1, digest = '', bad_digest = '', metadata = '', "
                    "source = '', submitted_ms = ? WHERE rag_id = ? AND doc_id = ?",
                    *(now_ms, rag_id, doc_id),
                )
                tables.execute(
                    "DELETE FROM rag_copies WHERE rag_id = ? AND doc_id = ?", rag_id, doc_id
                )
                found.append(msgspec.structs.replace(row, generation=row.generation + 1))
            return found

        return await self._tables.write(work)

    async def forgotten(self, rag_id: str, doc_id: str, generation: int) -> None:
        await self._write(
            "UPDATE rag_documents SET state = 'forgotten', stored = '' "
            "WHERE rag_id = ? AND doc_id = ? AND generation = ? AND state = 'forgetting'",
            *(rag_id, doc_id, generation),
        )

    async def forgetting(self) -> list[DocumentRow]:
        """Forgotten documents whose points are not removed yet."""
        return await self._select(DocumentRow, "WHERE state = 'forgetting' LIMIT 1000")


_IN_BATCH = "job_id IN (SELECT job_id FROM rag_batches WHERE batch_id = ?)"


class JobLedger(LedgerTables):
    """`DocumentLedger.jobs`."""

    async def enter(self, rag_id: str, batch_id: str, jobs: Sequence[tuple[str, str]]) -> None:
        """Enter jobs (id and document) of a batch; a job may be in several batches."""
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

    async def withdraw(self, job_ids: Sequence[str]) -> None:
        """Delete unended jobs that were entered, but not queued."""
        ids = [(job_id,) for job_id in job_ids]

        def work(tables: Transaction) -> None:
            tables.execute_many(
                "DELETE FROM rag_batches WHERE job_id = ? AND EXISTS (SELECT 1 FROM rag_jobs j "
                "WHERE j.job_id = rag_batches.job_id AND j.state = 'open')",
                ids,
            )
            tables.execute_many("DELETE FROM rag_jobs WHERE job_id = ? AND state = 'open'", ids)

        await self._tables.write(work)

    async def of_batch(self, batch_id: str) -> list[JobRow]:
        return await self._select(JobRow, f"WHERE {_IN_BATCH} ORDER BY doc_id", batch_id)

    async def get(self, job_id: str) -> JobRow | None:
        found = await self._select(JobRow, "WHERE job_id = ?", job_id)
        return found[0] if found else None

    async def unended(self, older_than_ms: int, limit: int = 500) -> list[JobRow]:
        """Unended jobs of at least this age, oldest first."""
        before = SYSTEM_CLOCK.wall_ms() - older_than_ms
        return await self._select(
            JobRow,
            "WHERE state = 'open' AND submitted_ms <= ? ORDER BY submitted_ms LIMIT ?",
            *(before, limit),
        )

    async def unended_of(self, batch_id: str) -> int:
        """Number of unended jobs of a batch."""
        return await self._count(batch_id, "open")

    async def failed_of(self, batch_id: str) -> int:
        return await self._count(batch_id, "failed")

    async def _count(self, batch_id: str, state: str) -> int:
        found = await self._read(
            f"SELECT COUNT(*) FROM rag_jobs WHERE {_IN_BATCH} AND state = ?", batch_id, state
        )
        return int(found[0][0])

    async def end(self, job_id: str, state: str, error: str = "") -> None:
        """Note how a job ended."""
        now = SYSTEM_CLOCK.wall_ms()
        await self._write(
            "UPDATE rag_jobs SET state = ?, ended_ms = ?, error = ? "
            "WHERE job_id = ? AND state = 'open'",
            *(state, now, error[:2_000], job_id),
        )

    async def end_older(self, job_id: str, older_than_ms: int) -> bool:
        """Mark an unended job of this age as lost."""
        now = SYSTEM_CLOCK.wall_ms()
        found = await self._write(
            "UPDATE rag_jobs SET state = 'lost', ended_ms = ? "
            "WHERE job_id = ? AND state = 'open' AND submitted_ms <= ? RETURNING job_id",
            *(now, job_id, now - older_than_ms),
        )
        return bool(found)

    async def reopen(self, job_id: str) -> None:
        """Mark a failed job as open: it is replayed."""
        await self._write(
            "UPDATE rag_jobs SET state = 'open', ended_ms = 0, error_code = '', error = '' "
            "WHERE job_id = ?",
            job_id,
        )

    async def failed_in(self, rag_id: str, limit: int = 10_000) -> list[JobRow]:
        """Jobs of a RAG that failed, latest first."""
        return await self._select(
            JobRow,
            "WHERE rag_id = ? AND state = 'failed' ORDER BY ended_ms DESC LIMIT ?",
            *(rag_id, limit),
        )

    async def latest(self) -> JobRow | None:
        """The job that ended last."""
        found = await self._select(JobRow, "WHERE ended_ms > 0 ORDER BY ended_ms DESC LIMIT 1")
        return found[0] if found else None

    async def cancelled_among(self, rag_id: str, doc_ids: Sequence[str]) -> dict[str, int]:
        """When jobs of these documents were cancelled, in epoch ms."""
        return dict(
            await self._read_by_id(
                "SELECT doc_id, MAX(ended_ms) FROM rag_jobs "
                "WHERE rag_id = ? AND state = 'cancelled' AND doc_id IN ({}) GROUP BY doc_id",
                *(rag_id, doc_ids),
            )
        )


def _enter_job(tables: Transaction, attempt: IngestAttempt, now: int) -> None:
    tables.execute(
        "INSERT INTO rag_jobs (job_id, batch_id, rag_id, doc_id, state, submitted_ms) "
        "VALUES (?, ?, ?, ?, 'open', ?) ON CONFLICT (job_id) DO NOTHING",
        *(attempt.job_id, attempt.batch_id, attempt.rag_id, attempt.doc_id, now),
    )


def _end_job(
    tables: Transaction,
    attempt: IngestAttempt,
    state: str,
    now: int,
    *,
    chunks: int = 0,
    code: str = "",
    error: str = "",
) -> None:
    _enter_job(tables, attempt, now)
    tables.execute(
        "UPDATE rag_jobs SET state = ?, ended_ms = ?, chunks = ?, error_code = ?, error = ? "
        "WHERE job_id = ?",
        *(state, now, chunks, code, error[:2_000], attempt.job_id),
    )


def _locked(tables: Transaction, attempt: IngestAttempt) -> DocumentRow:
    """The row of a document, locked until this transaction ends."""
    (row,) = tables.execute(
        "UPDATE rag_documents SET attempts = attempts WHERE rag_id = ? AND doc_id = ? "
        f"RETURNING {columns(DocumentRow)}",
        *(attempt.rag_id, attempt.doc_id),
    )
    return made(DocumentRow, row)


def _is_unchanged(row: DocumentRow, attempt: IngestAttempt) -> bool:
    return (
        row.sealed > 0
        and row.sealed == row.generation
        and (row.digest, row.recipe) == (attempt.digest, attempt.recipe)
    )


def _deadly(tables: Transaction, attempt: IngestAttempt) -> BadFile | None:
    found = tables.execute(
        "SELECT error_code, error FROM rag_parser_deaths "
        "WHERE digest = ? AND parser = ? AND deaths >= ?",
        *(attempt.digest, attempt.parser, DEADLY),
    )
    return BadFile(*found[0]) if found else None


def _is_bad(row: DocumentRow, attempt: IngestAttempt) -> bool:
    return bool(row.bad_digest) and (
        (row.bad_digest, row.bad_parser) == (attempt.digest, attempt.parser)
    )
