"""Whether a RAG is as its file says, and can be used."""

from __future__ import annotations

from penstock.errors import PenstockError
from penstock.pipelines.documents.configuration import RagConfig
from penstock.pipelines.documents.ledger_rows import RagRow
from penstock.pipelines.documents.workshop import Workshop

__all__ = ["check_rag"]

_FLOAT = 4
_PROBE = "Is anybody there?"


async def check_rag(workshop: Workshop, rag: RagConfig, *, probe: bool = False) -> list[str]:
    """What is wrong with a RAG whose file can be read; with `probe` its embedder is asked, too.

    Costs one question to the ledger, two to the store of vectors, and the opening of its embedder.
    """
    row = await workshop.ledger.rag(rag.rag_id)
    found = await _embedder(workshop, rag, row, probe=probe)
    try:
        return [*found, *(await _collection(workshop, rag, row))]
    except PenstockError as error:
        return [*found, f"vectors: {error}"]


async def _embedder(
    workshop: Workshop, rag: RagConfig, row: RagRow | None, *, probe: bool
) -> list[str]:
    reindex = f"penstock ingest reindex --rag {rag.rag_id}"
    found: list[str] = []
    try:
        embedder = await workshop.embedder(rag)
        if row is not None and row.model != embedder.model:
            found.append(
                f"it is indexed with {row.model}, its file says {embedder.model}: {reindex}"
            )
        elif row is not None and row.dimension != embedder.dimension:
            found.append(
                f"it is indexed with {row.dimension} dimensions, its model has "
                f"{embedder.dimension}: {reindex}"
            )
        if probe:
            vector = (await embedder.embed([_PROBE])).vectors[0]
            if len(vector) != embedder.dimension * _FLOAT:
                found.append(
                    f"the embedder makes {len(vector) // _FLOAT} dimensions, not "
                    f"{embedder.dimension}"
                )
    except (PenstockError, OSError) as error:
        found.append(f"embedder: {error}")
    return found


async def _collection(workshop: Workshop, rag: RagConfig, row: RagRow | None) -> list[str]:
    if row is None:
        return []  # nothing was taken in yet
    found: list[str] = []
    made = await workshop.vectors.describe(row.physical)
    if made is None:
        found.append(f"collection {row.physical} is gone from the store of vectors")
    elif made.dimension != row.dimension:
        found.append(
            f"collection {row.physical} has {made.dimension} dimensions, not {row.dimension}"
        )
    elif (await workshop.vectors.aliases()).get(rag.alias) != row.physical:
        found.append(f"the name {rag.alias} does not stand for collection {row.physical}")
    return found
