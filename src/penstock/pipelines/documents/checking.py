"""Whether a RAG is as its file says, and can be used."""

from __future__ import annotations

from penstock.errors import PenstockError
from penstock.pipelines.documents.configuration import RagConfig
from penstock.pipelines.documents.ledger_rows import RagRow
from penstock.pipelines.documents.views import RagView
from penstock.pipelines.documents.workshop import Workshop, recipe_of

__all__ = ["check_rag", "view_rag"]

_FLOAT = 4
_PROBE = "Is anybody there?"


async def view_rag(workshop: Workshop, rag: RagConfig) -> RagView:
    """A RAG as it is configured and as it is.

    Costs three questions to the ledger, and the opening of its embedder.
    """
    ledger = workshop.ledger
    row = await ledger.rag(rag.rag_id)
    counts = await ledger.counts(rag.rag_id)
    model, needs, trouble = rag.embeddings.model, "", ""
    try:
        model = (await workshop.embedder(rag)).model
        if row is not None and row.model != model:
            needs = f"it is indexed with {row.model}, its file says {model}"
    except (PenstockError, OSError) as error:
        trouble = f"embedder: {error}"
    if row is not None and not needs:
        # Its model is another matter: that of the row makes the same recipe, if nothing else does.
        needs = _otherwise(await ledger.rebuilds.outdated(rag.rag_id, recipe_of(rag, row.model)))
    return RagView(
        rag_id=rag.rag_id,
        description=rag.description,
        collection=rag.alias,
        model=row.model if row is not None else model,
        dimension=row.dimension if row is not None else 0,
        documents={state: count for state, count in counts.items() if state != "chunks"},
        chunks=counts.get("chunks", 0),
        folder=str(workshop.config.folder_of(rag)),
        rebuilding=row.shadow if row is not None else "",
        needs_reindex=needs,
        trouble=trouble,
    )


def _otherwise(count: int) -> str:
    if not count:
        return ""
    are = "1 document is" if count == 1 else f"{count:,} documents are"
    return f"{are} split or read otherwise than its file says now"


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
