"""Why a job is where it is."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.pipelines.documents import health
from penstock.pipelines.documents.ledger_rows import DocumentRow, JobRow
from penstock.pipelines.documents.views import status_of
from penstock.pipelines.documents.workshop import Workshop
from penstock.queues.records import JobRecord

__all__ = ["Explanation", "explain"]


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a job: why it is where it is."""

    job_id: str
    status: dict[str, Any]
    lines: tuple[str, ...]
    document: DocumentRow | None = None


async def explain(workshop: Workshop, job_id: str) -> Explanation:
    """Look everywhere; JobMissing if there is no such job."""
    record = await workshop.queue.job(job_id).status()
    row = await workshop.ledger.jobs.get(job_id)
    document = await workshop.ledger.document(row.rag_id, row.doc_id) if row is not None else None
    lines = await _lines(workshop, record, row, document)
    return Explanation(
        job_id=job_id, status=status_of(record), lines=tuple(lines), document=document
    )


async def _lines(
    workshop: Workshop, record: JobRecord, row: JobRow | None, document: DocumentRow | None
) -> list[str]:
    lines = [_where(record)]
    if record.error and record.status != "done":
        lines.append(f"last error: {record.error} ({record.error_code or record.error_type})")
        lines += [f"try: {suggestion}" for suggestion in record.suggestions]
    if record.status in {"queued", "retrying"}:
        state = await health.check(workshop)
        waiting = "1 job waits" if state.queued == 1 else f"{state.queued:,} jobs wait"
        workers = "1 worker lives" if state.workers == 1 else f"{state.workers:,} workers live"
        runs = "runs" if state.processing == 1 else "run"
        lines.append(f"{waiting}, {state.processing:,} {runs}, {workers}")
        lines += [f"in the way: {problem}" for problem in state.problems]
    if document is not None:
        if document.sealed:
            lines.append(f"generation {document.sealed} is found, {document.chunks} chunks")
        else:
            lines.append("no version of the document is found")
        if document.job_id != record.job_id:
            lines.append(f"a later job has the document: {document.job_id}")
        if document.duplicate_of:
            lines.append(f"the same content as {document.duplicate_of}")
    elif row is None:
        lines.append("the ledger has not heard of it: no worker has begun it")
    return lines


def _where(record: JobRecord) -> str:
    done = record.progress
    where = f"{record.status}, attempt {record.attempt} of {record.max_attempts or '?'}"
    if done.note:
        where += f", {done.note}"
    if done.total:
        where += f" ({done.done} of {done.total})"
    return where
