"""Indexing a file: parsed, split, embedded and written as points, part by part."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import ParseError
from penstock.pipelines.documents.config.models import TYPES
from penstock.pipelines.documents.embedding.embedder import Embedder
from penstock.pipelines.documents.ingest.job_state import IngestJobState
from penstock.pipelines.documents.parsing.chunks import Chunk, Part
from penstock.pipelines.documents.parsing.sandbox.pool import Parsers
from penstock.pipelines.documents.resources import DocumentResources
from penstock.stores.files.folder import OpenFile
from penstock.stores.vectors.port import Point

__all__ = ["IndexResult", "IndexTarget", "Indexer", "IngestMetrics", "IngestMetricsView"]
__all__ += ["PointIds"]


class IngestMetricsView(msgspec.Struct, frozen=True, kw_only=True):
    """Totals since the process started."""

    documents: int
    failed: int
    retried: int
    chunks: int
    embedded: int
    reused: int
    """Vectors reused from the former version of a document."""
    cached: int
    tokens: int
    unfenced: int
    """Documents that were read without all fences."""
    seconds: dict[str, float]
    """Seconds by stage, over all documents: parse, embed, upsert, job."""


class IngestMetrics:
    """Counters of one process; used from one event loop, so without locks."""

    def __init__(self) -> None:
        self.documents = self.failures = self.retries = 0
        self.chunks = self.embedded = self.reused = self.cached = self.tokens = 0
        self.unfenced = 0
        self._seconds: Counter[str] = Counter()

    def spent(self, stage: str, seconds: float) -> None:
        self._seconds[stage] += seconds  # pyright: ignore[reportArgumentType]  a counter of floats

    def done(self, seconds: float) -> None:
        self.documents += 1
        self.spent("job", seconds)

    def failed(self, *, final: bool) -> None:
        if final:
            self.failures += 1
        else:
            self.retries += 1

    def view(self) -> IngestMetricsView:
        return IngestMetricsView(
            documents=self.documents,
            failed=self.failures,
            retried=self.retries,
            chunks=self.chunks,
            embedded=self.embedded,
            reused=self.reused,
            cached=self.cached,
            tokens=self.tokens,
            unfenced=self.unfenced,
            seconds={stage: round(spent, 6) for stage, spent in self._seconds.items()},
        )


class PointIds:
    """Ids of the points of one generation of a document.

    The same text in the same generation has the same id however often a job is repeated, so a
    repetition replaces only its own points. Generations share no point, so that a superseded
    attempt can remove all of its own.
    """

    def __init__(self, rag_id: str, doc_id: str, generation: int) -> None:
        scope = f"{rag_id}\0{doc_id}\0{generation}".encode(errors="surrogatepass")
        self._space = blake2b(scope, digest_size=32).digest()
        self._seen: Counter[bytes] = Counter()

    def of(self, digests: Iterable[bytes]) -> list[str]:
        """One id for each digest of a text, in their order; equal ones are numbered."""
        ids: list[str] = []
        for digest in digests:
            number = self._seen[digest]
            self._seen[digest] += 1
            numbered = digest + number.to_bytes(4)
            h = blake2b(numbered, digest_size=16, key=self._space).hexdigest()
            ids.append(f"{h[:8]}-{h[8:12]}-8{h[13:16]}-a{h[17:20]}-{h[20:]}")  # a UUID, version 8
        return ids


_SPOOLED = 256 * 1024
"""Size from which parsed parts are kept for a retry; smaller files are parsed again."""


class IndexTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Collection and generation that points are written to."""

    collection: str
    generation: int
    former: int
    """Generation whose vectors can be reused; 0 for none."""


class IndexResult(msgspec.Struct, kw_only=True):
    """Counts and facts of an indexed file."""

    chunks: int = 0
    embedded: int = 0
    reused: int = 0
    """Chunks of the former version, with their vectors."""
    cached: int = 0
    tokens: int = 0
    type: str = ""
    title: str = ""
    pages: int = 1
    warnings: tuple[str, ...] = ()


class Indexer:
    """Writes points. Generations, and which of them is searchable, are up to the caller."""

    def __init__(
        self, resources: DocumentResources, parsers: Parsers, metrics: IngestMetrics
    ) -> None:
        self._resources, self._parsers, self._metrics = resources, parsers, metrics

    async def index(
        self,
        state: IngestJobState,
        file: OpenFile,
        target: IndexTarget,
        embedder: Embedder,
        metadata: dict[str, Any],
    ) -> IndexResult:
        """Write all points of a file; repeatable, as the same file gives the same points."""
        indexed = IndexResult()
        rag_id = state.rag.rag_id
        writing = _Writing(
            state,
            target,
            embedder,
            metadata,
            PointIds(rag_id, state.doc_id, target.generation),
            PointIds(rag_id, state.doc_id, target.former) if target.former else None,
        )
        began = time.perf_counter()
        async for part in self._parsers.parse(
            file.fd,
            name=state.final_name,
            declared=TYPES.get(Path(state.final_name).suffix.lower(), ""),
            chunking=state.rag.chunking,
            # Alone at a repetition, so that a death of its parser is its own.
            owner=state.message.job_id if state.retries else rag_id,
            ocr=state.rag.sources.ocr,
            by_content=state.message.options.skip_validation,
            spool=self._spool(state) if state.size >= _SPOOLED else None,
            require_fences=state.message.options.require_fences,
        ):
            self._metrics.spent("parse", time.perf_counter() - began)
            indexed.type, indexed.title = part.type, indexed.title or part.title
            indexed.pages, indexed.warnings = part.total, (*indexed.warnings, *part.warnings)
            await self._write(writing, part, indexed)
            await state.progress.report(
                part.done,
                part.total,
                "embedding",
                chunks_created=indexed.chunks,
                embeddings_generated=indexed.embedded,
            )
            began = time.perf_counter()
        if self._parsers.missing_fences(ocr=state.rag.sources.ocr):
            self._metrics.unfenced += 1
        if not indexed.chunks:
            raise ParseError(
                "the document has no text",
                "ERR_NO_TEXT",
                ("If its pages are pictures, set sources.ocr in the RAG's file",),
            )
        return indexed

    def forget_parts(self, state: IngestJobState) -> None:
        """Remove the parts that were kept for a retry."""
        if state.size >= _SPOOLED:
            shutil.rmtree(self._spool(state), ignore_errors=True)

    async def _write(self, writing: _Writing, part: Part, indexed: IndexResult) -> None:
        most = self._resources.settings.upsert
        for first in range(0, len(part.chunks), most):
            chunks = part.chunks[first : first + most]
            began = time.perf_counter()
            digests = [_digest(chunk.text) for chunk in chunks]
            vectors = await self._vectors(writing, chunks, digests, indexed)
            self._metrics.spent("embed", time.perf_counter() - began)
            began = time.perf_counter()
            points = [
                Point(id_, vector, writing.payload(chunk, part, indexed.chunks + number))
                for number, (id_, vector, chunk) in enumerate(
                    zip(writing.ids.of(digests), vectors, chunks, strict=True)
                )
            ]
            await self._resources.vectors.upsert(
                writing.target.collection, writing.state.doc_id, writing.target.generation, points
            )
            self._metrics.spent("upsert", time.perf_counter() - began)
            self._metrics.chunks += len(chunks)
            indexed.chunks += len(chunks)

    async def _vectors(
        self,
        writing: _Writing,
        chunks: Sequence[Chunk],
        digests: Sequence[bytes],
        indexed: IndexResult,
    ) -> list[bytes]:
        """Vectors of chunks, reused from the former version where the text is the same."""
        found: dict[int, bytes] = {}
        if writing.former_ids is not None:
            ids = writing.former_ids.of(digests)
            there = await self._resources.vectors.vectors(writing.target.collection, ids)
            found = {number: there[id_] for number, id_ in enumerate(ids) if id_ in there}
        wanted = [number for number in range(len(chunks)) if number not in found]
        if wanted:
            made = await writing.embedder.embed([chunks[number].text for number in wanted])
            found.update(zip(wanted, made.vectors, strict=True))
            indexed.tokens += made.tokens
            indexed.cached += made.cached
            self._metrics.tokens += made.tokens
            self._metrics.cached += made.cached
        indexed.embedded += len(wanted)
        indexed.reused += len(chunks) - len(wanted)
        self._metrics.embedded += len(wanted)
        self._metrics.reused += len(chunks) - len(wanted)
        return [found[number] for number in range(len(chunks))]

    def _spool(self, state: IngestJobState) -> Path:
        """Folder for the parts of this file and recipe."""
        source = f"{state.rag.rag_id}\0{state.doc_id}\0{state.digest}\0{state.recipe}"
        name = blake2b(source.encode(errors="surrogatepass"), digest_size=16).hexdigest()
        return self._resources.config.work_dir / name


def _digest(text: str) -> bytes:
    # Not made by the parser: a child that was taken over could pass one text off as another.
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class _Writing:
    """What all points of a document share."""

    state: IngestJobState
    target: IndexTarget
    embedder: Embedder
    metadata: dict[str, Any]
    ids: PointIds
    former_ids: PointIds | None

    def payload(self, chunk: Chunk, part: Part, number: int) -> dict[str, Any]:
        payload: dict[str, Any] = {
            "text": chunk.text,
            "rag_id": self.state.rag.rag_id,
            "source": self.state.message.filename,
            "chunk": number,
            "kind": chunk.kind,
            "type": part.type,
            "start": chunk.start,
            "end": chunk.end,
        }
        if chunk.page is not None:
            payload["page"] = chunk.page
        if chunk.headings:
            payload["headings"] = list(chunk.headings)
        if self.metadata:
            payload["metadata"] = self.metadata
        return payload
