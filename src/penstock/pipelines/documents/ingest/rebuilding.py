"""Rebuilding a RAG: its documents are indexed into a shadow collection, which is then swapped in.

Searches use the old collection until the shadow has the searchable version of every document.
Documents that are submitted meanwhile go to the old one and are copied after that.
"""

from __future__ import annotations

import logging

import msgspec

from penstock.errors import DocumentRefused
from penstock.pipelines.documents.config.models import RagConfig
from penstock.pipelines.documents.ledger.tables import DocumentRow, RagRow
from penstock.pipelines.documents.resources import (
    DocumentResources,
    embeddings_text,
    physical_name,
    recipe_of,
)
from penstock.pipelines.documents.submit.job_message import (
    JobMessage,
    JobOptions,
    new_batch_id,
    new_job_id,
    now_text,
    send,
)

__all__ = ["RebuildStatus", "Rebuilder"]

logger = logging.getLogger(__name__)
_PAGE = 500
_INCOMPLETE, _NO_REBUILD = "ERR_REBUILD_INCOMPLETE", "ERR_NO_REBUILD"


class RebuildStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a rebuild."""

    rag_id: str
    batch_id: str
    collection: str
    jobs: int
    """Jobs that were queued by this call."""
    missing: int
    """Documents that the new collection does not have yet."""
    swapped: bool = False


class Rebuilder:
    """Begins rebuilds, queues missing documents, and swaps."""

    def __init__(self, resources: DocumentResources) -> None:
        self._resources = resources

    async def begin(self, rag: RagConfig) -> RebuildStatus:
        """Begin a rebuild by the RAG's present file, or resume the one under way."""
        resources, row = self._resources, None
        embedder, former = await resources.embedder(rag), ""
        while row is None:
            known = await resources.fresh_row(rag)
            wanted = msgspec.structs.replace(
                known,
                shadow=physical_name(rag.alias, known.version + 1),
                shadow_model=embedder.model,
                shadow_dimension=embedder.dimension,
                shadow_embeddings=embeddings_text(rag.embeddings),
                shadow_recipe=recipe_of(rag, embedder.model),
            )
            former = known.shadow
            row = await resources.ledger.rebuilds.begin(wanted, new_batch_id(rag.rag_id))
        await resources.vectors.create(row.shadow, row.shadow_dimension)
        if former and former != row.shadow:
            await resources.vectors.drop(former)
        return await self._fill(rag, row)

    async def advance(self, rag: RagConfig) -> RebuildStatus | None:
        """Swap a complete shadow; without unended jobs, queue the missing documents."""
        ledger = self._resources.ledger
        row = await ledger.rag(rag.rag_id)
        if row is None or not row.shadow:
            return None
        if await ledger.jobs.unended_of(row.batch_id):
            return None
        missing = await ledger.rebuilds.missing(rag.rag_id, row.shadow, 1)
        if missing and await ledger.jobs.failed_of(row.batch_id):
            return None  # failed documents need a decision of the user: see `explain`
        if missing and await self._has_changed(rag, row):
            return await self.begin(rag)
        try:
            return await self._fill(rag, row)
        except DocumentRefused as error:
            if error.error_code not in {_INCOMPLETE, _NO_REBUILD}:
                raise
            # Another document was sealed at this moment, or another worker has swapped.
            return None

    async def swap(self, rag: RagConfig, *, force: bool = False) -> RagRow:
        """Swap in the shadow; DocumentRefused if it is incomplete.

        With `force`, documents that it lacks become unsearchable.
        """
        resources = self._resources
        row = await resources.ledger.rag(rag.rag_id)
        if row is None or not (row.shadow or row.former):
            raise DocumentRefused(f"RAG {rag.rag_id!r} is not being rebuilt", _NO_REBUILD)
        if row.shadow:
            if not force:
                await self._verify(row)
            swapped = await resources.ledger.rebuilds.swap(rag.rag_id, row.shadow, force=force)
            if swapped is None:
                missing = await resources.ledger.rebuilds.missing(rag.rag_id, row.shadow, _PAGE)
                names = ", ".join(document.doc_id for document in missing[:3])
                raise DocumentRefused(
                    f"{len(missing)} documents are not in the new collection yet: {names} …",
                    _INCOMPLETE,
                    ("Wait for its jobs, or see why jobs failed: penstock ingest explain JOB",),
                )
            row = swapped
        await resources.vectors.alias(rag.alias, row.physical)
        if row.former:
            await resources.vectors.drop(row.former)
            await resources.ledger.rebuilds.drop_former(rag.rag_id, row.former)
        logger.info("RAG %s: collection %s has taken over", rag.rag_id, row.physical)
        return row

    async def _has_changed(self, rag: RagConfig, row: RagRow) -> bool:
        """Whether the RAG's file was edited so that the shadow needs other chunks."""
        if recipe_of(rag, row.shadow_model) != row.shadow_recipe:
            return True
        return await self._resources.ledger.rebuilds.is_mixed(row)

    async def _verify(self, row: RagRow) -> None:
        """Drop copies from the ledger that lost points in a crash, so that they are made again."""
        ledger, vectors = self._resources.ledger, self._resources.vectors
        copies = await ledger.rebuilds.copies(row.rag_id, row.shadow)
        found = await vectors.describe(row.shadow)
        if found is not None and found.points >= sum(copies.values()):
            return
        for doc_id, chunks in copies.items():
            there = await vectors.counts(row.shadow, [doc_id])
            if there.get(doc_id, 0) < chunks:
                await ledger.rebuilds.uncopy(row.rag_id, doc_id, row.shadow)

    async def _fill(self, rag: RagConfig, row: RagRow) -> RebuildStatus:
        resources, ledger = self._resources, self._resources.ledger
        missing = await ledger.rebuilds.missing(rag.rag_id, row.shadow, 1_000_000)
        if not missing:
            await self.swap(rag)
            return _rebuild(row, 0, 0, swapped=True)
        # The file of one that is sealed and no more is on its way to `processed/`.
        there = [document for document in missing if document.state != "sealed"]
        messages = [_message(resources, rag, row, document) for document in there]
        await self._queue(row, messages)
        return _rebuild(row, len(messages), len(missing))

    async def _queue(self, row: RagRow, messages: list[JobMessage]) -> None:
        """Enter jobs in the ledger, then queue them.

        In this order: `advance` queues missing documents again once no job of the batch is
        unended. If this process dies in between, `Cleanup` marks the jobs as lost.
        """
        jobs, queue = self._resources.ledger.jobs, self._resources.queue
        entered = [(message.job_id, message.document) for message in messages]
        await jobs.enter(row.rag_id, row.batch_id, entered)
        try:
            sent = [(job.job_id, job.document) for job in await send(queue, messages)]
        except Exception:
            await jobs.withdraw([job_id for job_id, _ in entered])
            raise
        # A document has one copy job at a time: another one may be queued already.
        others = set(sent) - set(entered)
        if others:
            await jobs.enter(row.rag_id, row.batch_id, sorted(others))
            await jobs.withdraw([job_id for job_id, _ in set(entered) - set(sent)])


def _rebuild(row: RagRow, jobs: int, missing: int, *, swapped: bool = False) -> RebuildStatus:
    return RebuildStatus(
        rag_id=row.rag_id,
        batch_id=row.batch_id,
        collection=row.shadow,
        jobs=jobs,
        missing=missing,
        swapped=swapped,
    )


def _message(
    resources: DocumentResources, rag: RagConfig, row: RagRow, document: DocumentRow
) -> JobMessage:
    return JobMessage(
        job_id=new_job_id(rag.rag_id),
        rag_id=rag.rag_id,
        source_path=resources.path_of(rag, document.file or document.doc_id, "processed"),
        source_type=document.type,
        filename=document.doc_id.rpartition("/")[2],
        submitted_at=now_text(),
        submitted_by="reindex",
        options=JobOptions(reindex=True, skip_validation=True),
        document=document.doc_id,
        digest=document.digest,
        size=document.size,
        batch_id=row.batch_id,
        target=row.shadow,
    )
