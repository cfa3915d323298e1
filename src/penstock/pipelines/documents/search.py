"""Searching a RAG."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import DocumentRefused, StoreMismatch
from penstock.pipelines.documents.config.models import RagConfig
from penstock.pipelines.documents.resources import DocumentResources
from penstock.stores.vectors.port import Hit

__all__ = ["SearchHit", "search"]

_SWAPS = 3
_LONGEST_QUERY = 20_000


class SearchHit(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk near to the question."""

    score: float
    document: str
    text: str
    page: int | None
    headings: tuple[str, ...]
    start: int
    end: int
    type: str
    metadata: dict[str, Any]
    also_in: tuple[str, ...] = ()
    """Other documents with the same text."""


async def search(
    resources: DocumentResources,
    rag: RagConfig,
    query: str,
    *,
    top_k: int | None = None,
    threshold: float | None = None,
    documents: tuple[str, ...] = (),
) -> list[SearchHit]:
    """The chunks nearest to a question, best first; of each document one version, never two."""
    if not query.strip():
        raise DocumentRefused("the question is empty", "ERR_EMPTY_QUERY")
    wanted = top_k or rag.retrieval.top_k
    least = rag.retrieval.threshold if threshold is None else threshold
    for _ in range(_SWAPS):
        row = await resources.fresh_row(rag)
        embedder = await resources.embedder(rag, row.embeddings)
        vector = (await embedder.embed([query[:_LONGEST_QUERY]])).vectors[0]
        try:
            return await _nearest(resources, rag, row.physical, vector, wanted, least, documents)
        except StoreMismatch:
            # A rebuild was swapped in between reading the ledger and searching.
            latest = await resources.ledger.rag(rag.rag_id)
            if latest is None or latest.physical == row.physical:
                raise
    raise DocumentRefused("the collection was replaced again and again", "ERR_SWAPPING")


async def _nearest(
    resources: DocumentResources,
    rag: RagConfig,
    collection: str,
    vector: bytes,
    wanted: int,
    least: float | None,
    documents: tuple[str, ...],
) -> list[SearchHit]:
    limit, again = wanted * 2, _SWAPS
    while True:
        hits = await resources.vectors.search(
            collection, vector, limit=limit, documents=documents, threshold=least
        )
        visible = await resources.ledger.visible(rag.rag_id, [hit.document for hit in hits])
        # The store also has points of versions that are incomplete, or being removed.
        counting = [hit for hit in hits if visible.get(hit.document) == hit.generation]
        if again and any(hit.generation < visible.get(hit.document, 0) for hit in hits):
            # A newer version was sealed during the search: its points may be missing.
            again -= 1
            continue
        found = _collapsed(counting)
        if len(found) >= wanted or len(hits) < limit:
            return found[:wanted]
        limit *= 4


def _collapsed(hits: list[Hit]) -> list[SearchHit]:
    """Hits by text: each text once, with the other documents that have it."""
    by_text: dict[str, list[Hit]] = {}
    for hit in hits:
        by_text.setdefault(str(hit.payload.get("text", "")), []).append(hit)
    return [_found(same) for same in by_text.values()]


def _found(same: list[Hit]) -> SearchHit:
    best, payload = same[0], same[0].payload
    others = dict.fromkeys(hit.document for hit in same if hit.document != best.document)
    return SearchHit(
        score=best.score,
        document=best.document,
        text=str(payload.get("text", "")),
        page=payload.get("page"),
        headings=tuple(payload.get("headings", ())),
        start=int(payload.get("start", 0)),
        end=int(payload.get("end", 0)),
        type=str(payload.get("type", "")),
        metadata=payload.get("metadata", {}),
        also_in=tuple(others),
    )
