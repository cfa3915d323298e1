"""A RAG made anew: its documents go into another collection, which then takes over at once.

Searches find the old collection until every document is in the new one, in the state in which it is
found. What comes in meanwhile goes to the old one and is copied after that.
"""

from __future__ import annotations

import logging

import msgspec

from penstock.errors import DocumentRefused
from penstock.pipelines.documents.configuration import RagConfig
from penstock.pipelines.documents.ids import new_batch_id, new_job_id, physical_name
from penstock.pipelines.documents.ledger_rows import DocumentRow, RagRow
from penstock.pipelines.documents.message import JobMessage, JobOptions, now_text
from penstock.pipelines.documents.sending import Sent, send
from penstock.pipelines.documents.workshop import Workshop, embeddings_text, recipe_of

__all__ = ["Rebuild", "Rebuilding"]

logger = logging.getLogger(__name__)

_PAGE = 500
_INCOMPLETE, _NO_REBUILD = "ERR_REBUILD_INCOMPLETE", "ERR_NO_REBUILD"


class Rebuild(msgspec.Struct, frozen=True, kw_only=True):
    """How far a rebuild is."""

    rag_id: str
    batch_id: str
    collection: str
    jobs: int
    """That were queued now."""
    missing: int
    """Documents that the new collection does not have yet (at most 500 are counted)."""
    swapped: bool = False


class Rebuilding:
    """Begins rebuilds, sees to what is missing, and swaps."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    async def begin(self, rag: RagConfig) -> Rebuild:
        """Begin a rebuild as the RAG's file says now, or go on with the one under way."""
        workshop, row = self._workshop, None
        embedder, former = await workshop.embedder(rag), ""
        while row is None:
            known = await workshop.fresh_row(rag)
            wanted = msgspec.structs.replace(
                known,
                shadow=physical_name(rag.alias, known.version + 1),
                shadow_model=embedder.model,
                shadow_dimension=embedder.dimension,
                shadow_embeddings=embeddings_text(rag.embeddings),
                shadow_recipe=recipe_of(rag, embedder.model),
            )
            former = known.shadow
            row = await workshop.ledger.rebuilds.begin(wanted, new_batch_id(rag.rag_id))
        await workshop.vectors.create(row.shadow, row.shadow_dimension)
        if former and former != row.shadow:
            await workshop.vectors.drop(former)
        return await self._fill(rag, row)

    async def advance(self, rag: RagConfig) -> Rebuild | None:
        """Swap if all is there; if no job is under way any more, queue what is missing."""
        ledger = self._workshop.ledger
        row = await ledger.rag(rag.rag_id)
        if row is None or not row.shadow:
            return None
        if await ledger.jobs.unended_of(row.batch_id):
            return None
        missing = await ledger.rebuilds.missing(rag.rag_id, row.shadow, 1)
        if missing and await ledger.jobs.failed_of(row.batch_id):
            return None  # somebody has to look at these first: `explain` tells
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
        """Let the new collection take over; DocumentRefused if it is not complete.

        With `force` documents that it does not have are no longer found.
        """
        workshop = self._workshop
        row = await workshop.ledger.rag(rag.rag_id)
        if row is None or not (row.shadow or row.former):
            raise DocumentRefused(f"RAG {rag.rag_id!r} is not being rebuilt", _NO_REBUILD)
        if row.shadow:
            if not force:
                await self._verify(row)
            swapped = await workshop.ledger.rebuilds.swap(rag.rag_id, row.shadow, force=force)
            if swapped is None:
                missing = await workshop.ledger.rebuilds.missing(rag.rag_id, row.shadow, _PAGE)
                names = ", ".join(document.doc_id for document in missing[:3])
                raise DocumentRefused(
                    f"{len(missing)} documents are not in the new collection yet: {names} …",
                    _INCOMPLETE,
                    ("Wait for its jobs, or look at those that failed: penstock ingest explain",),
                )
            row = swapped
        await workshop.vectors.alias(rag.alias, row.physical)
        if row.former:
            await workshop.vectors.drop(row.former)
            await workshop.ledger.rebuilds.drop_former(rag.rag_id, row.former)
        logger.info("RAG %s: collection %s has taken over", rag.rag_id, row.physical)
        return row

    async def _has_changed(self, rag: RagConfig, row: RagRow) -> bool:
        """Whether the RAG's file was edited so that workers make other chunks for the shadow."""
        if recipe_of(rag, row.shadow_model) != row.shadow_recipe:
            return True
        return await self._workshop.ledger.rebuilds.is_mixed(row)

    async def _verify(self, row: RagRow) -> None:
        """Find copies whose points a crash of the machine has cost: they are to be made again."""
        ledger, vectors = self._workshop.ledger, self._workshop.vectors
        copies = await ledger.rebuilds.copies(row.rag_id, row.shadow)
        found = await vectors.describe(row.shadow)
        if found is not None and found.points >= sum(copies.values()):
            return
        for doc_id, chunks in copies.items():
            there = await vectors.counts(row.shadow, [doc_id])
            if there.get(doc_id, 0) < chunks:
                await ledger.rebuilds.uncopy(row.rag_id, doc_id, row.shadow)

    async def _fill(self, rag: RagConfig, row: RagRow) -> Rebuild:
        workshop, ledger = self._workshop, self._workshop.ledger
        missing = await ledger.rebuilds.missing(rag.rag_id, row.shadow, 1_000_000)
        if not missing:
            await self.swap(rag)
            return _rebuild(row, 0, 0, swapped=True)
        # The file of one that is sealed and no more is on its way to `processed/`.
        there = [document for document in missing if document.state != "sealed"]
        messages = [_message(workshop, rag, row, document) for document in there]
        sent: list[Sent] = await send(workshop.queue, messages)
        await ledger.jobs.enter(
            rag.rag_id, row.batch_id, [(job.job_id, job.document) for job in sent]
        )
        return _rebuild(row, len(sent), len(missing))


def _rebuild(row: RagRow, jobs: int, missing: int, *, swapped: bool = False) -> Rebuild:
    return Rebuild(
        rag_id=row.rag_id,
        batch_id=row.batch_id,
        collection=row.shadow,
        jobs=jobs,
        missing=missing,
        swapped=swapped,
    )


def _message(workshop: Workshop, rag: RagConfig, row: RagRow, document: DocumentRow) -> JobMessage:
    return JobMessage(
        job_id=new_job_id(rag.rag_id),
        rag_id=rag.rag_id,
        source_path=workshop.path_of(rag, document.file or document.doc_id, "processed"),
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
