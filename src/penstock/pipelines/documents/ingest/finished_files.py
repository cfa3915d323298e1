"""Files of ended jobs: moved to `processed/` or `failed/`, each with a JSON note beside it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.errors import DocumentError, FileMissing
from penstock.pipelines.documents.ingest.job_state import IngestJobState
from penstock.pipelines.documents.ledger.tables import DocumentRow
from penstock.pipelines.documents.submit.job_message import now_text
from penstock.pipelines.documents.submit.submitter import remove_copy, remove_empty_folders
from penstock.stores.files.folder import Folder, Identity
from penstock.stores.files.naming import candidates, with_ending

__all__ = ["ERROR_NOTE", "LARGEST_NOTE", "META_NOTE", "FinishedFiles", "drop_copy"]
__all__ += ["is_note_of"]

META_NOTE, ERROR_NOTE = ".meta.json", ".error.json"
LARGEST_NOTE = 1 << 20


@dataclass(slots=True)
class _Move:
    """A file to move, and the note to write beside it."""

    state: IngestJobState
    target: Folder
    identity: Identity
    note: dict[str, Any]
    ending: str
    moved: asyncio.Future[str] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class FinishedFiles:
    """Moves files durably; concurrent moves share their syncs of the disk.

    Every step can be repeated: a file that was moved already is found in its new place.
    """

    def __init__(self) -> None:
        self._waiting: list[_Move] = []
        self._runner: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Wait for the moves under way. May come twice."""
        if self._runner is not None:
            await self._runner

    async def store(self, state: IngestJobState, identity: Identity, result: dict[str, Any]) -> str:
        """Move an indexed file; its name in `processed/`.

        Empty if another file has taken its place in `incoming/`: that one stays.
        """
        note = _meta_note(state, result)
        return await self._move(_Move(state, state.folders.processed, identity, note, META_NOTE))

    async def set_aside(
        self, state: IngestJobState, identity: Identity, body: dict[str, Any]
    ) -> str:
        """Move the file of a failed job; its name in `failed/`."""
        return await self._move(_Move(state, state.folders.failed, identity, body, ERROR_NOTE))

    def is_stored(self, state: IngestJobState, row: DocumentRow) -> bool:
        """Whether `processed/` still has the file that the ledger names, unchanged."""
        if not row.stored:
            return False
        try:
            with state.folders.processed.open(row.file, max_bytes=state.folders.max_bytes) as file:
                return file.size == row.size and file.digest() == row.digest
        except DocumentError:
            return False

    def discard(self, state: IngestJobState, identity: Identity) -> None:
        """Remove a file from `incoming/` that `processed/` has already, byte by byte."""
        if not state.is_stored and state.place.identity(state.name) == identity:
            state.place.remove(state.name)
            _remove_empty_folders(state)

    async def stored_before(
        self, state: IngestJobState, row: DocumentRow, result: dict[str, Any]
    ) -> str:
        """The name in `processed/` of a file that an interrupted attempt moved; empty if none."""
        return await asyncio.to_thread(self._find_stored, state, row, result)

    def _find_stored(self, state: IngestJobState, row: DocumentRow, result: dict[str, Any]) -> str:
        folder = state.folders.processed
        for name in candidates(state.final_name, state.suffix):
            try:
                with folder.open(name, max_bytes=state.folders.max_bytes) as file:
                    if file.digest() != row.digest:
                        continue
            except FileMissing:
                return ""
            except DocumentError:
                continue
            note = with_ending(name, META_NOTE)
            if folder.identity(note) is None:
                folder.write(note, _json(_meta_note(state, result)))
            return name
        return ""

    async def set_aside_before(self, state: IngestJobState, body: dict[str, Any]) -> bool:
        """Whether an interrupted attempt moved the file to `failed/`; completes its note."""
        return await asyncio.to_thread(self._find_set_aside, state, body)

    def _find_set_aside(self, state: IngestJobState, body: dict[str, Any]) -> bool:
        folder, digest = state.folders.failed, state.digest or state.message.digest
        for name in candidates(state.final_name, state.suffix):
            note = with_ending(name, ERROR_NOTE)
            try:
                with folder.open(name, max_bytes=state.folders.max_bytes) as file:
                    if file.digest() != digest:
                        continue
                if folder.identity(note) is None:
                    folder.write(note, _json(body))
                    return True
                if is_note_of(state.message.job_id, folder.read(note, LARGEST_NOTE)):
                    return True
            except FileMissing:
                return False
            except DocumentError:
                continue
        return False

    async def _move(self, move: _Move) -> str:
        self._waiting.append(move)
        if self._runner is None or self._runner.done():
            # A task of its own, awaited by `close`: the move serves several jobs, and a job that
            # is cancelled must not take the moves of others with it.
            self._runner = asyncio.create_task(self._run(), name="documents: moving files")
        return await move.moved

    async def _run(self) -> None:
        while self._waiting:
            moves, self._waiting = self._waiting, []
            outcomes = await asyncio.to_thread(_move_all, moves)
            for move, outcome in zip(moves, outcomes, strict=True):
                if move.moved.done():
                    continue  # its job was cancelled
                if isinstance(outcome, Exception):
                    move.moved.set_exception(outcome)
                else:
                    move.moved.set_result(outcome)


def _move_all(moves: list[_Move]) -> list[str | Exception]:
    outcomes: list[str | Exception] = []
    for move in moves:
        try:
            outcomes.append(_move_one(move))
        except Exception as error:  # noqa: BLE001  raised where the move is awaited
            outcomes.append(error)
    folders = {id(folder): folder for move in moves for folder in (move.target, move.state.place)}
    try:
        for folder in folders.values():
            folder.settle()
    except Exception as error:  # noqa: BLE001  no move is known to be on the disk
        return [error] * len(moves)
    return outcomes


def _move_one(move: _Move) -> str:
    state = move.state
    name = (
        state.name
        if state.is_stored
        else state.place.move(
            state.name,
            move.target,
            state.final_name,
            identity=move.identity,
            suffix=state.suffix,
            sync=False,
        )
    )
    if name is None:
        return ""
    _remove_empty_folders(state)
    # Not synced: the ledger has the same facts, so a crash of the machine costs the note alone.
    move.target.write(with_ending(name, move.ending), _json(move.note), sync=False, lasting=False)
    return name


def is_note_of(job_id: str, content: bytes) -> bool:
    """Whether a note was written for this job."""
    return msgspec.json.encode(job_id) in content


def drop_copy(state: IngestJobState) -> None:
    """Remove the copy that was made for a job which does not need it."""
    if state.is_copy:
        remove_copy(state.place, state.name)


def _remove_empty_folders(state: IngestJobState) -> None:
    if state.is_copy:
        remove_empty_folders(state.place, state.name)


def _meta_note(state: IngestJobState, result: dict[str, Any]) -> dict[str, Any]:
    """Content of `<file>.meta.json`."""
    message = state.message
    return {
        "job_id": message.job_id,
        "rag_id": message.rag_id,
        "filename": message.filename,
        "submitted_at": message.submitted_at,
        "submitted_by": message.submitted_by,
        "digest": state.digest,
        "metadata": message.metadata,
        "status": "done",
        "completed_at": now_text(),
        **result,
    }


def _json(value: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2)
