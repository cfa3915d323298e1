"""A folder kept in step with a RAG: what is new or changed is taken in, what has gone forgotten."""

from __future__ import annotations

import asyncio
import os
from hashlib import sha256
from pathlib import Path

import msgspec

from penstock.errors import FileRefused
from penstock.pipelines.documents.configuration import RagConfig
from penstock.pipelines.documents.submitting import (
    Given,
    Refusal,
    Submission,
    Submitting,
    SubmitWords,
)
from penstock.pipelines.documents.workshop import Workshop, recipe_of
from penstock.stores.files.folder import Folder
from penstock.stores.files.naming import escaped

__all__ = ["FolderSync", "SyncReport"]


class SyncReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a sync found and did."""

    rag_id: str
    unchanged: int
    new: tuple[str, ...]
    changed: tuple[str, ...]
    gone: tuple[str, ...]
    """Documents from this folder whose files are no longer there."""
    bad: tuple[str, ...]
    """Files that are known to be unreadable, and have not changed."""
    forgotten: int = 0
    submission: Submission | None = None
    refused: tuple[Refusal, ...] = ()
    dry_run: bool = False


class FolderSync:
    """Compares a folder with the ledger in one go: what has not changed costs one look at it."""

    def __init__(self, workshop: Workshop, submitting: Submitting) -> None:
        self._workshop, self._submitting = workshop, submitting

    async def compare(self, rag: RagConfig, folder: Path) -> tuple[SyncReport, list[Given]]:
        """What would have to be done, and the files to submit."""
        row = await self._workshop.fresh_row(rag)
        known = await self._workshop.ledger.known(rag.rag_id)
        return await asyncio.to_thread(_compare, rag, folder, recipe_of(rag, row.model), known)

    async def submit(self, rag: RagConfig, folder: Path, files: list[Given]) -> Submission:
        words = SubmitWords(submitted_by="sync", source=source_of(folder))
        return await self._submitting.submit(rag, files, words)


def source_of(folder: Path) -> str:
    """By which documents are known to come from this folder."""
    return escaped(str(folder.resolve()))


def _compare(
    rag: RagConfig, folder: Path, recipe: str, known: dict[str, tuple[str, str, str, str]]
) -> tuple[SyncReport, list[Given]]:
    if not folder.is_dir():
        raise FileRefused(f"{str(folder)!r} is no folder", "ERR_NOT_A_FOLDER")
    place = Folder(folder)
    source, extensions = source_of(folder), set(rag.sources.extensions)
    new: list[str] = []
    changed: list[str] = []
    bad: list[str] = []
    files: list[Given] = []
    seen: set[str] = set()
    unchanged = 0
    root = os.fspath(place.root)
    for name in place.walk():
        if os.path.splitext(name)[1].lower() not in extensions:  # noqa: PTH122  for each file
            continue
        document = name if name.isascii() else Folder.label(name)
        seen.add(document)
        told = known.get(document)
        if told is None:
            new.append(document)
        else:
            digest, old_recipe, _, state = told
            same = digest and _digest(f"{root}/{name}", rag.max_bytes) == digest
            if same and state == "failed":
                bad.append(document)
                continue
            if same and old_recipe == recipe:
                unchanged += 1
                continue
            changed.append(document)
        files.append(Given(path=folder / name, name=name))
    gone = sorted(
        document for document, told in known.items() if told[2] == source and document not in seen
    )
    report = SyncReport(
        rag_id=rag.rag_id,
        unchanged=unchanged,
        new=tuple(sorted(new)),
        changed=tuple(sorted(changed)),
        gone=tuple(gone),
        bad=tuple(sorted(bad)),
    )
    return report, sorted(files, key=lambda file: file.name)


def _digest(path: str, max_bytes: int) -> str:
    """SHA-256 of a file; empty for what cannot be read, which is then refused when it is taken."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        hashed, left = sha256(), max_bytes + 1
        while left > 0 and (block := os.read(descriptor, min(left, 1 << 20))):
            hashed.update(block)
            left -= len(block)
        return hashed.hexdigest()
    except OSError:
        return ""
    finally:
        os.close(descriptor)
