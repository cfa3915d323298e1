"""Rebuilds in the ledger: which documents the new collection has, and when it takes over."""

from __future__ import annotations

from penstock.pipelines.documents.ledger_rows import DocumentRow, RagRow
from penstock.pipelines.documents.ledger_sql import made, not_copied, rag_of
from penstock.stores.tables.port import Tables, Transaction

__all__ = ["RebuildBook"]


class RebuildBook:
    """`Ledger.rebuilds`."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def begin(self, row: RagRow, batch_id: str) -> RagRow | None:
        """Note the collection that is to take over (the row's shadow); the row that holds.

        None if another has begun a rebuild since the row was read: its name may be taken.

        A rebuild that is under way goes on if it makes the same chunks and vectors, of all that it
        has copied.
        """

        def work(tables: Transaction) -> RagRow | None:
            held = rag_of(tables, row.rag_id)
            if held.version != row.version:
                return None
            is_same = (held.shadow_embeddings, held.shadow_recipe) == (
                (row.shadow_embeddings, row.shadow_recipe)
            )
            if held.shadow and is_same and not _is_mixed(tables, held):
                return held
            tables.execute(
                "UPDATE rag_rags SET shadow = ?, shadow_model = ?, shadow_dimension = ?, "
                "shadow_embeddings = ?, shadow_recipe = ?, batch_id = ?, version = version + 1 "
                "WHERE rag_id = ?",
                *(row.shadow, row.shadow_model, row.shadow_dimension, row.shadow_embeddings),
                *(row.shadow_recipe, batch_id, row.rag_id),
            )
            tables.execute(
                "DELETE FROM rag_copies WHERE rag_id = ? AND physical <> ?", row.rag_id, row.shadow
            )
            return rag_of(tables, row.rag_id)

        return await self._tables.write(work)

    async def missing(self, rag_id: str, shadow: str, limit: int) -> list[DocumentRow]:
        """Documents that are found, but not in this state in the collection being built."""
        rows = await self._tables.read(lambda tables: not_copied(tables, rag_id, shadow, limit))
        return [made(DocumentRow, row) for row in rows]

    async def is_mixed(self, row: RagRow) -> bool:
        """Whether the collection that is being built has chunks by another recipe than its own."""
        return await self._tables.read(lambda tables: _is_mixed(tables, row))

    async def copies(self, rag_id: str, shadow: str) -> dict[str, int]:
        """How many chunks the collection that is being built has of each document."""
        rows = await self._tables.read(
            lambda tables: tables.execute(
                "SELECT doc_id, chunks FROM rag_copies WHERE rag_id = ? AND physical = ?",
                *(rag_id, shadow),
            )
        )
        return {row[0]: row[1] for row in rows}

    async def uncopy(self, rag_id: str, doc_id: str, shadow: str) -> None:
        """Note that the collection that is being built lacks a document after all."""
        await self._tables.write(
            lambda tables: tables.execute(
                "DELETE FROM rag_copies WHERE rag_id = ? AND doc_id = ? AND physical = ?",
                *(rag_id, doc_id, shadow),
            )
        )

    async def outdated(self, rag_id: str, recipe: str) -> int:
        """How many documents are found that were made by another recipe."""
        rows = await self._tables.read(
            lambda tables: tables.execute(
                "SELECT COUNT(*) FROM rag_documents "
                "WHERE rag_id = ? AND sealed > 0 AND recipe <> ?",
                *(rag_id, recipe),
            )
        )
        return int(rows[0][0])

    async def swap(self, rag_id: str, shadow: str, *, force: bool = False) -> RagRow | None:
        """Let the collection that was built take over; None if it is not complete (yet)."""

        def work(tables: Transaction) -> RagRow | None:
            tables.execute("UPDATE rag_rags SET version = version WHERE rag_id = ?", rag_id)
            row = rag_of(tables, rag_id)
            if row.physical == shadow:
                return row
            if row.shadow != shadow or (not force and not_copied(tables, rag_id, shadow, 1)):
                return None
            missing = [found[1] for found in not_copied(tables, rag_id, shadow, 1_000_000)]
            tables.execute(
                "UPDATE rag_rags SET physical = shadow, model = shadow_model, "
                "dimension = shadow_dimension, embeddings = shadow_embeddings, former = physical, "
                "shadow = '', shadow_model = '', shadow_dimension = 0, shadow_embeddings = '', "
                "shadow_recipe = '', batch_id = '' WHERE rag_id = ?",
                rag_id,
            )
            # The numbers of chunks are those of the copies; what was left behind is not found.
            tables.execute(
                "UPDATE rag_documents SET (chunks, recipe) = (SELECT c.chunks, c.recipe "
                "FROM rag_copies c WHERE c.rag_id = rag_documents.rag_id "
                "AND c.doc_id = rag_documents.doc_id AND c.physical = ?) "
                "WHERE rag_id = ? AND sealed > 0 AND EXISTS (SELECT 1 FROM rag_copies c "
                "WHERE c.rag_id = rag_documents.rag_id "
                "AND c.doc_id = rag_documents.doc_id AND c.physical = ?)",
                *(shadow, rag_id, shadow),
            )
            for doc_id in missing:
                tables.execute(
                    "UPDATE rag_documents SET sealed = 0, chunks = 0, state = 'failed', "
                    "error_code = 'ERR_NOT_REBUILT', error = 'left behind by a forced swap' "
                    "WHERE rag_id = ? AND doc_id = ?",
                    *(rag_id, doc_id),
                )
            tables.execute("DELETE FROM rag_copies WHERE rag_id = ?", rag_id)
            return rag_of(tables, rag_id)

        return await self._tables.write(work)

    async def drop_former(self, rag_id: str, former: str) -> None:
        """Note that the collection that was replaced has been removed."""
        await self._tables.write(
            lambda tables: tables.execute(
                "UPDATE rag_rags SET former = '' WHERE rag_id = ? AND former = ?", rag_id, former
            )
        )


def _is_mixed(tables: Transaction, row: RagRow) -> bool:
    found = tables.execute(
        "SELECT 1 FROM rag_copies WHERE rag_id = ? AND physical = ? AND recipe <> ? LIMIT 1",
        *(row.rag_id, row.shadow, row.shadow_recipe),
    )
    return bool(found)
