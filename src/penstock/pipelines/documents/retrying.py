"""Failed jobs once more, with their files."""

from __future__ import annotations

import asyncio

from penstock.errors import JobMissing
from penstock.pipelines.documents.case import Case
from penstock.pipelines.documents.ledger_rows import JobRow
from penstock.pipelines.documents.workshop import Workshop
from penstock.queues.records import JobRecord
from penstock.stores.files.moving import candidates
from penstock.stores.files.naming import with_ending

__all__ = ["Retrying"]

_LARGEST_NOTE = 1 << 20


class Retrying:
    """Queues jobs again whose dead letters are there."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    async def retry(self, row: JobRow) -> bool:
        """Bring the file back, then the job; False if its letter has gone."""
        workshop, queue = self._workshop, self._workshop.queue
        try:
            record: JobRecord = await queue.job(row.job_id).status()
        except JobMissing:
            return False
        case = Case.of_record(workshop, row, record)
        if not case.is_stored:
            await asyncio.to_thread(_bring_back, case)
        await workshop.ledger.pardon(row.rag_id, row.doc_id)
        await workshop.ledger.jobs.reopen(row.job_id)
        try:
            await workshop.app.queues.retry(queue.name, row.job_id)
        except JobMissing:
            await workshop.ledger.jobs.end(row.job_id, "failed", row.error)
            return False
        return True


def _bring_back(case: Case) -> None:
    """Move the file of a job from `failed/` to where it came from."""
    incoming, failed, job_id = case.folders.incoming, case.folders.failed, case.message.job_id
    if incoming.identity(case.name) is not None:
        return
    for name in candidates(case.goes_by, job_id):
        identity = failed.identity(name)
        if identity is None:
            return
        beside = with_ending(name, ".error.json")
        told = failed.read(beside, _LARGEST_NOTE) if failed.identity(beside) else b""
        if job_id.encode() in told:
            failed.move(name, incoming, case.name, identity=identity, suffix=job_id)
            failed.remove(beside)
            return
