"""Failed documents: the file moves to `failed/` with an error note, and back for a replay."""

from __future__ import annotations

import asyncio
import traceback
from contextlib import suppress
from typing import Any

from penstock.errors import DocumentRefused, FileMissing, JobMissing, ParseError, UnsupportedFile
from penstock.pipelines.documents.ingest.finished_files import (
    ERROR_NOTE,
    LARGEST_NOTE,
    FinishedFiles,
    is_note_of,
)
from penstock.pipelines.documents.ingest.job_state import IngestJobState
from penstock.pipelines.documents.ledger.tables import JobRow
from penstock.pipelines.documents.resources import DocumentResources
from penstock.pipelines.documents.submit.job_message import now_text
from penstock.redaction import redacted
from penstock.stores.files.naming import candidates, with_ending

__all__ = ["FailedDocuments", "replay", "stored_text"]

_LONGEST_TRACE = 8_000


class FailedDocuments:
    """Ends jobs that cannot succeed. Their points are removed; an earlier version stays searchable.

    The ledger is written first and the job ends last, so `Cleanup` can complete an interrupted one.
    """

    def __init__(self, resources: DocumentResources, finished_files: FinishedFiles) -> None:
        self._resources, self._finished_files = resources, finished_files

    async def give_up(self, state: IngestJobState, error: Exception, *, moves: bool = True) -> None:
        """End a job after its last attempt; without `moves` its file stays where it is."""
        resources, attempt = self._resources, state.attempt
        code = str(getattr(error, "error_code", "")) or "ERR_UNEXPECTED"
        reason = stored_text(resources, str(error))
        if state.message.target:
            await resources.ledger.end_job(attempt, "failed", code, reason)
            return
        if state.generation:
            is_bad = isinstance(error, ParseError | UnsupportedFile)
            given_up = await resources.ledger.failed(
                attempt, state.generation, code, reason, is_bad=is_bad
            )
            if given_up:
                row = await resources.fresh_row(state.rag)
                await resources.vectors.delete_generation(
                    row.physical, state.doc_id, state.generation
                )
            elif await self._is_found(state):
                return  # another worker, which took this one for dead, has indexed the document
        if not state.is_stored and not isinstance(error, FileMissing):
            await self._set_aside(state, error, code, moves=moves)
        await resources.ledger.end_job(attempt, "failed", code, reason)

    async def _is_found(self, state: IngestJobState) -> bool:
        row = await self._resources.ledger.document(state.rag.rag_id, state.doc_id)
        return row is not None and row.sealed == state.generation

    async def _set_aside(
        self, state: IngestJobState, error: Exception, code: str, *, moves: bool
    ) -> None:
        body, identity = error_body(self._resources, state, error, code), state.identity
        if identity is None and await self._finished_files.set_aside_before(state, body):
            return  # an interrupted attempt has moved it
        if identity is None and moves:  # the file could not be opened
            with suppress(DocumentRefused):
                identity = state.place.identity(state.name)
        if identity is not None and moves:
            await self._finished_files.set_aside(state, identity, body)


def stored_text(resources: DocumentResources, text: str) -> str:
    """What is stored about an error: without secrets, unless the settings keep them."""
    return redacted(text) if resources.app.settings.log.redact else text


def error_body(
    resources: DocumentResources, state: IngestJobState, error: Exception, code: str
) -> dict[str, Any]:
    """Content of `<file>.error.json`; see docs/contracts.md."""
    message = state.message
    fatal = isinstance(error, DocumentRefused)
    trace = "" if fatal else "".join(traceback.format_exception(error))
    return {
        "job_id": message.job_id,
        "rag_id": message.rag_id,
        "filename": message.filename,
        "status": "failed",
        "submitted_at": message.submitted_at,
        "started_at": state.started_at,
        "failed_at": now_text(),
        "error": stored_text(resources, str(error)),
        "error_type": type(error).__name__,
        "error_code": code,
        "retry_count": state.retries,
        "max_retries": state.max_retries,
        "reason": "fatal" if fatal else "exhausted",
        "suggestions": [
            stored_text(resources, str(one)) for one in getattr(error, "suggestions", ())
        ],
        "traceback": stored_text(resources, trace)[-_LONGEST_TRACE:],
        "digest": state.digest,
    }


async def replay(resources: DocumentResources, row: JobRow) -> bool:
    """Bring the file of a failed job back, then queue the job; False without a dead letter."""
    queue = resources.queue
    try:
        record = await queue.job(row.job_id).status()
    except JobMissing:
        return False
    state = IngestJobState.from_record(resources, row, record)
    if not state.is_stored:
        await asyncio.to_thread(_bring_back, state)
    await resources.ledger.pardon(row.rag_id, row.doc_id)
    await resources.ledger.jobs.reopen(row.job_id)
    try:
        await resources.app.queues.replay(queue.name, row.job_id)
    except JobMissing:
        await resources.ledger.jobs.end(row.job_id, "failed", row.error)
        return False
    return True


def _bring_back(state: IngestJobState) -> None:
    """Move the file of a job from `failed/` to where it came from."""
    incoming, failed = state.folders.incoming, state.folders.failed
    if incoming.identity(state.name) is not None:
        return
    for name in candidates(state.final_name, state.suffix):
        identity = failed.identity(name)
        if identity is None:
            return
        note = with_ending(name, ERROR_NOTE)
        content = failed.read(note, LARGEST_NOTE) if failed.identity(note) else b""
        if is_note_of(state.message.job_id, content):
            failed.move(name, incoming, state.name, identity=identity, suffix=state.suffix)
            failed.remove(note)
            return
