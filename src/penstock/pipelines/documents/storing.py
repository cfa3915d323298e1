"""Files that are done with: to `processed/` or `failed/`, each with a note beside it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import msgspec

from penstock.errors import DocumentError, FileMissing
from penstock.pipelines.documents.case import Case
from penstock.pipelines.documents.ledger_rows import DocumentRow
from penstock.pipelines.documents.message import now_text
from penstock.stores.files.folder import Folder, Identity
from penstock.stores.files.moving import candidates
from penstock.stores.files.naming import with_ending

__all__ = ["Storing", "drop_copy"]

_META, _ERROR = ".meta.json", ".error.json"
_LONGEST_NOTE = 1 << 20


@dataclass(slots=True)
class _Errand:
    """A file to move, and what to write beside it."""

    case: Case
    target: Folder
    identity: Identity
    note: dict[str, Any]
    ending: str
    moved: asyncio.Future[str] = field(default_factory=lambda: _future())  # noqa: PLW0108


class Storing:
    """Moves files durably. What several jobs want moved at the same time goes to the disk as one.

    Every step may be repeated: a file that has been moved is found where it is.
    """

    def __init__(self) -> None:
        self._waiting: list[_Errand] = []
        self._runner: asyncio.Task[None] | None = None

    async def store(self, case: Case, identity: Identity, result: dict[str, Any]) -> str:
        """Move a file that is indexed; its name in `processed/`.

        Empty if its place in `incoming/` has been taken by a newer one, which stays.
        """
        note = {**_told(case), "status": "done", "completed_at": now_text(), **result}
        return await self._move(_Errand(case, case.folders.processed, identity, note, _META))

    async def set_aside(self, case: Case, identity: Identity, body: dict[str, Any]) -> str:
        """Move a file that was given up; its name in `failed/`."""
        return await self._move(_Errand(case, case.folders.failed, identity, body, _ERROR))

    def is_stored(self, case: Case, row: DocumentRow) -> bool:
        """Whether `processed/` still has what the ledger says it has."""
        if not row.stored:
            return False
        try:
            with case.folders.processed.open(row.file, max_bytes=case.rag.max_bytes) as file:
                return file.size == row.size and file.digest() == row.digest
        except DocumentError:
            return False

    def discard(self, case: Case, identity: Identity) -> None:
        """Remove a file from `incoming/` that `processed/` has already, byte by byte."""
        if not case.is_stored and case.place.identity(case.name) == identity:
            case.place.remove(case.name)
            _leave_place(case)

    async def stored_before(self, case: Case, row: DocumentRow, result: dict[str, Any]) -> str:
        """Find a file that an interrupted attempt has moved; empty if it is not there."""
        return await asyncio.to_thread(self._find, case, row, result)

    def _find(self, case: Case, row: DocumentRow, result: dict[str, Any]) -> str:
        folder = case.folders.processed
        for name in candidates(case.goes_by, case.message.job_id):
            try:
                with folder.open(name, max_bytes=case.rag.max_bytes) as file:
                    if file.digest() != row.digest:
                        continue
            except FileMissing:
                return ""
            except DocumentError:
                continue
            beside = with_ending(name, _META)
            if folder.identity(beside) is None:
                note = {**_told(case), "status": "done", "completed_at": now_text(), **result}
                folder.write(beside, _json(note))
            return name
        return ""

    async def set_aside_before(self, case: Case, body: dict[str, Any]) -> bool:
        """See to the note of a file that an interrupted attempt has given up; False if none has."""
        return await asyncio.to_thread(self._find_aside, case, body)

    def _find_aside(self, case: Case, body: dict[str, Any]) -> bool:
        folder, digest = case.folders.failed, case.digest or case.message.digest
        for name in candidates(case.goes_by, case.message.job_id):
            beside = with_ending(name, _ERROR)
            try:
                with folder.open(name, max_bytes=case.rag.max_bytes) as file:
                    if file.digest() != digest:
                        continue
                if folder.identity(beside) is None:
                    folder.write(beside, _json(body))
                    return True
                if case.message.job_id.encode() in folder.read(beside, _LONGEST_NOTE):
                    return True
            except FileMissing:
                return False
            except DocumentError:
                continue
        return False

    async def _move(self, errand: _Errand) -> str:
        self._waiting.append(errand)
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run(), name="documents: moving files")
        return await errand.moved

    async def _run(self) -> None:
        while self._waiting:
            errands, self._waiting = self._waiting, []
            outcomes = await asyncio.to_thread(_move_all, errands)
            for errand, outcome in zip(errands, outcomes, strict=True):
                if errand.moved.done():
                    continue  # nobody waits for it any more
                if isinstance(outcome, Exception):
                    errand.moved.set_exception(outcome)
                else:
                    errand.moved.set_result(outcome)


def _move_all(errands: list[_Errand]) -> list[str | Exception]:
    outcomes: list[str | Exception] = []
    for errand in errands:
        try:
            outcomes.append(_move_one(errand))
        except Exception as error:  # noqa: BLE001  it is one errand's
            outcomes.append(error)
    folders = {
        id(folder): folder for errand in errands for folder in (errand.target, errand.case.place)
    }
    try:
        for folder in folders.values():
            folder.settle()
    except Exception as error:  # noqa: BLE001  none of them is known to be on the disk
        return [error] * len(errands)
    return outcomes


def _move_one(errand: _Errand) -> str:
    case = errand.case
    name = (
        case.name
        if case.is_stored
        else case.place.move(
            case.name,
            errand.target,
            case.goes_by,
            identity=errand.identity,
            suffix=case.message.job_id,
            sync=False,
        )
    )
    if name is None:
        return ""
    # The ledger has it all: a crash of the machine may cost this note, and costs nothing else.
    _leave_place(case)
    beside = with_ending(name, errand.ending)
    errand.target.write(beside, _json(errand.note), sync=False, lasting=False)
    return name


def drop_copy(case: Case) -> None:
    """Remove a file that was copied for a job that has no use for it."""
    if case.is_copy:
        case.place.remove(case.name)
        _leave_place(case)


def _leave_place(case: Case) -> None:
    """Remove the folders that were made for a copy, as far as they are empty."""
    if case.is_copy:
        parents = [case.place.root / parent for parent in PurePosixPath(case.name).parents]
        with suppress(OSError):
            for folder in parents[:-2]:  # `.submitted` and `incoming/` stay
                folder.rmdir()


def _told(case: Case) -> dict[str, Any]:
    message = case.message
    return {
        "job_id": message.job_id,
        "rag_id": message.rag_id,
        "filename": message.filename,
        "submitted_at": message.submitted_at,
        "submitted_by": message.submitted_by,
        "digest": case.digest,
        "metadata": message.metadata,
    }


def _json(value: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2)


def _future() -> asyncio.Future[str]:
    return asyncio.get_running_loop().create_future()
