"""`penstock ingest cancel`, `replay` and `forget`."""

from __future__ import annotations

import sys

import click

from penstock.interfaces.cli.ingest.opening import pass_place, rag_option, with_documents
from penstock.interfaces.cli.output import ExitCode, fail, json_option, say, say_json
from penstock.interfaces.cli.values import confirm, yes_option
from penstock.interfaces.cli.wording import plural
from penstock.settings import Settings

__all__ = ["cancel", "forget", "replay"]


@click.command()
@click.argument("id_", metavar="ID")
@json_option
@pass_place
def cancel(settings: Settings, id_: str, as_json: bool) -> None:
    """Cancel a job or a batch; exits 1 if all its jobs had ended.

    Example: penstock ingest cancel batch-policies-1704882600-1f2e3d4c
    """
    cancelled = with_documents(settings, lambda documents: documents.cancel(id_))
    if as_json:
        say_json({"id": id_, "cancelled": cancelled})
    for job_id in () if as_json else cancelled:
        say(f"{job_id} is cancelled, or asked to stop")
    if not cancelled:
        fail(f"{id_} had ended", ExitCode.FOUND)


@click.command()
@click.argument("id_", required=False, metavar="[ID]")
@click.option("--rag", "rag_id", metavar="RAG", help="RAG of the failed jobs.")
@click.option("--failed", is_flag=True, help="Replay all failed jobs of the RAG.")
@json_option
@pass_place
def replay(
    settings: Settings, id_: str | None, rag_id: str | None, failed: bool, as_json: bool
) -> None:
    """Queue failed jobs again: a job, a batch, or all failed jobs of a RAG.

    Their files come back from failed/. Exits 1 if the job or batch has not failed.

    Example: penstock ingest replay --rag policies --failed
    """
    if bool(id_) == failed or failed != bool(rag_id):
        raise click.UsageError("which? a job or a batch, or --rag RAG --failed")
    queued = with_documents(
        settings, lambda documents: documents.replay(id_ or "", rag_id=rag_id or "")
    )
    if as_json:
        say_json({"queued": queued})
    elif queued or failed:
        say(f"{plural(len(queued), 'job')} queued again")
        for job_id in queued:
            say(f"  {job_id}")
    if not queued and not failed:
        fail(f"nothing of {id_} could be queued again", ExitCode.FOUND)


@click.command()
@rag_option
@click.argument("names", nargs=-1, required=True, metavar="DOC...")
@click.option("--files", is_flag=True, help="Also delete their files in processed/.")
@yes_option
@json_option
@pass_place
def forget(
    settings: Settings,
    rag_id: str,
    names: tuple[str, ...],
    files: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove documents from the index, after a question; exits 1 if one does not exist.

    Example: penstock ingest forget --rag policies handbook.pdf
    """
    what = plural(len(names), "document")
    confirm(
        yes, lambda: f"Forget {what} of RAG {rag_id}{', and delete the files' if files else ''}?"
    )
    forgotten = with_documents(
        settings, lambda documents: documents.forget(rag_id, names, files=files)
    )
    missing = [name for name in names if name not in forgotten]
    if as_json:
        say_json({"forgotten": forgotten, "missing": missing})
    else:
        for name in forgotten:
            say(f"{name} is forgotten")
    for name in missing:
        say(f"penstock: RAG {rag_id} has no document {name!r}", err=True)
    sys.exit(ExitCode.FOUND if missing else ExitCode.OK)
