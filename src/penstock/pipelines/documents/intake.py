"""One job from its message to its end: the document is found by searches, its file has moved."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.errors import DocumentError, DocumentRefused, FileMissing, ParseError, StoreMismatch
from penstock.pipelines.documents.case import Case, check_extension
from penstock.pipelines.documents.embedding.port import Embedder
from penstock.pipelines.documents.giving_up import GivingUp
from penstock.pipelines.documents.indexing import Indexed, Indexer, Target
from penstock.pipelines.documents.ledger_rows import Begun, DocumentRow, Version
from penstock.pipelines.documents.message import JobMessage, read_message
from penstock.pipelines.documents.metrics import Metrics
from penstock.pipelines.documents.parsing.parsers import Parsers
from penstock.pipelines.documents.rebuilding import Rebuilding
from penstock.pipelines.documents.rechecking import lacks_points, recheck_documents
from penstock.pipelines.documents.storing import Storing, drop_copy
from penstock.pipelines.documents.workshop import Workshop, recipe_of
from penstock.queues.context import JobContext
from penstock.stores.files.folder import OpenFile

__all__ = ["Intake"]

logger = logging.getLogger(__name__)

_LARGE = 256 * 1024
"""Files from this size on are hashed in a thread."""


class Intake:
    """Performs the jobs of the queue. Each step can be repeated after a crash at any point."""

    def __init__(self, workshop: Workshop, parsers: Parsers, metrics: Metrics) -> None:
        self._workshop, self._metrics = workshop, metrics
        self._indexer = Indexer(workshop, parsers, metrics)
        self.storing = Storing()
        self._giving_up = GivingUp(workshop, self.storing)
        self._rebuilding = Rebuilding(workshop)

    async def perform(self, payload: Any, job: JobContext) -> dict[str, Any]:
        """Take a document in; what it returns is the job's result."""
        message = read_message(payload)
        began = time.monotonic()
        rag = self._workshop.rag(message.rag_id)
        case = Case(self._workshop, message, rag, job)
        try:
            await case.date(self._workshop.queue)
            if message.target:
                result = await self._rebuild(case)
            else:
                result = await self._take_in(case)
        except Exception as error:
            final = isinstance(error, DocumentRefused) or job.attempt >= job.max_attempts
            self._metrics.failed(final=final)
            if isinstance(error, StoreMismatch):
                self._workshop.look_again()
            await self._workshop.gate.failed(rag.rag_id, error)
            if final:
                await self._giving_up.give_up(case, error)
            raise
        self._workshop.gate.succeeded()
        self._metrics.done(time.monotonic() - began)
        return result

    # ---- a document that came in

    async def _take_in(self, case: Case) -> dict[str, Any]:
        workshop = self._workshop
        case.recipe = recipe_of(case.rag, (await workshop.rag_row(case.rag)).model)
        try:
            file = case.place.open(case.name, max_bytes=case.rag.max_bytes)
        except FileMissing:
            return await self._without_file(case)
        with file:
            case.identity = file.identity
            if not case.message.options.skip_validation:
                check_extension(case.rag, case.goes_by)
            case.digest, case.size = await _digest(file), file.size
            begun = await self._begin(case)
            case.generation = begun.generation if begun.verdict == "go" else 0
            if begun.verdict == "superseded":
                return await self._superseded(case)
            if begun.verdict == "bad" and begun.former is not None:
                raise _known_bad(begun.former)
            if begun.verdict == "unchanged" and begun.former is not None:
                return await self._unchanged(case, file, begun.former)
            indexed, duplicate_of = await self._index(case, file, begun)
            if indexed is None:
                return await self._superseded(case)
            return await self._finish(case, file, indexed, duplicate_of)

    async def _superseded(self, case: Case) -> dict[str, Any]:
        """A later job has the document: leave all to it."""
        workshop = self._workshop
        row = await workshop.ledger.document(case.rag.rag_id, case.doc_id)
        if row is not None and row.sealed and case.retries:
            # What an earlier attempt of this job wrote after the later one had cleared the place.
            physical = (await workshop.fresh_row(case.rag)).physical
            await workshop.vectors.delete_before(physical, case.doc_id, row.sealed)
        await asyncio.to_thread(drop_copy, case)
        await workshop.ledger.end_job(case.attempt, "done")
        await case.progress.tell(note="superseded", force=True)
        return {"document": case.doc_id, "superseded": True}

    async def _begin(self, case: Case) -> Begun:
        begun = await self._workshop.ledger.begin(case.attempt)
        recipe = recipe_of(case.rag, begun.rag.model)
        if recipe != case.recipe:
            # A rebuild has taken over since we looked.
            await self._workshop.fresh_row(case.rag)
            case.recipe = recipe
            begun = await self._workshop.ledger.begin(case.attempt)
        former = begun.former
        if begun.verdict != "unchanged" or former is None:
            return begun
        if case.retries and await lacks_points(self._workshop, begun.rag, former):
            return await self._workshop.ledger.begin(case.forced)  # the machine has crashed
        if _metadata(case.message, former) == _kept(former):
            return begun
        # Its points have to have the new metadata, too; their vectors stay.
        return await self._workshop.ledger.begin(case.forced)

    async def _index(self, case: Case, file: OpenFile, begun: Begun) -> tuple[Indexed | None, str]:
        """Index a file and seal it; None if a later attempt has superseded this one."""
        workshop, row, former = self._workshop, begun.rag, begun.former
        while True:
            embedder = await workshop.embedder(case.rag, row.embeddings)
            target = Target(
                collection=row.physical,
                generation=begun.generation,
                former=former.sealed if former is not None else 0,
            )
            metadata = _metadata(case.message, former)
            indexed = await self._indexer.index(case, file, target, embedder, metadata)
            if file.changed():
                raise DocumentError(
                    "the file was written to while it was read",
                    "ERR_FILE_CHANGED",
                    ("It is tried again by itself: write files elsewhere and rename them",),
                )
            version = Version(
                chunks=indexed.chunks,
                size=file.size,
                type=indexed.type,
                metadata=msgspec.json.encode(metadata).decode() if metadata else "",
            )
            sealed = await workshop.ledger.seal(
                case.rag.rag_id, case.doc_id, begun.generation, row.physical, version
            )
            if sealed.verdict == "moved":
                # A rebuild has taken over meanwhile: what we wrote is in the collection that goes.
                row, former = await workshop.fresh_row(case.rag), None
                continue
            if sealed.verdict == "superseded":
                await workshop.vectors.delete_generation(
                    row.physical, case.doc_id, begun.generation
                )
                return None, ""
            if begun.generation > 1:
                await workshop.vectors.delete_before(row.physical, case.doc_id, begun.generation)
            return indexed, sealed.duplicate_of

    async def _finish(
        self, case: Case, file: OpenFile, indexed: Indexed, duplicate_of: str
    ) -> dict[str, Any]:
        """Move the file, and say last that all is done."""
        result = {
            "document": case.doc_id,
            "generation": case.generation,
            "chunks_created": indexed.chunks,
            "embeddings_generated": indexed.embedded,
            "embeddings_reused": indexed.reused,
            "embeddings_cached": indexed.cached,
            "tokens_used": indexed.tokens,
            "type": indexed.type,
            "pages": indexed.pages,
            "title": indexed.title,
            "warnings": list(indexed.warnings),
            "duplicate_of": duplicate_of,
            "changed_since_submit": case.changed_since_submit,
        }
        stored = await self.storing.store(case, file.identity, result)
        await self._workshop.ledger.done(
            case.attempt,
            case.generation,
            stored=stored,
            chunks=indexed.chunks,
            duplicate_of=duplicate_of,
        )
        await case.progress.tell(
            indexed.pages,
            indexed.pages,
            "done",
            force=True,
            chunks_created=indexed.chunks,
            embeddings_generated=indexed.embedded,
            tokens_used=indexed.tokens,
            **_noted(result),
        )
        self._indexer.forget_parts(case)
        return result

    async def _unchanged(self, case: Case, file: OpenFile, former: DocumentRow) -> dict[str, Any]:
        """Nothing to index: see to the file."""
        case.generation = former.sealed
        result = {"document": case.doc_id, "generation": former.sealed, "unchanged": True}
        if former.state == "indexed" and self.storing.is_stored(case, former):
            stored = former.file
            self.storing.discard(case, file.identity)
        else:
            stored = await self.storing.store(case, file.identity, result)
        await self._workshop.ledger.done(
            case.attempt,
            former.sealed,
            stored=stored,
            chunks=former.chunks,
            duplicate_of=former.duplicate_of,
        )
        await case.progress.tell(
            note="unchanged",
            force=True,
            chunks_created=former.chunks,
            embeddings_generated=0,
            tokens_used=0,
        )
        return {**result, "chunks_created": former.chunks}

    async def _without_file(self, case: Case) -> dict[str, Any]:
        """Go on where an interrupted attempt left off that has moved the file already."""
        ledger = self._workshop.ledger
        row = await ledger.document(case.rag.rag_id, case.doc_id)
        if row is not None and row.job_id == case.message.job_id and row.state == "failed":
            case.digest = row.new_digest
            raise DocumentRefused(row.error, row.error_code)
        if row is not None and row.sealed and self._is_ours(case, row):
            case.digest, case.generation = row.digest, row.sealed
            result = {"document": case.doc_id, "generation": row.sealed, "resumed": True}
            stored = await self.storing.stored_before(case, row, result)
            await ledger.done(
                case.attempt,
                row.sealed,
                stored=stored or row.file,
                chunks=row.chunks,
                duplicate_of=row.duplicate_of,
            )
            moved = msgspec.structs.replace(row, stored=stored or row.file)
            rag_row = await self._workshop.fresh_row(case.rag)
            await recheck_documents(self._workshop, case.rag, rag_row, [moved])
            await case.progress.tell(note="done", force=True, chunks_created=row.chunks)
            return {**result, "chunks_created": row.chunks}
        if row is not None and row.sealed and case.retries and row.job_id != case.message.job_id:
            # It had begun, and a later job has taken the place of its file, and the file with it.
            return await self._superseded(case)
        raise FileMissing(
            f"there is no file {case.name!r} in incoming/ of RAG {case.rag.rag_id!r}",
            "ERR_FILE_NOT_FOUND",
            ("Was it moved or deleted after it was submitted? Submit it again when it is there",),
        )

    def _is_ours(self, case: Case, row: DocumentRow) -> bool:
        """Whether what the job asks for has been done: by itself, or by another for the same."""
        if row.job_id == case.message.job_id:
            return row.sealed == row.generation
        return row.state == "indexed" and bool(row.digest) and row.digest == case.message.digest

    # ---- a copy for a collection that is being built

    async def _rebuild(self, case: Case) -> dict[str, Any]:
        workshop, message = self._workshop, case.message
        row = await workshop.ledger.rag(case.rag.rag_id)
        document = await workshop.ledger.document(case.rag.rag_id, case.doc_id)
        if row is None or row.shadow != message.target or document is None or not document.sealed:
            # Swapped, given up or forgotten meanwhile.
            return await self._copied_later(case)
        await workshop.vectors.create(row.shadow, row.shadow_dimension)
        case.recipe = recipe_of(case.rag, row.shadow_model)
        if case.recipe != row.shadow_recipe:
            return await self._copied_later(case)  # the RAG's file has changed
        embedder: Embedder = await workshop.embedder(case.rag, row.shadow_embeddings)
        if document.digest != message.digest:
            return await self._copied_later(case)
        with case.place.open(case.name, max_bytes=case.rag.max_bytes) as file:
            case.digest, case.size = await _digest(file), file.size
            if case.digest != document.digest:
                if document.state in {"sealed", "processing"}:
                    return await self._copied_later(case)
                raise DocumentRefused(
                    f"{case.name!r} in processed/ is not the file that was indexed any more",
                    "ERR_STORED_CHANGED",
                    ("Put the file into incoming/ to take it in as it is now",),
                )
            target = Target(collection=row.shadow, generation=document.sealed, former=0)
            metadata = _kept(document)
            indexed = await self._indexer.index(case, file, target, embedder, metadata)
        await workshop.vectors.delete_before(row.shadow, case.doc_id, document.sealed)
        await workshop.ledger.copied(case.attempt, row.shadow, document.sealed, indexed.chunks)
        latest = await workshop.ledger.document(case.rag.rag_id, case.doc_id)
        if latest is None or latest.sealed != document.sealed:
            # Forgotten, or of another version by now: that is copied anew.
            await workshop.vectors.delete_generation(row.shadow, case.doc_id, document.sealed)
        await self._rebuilding.advance(case.rag)
        self._indexer.forget_parts(case)
        return {"document": case.doc_id, "chunks_created": indexed.chunks}

    async def _copied_later(self, case: Case) -> dict[str, Any]:
        """End a job whose copy is not wanted any more; if another is, a later job makes it."""
        await self._workshop.ledger.end_job(case.attempt, "done")
        return {"document": case.doc_id, "superseded": True}


async def _digest(file: OpenFile) -> str:
    return await asyncio.to_thread(file.digest) if file.size >= _LARGE else file.digest()


def _known_bad(row: DocumentRow) -> ParseError:
    return ParseError(
        f"known to be unreadable: {row.error}",
        row.error_code,
        ("It is read again when the file or the parsers change, or with --reindex",),
    )


def _metadata(message: JobMessage, former: DocumentRow | None) -> dict[str, Any]:
    if former is None or not message.options.preserve_metadata:
        return dict(message.metadata)
    return {**_kept(former), **message.metadata}


def _kept(row: DocumentRow) -> dict[str, Any]:
    return msgspec.json.decode(row.metadata, type=dict[str, Any]) if row.metadata else {}


def _noted(result: Mapping[str, Any]) -> dict[str, str]:
    """What a reader of the status should know beyond the numbers."""
    noted = {
        name: str(result[name])
        for name in ("duplicate_of", "changed_since_submit")
        if result.get(name)
    }
    if result["warnings"]:
        noted["warnings"] = "; ".join(result["warnings"])
    return noted
