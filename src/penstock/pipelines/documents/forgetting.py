"""Documents that are no longer to be found."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import PurePosixPath

import msgspec

from penstock.errors import DocumentError
from penstock.pipelines.documents.configuration import RagConfig
from penstock.pipelines.documents.workshop import Workshop
from penstock.stores.files.folder import Folder
from penstock.stores.files.naming import with_ending

__all__ = ["forget"]

_LARGEST_NOTE = 1 << 20


class _Note(msgspec.Struct):
    """What a `.meta.json` is asked for."""

    document: str = ""


async def forget(
    workshop: Workshop, rag: RagConfig, documents: Sequence[str], *, files: bool
) -> int:
    """Let documents no longer be found; how many there were.

    The ledger first: whatever happens then, searches find them no more, and a worker removes what
    is left. `files` removes every version that is stored, too.
    """
    rows = await workshop.ledger.forget(rag.rag_id, documents, await workshop.queue.server_ms())
    processed = workshop.folders(rag).processed
    for row in rows:
        if files and row.stored:
            await asyncio.to_thread(_remove_versions, processed, row.doc_id, row.file)
        await workshop.remove_points(rag.rag_id, row.doc_id, row.generation)
    return len(rows)


def _remove_versions(processed: Folder, doc_id: str, stored: str) -> None:
    """Remove a document's files: the one that was found, and those of earlier versions."""
    folder, slash, last = stored.rpartition("/")
    stem = PurePosixPath(doc_id).stem
    for found in [entry.name for entry in (processed.root / folder).iterdir()]:
        name = folder + slash + found
        if found == last or (found.startswith(stem) and _document_of(processed, name) == doc_id):
            processed.remove(name)
            processed.remove(with_ending(name, ".meta.json"))


def _document_of(processed: Folder, name: str) -> str:
    try:
        note = processed.read(with_ending(name, ".meta.json"), _LARGEST_NOTE)
        return msgspec.json.decode(note, type=_Note).document
    except (DocumentError, msgspec.MsgspecError):
        return ""
