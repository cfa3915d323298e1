"""Rebuilds in the ledger: copies in the shadow collection, and the swap."""

from __future__ import annotations

from penstock.pipelines.documents.ledger.tables import DocumentRow, LedgerTables, RagRow, rows
from penstock.stores.tables.port import Transaction

__all__ = ["RebuildLedger"]


_NOT_COPIED = (
    "AS d WHERE rag_id = ? AND sealed > 0 AND NOT EXISTS ("
    "SELECT 1 FROM rag_copies c WHERE c.rag_id = d.rag_id AND c.doc_id = d.doc_id "
    "AND c.physical = ? AND c.generation = d.sealed AND c.recipe = ("
    "SELECT r.shadow_recipe FROM rag_rags r WHERE r.rag_id = d.rag_id)) "
    "ORDER BY doc_id LIMIT ?"
)
"""Searchable documents of a RAG without an up-to-date copy in a shadow."""
_MIXED = "SELECT 1 FROM rag_copies WHERE rag_id = ? AND physical = ? AND recipe <> ? LIMIT 1"
"""Whether a shadow has copies by another recipe than its own."""
_ONE = "WHERE rag_id = ?"


class RebuildLedger(LedgerTables):
    """`DocumentLedger.rebuilds`."""

    async def begin(self, row: RagRow, batch_id: str) -> RagRow | None:
        """Enter the shadow of a row; the row in force.

        None if another rebuild has begun since the row was read: the name may be taken. A rebuild
        under way is resumed if its recipe, and that of all its copies, is the same.
        """

        def work(tables: Transaction) -> RagRow | None:
            [held] = rows(tables, RagRow, _ONE, row.rag_id)
            if held.version != row.version:
                return None
            is_same = (held.shadow_embeddings, held.shadow_recipe) == (
                (row.shadow_embeddings, row.shadow_recipe)
            )
            copied = held.rag_id, held.shadow, held.shadow_recipe
            if held.shadow and is_same and not tables.execute(_MIXED, *copied):
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
            return rows(tables, RagRow, _ONE, row.rag_id)[0]

        return await self._tables.write(work)

    async def missing(self, rag_id: str, shadow: str, limit: int) -> list[DocumentRow]:
        """Searchable documents without an up-to-date copy in the shadow."""
        return await self._select(DocumentRow, _NOT_COPIED, rag_id, shadow, limit)

    async def is_mixed(self, row: RagRow) -> bool:
        """Whether the shadow has copies by another recipe than its own."""
        return bool(await self._read(_MIXED, row.rag_id, row.shadow, row.shadow_recipe))

    async def copies(self, rag_id: str, shadow: str) -> dict[str, int]:
        """Number of chunks in the shadow by document."""
        found = await self._read(
            "SELECT doc_id, chunks FROM rag_copies WHERE rag_id = ? AND physical = ?",
            *(rag_id, shadow),
        )
        return {row[0]: row[1] for row in found}

    async def uncopy(self, rag_id: str, doc_id: str, shadow: str) -> None:
        """Remove a copy from the ledger."""
        await self._write(
            "DELETE FROM rag_copies WHERE rag_id = ? AND doc_id = ? AND physical = ?",
            *(rag_id, doc_id, shadow),
        )

    async def outdated(self, rag_id: str, recipe: str) -> int:
        """Number of searchable documents by another recipe."""
        found = await self._read(
            "SELECT COUNT(*) FROM rag_documents WHERE rag_id = ? AND sealed > 0 AND recipe <> ?",
            *(rag_id, recipe),
        )
        return int(found[0][0])

    async def swap(self, rag_id: str, shadow: str, *, force: bool = False) -> RagRow | None:
        """Swap in the shadow; None if it is incomplete."""

        def work(tables: Transaction) -> RagRow | None:
            tables.execute("UPDATE rag_rags SET version = version WHERE rag_id = ?", rag_id)
            [row] = rows(tables, RagRow, _ONE, rag_id)
            if row.physical == shadow:
                return row
            limit = 1_000_000 if force else 1
            missing = rows(tables, DocumentRow, _NOT_COPIED, rag_id, shadow, limit)
            if row.shadow != shadow or (missing and not force):
                return None
            tables.execute(
                "UPDATE rag_rags SET physical = shadow, model = shadow_model, "
                "dimension = shadow_dimension, embeddings = shadow_embeddings, former = physical, "
                "shadow = '', shadow_model = '', shadow_dimension = 0, shadow_embeddings = '', "
                "shadow_recipe = '', batch_id = '' WHERE rag_id = ?",
                rag_id,
            )
            # Chunk counts are those of the copies; documents without a copy become unsearchable.
            tables.execute(
                "UPDATE rag_documents SET (chunks, recipe) = (SELECT c.chunks, c.recipe "
                "FROM rag_copies c WHERE c.rag_id = rag_documents.rag_id "
                "AND c.doc_id = rag_documents.doc_id AND c.physical = ?) "
                "WHERE rag_id = ? AND sealed > 0 AND EXISTS (SELECT 1 FROM rag_copies c "
                "WHERE c.rag_id = rag_documents.rag_id "
                "AND c.doc_id = rag_documents.doc_id AND c.physical = ?)",
                *(shadow, rag_id, shadow),
            )
            for document in missing:
                tables.execute(
                    "UPDATE rag_documents SET sealed = 0, chunks = 0, state = 'failed', "
                    "error_code = 'ERR_NOT_REBUILT', error = 'left behind by a forced swap' "
                    "WHERE rag_id = ? AND doc_id = ?",
                    *(rag_id, document.doc_id),
                )
            tables.execute("DELETE FROM rag_copies WHERE rag_id = ?", rag_id)
            return rows(tables, RagRow, _ONE, rag_id)[0]

        return await self._tables.write(work)

    async def drop_former(self, rag_id: str, former: str) -> None:
        """Note that the former collection was dropped."""
        await self._write(
            "UPDATE rag_rags SET former = '' WHERE rag_id = ? AND former = ?", rag_id, former
        )
