"""Documents: the public object of the pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from penstock.app import Penstock
from penstock.clock import SYSTEM_CLOCK
from penstock.errors import JobMissing
from penstock.pipelines.documents.admin import health
from penstock.pipelines.documents.admin.views import (
    DocumentBatchView,
    RagView,
    file_view,
    status_of,
)
from penstock.pipelines.documents.ingest.cleanup import Cleanup
from penstock.pipelines.documents.ingest.failed_documents import replay
from penstock.pipelines.documents.ingest.indexing import IngestMetrics
from penstock.pipelines.documents.ingest.intake import Intake
from penstock.pipelines.documents.ingest.rebuilding import Rebuilder, RebuildStatus
from penstock.pipelines.documents.ingest.removal import end_cancelled, forget
from penstock.pipelines.documents.ledger.tables import DocumentRow
from penstock.pipelines.documents.parsing.sandbox.fence_check import FenceCheck
from penstock.pipelines.documents.parsing.sandbox.pool import Parsers
from penstock.pipelines.documents.resources import DocumentResources
from penstock.pipelines.documents.search import SearchHit, search
from penstock.pipelines.documents.submit.folder_sync import SyncReport, compare_folder, source_of
from penstock.pipelines.documents.submit.submitter import (
    SourceFile,
    SubmitOptions,
    SubmitResult,
    Submitter,
)
from penstock.pipelines.documents.watch.watcher import Watcher
from penstock.queues.options import Priority
from penstock.queues.queue import Queue
from penstock.queues.storage.job_record import JobRecord
from penstock.runtime.service import Service

__all__ = ["Documents"]

_POLL_S = 0.5


class Documents:
    """Documents for retrieval: submit files, search their text.

        app = Penstock()
        documents = Documents(app)
        async with app, documents:
            batch = await documents.submit("default", ["handbook.pdf"])
            async for view in documents.follow(batch.batch_id): ...
            for hit in await documents.search("default", "how many days of leave?"): ...

    A worker indexes the files: `penstock ingest work`, or `documents.attend()` before
    `app.worker()`. RAGs are configured in YAML: see docs/reference/documents-configuration.md.
    """

    def __init__(self, app: Penstock) -> None:
        self.app = app
        self.metrics = IngestMetrics()
        self._resources = DocumentResources(app)
        self._queue: Queue = self._resources.queue
        self._submitter = Submitter(self._resources)
        self._rebuilder = Rebuilder(self._resources)
        self._parsers: Parsers | None = None
        self._intake: Intake | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Open the ledger and the vectors; create the folders, and a first RAG if there is none."""
        await self._resources.open()

    async def close(self) -> None:
        """Wait for moves of files, end the parsers, close the stores."""
        if self._intake is not None:
            await self._intake.finished_files.close()
        if self._parsers is not None:
            await self._parsers.close()
        self._parsers = self._intake = None
        await self._resources.close()

    # ---- files

    async def submit(
        self,
        rag_id: str,
        paths: Iterable[str | Path],
        *,
        reindex: bool = False,
        skip_validation: bool = False,
        preserve_metadata: bool = True,
        require_fences: bool = False,
        metadata: Mapping[str, Any] | None = None,
        priority: Priority | None = None,
        submitted_by: str = "cli",
        dry_run: bool = False,
    ) -> SubmitResult:
        """Submit files: one job for each, all of them one batch.

        A folder stands for the files in it. A file outside of the RAG's `incoming/` is copied
        there first. Files that cannot be submitted are in `refused`; the others are queued.

        - `reindex`: also index files that are unchanged, or known to be unreadable.
        - `skip_validation`: go by a file's content where its extension disagrees.
        - `preserve_metadata`: keep the document's present metadata beside `metadata`.
        - `require_fences`: read the files behind all fences or not at all; see `documents.fences`.
        - `priority`: "high", "normal" or "low" instead of the RAG's own lane.
        """
        rag = self._resources.rag(rag_id)
        files, refused = await asyncio.to_thread(self._submitter.find_files, rag, list(paths))
        options = SubmitOptions(
            reindex=reindex,
            skip_validation=skip_validation,
            preserve_metadata=preserve_metadata,
            require_fences=require_fences,
            metadata=metadata or {},
            priority=priority,
            submitted_by=submitted_by,
        )
        result = await self._submitter.submit(rag, files, options, dry_run=dry_run)
        return msgspec.structs.replace(result, refused=(*refused, *result.refused))

    async def sync(
        self, rag_id: str, folder: str | Path, *, delete: bool = False, dry_run: bool = False
    ) -> SyncReport:
        """Submit new and changed files of a folder; the files stay in it.

        With `delete`, documents that came from this folder and are gone from it are forgotten.
        """
        rag, folder = self._resources.rag(rag_id), Path(folder)
        report, files = await compare_folder(self._resources, rag, folder)
        if dry_run:
            return msgspec.structs.replace(report, dry_run=True)
        forgotten = await forget(self._resources, rag, report.gone, files=True) if delete else 0
        result = None
        if files:
            options = SubmitOptions(submitted_by="sync", source=source_of(folder))
            result = await self._submitter.submit(rag, files, options)
        refused = result.refused if result is not None else ()
        return msgspec.structs.replace(
            report, forgotten=forgotten, submission=result, refused=refused
        )

    async def forget(
        self, rag_id: str, documents: Sequence[str], *, files: bool = False
    ) -> list[str]:
        """Remove documents from the index; those that existed. `files` deletes their files too."""
        rag = self._resources.rag(rag_id)
        rows = [await self._resources.ledger.document(rag_id, doc_id) for doc_id in documents]
        known = [row.doc_id for row in rows if row is not None and row.state != "forgotten"]
        await forget(self._resources, rag, known, files=files)
        return known

    # ---- jobs and batches

    async def status(self, job_id: str) -> dict[str, Any]:
        """Status of a job, as docs/contracts.md defines it; JobMissing if there is none."""
        return status_of(await self._queue.job(job_id).status())

    async def batch(self, batch_id: str) -> DocumentBatchView:
        """A batch with all its files; JobMissing if there is none."""
        rows = await self._resources.ledger.jobs.of_batch(batch_id)
        if not rows:
            raise JobMissing(self._queue.name, batch_id)
        records = await asyncio.gather(*(self._record(row.job_id) for row in rows))
        files = tuple(file_view(row, record) for row, record in zip(rows, records, strict=True))
        age_ms = SYSTEM_CLOCK.wall_ms() - min(row.submitted_ms for row in rows)
        return DocumentBatchView(
            batch_id=batch_id, rag_id=rows[0].rag_id, files=files, age_ms=max(0, age_ms)
        )

    async def follow(
        self, batch_id: str, every_s: float = _POLL_S
    ) -> AsyncIterator[DocumentBatchView]:
        """Poll a batch every `every_s` until all its files have ended."""
        while True:
            view = await self.batch(batch_id)
            yield view
            if view.is_final:
                return
            await asyncio.sleep(every_s)

    async def wait(self, batch_id: str) -> DocumentBatchView:
        """Wait until all files of a batch have ended."""
        async for view in self.follow(batch_id):
            if view.is_final:
                return view
        raise JobMissing(self._queue.name, batch_id)

    async def cancel(self, id_: str) -> list[str]:
        """Cancel a job, or all jobs of a batch; the jobs that had not ended."""
        rows = await self._resources.ledger.jobs.of_batch(id_)
        ids = [row.job_id for row in rows if row.state == "open"] if rows else [id_]
        cancelled = [job_id for job_id in ids if await self._queue.job(job_id).cancel()]
        for job_id in cancelled:
            # A job that was still queued has no worker that would end it in the ledger.
            record = await self._queue.job(job_id).status()
            row = await self._resources.ledger.jobs.get(job_id)
            if row is not None and record.status == "cancelled":
                await end_cancelled(self._resources, row, record)
        return cancelled

    async def replay(self, id_: str = "", *, rag_id: str = "") -> list[str]:
        """Queue failed jobs again: one, those of a batch, or all of a RAG; their ids.

        Their files come back from `failed/`. JobMissing if `id_` names no failed job.
        """
        jobs = self._resources.ledger.jobs
        if rag_id:
            rows = await jobs.failed_in(self._resources.rag(rag_id).rag_id)
        else:
            rows = [row for row in await jobs.of_batch(id_) if row.state == "failed"]
        if not rows and id_:
            row = await jobs.get(id_)
            if row is None or row.state != "failed":
                raise JobMissing(self._queue.name, id_)
            rows = [row]
        return [row.job_id for row in rows if await replay(self._resources, row)]

    async def explain(self, job_id: str) -> health.Explanation:
        """Where a job is, what it waits for, why it failed; JobMissing if there is none."""
        return await health.explain(self._resources, job_id)

    # ---- searching

    async def search(
        self,
        rag_id: str,
        query: str,
        *,
        top_k: int | None = None,
        threshold: float | None = None,
        documents: Sequence[str] = (),
    ) -> list[SearchHit]:
        """The chunks nearest to a question, best first; by default as many as the RAG's `top_k`."""
        return await search(
            self._resources,
            self._resources.rag(rag_id),
            query,
            top_k=top_k,
            threshold=threshold,
            documents=tuple(documents),
        )

    async def documents(
        self, rag_id: str, *, states: Sequence[str] = (), after: str = "", limit: int = 1_000
    ) -> list[DocumentRow]:
        """A page of a RAG's documents, ordered by id, beginning behind the id `after`."""
        rag = self._resources.rag(rag_id)
        return await self._resources.ledger.documents(
            rag.rag_id, states=states, after=after, limit=limit
        )

    # ---- RAGs

    async def rags(self) -> list[RagView]:
        """All RAGs with a valid file; `trouble` is set for one that cannot be used."""
        return [await self.rag(rag_id) for rag_id in self.rag_ids]

    async def rag(self, rag_id: str) -> RagView:
        """Configuration and contents of a RAG; RagMissing or ConfigurationWrong."""
        return await health.view_rag(self._resources, self._resources.rag(rag_id))

    async def check(self, rag_id: str, *, probe: bool = False) -> list[str]:
        """Problems of a RAG with a valid file; `probe` also requests a vector from its embedder."""
        return await health.check_rag(self._resources, self._resources.rag(rag_id), probe=probe)

    @property
    def rag_ids(self) -> list[str]:
        """Ids of the RAGs with a valid file."""
        return sorted(self._resources.config.rags)

    @property
    def problems(self) -> Mapping[str, tuple[str, ...]]:
        """Mistakes in the files of RAGs that cannot be used, by file."""
        return self._resources.config.problems

    async def reindex(self, rag_id: str) -> RebuildStatus:
        """Rebuild a RAG in a new collection, which replaces the present one when it is complete.

        Searches use the present one until then. Resumes a rebuild that is under way.
        """
        return await self._rebuilder.begin(self._resources.rag(rag_id))

    async def swap(self, rag_id: str, *, force: bool = False) -> str:
        """Replace the collection by the rebuilt one now; its name. See `Rebuilder.swap`."""
        return (await self._rebuilder.swap(self._resources.rag(rag_id), force=force)).physical

    async def health(self) -> health.DocumentsHealth:
        """Whether documents can be indexed now; never raises, and needs no `open`."""
        return await health.check(self._resources)

    # ---- workers

    def attend(self, *, watch: bool = True) -> list[Service]:
        """Make `app.worker()` of this process index documents; the services to pass to it.

        Call it once, before `app.worker(services=…)`.
        """
        self._parsers = parsers = Parsers(self.app.settings.documents)
        parsers.open()
        self._intake = Intake(self._resources, parsers, self.metrics)
        self._queue.handler(self._intake.perform)
        required = self.app.settings.documents.fences == "require"
        if required:
            self._resources.gate.closed_while = lambda: parsers.missing_fences() != {}
        services: list[Service] = [
            FenceCheck(parsers, required=required),
            Cleanup(self._resources, self._intake.finished_files),
        ]
        if watch:
            watcher = Watcher(
                self.app.settings.documents,
                configuration=lambda: self._resources.config,
                submit=self._submit_incoming,
            )
            services.append(watcher)
        return services

    async def _submit_incoming(self, rag_id: str, names: list[str]) -> None:
        """Submit files that the watcher found in `incoming/`."""
        rag = self._resources.rag(rag_id)
        incoming = self._resources.folders(rag).incoming
        labels = [incoming.label(name) for name in names]
        cancelled = await self._resources.ledger.jobs.cancelled_among(rag_id, labels)
        files: list[SourceFile] = []
        for name, label in zip(names, labels, strict=True):
            # A file whose job was cancelled stays until it is submitted by a user, or replaced.
            identity = incoming.identity(name) if label in cancelled else None
            if identity is None or identity.ctime_ns > cancelled[label] * 1_000_000:
                files.append(SourceFile(path=incoming.root / name, name=name, place="incoming"))
        await self._submitter.submit(rag, files, SubmitOptions(submitted_by="watch"))

    async def _record(self, job_id: str) -> JobRecord | None:
        try:
            return await self._queue.job(job_id).status()
        except JobMissing:
            return None
