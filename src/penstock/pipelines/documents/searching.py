"""Questions to a RAG."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import DocumentRefused, StoreMismatch
from penstock.pipelines.documents.configuration import RagConfig
from penstock.pipelines.documents.workshop import Workshop
from penstock.stores.vectors.port import Hit

__all__ = ["Found", "search"]

_SWAPS = 3
_LONGEST_QUERY = 20_000


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk that answers a question."""

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
    """Other documents with the very same text."""


async def search(
    workshop: Workshop,
    rag: RagConfig,
    query: str,
    *,
    top_k: int | None = None,
    threshold: float | None = None,
    documents: tuple[str, ...] = (),
) -> list[Found]:
    """The chunks nearest to a question, best first; of each document one version, never two."""
    if not query.strip():
        raise DocumentRefused("the question is empty", "ERR_EMPTY_QUERY")
    wanted = top_k or rag.retrieval.top_k
    least = rag.retrieval.threshold if threshold is None else threshold
    for _ in range(_SWAPS):
        row = await workshop.fresh_row(rag)
        embedder = await workshop.embedder(rag, row.embeddings)
        vector = (await embedder.embed([query[:_LONGEST_QUERY]])).vectors[0]
        try:
            return await _nearest(workshop, rag, row.physical, vector, wanted, least, documents)
        except StoreMismatch:
            # A rebuild has taken over between the look into the ledger and the question.
            latest = await workshop.ledger.rag(rag.rag_id)
            if latest is None or latest.physical == row.physical:
                raise
    raise DocumentRefused("the collection was replaced again and again", "ERR_SWAPPING")


async def _nearest(
    workshop: Workshop,
    rag: RagConfig,
    collection: str,
    vector: bytes,
    wanted: int,
    least: float | None,
    documents: tuple[str, ...],
) -> list[Found]:
    limit, again = wanted * 2, _SWAPS
    while True:
        hits = await workshop.vectors.search(
            collection, vector, limit=limit, documents=documents, threshold=least
        )
        visible = await workshop.ledger.visible(rag.rag_id, [hit.document for hit in hits])
        # Points of versions that are not complete yet, or not any more, are there and do not count.
        counting = [hit for hit in hits if visible.get(hit.document) == hit.generation]
        if again and any(hit.generation < visible.get(hit.document, 0) for hit in hits):
            # A version has taken over since the question: its own points were not seen.
            again -= 1
            continue
        found = _collapsed(counting)
        if len(found) >= wanted or len(hits) < limit:
            return found[:wanted]
        limit *= 4


def _collapsed(hits: list[Hit]) -> list[Found]:
    """Each text once, with the other documents that have it."""
    by_text: dict[str, list[Hit]] = {}
    for hit in hits:
        by_text.setdefault(str(hit.payload.get("text", "")), []).append(hit)
    return [_found(same) for same in by_text.values()]


def _found(same: list[Hit]) -> Found:
    best, payload = same[0], same[0].payload
    others = dict.fromkeys(hit.document for hit in same if hit.document != best.document)
    return Found(
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
