"""Documents: the object a user holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from penstock.app import Penstock
from penstock.clock import SYSTEM_CLOCK
from penstock.errors import JobMissing
from penstock.pipelines.documents import checking, health, searching
from penstock.pipelines.documents.cancelling import end_cancelled
from penstock.pipelines.documents.explaining import Explanation, explain
from penstock.pipelines.documents.folder_sync import FolderSync, SyncReport
from penstock.pipelines.documents.forgetting import forget
from penstock.pipelines.documents.intake import Intake
from penstock.pipelines.documents.ledger_rows import DocumentRow, JobRow
from penstock.pipelines.documents.metrics import Metrics
from penstock.pipelines.documents.parsing.parsers import Parsers
from penstock.pipelines.documents.rebuilding import Rebuild, Rebuilding
from penstock.pipelines.documents.retrying import Retrying
from penstock.pipelines.documents.submitting import (
    Given,
    Submission,
    Submitting,
    SubmitWords,
)
from penstock.pipelines.documents.tidying import Tidier
from penstock.pipelines.documents.views import (
    BatchView,
    RagView,
    file_view,
    status_of,
)
from penstock.pipelines.documents.watcher import Watcher
from penstock.pipelines.documents.workshop import Workshop
from penstock.queues.context import JobContext
from penstock.queues.queue import Queue
from penstock.queues.records import JobRecord
from penstock.redis.keys.queues import Priority
from penstock.runtime.service import Service

__all__ = ["Documents"]

_POLL_S = 0.5


class Documents:
    """Documents for retrieval: files in, questions answered.

        app = Penstock()
        documents = Documents(app)
        async with app, documents:
            batch = await documents.submit("default", ["handbook.pdf"])
            async for view in documents.follow(batch.batch_id): ...
            for found in await documents.search("default", "how many days of leave?"): ...

    A worker takes the files in: `penstock ingest work`, or here `documents.attend()` before
    `app.worker()`. What is configured is in YAML files: see docs/reference/documents-configuration.
    """

    def __init__(self, app: Penstock) -> None:
        self.app = app
        self.metrics = Metrics()
        self._workshop = Workshop(app)
        self._queue: Queue = self._workshop.queue
        self._submitting = Submitting(self._workshop)
        self._syncing = FolderSync(self._workshop, self._submitting)
        self._rebuilding = Rebuilding(self._workshop)
        self._retrying = Retrying(self._workshop)
        self._parsers: Parsers | None = None
        self._intake: Intake | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Open the ledger and the vectors; make the folders, and a first RAG if there is none."""
        await self._workshop.open()

    async def close(self) -> None:
        if self._parsers is not None:
            await self._parsers.close()
            self._parsers = self._intake = None
        await self._workshop.close()

    # ---- files in

    async def submit(
        self,
        rag_id: str,
        paths: Iterable[str | Path],
        *,
        reindex: bool = False,
        skip_validation: bool = False,
        preserve_metadata: bool = True,
        metadata: Mapping[str, Any] | None = None,
        priority: Priority | None = None,
        submitted_by: str = "cli",
        dry_run: bool = False,
    ) -> Submission:
        """Take files in: one job for each, all of them a batch.

        A folder stands for the files in it. A file that is not in the RAG's `incoming/` is copied
        there first. What cannot be taken is in `refused`; the others go on.

        - `reindex`: also if a file has not changed, or is known to be unreadable.
        - `skip_validation`: go by content where a name says otherwise.
        - `preserve_metadata`: keep what the document has already beside `metadata`.
        - `priority`: "high", "normal" or "low" instead of the RAG's fair turn.
        """
        rag = self._workshop.rag(rag_id)
        files, refused = await asyncio.to_thread(self._submitting.given, rag, list(paths))
        words = SubmitWords(
            reindex=reindex,
            skip_validation=skip_validation,
            preserve_metadata=preserve_metadata,
            metadata=metadata or {},
            priority=priority,
            submitted_by=submitted_by,
        )
        done = await self._submitting.submit(rag, files, words, dry_run=dry_run)
        return msgspec.structs.replace(done, refused=(*refused, *done.refused))

    async def sync(
        self, rag_id: str, folder: str | Path, *, delete: bool = False, dry_run: bool = False
    ) -> SyncReport:
        """Take in what is new or changed in a folder, whose files stay where they are.

        With `delete`, documents that came from this folder and are no longer there are forgotten.
        """
        rag, folder = self._workshop.rag(rag_id), Path(folder)
        report, files = await self._syncing.compare(rag, folder)
        if dry_run:
            return msgspec.structs.replace(report, dry_run=True)
        forgotten = await forget(self._workshop, rag, report.gone, files=True) if delete else 0
        submission = await self._syncing.submit(rag, folder, files) if files else None
        refused = submission.refused if submission is not None else ()
        return msgspec.structs.replace(
            report, forgotten=forgotten, submission=submission, refused=refused
        )

    async def forget(
        self, rag_id: str, documents: Sequence[str], *, files: bool = False
    ) -> list[str]:
        """Let documents no longer be found; which of them there were. `files` deletes those too."""
        rag = self._workshop.rag(rag_id)
        rows = [await self._workshop.ledger.document(rag_id, one) for one in documents]
        known = [row.doc_id for row in rows if row is not None and row.state != "forgotten"]
        await forget(self._workshop, rag, known, files=files)
        return known

    # ---- jobs and batches

    async def status(self, job_id: str) -> dict[str, Any]:
        """The status of a job as seed 002 words it; JobMissing if there is none."""
        return status_of(await self._queue.job(job_id).status())

    async def batch(self, batch_id: str) -> BatchView:
        """A batch with all its files; JobMissing if there is none."""
        rows = await self._workshop.ledger.jobs.of_batch(batch_id)
        if not rows:
            raise JobMissing(self._queue.name, batch_id)
        records = await asyncio.gather(*(self._record(row) for row in rows))
        files = tuple(file_view(row, record) for row, record in zip(rows, records, strict=True))
        age_ms = SYSTEM_CLOCK.wall_ms() - min(row.submitted_ms for row in rows)
        return BatchView(
            batch_id=batch_id, rag_id=rows[0].rag_id, files=files, age_ms=max(0, age_ms)
        )

    async def follow(self, batch_id: str, every_s: float = _POLL_S) -> AsyncIterator[BatchView]:
        """A batch again and again, until all its files have ended."""
        while True:
            view = await self.batch(batch_id)
            yield view
            if view.is_final:
                return
            await asyncio.sleep(every_s)

    async def wait(self, batch_id: str) -> BatchView:
        """Wait until all files of a batch have ended."""
        async for view in self.follow(batch_id):
            if view.is_final:
                return view
        raise JobMissing(self._queue.name, batch_id)

    async def cancel(self, id_: str) -> list[str]:
        """Cancel a job, or all of a batch; those that had not ended yet."""
        rows = await self._workshop.ledger.jobs.of_batch(id_)
        ids = [row.job_id for row in rows if row.state == "open"] if rows else [id_]
        cancelled = [one for one in ids if await self._queue.job(one).cancel()]
        for job_id in cancelled:
            await self._note_cancelled(job_id)
        return cancelled

    async def retry(self, id_: str = "", *, rag_id: str = "") -> list[str]:
        """Queue failed jobs again: one, those of a batch, or all of a RAG; which were.

        Their files come back from `failed/`.
        """
        jobs = self._workshop.ledger.jobs
        if rag_id:
            rows = await jobs.failed_in(self._workshop.rag(rag_id).rag_id)
        else:
            rows = [row for row in await jobs.of_batch(id_) if row.state == "failed"]
        if not rows and id_:
            row = await jobs.get(id_)
            if row is None or row.state != "failed":
                raise JobMissing(self._queue.name, id_)
            rows = [row]
        return [row.job_id for row in rows if await self._retrying.retry(row)]

    async def explain(self, job_id: str) -> Explanation:
        """Everything that is known of a job: where it is, what it waits for, why it failed."""
        return await explain(self._workshop, job_id)

    # ---- questions

    async def search(
        self,
        rag_id: str,
        query: str,
        *,
        top_k: int | None = None,
        threshold: float | None = None,
        documents: Sequence[str] = (),
    ) -> list[searching.Found]:
        """The chunks nearest to a question, best first."""
        return await searching.search(
            self._workshop,
            self._workshop.rag(rag_id),
            query,
            top_k=top_k,
            threshold=threshold,
            documents=tuple(documents),
        )

    async def documents(
        self, rag_id: str, *, states: Sequence[str] = (), after: str = "", limit: int = 1_000
    ) -> list[DocumentRow]:
        """A page of a RAG's documents, in the order of their ids."""
        rag = self._workshop.rag(rag_id)
        return await self._workshop.ledger.documents(
            rag.rag_id, states=states, after=after, limit=limit
        )

    # ---- RAGs

    async def rags(self) -> list[RagView]:
        """Every RAG whose file can be read; `trouble` tells of one that cannot be used."""
        return [await self.rag(rag_id) for rag_id in self.rag_ids]

    async def rag(self, rag_id: str) -> RagView:
        """A RAG as it is configured and as it is; RagMissing or ConfigurationWrong."""
        return await checking.view_rag(self._workshop, self._workshop.rag(rag_id))

    async def check(self, rag_id: str, *, probe: bool = False) -> list[str]:
        """What is wrong with a RAG, beside its file; `probe` asks its embedder as well."""
        return await checking.check_rag(self._workshop, self._workshop.rag(rag_id), probe=probe)

    @property
    def rag_ids(self) -> list[str]:
        """Of every RAG that is configured and can be used."""
        return sorted(self._workshop.config.rags)

    @property
    def problems(self) -> Mapping[str, tuple[str, ...]]:
        """What is wrong with the files of RAGs that cannot be used, by file."""
        return self._workshop.config.problems

    async def reindex(self, rag_id: str) -> Rebuild:
        """Build a RAG anew in another collection, which takes over when it is complete.

        Searches find the present one until then. Goes on with a rebuild that is under way.
        """
        return await self._rebuilding.begin(self._workshop.rag(rag_id))

    async def swap(self, rag_id: str, *, force: bool = False) -> str:
        """Let a rebuilt collection take over now; its name. See `Rebuilding.swap`."""
        return (await self._rebuilding.swap(self._workshop.rag(rag_id), force=force)).physical

    async def health(self) -> health.DocumentsHealth:
        """Whether documents can be taken in now; never raises. Needs no `open`."""
        return await health.check(self._workshop)

    # ---- the worker's side

    def attend(self, *, watch: bool = True) -> list[Service]:
        """Let `app.worker()` of this process take documents in; the services it needs beside.

        Call it once, before `app.worker(services=…)`.
        """
        parsers = Parsers(self.app.settings.documents)
        parsers.open()
        intake = self._intake = Intake(self._workshop, parsers, self.metrics)
        self._parsers = parsers

        async def perform(payload: Any, job: JobContext) -> dict[str, Any]:
            return await intake.perform(payload, job)

        self._queue.handler(perform)
        services: list[Service] = [Tidier(self._workshop, intake.storing)]
        if watch:
            watcher = Watcher(
                self.app.settings.documents,
                configuration=lambda: self._workshop.config,
                submit=self._arrived,
            )
            services.append(watcher)
        return services

    async def _arrived(self, rag_id: str, names: list[str]) -> None:
        """Files that were put into `incoming/`, or are still there."""
        rag = self._workshop.rag(rag_id)
        incoming = self._workshop.folders(rag).incoming
        labels = [incoming.label(name) for name in names]
        cancelled = await self._workshop.ledger.jobs.cancelled_among(rag_id, labels)
        files: list[Given] = []
        for name, label in zip(names, labels, strict=True):
            # One whose job was cancelled waits for a word, or for a newer file in its place.
            found = incoming.identity(name) if label in cancelled else None
            if found is None or found.ctime_ns > cancelled[label] * 1_000_000:
                files.append(Given(path=incoming.root / name, name=name, place="incoming"))
        await self._submitting.submit(rag, files, SubmitWords(submitted_by="watch"))

    # ---- parts of the above

    async def _record(self, row: JobRow) -> JobRecord | None:
        try:
            return await self._queue.job(row.job_id).status()
        except JobMissing:
            return None

    async def _note_cancelled(self, job_id: str) -> None:
        """A job that waited has no worker that would say so."""
        record = await self._queue.job(job_id).status()
        row = await self._workshop.ledger.jobs.get(job_id)
        if row is not None and record.status == "cancelled":
            await end_cancelled(self._workshop, row, record)
