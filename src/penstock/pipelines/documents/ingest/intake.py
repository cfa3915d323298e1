"""One ingest job from its message to its end: the document is searchable and its file moved.

open the file ─ begin ─┬─ go ─────────── index ─ seal ─ move the file ─ done
├─ unchanged ──── move the file ─ done
├─ bad ────────── refused
└─ superseded ─── done; a later job has the document
no file ─ resume an attempt that had moved it, or FileMissing
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.errors import (
    DocumentError,
    DocumentRefused,
    FileMissing,
    ParseError,
    ParserDied,
    StoreError,
    StoreMismatch,
)
from penstock.pipelines.documents.ingest.cleanup import lacks_points, recheck_documents
from penstock.pipelines.documents.ingest.failed_documents import FailedDocuments
from penstock.pipelines.documents.ingest.finished_files import FinishedFiles, drop_copy
from penstock.pipelines.documents.ingest.indexing import (
    Indexer,
    IndexResult,
    IndexTarget,
    IngestMetrics,
)
from penstock.pipelines.documents.ingest.job_state import IngestJobState
from penstock.pipelines.documents.ingest.rebuilding import Rebuilder
from penstock.pipelines.documents.ledger.tables import BeginResult, DocumentRow, DocumentVersion
from penstock.pipelines.documents.parsing.refusal_codes import BY_THE_FILE
from penstock.pipelines.documents.parsing.sandbox.pool import Parsers
from penstock.pipelines.documents.resources import DocumentResources, recipe_of
from penstock.pipelines.documents.submit.job_message import JobMessage, read_message
from penstock.pipelines.documents.submit.submitter import check_extension
from penstock.queues.worker.job_context import JobContext
from penstock.stores.files.folder import OpenFile

__all__ = ["Intake"]

logger = logging.getLogger(__name__)

_LARGE = 256 * 1024
"""Files from this size on are hashed in a thread."""


class Intake:
    """Handler of the ingest queue. Each step can be repeated after a crash at any point."""

    def __init__(
        self, resources: DocumentResources, parsers: Parsers, metrics: IngestMetrics
    ) -> None:
        self._resources, self._metrics = resources, metrics
        self._indexer = Indexer(resources, parsers, metrics)
        self.finished_files = FinishedFiles()
        self._failed_documents = FailedDocuments(resources, self.finished_files)
        self._rebuilder = Rebuilder(resources)

    async def perform(self, payload: Any, job: JobContext) -> dict[str, Any]:
        """Process one job; returns the job's result."""
        message = read_message(payload)
        began = time.monotonic()
        rag = self._resources.rag(message.rag_id)
        state = IngestJobState(self._resources, message, rag, job)
        try:
            await state.date_file(self._resources.queue)
            result = await (self._copy(state) if message.target else self._ingest(state))
        except Exception as raised:
            error = await self._judged(state, raised)
            final = isinstance(error, DocumentRefused) or job.attempt >= job.max_attempts
            self._metrics.failed(final=final)
            if isinstance(error, StoreMismatch):
                self._resources.forget_collections()
            await self._resources.gate.failed(rag.rag_id, error)
            if final:
                await self._failed_documents.give_up(state, error)
            if error is not raised:
                raise error from raised
            raise
        self._resources.gate.succeeded()
        self._metrics.done(time.monotonic() - began)
        return result

    async def _judged(self, state: IngestJobState, error: Exception) -> Exception:
        """The error, or a refusal if the file has killed its parser before."""
        if not isinstance(error, ParserDied) or error.error_code not in BY_THE_FILE:
            return error
        try:
            again = await self._resources.ledger.parser_died(
                state.attempt, error.error_code, error.reason
            )
        except StoreError as unknown:
            logger.warning("a death of a parser could not be counted: %s", unknown)
            return error
        if not again:
            return error
        reason = f"{error.reason}, as before: the file is not read again"
        return ParseError(reason, error.error_code, error.suggestions)

    # ---- a submitted document

    async def _ingest(self, state: IngestJobState) -> dict[str, Any]:
        state.recipe = recipe_of(state.rag, (await self._resources.rag_row(state.rag)).model)
        try:
            file = state.place.open(state.name, max_bytes=state.folders.max_bytes)
        except FileMissing:
            return await self._resume(state)
        with file:
            state.identity = file.identity
            if not state.message.options.skip_validation:
                check_extension(state.rag, state.final_name)
            state.digest, state.size = await _digest(file), file.size
            begun = await self._begin(state)
            match begun.verdict:
                case "go":
                    state.generation = begun.generation
                    return await self._index(state, file, begun)
                case "unchanged":
                    return await self._keep(state, file, begun.known)
                case "bad":
                    raise _known_bad(begun)
                case "superseded":
                    return await self._end_superseded(state)

    async def _begin(self, state: IngestJobState) -> BeginResult:
        ledger = self._resources.ledger
        begun = await ledger.begin(state.attempt)
        recipe = recipe_of(state.rag, begun.rag.model)
        if recipe != state.recipe:
            # A rebuild has been swapped in since the row was read.
            await self._resources.fresh_row(state.rag)
            state.recipe = recipe
            begun = await ledger.begin(state.attempt)
        former = begun.former
        if begun.verdict != "unchanged" or former is None:
            return begun
        if state.retries and await lacks_points(self._resources, begun.rag, former):
            return await ledger.begin(state.forced)  # the machine has crashed
        if _metadata(state.message, former) == _kept(former):
            return begun
        # New metadata is written to all points; their vectors are reused.
        return await ledger.begin(state.forced)

    async def _index(
        self, state: IngestJobState, file: OpenFile, begun: BeginResult
    ) -> dict[str, Any]:
        """Index a file and seal its generation, in whatever collection serves the RAG then."""
        resources, row, former = self._resources, begun.rag, begun.former
        while True:
            embedder = await resources.embedder(state.rag, row.embeddings)
            target = IndexTarget(
                collection=row.physical,
                generation=begun.generation,
                former=former.sealed if former is not None else 0,
            )
            metadata = _metadata(state.message, former)
            try:
                indexed = await self._indexer.index(state, file, target, embedder, metadata)
            except (DocumentRefused, ParserDied):
                _check_unchanged(file)  # else the error says nothing about the file as it was
                raise
            _check_unchanged(file)
            version = DocumentVersion(
                chunks=indexed.chunks,
                size=file.size,
                type=indexed.type,
                metadata=msgspec.json.encode(metadata).decode() if metadata else "",
            )
            sealed = await resources.ledger.seal(
                state.rag.rag_id, state.doc_id, begun.generation, row.physical, version
            )
            match sealed.verdict:
                case "sealed":
                    if state.retries:
                        await resources.ledger.acquit(state.digest)
                    if begun.generation > 1:
                        await resources.vectors.delete_before(
                            row.physical, state.doc_id, begun.generation
                        )
                    return await self._finish(state, file, indexed, sealed.duplicate_of)
                case "superseded":
                    await resources.vectors.delete_generation(
                        row.physical, state.doc_id, begun.generation
                    )
                    return await self._end_superseded(state)
                case "moved":
                    # A rebuild was swapped in: the points are in the collection that is dropped.
                    row, former = await resources.fresh_row(state.rag), None

    async def _finish(
        self, state: IngestJobState, file: OpenFile, indexed: IndexResult, duplicate_of: str
    ) -> dict[str, Any]:
        """Move the file of a sealed document, and end its job in the ledger."""
        result = {
            "document": state.doc_id,
            "generation": state.generation,
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
            "changed_since_submit": state.changed_since_submit,
        }
        stored = await self.finished_files.store(state, file.identity, result)
        await self._resources.ledger.done(
            state.attempt,
            state.generation,
            stored=stored,
            chunks=indexed.chunks,
            duplicate_of=duplicate_of,
        )
        await state.progress.report(
            indexed.pages,
            indexed.pages,
            "done",
            force=True,
            chunks_created=indexed.chunks,
            embeddings_generated=indexed.embedded,
            tokens_used=indexed.tokens,
            **_notes(result),
        )
        self._indexer.forget_parts(state)
        return result

    async def _keep(
        self, state: IngestJobState, file: OpenFile, former: DocumentRow
    ) -> dict[str, Any]:
        """End a job whose document is indexed already: only its file has to be moved."""
        state.generation = former.sealed
        result = {"document": state.doc_id, "generation": former.sealed, "unchanged": True}
        if former.state == "indexed" and self.finished_files.is_stored(state, former):
            stored = former.file
            self.finished_files.discard(state, file.identity)
        else:
            stored = await self.finished_files.store(state, file.identity, result)
        await self._done(state, former, stored)
        await state.progress.report(
            note="unchanged",
            force=True,
            chunks_created=former.chunks,
            embeddings_generated=0,
            tokens_used=0,
        )
        return {**result, "chunks_created": former.chunks}

    async def _end_superseded(self, state: IngestJobState) -> dict[str, Any]:
        """End a job whose document belongs to a later job."""
        resources = self._resources
        row = await resources.ledger.document(state.rag.rag_id, state.doc_id)
        if row is not None and row.sealed and state.retries:
            # Points that an earlier attempt wrote after the later job had removed old ones.
            physical = (await resources.fresh_row(state.rag)).physical
            await resources.vectors.delete_before(physical, state.doc_id, row.sealed)
        await asyncio.to_thread(drop_copy, state)
        await resources.ledger.end_job(state.attempt, "done")
        await state.progress.report(note="superseded", force=True)
        return {"document": state.doc_id, "superseded": True}

    async def _resume(self, state: IngestJobState) -> dict[str, Any]:
        """Complete an interrupted attempt that had moved the file already."""
        row = await self._resources.ledger.document(state.rag.rag_id, state.doc_id)
        if row is not None and row.job_id == state.message.job_id and row.state == "failed":
            state.digest = row.new_digest
            raise DocumentRefused(row.error, row.error_code)
        if row is not None and row.sealed and self._is_ours(state, row):
            state.digest, state.generation = row.digest, row.sealed
            result = {"document": state.doc_id, "generation": row.sealed, "resumed": True}
            stored = await self.finished_files.stored_before(state, row, result) or row.file
            await self._done(state, row, stored)
            moved = msgspec.structs.replace(row, stored=stored)
            rag_row = await self._resources.fresh_row(state.rag)
            await recheck_documents(self._resources, state.rag, rag_row, [moved])
            await state.progress.report(note="done", force=True, chunks_created=row.chunks)
            return {**result, "chunks_created": row.chunks}
        if row is not None and row.sealed and state.retries and row.job_id != state.message.job_id:
            # This job had begun; a later job replaced its file and moved it.
            return await self._end_superseded(state)
        raise FileMissing(
            f"there is no file {state.name!r} in incoming/ of RAG {state.rag.rag_id!r}",
            "ERR_FILE_NOT_FOUND",
            ("Was it moved or deleted after it was submitted? Submit it again when it is there",),
        )

    async def _done(self, state: IngestJobState, row: DocumentRow, stored: str) -> None:
        await self._resources.ledger.done(
            state.attempt,
            row.sealed,
            stored=stored,
            chunks=row.chunks,
            duplicate_of=row.duplicate_of,
        )

    def _is_ours(self, state: IngestJobState, row: DocumentRow) -> bool:
        """Whether this job, or another one for the same content, has indexed the document."""
        if row.job_id == state.message.job_id:
            return row.sealed == row.generation
        return row.state == "indexed" and bool(row.digest) and row.digest == state.message.digest

    # ---- a copy for the collection of a rebuild

    async def _copy(self, state: IngestJobState) -> dict[str, Any]:
        resources, message = self._resources, state.message
        row = await resources.ledger.rag(state.rag.rag_id)
        document = await resources.ledger.document(state.rag.rag_id, state.doc_id)
        if row is None or row.shadow != message.target or document is None or not document.sealed:
            return await self._skip_copy(state)  # swapped, given up or forgotten meanwhile
        await resources.vectors.create(row.shadow, row.shadow_dimension)
        state.recipe = recipe_of(state.rag, row.shadow_model)
        if state.recipe != row.shadow_recipe:
            return await self._skip_copy(state)  # the RAG's file has changed
        embedder = await resources.embedder(state.rag, row.shadow_embeddings)
        if document.digest != message.digest:
            return await self._skip_copy(state)
        with state.place.open(state.name, max_bytes=state.folders.max_bytes) as file:
            state.digest, state.size = await _digest(file), file.size
            if state.digest != document.digest:
                if document.state in {"sealed", "processing"}:
                    return await self._skip_copy(state)
                raise DocumentRefused(
                    f"{state.name!r} in processed/ is no longer the file that was indexed",
                    "ERR_STORED_CHANGED",
                    ("Put the file into incoming/ to index it as it is now",),
                )
            target = IndexTarget(collection=row.shadow, generation=document.sealed, former=0)
            indexed = await self._indexer.index(state, file, target, embedder, _kept(document))
        await resources.vectors.delete_before(row.shadow, state.doc_id, document.sealed)
        await resources.ledger.copied(state.attempt, row.shadow, document.sealed, indexed.chunks)
        latest = await resources.ledger.document(state.rag.rag_id, state.doc_id)
        if latest is None or latest.sealed != document.sealed:
            # Forgotten, or replaced by another version, which gets a copy of its own.
            await resources.vectors.delete_generation(row.shadow, state.doc_id, document.sealed)
        await self._rebuilder.advance(state.rag)
        self._indexer.forget_parts(state)
        return {"document": state.doc_id, "chunks_created": indexed.chunks}

    async def _skip_copy(self, state: IngestJobState) -> dict[str, Any]:
        """End a job whose copy is outdated; the rebuild queues another if it still needs one."""
        await self._resources.ledger.end_job(state.attempt, "done")
        return {"document": state.doc_id, "superseded": True}


def _check_unchanged(file: OpenFile) -> None:
    if file.changed():
        raise DocumentError(
            "the file was written to while it was read",
            "ERR_FILE_CHANGED",
            ("It is retried automatically. Write files elsewhere, then rename them",),
        )


async def _digest(file: OpenFile) -> str:
    return await asyncio.to_thread(file.digest) if file.size >= _LARGE else file.digest()


def _known_bad(begun: BeginResult) -> ParseError:
    assert begun.bad is not None  # noqa: S101  of this verdict
    return ParseError(
        f"known to be unreadable: {begun.bad.error}",
        begun.bad.error_code,
        ("It is read again when the file or the parsers change, or with --reindex",),
    )


def _metadata(message: JobMessage, former: DocumentRow | None) -> dict[str, Any]:
    if former is None or not message.options.preserve_metadata:
        return dict(message.metadata)
    return {**_kept(former), **message.metadata}


def _kept(row: DocumentRow) -> dict[str, Any]:
    return msgspec.json.decode(row.metadata, type=dict[str, Any]) if row.metadata else {}


def _notes(result: Mapping[str, Any]) -> dict[str, str]:
    """Fields for the status beyond the numbers."""
    notes = {
        name: str(result[name])
        for name in ("duplicate_of", "changed_since_submit")
        if result.get(name)
    }
    if result["warnings"]:
        notes["warnings"] = "; ".join(result["warnings"])
    return notes
