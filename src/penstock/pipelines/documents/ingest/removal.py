"""Removing documents: forgotten by a user, or begun by a job that was cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import PurePosixPath

import msgspec

from penstock.errors import DocumentError
from penstock.pipelines.documents.config.models import RagConfig
from penstock.pipelines.documents.ingest.finished_files import LARGEST_NOTE, META_NOTE, drop_copy
from penstock.pipelines.documents.ingest.job_state import IngestJobState
from penstock.pipelines.documents.ledger.tables import JobRow
from penstock.pipelines.documents.resources import DocumentResources
from penstock.queues.storage.job_record import JobRecord
from penstock.stores.files.folder import Folder
from penstock.stores.files.naming import with_ending

__all__ = ["end_cancelled", "forget", "remove_points"]


async def end_cancelled(resources: DocumentResources, row: JobRow, record: JobRecord) -> None:
    """End a cancelled job in the ledger, and remove its points and the copy of its file.

    A file that was put into `incoming/` stays there. An earlier version stays searchable.
    """
    generation = await resources.ledger.cancelled(row.rag_id, row.doc_id, row.job_id)
    rag = await resources.ledger.rag(row.rag_id)
    if generation and rag is not None:
        await resources.vectors.delete_generation(rag.physical, row.doc_id, generation)
    with suppress(DocumentError):
        await asyncio.to_thread(drop_copy, IngestJobState.from_record(resources, row, record))
    await resources.ledger.jobs.end(row.job_id, "cancelled")


class _Note(msgspec.Struct):
    """The field of a `.meta.json` that is read."""

    document: str = ""


async def forget(
    resources: DocumentResources, rag: RagConfig, documents: Sequence[str], *, files: bool
) -> int:
    """Remove documents from the index; how many there were. `files` deletes stored files too.

    The ledger is written first: searches stop finding them at once, and after an interruption
    `Cleanup` removes the points.
    """
    rows = await resources.ledger.forget(rag.rag_id, documents, await resources.queue.server_ms())
    processed = resources.folders(rag).processed
    for row in rows:
        if files and row.stored:
            await asyncio.to_thread(_remove_versions, processed, row.doc_id, row.file)
        await remove_points(resources, rag.rag_id, row.doc_id, row.generation)
    return len(rows)


async def remove_points(
    resources: DocumentResources, rag_id: str, doc_id: str, generation: int
) -> None:
    """Remove the points of a forgotten document, and note that in the ledger."""
    row = await resources.ledger.rag(rag_id)
    if row is not None:
        for collection in filter(None, (row.physical, row.shadow)):
            await resources.vectors.delete_before(collection, doc_id, generation)
    await resources.ledger.forgotten(rag_id, doc_id, generation)


def _remove_versions(processed: Folder, doc_id: str, stored: str) -> None:
    """Remove the files of all stored versions of a document."""
    folder, slash, last = stored.rpartition("/")
    stem = PurePosixPath(doc_id).stem
    for found in [entry.name for entry in (processed.root / folder).iterdir()]:
        name = folder + slash + found
        if found == last or (found.startswith(stem) and _document_of(processed, name) == doc_id):
            processed.remove(name)
            processed.remove(with_ending(name, META_NOTE))


def _document_of(processed: Folder, name: str) -> str:
    try:
        note = processed.read(with_ending(name, META_NOTE), LARGEST_NOTE)
        return msgspec.json.decode(note, type=_Note).document
    except (DocumentError, msgspec.MsgspecError):
        return ""
