"""From a file to points: read, split, embedded, written, part by part."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import ParseError
from penstock.pipelines.documents.case import Case
from penstock.pipelines.documents.chunks import Chunk, Part
from penstock.pipelines.documents.configuration import TYPES
from penstock.pipelines.documents.embedding.port import Embedder
from penstock.pipelines.documents.ids import PointIds
from penstock.pipelines.documents.metrics import Metrics
from penstock.pipelines.documents.parsing.parsers import Parsers
from penstock.pipelines.documents.workshop import Workshop
from penstock.stores.files.folder import OpenFile
from penstock.stores.vectors.port import Point

__all__ = ["Indexed", "Indexer", "Target"]

_SPOOLED = 256 * 1024
"""Smaller files are read again after an interruption: that is quicker than keeping their parts."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where points go."""

    collection: str
    generation: int
    former: int
    """The generation whose vectors may be used again; 0 for none."""


class Indexed(msgspec.Struct, kw_only=True):
    """What became of a file."""

    chunks: int = 0
    embedded: int = 0
    reused: int = 0
    """Chunks that were there before, with the vectors they had."""
    cached: int = 0
    tokens: int = 0
    type: str = ""
    title: str = ""
    pages: int = 1
    warnings: tuple[str, ...] = ()


class Indexer:
    """Fills collections. It decides nothing: neither which generation, nor whether it counts."""

    def __init__(self, workshop: Workshop, parsers: Parsers, metrics: Metrics) -> None:
        self._workshop, self._parsers, self._metrics = workshop, parsers, metrics

    async def index(
        self,
        case: Case,
        file: OpenFile,
        target: Target,
        embedder: Embedder,
        metadata: dict[str, Any],
    ) -> Indexed:
        """Write all points of a file. May be repeated: the same file gives the same points."""
        indexed = Indexed()
        rag_id = case.rag.rag_id
        writing = _Writing(
            case,
            target,
            embedder,
            metadata,
            PointIds(rag_id, case.doc_id, target.generation),
            PointIds(rag_id, case.doc_id, target.former) if target.former else None,
        )
        began = time.perf_counter()
        async for part in self._parsers.parse(
            file.fd,
            name=case.goes_by,
            declared=TYPES.get(Path(case.goes_by).suffix.lower(), ""),
            chunking=case.rag.chunking,
            ocr=case.rag.sources.ocr,
            by_content=case.message.options.skip_validation,
            spool=self._spool(case) if case.size >= _SPOOLED else None,
        ):
            self._metrics.spent("parse", time.perf_counter() - began)
            indexed.type, indexed.title = part.type, indexed.title or part.title
            indexed.pages, indexed.warnings = part.total, (*indexed.warnings, *part.warnings)
            await self._write(writing, part, indexed)
            await case.progress.tell(
                part.done,
                part.total,
                "embedding",
                chunks_created=indexed.chunks,
                embeddings_generated=indexed.embedded,
            )
            began = time.perf_counter()
        if not indexed.chunks:
            raise ParseError(
                "the document has no text",
                "ERR_NO_TEXT",
                ("If its pages are pictures, set sources.ocr in the RAG's file",),
            )
        return indexed

    def forget_parts(self, case: Case) -> None:
        """Remove what was kept for a repetition."""
        if case.size >= _SPOOLED:
            shutil.rmtree(self._spool(case), ignore_errors=True)

    async def _write(self, writing: _Writing, part: Part, indexed: Indexed) -> None:
        most = self._workshop.settings.upsert
        for first in range(0, len(part.chunks), most):
            chunks = part.chunks[first : first + most]
            began = time.perf_counter()
            vectors = await self._vectors(writing, chunks, indexed)
            self._metrics.spent("embed", time.perf_counter() - began)
            began = time.perf_counter()
            ids = writing.ids.of(chunk.digest for chunk in chunks)
            points = [
                Point(id_, vector, writing.payload(chunk, part, indexed.chunks + number))
                for number, (id_, vector, chunk) in enumerate(
                    zip(ids, vectors, chunks, strict=True)
                )
            ]
            await self._workshop.vectors.upsert(
                writing.target.collection, writing.case.doc_id, writing.target.generation, points
            )
            self._metrics.spent("upsert", time.perf_counter() - began)
            self._metrics.chunks += len(chunks)
            indexed.chunks += len(chunks)

    async def _vectors(
        self, writing: _Writing, chunks: Sequence[Chunk], indexed: Indexed
    ) -> list[bytes]:
        """Vectors for chunks: those of the former version where the text is the same."""
        found: dict[int, bytes] = {}
        if writing.former_ids is not None:
            ids = writing.former_ids.of(chunk.digest for chunk in chunks)
            there = await self._workshop.vectors.vectors(writing.target.collection, ids)
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

    def _spool(self, case: Case) -> Path:
        """Where parts of this file, read this way, are kept for a repetition."""
        told = f"{case.rag.rag_id}\0{case.doc_id}\0{case.digest}\0{case.recipe}"
        name = blake2b(told.encode(errors="surrogatepass"), digest_size=16).hexdigest()
        return self._workshop.config.work_dir / name


@dataclass(frozen=True, slots=True)
class _Writing:
    """What the points of one document have in common."""

    case: Case
    target: Target
    embedder: Embedder
    metadata: dict[str, Any]
    ids: PointIds
    former_ids: PointIds | None

    def payload(self, chunk: Chunk, part: Part, number: int) -> dict[str, Any]:
        payload: dict[str, Any] = {
            "text": chunk.text,
            "rag_id": self.case.rag.rag_id,
            "source": self.case.message.filename,
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
