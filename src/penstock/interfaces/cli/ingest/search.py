"""`penstock ingest search`: search of a RAG."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from penstock.interfaces.cli.ingest.opening import pass_place, rag_option, with_documents
from penstock.interfaces.cli.output import json_option, say, say_json
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.pipelines.documents.search import SearchHit

__all__ = ["search"]

_MOST = 1_000
_SNIPPET = 300
"""Characters of a chunk that are shown; --json has all."""


@click.command()
@rag_option
@click.argument("query")
@click.option(
    "-k",
    "top_k",
    type=click.IntRange(1, _MOST),
    help="Number of hits (default: the RAG's top_k).",
)
@click.option(
    "--threshold",
    type=click.FloatRange(-1, 1),
    help="Minimum similarity (default: the RAG's threshold).",
)
@click.option("--document", "among", multiple=True, help="Search only this document; repeatable.")
@json_option
@pass_place
def search(
    settings: Settings,
    rag_id: str,
    query: str,
    top_k: int | None,
    threshold: float | None,
    among: tuple[str, ...],
    as_json: bool,
) -> None:
    """Find the chunks nearest to a question, best first.

    Example: penstock ingest search --rag policies "how many days of leave?"
    """
    found = with_documents(
        settings,
        lambda documents: documents.search(
            rag_id, query, top_k=top_k, threshold=threshold, documents=among
        ),
    )
    if as_json:
        say_json(found)
    elif not found:
        say("nothing was found")
    for one in () if as_json else found:
        if not _show(one):
            return


def _show(found: SearchHit) -> bool:
    place = [found.document]
    place += [f"page {found.page}"] if found.page is not None else []
    place += [" > ".join(found.headings)] if found.headings else []
    text = " ".join(found.text.split())
    is_open = say(f"{found.score:.3f}  {'  '.join(place)}", bold=True)
    is_open = is_open and say(
        f"       {text if len(text) <= _SNIPPET else f'{text[:_SNIPPET]}…'}", is_data=True
    )
    if found.also_in:
        is_open = is_open and say(f"       also in {', '.join(found.also_in)}")
    return is_open
