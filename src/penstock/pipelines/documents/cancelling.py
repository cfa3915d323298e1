"""Jobs that were cancelled: nothing of them stays."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from penstock.errors import DocumentError
from penstock.pipelines.documents.case import Case
from penstock.pipelines.documents.ledger_rows import JobRow
from penstock.pipelines.documents.storing import drop_copy
from penstock.pipelines.documents.workshop import Workshop
from penstock.queues.records import JobRecord

__all__ = ["end_cancelled"]


async def end_cancelled(workshop: Workshop, row: JobRow, record: JobRecord) -> None:
    """Note the end of a cancelled job, and remove what it has written.

    A file that was put into `incoming/` stays there. An earlier version of the document is found as
    before.
    """
    generation = await workshop.ledger.cancelled(row.rag_id, row.doc_id, row.job_id)
    rag = await workshop.ledger.rag(row.rag_id)
    if generation and rag is not None:
        await workshop.vectors.delete_generation(rag.physical, row.doc_id, generation)
    with suppress(DocumentError):
        await asyncio.to_thread(drop_copy, Case.of_record(workshop, row, record))
    await workshop.ledger.jobs.end(row.job_id, "cancelled")
