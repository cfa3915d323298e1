"""What a crash of the machine may have cost: looked for when a worker begins.

The ledger is on the disk when a document is done, its vectors within a second after that. So of
what was done in the last minute before work ended, the number of points is compared.
"""

from __future__ import annotations

import logging

from penstock.pipelines.documents.ledger_rows import DocumentRow, RagRow
from penstock.pipelines.documents.submitting import Given, Submitting, SubmitWords
from penstock.pipelines.documents.workshop import Workshop

__all__ = ["recheck"]

logger = logging.getLogger(__name__)

_LAST_MS = 60_000
_MOST = 10_000


async def recheck(workshop: Workshop, *, last_ms: int = _LAST_MS) -> list[str]:
    """Take documents in again that have fewer points than they should; which."""
    mended: list[str] = []
    for row in await workshop.ledger.rags():
        rag = workshop.config.rags.get(row.rag_id)
        if rag is None:
            continue
        await workshop.vectors.create(row.physical, row.dimension)
        wrong = await _incomplete(workshop, row, last_ms)
        if wrong:
            logger.warning("RAG %s: %d documents have lost points", row.rag_id, len(wrong))
            root = workshop.folders(rag).processed.root
            files = [
                Given(
                    path=root / document.file,
                    name=document.file,
                    place="processed",
                    document=document.doc_id,
                )
                for document in wrong
            ]
            words = SubmitWords(reindex=True, skip_validation=True, submitted_by="recheck")
            await Submitting(workshop).submit(rag, files, words)
            mended += [document.doc_id for document in wrong]
    return mended


async def _incomplete(workshop: Workshop, row: RagRow, last_ms: int) -> list[DocumentRow]:
    latest = await workshop.ledger.latest(row.rag_id, last_ms, _MOST)
    counts = await workshop.vectors.counts(row.physical, [one.doc_id for one in latest])
    return [one for one in latest if one.stored and counts.get(one.doc_id, 0) < one.chunks]
