"""`penstock rag`: the RAGs and their configuration."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from penstock.errors import ConfigurationWrong
from penstock.interfaces.cli.ingest.opening import client_option, pass_place, with_documents
from penstock.interfaces.cli.output import ExitCode, json_option, say, say_json
from penstock.interfaces.cli.wording import table
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.pipelines.documents.admin.views import RagView
    from penstock.pipelines.documents.config.models import DocumentsConfig, RagConfig
    from penstock.pipelines.documents.service import Documents

__all__ = ["rag"]


@click.group()
@client_option
def rag(client: str | None) -> None:
    """List, create, check and swap RAGs: collections of documents for retrieval."""


@rag.command("list")
@json_option
@pass_place
def list_rags(settings: Settings, as_json: bool) -> None:
    """List all RAGs; problems of RAGs go to standard error.

    Example: penstock rag list
    """

    async def look(documents: Documents) -> tuple[list[RagView], dict[str, tuple[str, ...]]]:
        return await documents.rags(), dict(documents.problems)

    found, problems = with_documents(settings, look)
    if as_json:
        say_json({"rags": found, "problems": problems})
        return
    if found:
        rows = [
            (sum(_there(one).values()), one.chunks, one.model, _state(one), one.rag_id)
            for one in found
        ]
        table(("DOCUMENTS", "CHUNKS", "MODEL", "STATE", "RAG"), rows)
    else:
        say("no RAGs")
    for one in found:
        if one.trouble:
            say(f"penstock: {one.rag_id}: {one.trouble}", err=True)
    for file, said in problems.items():
        say(f"penstock: {file}: {'; '.join(said)}", err=True)


def _there(view: RagView) -> dict[str, int]:
    return {state: count for state, count in view.documents.items() if state != "forgotten"}


def _state(view: RagView) -> str:
    if view.rebuilding:
        return "being rebuilt"
    if view.trouble:
        return "cannot be used"
    return "needs reindex" if view.needs_reindex else "ok"


@rag.command()
@click.argument("rag_id", metavar="RAG")
@json_option
@pass_place
def show(settings: Settings, rag_id: str, as_json: bool) -> None:
    """Show a RAG; exits 1 if it does not exist, 3 if its file is invalid.

    Example: penstock rag show policies
    """
    view = with_documents(settings, lambda documents: documents.rag(rag_id))
    if as_json:
        say_json(view)
        return
    say(f"RAG {view.rag_id}: {_state(view)}", bold=True)
    facts = {
        "description": view.description,
        "collection": view.collection,
        "model": view.model,
        "dimension": str(view.dimension or ""),
        "documents": ", ".join(f"{count:,} {state}" for state, count in _there(view).items()),
        "chunks": f"{view.chunks:,}",
        "folder": view.folder,
        "rebuilding": view.rebuilding,
        "reindex": view.needs_reindex,
        "trouble": view.trouble,
    }
    for name, value in facts.items():
        if value:
            say(f"  {name:11}  {value}")


@rag.command()
@click.argument("rag_id", metavar="RAG")
@click.option("--description", help="Purpose of the RAG.")
@click.option("--collection", help="Name in the vector store (default: the RAG's id).")
@click.option("--provider", help="builtin (default), http, sentence-transformers or python.")
@click.option("--model", help="Model of the provider.")
@click.option("--dimension", type=int, help="Vector dimension (default: the model's).")
@click.option("--url", help="Address of an OpenAI-compatible API, up to /v1.")
@click.option("--api-key-env", metavar="NAME", help="Environment variable with the API's key.")
@click.option("--strategy", help="Splitting: structure (default) or recursive.")
@click.option("--size", type=int, help="Maximum characters of a chunk.")
@click.option("--overlap", type=int, help="Characters that neighbouring chunks share.")
@click.option("--extension", "extensions", multiple=True, help="Accepted extension; repeatable.")
@click.option("--max-mb", type=float, help="Maximum size of a file in MiB.")
@click.option("--ocr/--no-ocr", default=None, help="Recognise the text of scanned pages.")
@json_option
@pass_place
def create(
    settings: Settings,
    rag_id: str,
    description: str | None,
    collection: str | None,
    extensions: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Create a RAG: its YAML file and its folders.

    Exits 3 with all mistakes, and writes nothing, if it could not be used.

    Example: penstock rag create policies --size 800 --extension .pdf
    """
    # The readers of YAML are an extra.
    from penstock.pipelines.documents.config.reading import read_configuration
    from penstock.pipelines.documents.config.writing import make_folders, write_rag

    config = read_configuration(settings)
    wanted: dict[str, Any] = {
        "rag_id": rag_id,
        "description": description or "",
        "collection": _given(name=collection),
        "embeddings": _given(
            **_some(options, "provider", "model", "dimension", "url", "api_key_env")
        ),
        "chunking": _given(**_some(options, "strategy", "size", "overlap")),
        "sources": _given(extensions=list(extensions) or None, **_some(options, "max_mb", "ocr")),
    }
    path = write_rag(config, _checked(wanted, config))
    config = read_configuration(settings)
    make_folders(config)
    folder = config.folder_of(config.rag(rag_id))
    if as_json:
        say_json({"rag_id": rag_id, "file": str(path), "folder": str(folder)})
    else:
        say(f"RAG {rag_id} is in {path}", bold=True)
        say(f"  Drop files into {folder / 'incoming'}")


def _some(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: options[name] for name in names}


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _checked(wanted: dict[str, Any], config: DocumentsConfig) -> RagConfig:
    from penstock.pipelines.documents.config.validation import (
        check_rag,
    )

    found, mistakes = check_rag(wanted, config.sources_root)
    if mistakes:
        raise ConfigurationWrong("a new RAG", tuple(mistakes))
    return found


@rag.command()
@click.argument("rag_id", required=False, metavar="[RAG]")
@click.option("--probe", is_flag=True, help="Also request a vector from the embedder.")
@json_option
@pass_place
def check(settings: Settings, rag_id: str | None, probe: bool, as_json: bool) -> None:
    """Check client.yaml, the files of RAGs, and their collections; exits 1 on any problem.

    Example: penstock rag check policies --probe
    """
    found = _mistakes(settings, rag_id, probe=probe)
    if as_json:
        say_json({"ok": not any(found.values()), "problems": found})
    else:
        for place, said in found.items():
            say(f"{'ok     ' if not said else 'FAILURE'}  {place}", bold=bool(said))
            for line in said:
                say(f"         {line}")
    sys.exit(ExitCode.FOUND if any(found.values()) else ExitCode.OK)


def _mistakes(settings: Settings, rag_id: str | None, *, probe: bool) -> dict[str, list[str]]:
    """What is wrong, by file or RAG; empty lists for what is not."""

    async def look(documents: Documents) -> dict[str, list[str]]:
        if rag_id is not None:
            return {rag_id: await documents.check(rag_id, probe=probe)}
        found = {file: list(said) for file, said in documents.problems.items()}
        for one in documents.rag_ids:
            found[one] = await documents.check(one, probe=probe)
        return found

    try:
        return with_documents(settings, look)
    except ConfigurationWrong as error:
        return {error.source: list(error.problems)}


@rag.command()
@click.argument("rag_id", metavar="RAG")
@click.option(
    "--force", is_flag=True, help="Swap without the missing documents: they become unsearchable."
)
@json_option
@pass_place
def swap(settings: Settings, rag_id: str, force: bool, as_json: bool) -> None:
    """Replace the collection of a RAG by the rebuilt one now.

    A complete rebuild is swapped in automatically. Exits 1 if it is incomplete, or there is none.

    Example: penstock rag swap policies
    """
    name = with_documents(settings, lambda documents: documents.swap(rag_id, force=force))
    if as_json:
        say_json({"rag_id": rag_id, "collection": name})
    else:
        say(f"collection {name} has taken over")
