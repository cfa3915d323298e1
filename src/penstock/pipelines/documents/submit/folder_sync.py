"""Syncing a folder: new and changed files are submitted, documents of deleted ones forgotten."""

from __future__ import annotations

import asyncio
import os
from hashlib import sha256
from pathlib import Path

import msgspec

from penstock.errors import FileRefused
from penstock.pipelines.documents.config.models import RagConfig
from penstock.pipelines.documents.resources import DocumentResources, recipe_of
from penstock.pipelines.documents.submit.submitter import (
    RefusedFile,
    SourceFile,
    SubmitResult,
)
from penstock.stores.files.folder import Folder
from penstock.stores.files.naming import escaped

__all__ = ["SyncReport", "compare_folder", "source_of"]


class SyncReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a sync."""

    rag_id: str
    unchanged: int
    new: tuple[str, ...]
    changed: tuple[str, ...]
    gone: tuple[str, ...]
    """Documents from this folder whose files are gone."""
    bad: tuple[str, ...]
    """Unchanged files that are known to be unreadable."""
    forgotten: int = 0
    submission: SubmitResult | None = None
    refused: tuple[RefusedFile, ...] = ()
    dry_run: bool = False


async def compare_folder(
    resources: DocumentResources, rag: RagConfig, folder: Path
) -> tuple[SyncReport, list[SourceFile]]:
    """Compare a folder with the ledger: a report, and the files to submit.

    Reads all documents of the ledger at once, and every file of a known document.
    """
    row = await resources.fresh_row(rag)
    known = await resources.ledger.known(rag.rag_id)
    return await asyncio.to_thread(_compare, rag, folder, recipe_of(rag, row.model), known)


def source_of(folder: Path) -> str:
    """The `source` of documents that come from this folder."""
    return escaped(str(folder.resolve()))


def _compare(
    rag: RagConfig, folder: Path, recipe: str, known: dict[str, tuple[str, str, str, str]]
) -> tuple[SyncReport, list[SourceFile]]:
    if not folder.is_dir():
        raise FileRefused(f"{str(folder)!r} is not a folder", "ERR_NOT_A_FOLDER")
    place = Folder(folder)
    source, extensions = source_of(folder), set(rag.sources.extensions)
    new: list[str] = []
    changed: list[str] = []
    bad: list[str] = []
    files: list[SourceFile] = []
    seen: set[str] = set()
    unchanged = 0
    root = os.fspath(place.root)
    for name in place.walk():
        if os.path.splitext(name)[1].lower() not in extensions:  # noqa: PTH122  for each file
            continue
        document = name if name.isascii() else Folder.label(name)
        seen.add(document)
        entry = known.get(document)
        if entry is None:
            new.append(document)
        else:
            digest, old_recipe, _, state = entry
            same = digest and _digest(f"{root}/{name}", rag.max_bytes) == digest
            if same and state == "failed":
                bad.append(document)
                continue
            if same and old_recipe == recipe:
                unchanged += 1
                continue
            changed.append(document)
        files.append(SourceFile(path=folder / name, name=name))
    gone = sorted(
        document for document, entry in known.items() if entry[2] == source and document not in seen
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
    """SHA-256 of a file; empty for an unreadable one, which is refused when it is submitted."""
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
