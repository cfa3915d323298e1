"""The ledger: what is known of each document, and which attempt at it counts.

An attempt *begins* with a generation, one higher than any before. When all its points are in the
store of vectors it *seals*: from then on searches find this generation and no other. That works
only for the latest one that began, so of two that race the later wins, whoever is slower. What a
job writes last is *done*. Each of these is one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from penstock.clock import SYSTEM_CLOCK
from penstock.errors import StoreAway, StoreError
from penstock.pipelines.documents.ledger_jobs import JobBook
from penstock.pipelines.documents.ledger_rebuilds import RebuildBook
from penstock.pipelines.documents.ledger_rows import (
    Attempt,
    Begun,
    DocumentRow,
    RagRow,
    Sealed,
    Version,
)
from penstock.pipelines.documents.ledger_schema import has_tables, make_tables
from penstock.pipelines.documents.ledger_sql import (
    DOCUMENT,
    RAG,
    document_of,
    end_job,
    enter_job,
    for_each_chunk,
    is_bad,
    is_unchanged,
    locked,
    made,
    marks,
    rag_of,
)
from penstock.stores.files.naming import escaped
from penstock.stores.tables.port import Row, Tables, Transaction

__all__ = ["Ledger"]


class Ledger:
    """One ledger for all RAGs, in the store of tables."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.jobs = JobBook(tables)
        self.rebuilds = RebuildBook(tables)

    async def open(self) -> None:
        await self._tables.open()
        try:
            await self._tables.read(has_tables)
        except StoreAway:
            raise
        except StoreError:  # a look waits for no writer: only the first one has to make them
            await self._tables.write(make_tables)

    async def close(self) -> None:
        await self._tables.close()

    async def prove(self) -> None:
        """Write, changing nothing; StoreError if that cannot be done now."""
        await self._tables.write(
            lambda tables: tables.execute("UPDATE rag_rags SET version = version")
        )

    # ---- RAGs

    async def ensure_rag(self, row: RagRow) -> RagRow:
        """Enter a RAG that is new; the row that holds."""

        def work(tables: Transaction) -> RagRow:
            names = RagRow.__struct_fields__
            tables.execute(
                f"INSERT INTO rag_rags ({RAG}) VALUES ({marks(len(names))}) ON CONFLICT DO NOTHING",
                *msgspec.structs.astuple(row),
            )
            return rag_of(tables, row.rag_id)

        return await self._tables.write(work)

    async def rag(self, rag_id: str) -> RagRow | None:
        rows = await self._tables.read(
            lambda tables: tables.execute(f"SELECT {RAG} FROM rag_rags WHERE rag_id = ?", rag_id)
        )
        return made(RagRow, rows[0]) if rows else None

    async def rags(self) -> list[RagRow]:
        rows = await self._tables.read(
            lambda tables: tables.execute(f"SELECT {RAG} FROM rag_rags ORDER BY rag_id")
        )
        return [made(RagRow, row) for row in rows]

    # ---- one document, step by step

    async def begin(self, attempt: Attempt) -> Begun:
        """Let an attempt begin, unless there is nothing to do."""

        def work(tables: Transaction) -> Begun:
            rag = rag_of(tables, attempt.rag_id)
            now = SYSTEM_CLOCK.wall_ms()
            enter_job(tables, attempt, now)
            if tables.execute(
                "INSERT INTO rag_documents (rag_id, doc_id, state, generation, job_id, "
                "new_digest, new_recipe, attempts, submitted_ms, begun_ms, source) "
                "VALUES (?, ?, 'processing', 1, ?, ?, ?, 1, ?, ?, ?) "
                "ON CONFLICT DO NOTHING RETURNING generation",
                *(attempt.rag_id, attempt.doc_id, attempt.job_id, attempt.digest),
                *(attempt.recipe, attempt.submitted_ms, now, attempt.source),
            ):
                return Begun(verdict="go", rag=rag, generation=1, former=None)
            row = locked(tables, attempt)
            if row.submitted_ms > attempt.submitted_ms and row.job_id != attempt.job_id:
                return Begun(verdict="superseded", rag=rag, generation=row.generation, former=row)
            if not attempt.force and is_unchanged(row, attempt):
                return Begun(verdict="unchanged", rag=rag, generation=row.sealed, former=row)
            if not attempt.force and is_bad(row, attempt):
                return Begun(verdict="bad", rag=rag, generation=row.generation, former=row)
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
            return Begun(verdict="go", rag=rag, generation=generation, former=row)

        return await self._tables.write(work)

    async def seal(
        self, rag_id: str, doc_id: str, generation: int, physical: str, version: Version
    ) -> Sealed:
        """Make a generation the one that is found, if it is the latest and in the right place."""

        def work(tables: Transaction) -> Sealed:
            # Written to, and so locked: a swap comes before or after this, never in between.
            (held,) = tables.execute(
                "UPDATE rag_rags SET version = version WHERE rag_id = ? RETURNING physical", rag_id
            )
            if held[0] != physical:
                return Sealed(verdict="moved")
            sealed = tables.execute(
                # One that is done may be sealed again: by the same job, in a worker given up as
                # dead. Told that it is superseded, it would take away the points that count.
                "UPDATE rag_documents SET sealed = generation, "
                "state = CASE WHEN state = 'indexed' THEN 'indexed' ELSE 'sealed' END, "
                "digest = new_digest, recipe = new_recipe, chunks = ?, size = ?, type = ?, "
                "metadata = ? WHERE rag_id = ? AND doc_id = ? AND generation = ? "
                "AND state IN ('processing', 'sealed', 'indexed') RETURNING digest",
                *(version.chunks, version.size, version.type, version.metadata),
                *(rag_id, doc_id, generation),
            )
            if not sealed:
                return Sealed(verdict="superseded")
            same = tables.execute(
                "SELECT doc_id FROM rag_documents WHERE rag_id = ? AND digest = ? AND doc_id <> ? "
                "AND sealed > 0 ORDER BY doc_id LIMIT 1",
                *(rag_id, sealed[0][0], doc_id),
            )
            return Sealed(verdict="sealed", duplicate_of=same[0][0] if same else "")

        return await self._tables.write(work)

    async def done(
        self,
        attempt: Attempt,
        generation: int,
        *,
        stored: str,
        chunks: int,
        duplicate_of: str = "",
    ) -> None:
        """Note the end of a job whose document is indexed and moved."""

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
            end_job(tables, attempt, "done", now, chunks=chunks)

        await self._tables.write(work)

    async def copied(self, attempt: Attempt, physical: str, generation: int, chunks: int) -> None:
        """Note that a collection that is being built has a document's generation."""

        def work(tables: Transaction) -> None:
            tables.execute(
                "INSERT INTO rag_copies (rag_id, doc_id, physical, generation, recipe, chunks) "
                "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (rag_id, doc_id, physical) DO UPDATE SET "
                "generation = excluded.generation, recipe = excluded.recipe, "
                "chunks = excluded.chunks WHERE rag_copies.generation <= excluded.generation",
                *(attempt.rag_id, attempt.doc_id, physical, generation, attempt.recipe, chunks),
            )
            end_job(tables, attempt, "done", SYSTEM_CLOCK.wall_ms(), chunks=chunks)

        await self._tables.write(work)

    async def failed(
        self, attempt: Attempt, generation: int, code: str, error: str, *, is_bad: bool
    ) -> bool:
        """Note that a document was given up; `is_bad` if no repetition would read this file.

        False if another worker has come to another end with it. Its job ends when its file has
        been moved: `end_job`.
        """
        rows = await self._tables.write(
            lambda tables: tables.execute(
                "UPDATE rag_documents SET state = 'failed', bad_digest = ?, bad_parser = ?, "
                "error_code = ?, error = ? WHERE rag_id = ? AND doc_id = ? "
                "AND generation = ? AND state IN ('processing', 'failed') RETURNING generation",
                *(attempt.digest if is_bad else "", attempt.parser if is_bad else ""),
                *(code, error[:2_000], attempt.rag_id, attempt.doc_id, generation),
            )
        )
        return bool(rows)

    async def cancelled(self, rag_id: str, doc_id: str, job_id: str) -> int:
        """Note that nobody goes on with what a job began; its generation, 0 if it began nothing.

        An earlier version is found as before.
        """

        def work(tables: Transaction) -> int:
            rows = tables.execute(
                "UPDATE rag_documents SET state = 'cancelled' WHERE rag_id = ? AND doc_id = ? "
                "AND job_id = ? AND state = 'processing' RETURNING generation",
                *(rag_id, doc_id, job_id),
            )
            return rows[0][0] if rows else 0

        return await self._tables.write(work)

    async def pardon(self, rag_id: str, doc_id: str) -> None:
        """Let a file be read again that is known to be unreadable."""
        await self._tables.write(
            lambda tables: tables.execute(
                "UPDATE rag_documents SET bad_digest = '', bad_parser = '' "
                "WHERE rag_id = ? AND doc_id = ?",
                *(rag_id, doc_id),
            )
        )

    async def end_job(self, attempt: Attempt, state: str, code: str = "", error: str = "") -> None:
        """Note how a job ended."""
        await self._tables.write(
            lambda tables: end_job(
                tables, attempt, state, SYSTEM_CLOCK.wall_ms(), code=code, error=error
            )
        )

    # ---- documents

    async def document(self, rag_id: str, doc_id: str) -> DocumentRow | None:
        return await self._tables.read(lambda tables: document_of(tables, rag_id, doc_id))

    async def documents(
        self, rag_id: str, *, states: Sequence[str] = (), after: str = "", limit: int = 1_000
    ) -> list[DocumentRow]:
        """A page of a RAG's documents in the order of their ids."""

        def work(tables: Transaction) -> list[Row]:
            among = f"AND state IN ({marks(len(states))}) " if states else ""
            return tables.execute(
                f"SELECT {DOCUMENT} FROM rag_documents WHERE rag_id = ? AND doc_id > ? {among}"
                "ORDER BY doc_id LIMIT ?",
                *(rag_id, after, *states, limit),
            )

        return [made(DocumentRow, row) for row in await self._tables.read(work)]

    async def latest(self, rag_id: str, last_ms: int, limit: int) -> list[DocumentRow]:
        """Documents that were done last: within so long before the very last one."""
        rows = await self._tables.read(
            lambda tables: tables.execute(
                f"SELECT {DOCUMENT} FROM rag_documents WHERE rag_id = ? AND state = 'indexed' "
                "AND done_ms >= (SELECT COALESCE(MAX(done_ms), 0) FROM rag_documents "
                "WHERE rag_id = ?) - ? ORDER BY done_ms DESC LIMIT ?",
                *(rag_id, rag_id, last_ms, limit),
            )
        )
        return [made(DocumentRow, row) for row in rows]

    async def known(self, rag_id: str) -> dict[str, tuple[str, str, str, str]]:
        """Digest, recipe, source and state of every document that is indexed or failed."""
        rows = await self._tables.read(
            lambda tables: tables.execute(
                "SELECT doc_id, CASE WHEN state = 'failed' THEN bad_digest ELSE digest END, "
                "recipe, source, state FROM rag_documents "
                "WHERE rag_id = ? AND state IN ('indexed', 'failed')",
                rag_id,
            )
        )
        return {row[0]: (row[1], row[2], row[3], row[4]) for row in rows}

    async def visible(self, rag_id: str, doc_ids: Iterable[str]) -> dict[str, int]:
        """The generation that counts, of those documents that are found at all."""
        ids = list(dict.fromkeys(doc_ids))

        def work(tables: Transaction) -> list[Row]:
            return for_each_chunk(
                ids,
                lambda some: tables.execute(
                    "SELECT doc_id, sealed FROM rag_documents WHERE rag_id = ? AND sealed > 0 "
                    f"AND doc_id IN ({marks(len(some))})",
                    *(rag_id, *some),
                ),
            )

        return {row[0]: row[1] for row in await self._tables.read(work)}

    async def counts(self, rag_id: str) -> dict[str, int]:
        """How many documents there are in each state, and the chunks that are found."""

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
        """Let documents no longer be found; as they were. Their points are removed after that."""

        def work(tables: Transaction) -> list[DocumentRow]:
            found: list[DocumentRow] = []
            for doc_id in doc_ids:
                row = document_of(tables, rag_id, doc_id)
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
        await self._tables.write(
            lambda tables: tables.execute(
                "UPDATE rag_documents SET state = 'forgotten', stored = '' "
                "WHERE rag_id = ? AND doc_id = ? AND generation = ? AND state = 'forgetting'",
                *(rag_id, doc_id, generation),
            )
        )

    async def forgetting(self) -> list[DocumentRow]:
        """Documents whose points are still to be removed."""
        rows = await self._tables.read(
            lambda tables: tables.execute(
                f"SELECT {DOCUMENT} FROM rag_documents WHERE state = 'forgetting' LIMIT 1000"
            )
        )
        return [made(DocumentRow, row) for row in rows]
