"""Documents that are given up: the file goes to `failed/`, with a body that says why."""

from __future__ import annotations

import traceback
from contextlib import suppress
from typing import Any

from penstock.errors import (
    DocumentRefused,
    FileMissing,
    ParseError,
    UnsupportedFile,
)
from penstock.pipelines.documents.case import Case
from penstock.pipelines.documents.message import now_text
from penstock.pipelines.documents.storing import Storing
from penstock.pipelines.documents.workshop import Workshop

__all__ = ["GivingUp"]

_LONGEST_TRACE = 8_000


class GivingUp:
    """Ends what is not going to succeed. Nothing of it stays to be found, an earlier version does.

    The ledger is told first, the job ends last: whoever is interrupted in between can be followed
    by another that does the rest (see `Tidier`).
    """

    def __init__(self, workshop: Workshop, storing: Storing) -> None:
        self._workshop, self._storing = workshop, storing

    async def give_up(self, case: Case, error: Exception, *, moves: bool = True) -> None:
        """See to a document whose last attempt ended with this error; its file `moves`, or not."""
        workshop, attempt = self._workshop, case.attempt
        code = str(getattr(error, "error_code", "")) or "ERR_UNEXPECTED"
        if case.message.target:
            await workshop.ledger.end_job(attempt, "failed", code, str(error))
            return
        if case.generation:
            is_bad = isinstance(error, ParseError | UnsupportedFile)
            given_up = await workshop.ledger.failed(
                attempt, case.generation, code, str(error), is_bad=is_bad
            )
            if given_up:
                row = await workshop.fresh_row(case.rag)
                await workshop.vectors.delete_generation(row.physical, case.doc_id, case.generation)
            elif await self._is_found(case):
                return  # another worker took us for dead, and has done the same job
        if not case.is_stored and not isinstance(error, FileMissing):
            await self._set_aside(case, error, code, moves=moves)
        await workshop.ledger.end_job(attempt, "failed", code, str(error))

    async def _is_found(self, case: Case) -> bool:
        row = await self._workshop.ledger.document(case.rag.rag_id, case.doc_id)
        return row is not None and row.sealed == case.generation

    async def _set_aside(self, case: Case, error: Exception, code: str, *, moves: bool) -> None:
        body, identity = error_body(case, error, code), case.identity
        if identity is None and await self._storing.set_aside_before(case, body):
            return  # an interrupted attempt has moved it
        if identity is None and moves:  # it could not even be opened
            with suppress(DocumentRefused):
                identity = case.place.identity(case.name)
        if identity is not None and moves:
            await self._storing.set_aside(case, identity, body)


def error_body(case: Case, error: Exception, code: str) -> dict[str, Any]:
    """What `<file>.error.json` says, as seed 002 has it."""
    message = case.message
    fatal = isinstance(error, DocumentRefused)
    return {
        "job_id": message.job_id,
        "rag_id": message.rag_id,
        "filename": message.filename,
        "status": "failed",
        "submitted_at": message.submitted_at,
        "started_at": case.started_at,
        "failed_at": now_text(),
        "error": str(error),
        "error_type": type(error).__name__,
        "error_code": code,
        "retry_count": case.retries,
        "max_retries": case.max_retries,
        "reason": "fatal" if fatal else "exhausted",
        "suggestions": list(getattr(error, "suggestions", ())),
        "traceback": "" if fatal else "".join(traceback.format_exception(error))[-_LONGEST_TRACE:],
        "digest": case.digest,
    }
