"""What a crash of the machine may have cost: looked for when a worker begins.

The ledger is on the disk when a document is done, its vectors within a second after that. So of
what was done in the last minute before work ended, the number of points is compared.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.pipelines.documents.configuration import RagConfig
from penstock.pipelines.documents.ledger_rows import DocumentRow, RagRow
from penstock.pipelines.documents.submitting import Given, Submitting, SubmitWords
from penstock.pipelines.documents.workshop import Workshop

__all__ = ["lacks_points", "recheck", "recheck_documents"]

logger = logging.getLogger(__name__)

_LAST_MS = 60_000
_MOST = 10_000


async def recheck(workshop: Workshop, *, last_ms: int = _LAST_MS) -> list[str]:
    """Take documents in again that have fewer points than they should; which."""
    mended: list[str] = []
    for row in await workshop.ledger.rags():
        rag = workshop.config.rags.get(row.rag_id)
        if rag is not None:
            await workshop.vectors.create(row.physical, row.dimension)
            latest = await workshop.ledger.latest(row.rag_id, last_ms, _MOST)
            mended += await recheck_documents(workshop, rag, row, latest)
    return mended


async def recheck_documents(
    workshop: Workshop, rag: RagConfig, row: RagRow, documents: Sequence[DocumentRow]
) -> list[str]:
    """Of these documents, take in again those that have fewer points than they should; which."""
    wrong = [one for one in documents if one.stored and await lacks_points(workshop, row, one)]
    if wrong:
        logger.warning("RAG %s: %d documents have lost points", row.rag_id, len(wrong))
        root = workshop.folders(rag).processed.root
        files = [
            Given(path=root / one.file, name=one.file, place="processed", document=one.doc_id)
            for one in wrong
        ]
        words = SubmitWords(reindex=True, skip_validation=True, submitted_by="recheck")
        await Submitting(workshop).submit(rag, files, words)
    return [one.doc_id for one in wrong]


async def lacks_points(workshop: Workshop, row: RagRow, document: DocumentRow) -> bool:
    """Whether the version that is found is not complete; earlier ones are removed first."""
    await workshop.vectors.delete_before(row.physical, document.doc_id, document.sealed)
    counts = await workshop.vectors.counts(row.physical, [document.doc_id])
    return counts.get(document.doc_id, 0) < document.chunks
