"""`penstock ingest status`, `explain`, `list` and `health`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from penstock.interfaces.cli.ingest.opening import (
    ask_health,
    output_option,
    pass_place,
    rag_option,
    with_documents,
)
from penstock.interfaces.cli.ingest.waiting import (
    ended_well,
    follow_job,
    follow_lines,
    show_batch,
    wait_batch,
)
from penstock.interfaces.cli.output import ExitCode, json_option, say, say_json
from penstock.interfaces.cli.wording import age, size, table
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.pipelines.documents.admin.health import DocumentsHealth
    from penstock.pipelines.documents.admin.views import DocumentBatchView
    from penstock.pipelines.documents.service import Documents

__all__ = ["explain", "health", "list_documents", "status"]

_MOST = 10_000
_STATES = ("processing", "sealed", "indexed", "failed", "cancelled", "forgetting", "forgotten")
_THERE = tuple(state for state in _STATES if state != "forgotten")
_MAIN = ("rag_id", "document", "stage", "submitted_at", "started_at", "completed_at", "failed_at")
_COUNTS = ("chunks_created", "embeddings_generated", "tokens_used", "retry_count")


@click.command()
@click.option("--job", "job_id", metavar="ID", help="Job to show.")
@click.option("--batch", "batch_id", metavar="ID", help="Batch to show, with its files.")
@click.option("--follow", is_flag=True, help="Follow until it has ended; exits 1 if it failed.")
@click.option("--verbose", is_flag=True, help="Show all fields, ids and tracebacks.")
@output_option
@json_option
@pass_place
def status(
    settings: Settings,
    job_id: str | None,
    batch_id: str | None,
    follow: bool,
    verbose: bool,
    output: str,
    as_json: bool,
) -> None:
    """Show the status of a job or batch; exits 1 if it does not exist.

    With --follow and --json, one line for each change.

    Example: penstock ingest status --batch batch-policies-1704882600-1f2e3d4c --follow
    """
    as_json = as_json or output == "json"
    if job_id is not None and batch_id is None:
        well = _job_status(settings, job_id, follow=follow, verbose=verbose, as_json=as_json)
    elif batch_id is not None and job_id is None:
        well = _batch_status(settings, batch_id, follow=follow, verbose=verbose, as_json=as_json)
    else:
        raise click.UsageError("which? --job or --batch")
    if follow and not well:
        sys.exit(ExitCode.FOUND)


def _job_status(
    settings: Settings, job_id: str, *, follow: bool, verbose: bool, as_json: bool
) -> bool:
    def show(job: dict[str, Any]) -> bool:
        if as_json:
            return say_json(job, indent=0 if follow else 2)
        return say(_job_line(job)) if follow else _show_job(job, verbose=verbose)

    async def act(documents: Documents) -> str:
        if follow:
            return await follow_job(documents, job_id, show)
        job = await documents.status(job_id)
        show(job)
        return str(job["status"])

    return with_documents(settings, act) == "done"


def _job_line(job: dict[str, Any]) -> str:
    parts = [str(job["status"]), str(job.get("stage", ""))]
    progress: dict[str, Any] = job.get("progress") or {}
    if progress.get("total"):
        parts.append(f"{progress['done'] or 0:,} of {progress['total']:,}")
    if job["status"] == "done":
        parts.append(f"{job['chunks_created']:,} chunks")
    if job.get("error"):
        parts.append(str(job["error"]))
    return "  ".join(filter(None, parts))


def _show_job(job: dict[str, Any], *, verbose: bool) -> bool:
    say(f"job {job['job_id']}: {job['status']}", bold=True)
    names = list(job) if verbose else [*_MAIN, *_COUNTS, "error", "error_code"]
    for name in names:
        value = job.get(name)
        if value not in (None, "", []) and name not in {"job_id", "status", "suggestions"}:
            lines = str(value).splitlines() or [""]
            for title, line in zip((name, *[""] * len(lines)), lines, strict=False):
                say(f"  {title.replace('_', ' '):20}  {line}")
    for suggestion in job.get("suggestions", ()):
        say(f"  {'try':20}  {suggestion}")
    return True


def _batch_status(
    settings: Settings, batch_id: str, *, follow: bool, verbose: bool, as_json: bool
) -> bool:
    async def act(documents: Documents) -> DocumentBatchView:
        if not follow:
            return await documents.batch(batch_id)
        if as_json:
            return await follow_lines(documents, batch_id)
        return await wait_batch(documents, batch_id)

    view = with_documents(settings, act)
    if not as_json:
        show_batch(view, verbose=verbose)
    elif not follow:
        say_json(view.as_json())
    return ended_well(view)


@click.command()
@click.argument("job_id", metavar="JOB")
@json_option
@pass_place
def explain(settings: Settings, job_id: str, as_json: bool) -> None:
    """Explain the state of a job: what it waits for, why it failed, what to try.

    Example: penstock ingest explain rag-policies-1704882600-1f2e3d4c
    """
    found = with_documents(settings, lambda documents: documents.explain(job_id))
    if as_json:
        say_json(found)
        return
    say(f"job {found.job_id}", bold=True)
    for line in found.lines:
        say(f"  {line}")


@click.command("list")
@rag_option
@click.option(
    "--state",
    type=click.Choice(_STATES),
    help="State to list (default: all but forgotten).",
)
@click.option(
    "--limit", type=click.IntRange(1, _MOST), default=100, help="Maximum number (default: 100)."
)
@click.option("--after", default="", metavar="DOC", help="Begin after this document.")
@json_option
@pass_place
def list_documents(
    settings: Settings, rag_id: str, state: str | None, limit: int, after: str, as_json: bool
) -> None:
    """List the documents of a RAG, ordered by name.

    Example: penstock ingest list --rag policies --state failed
    """
    states = (state,) if state else _THERE
    found = with_documents(
        settings,
        lambda documents: documents.documents(rag_id, states=states, after=after, limit=limit),
    )
    if as_json:
        say_json(found)
        return
    if not found:
        say("no such documents" if state or after else "no documents")
        return
    rows = [
        (one.state, one.chunks, size(one.size), one.type or "-", one.doc_id, one.error[:60])
        for one in found
    ]
    table(("STATE", "CHUNKS", "SIZE", "TYPE", "DOCUMENT", "ERROR"), rows)
    if len(found) == limit:
        say(f"more: --after {found[-1].doc_id}")


@click.command()
@json_option
@pass_place
def health(settings: Settings, as_json: bool) -> None:
    """Check whether documents can be indexed now; exits 1 if not.

    Exits 4 if the server, the vectors or the ledger does not answer.

    Example: penstock ingest health
    """
    found = ask_health(settings)
    if as_json:
        say_json({"ok": found.ok, **msgspec.to_builtins(found)})
    else:
        _show_health(found)
    if not found.answered:
        sys.exit(ExitCode.CONNECTION)
    sys.exit(ExitCode.OK if found.ok else ExitCode.FOUND)


def _show_health(found: DocumentsHealth) -> None:
    say(f"{'ok' if found.ok else 'NOT OK'}  {found.queue_name} on {found.connection}", bold=True)
    heard = "" if found.last_heartbeat_s is None else f", heard of {_ago(found.last_heartbeat_s)}"
    last = found.last_job
    facts = {
        "redis": "ok" if found.redis_ok else "away",
        "vectors": "ok" if found.qdrant_ok else "away",
        "ledger": "ok" if found.ledger_ok else "away",
        "workers": f"{found.workers:,}{heard}",
        "jobs": f"{found.queued:,} wait, {found.processing:,} run, {found.delayed:,} for later, "
        f"{found.dead_letters:,} dead letters",
        "last job": f"{last['state']}  {last['doc_id']}  ({last['job_id']})" if last else "none",
    }
    for name, value in facts.items():
        say(f"  {name:9} {value}")
    for worker, fences in found.fences.items():
        say(f"  fences    {fences}  ({worker})")
    for problem in found.problems:
        say(f"  problem   {problem}")
    for warning in found.warnings:
        say(f"  warning   {warning}")


def _ago(seconds: float) -> str:
    return f"{age(seconds * 1000)} ago"
