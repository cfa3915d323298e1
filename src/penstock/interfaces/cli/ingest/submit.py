"""`penstock ingest submit`, `sync` and `reindex`: commands that queue jobs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from penstock.interfaces.cli.ingest.opening import (
    output_option,
    pass_place,
    rag_option,
    with_documents,
)
from penstock.interfaces.cli.ingest.waiting import (
    batch_line,
    ended_well,
    show_failures,
    wait_batch,
)
from penstock.interfaces.cli.output import ExitCode, fail, json_option, say, say_json
from penstock.interfaces.cli.values import duration
from penstock.interfaces.cli.wording import plural
from penstock.queues.options import Priority
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.pipelines.documents.admin.views import DocumentBatchView
    from penstock.pipelines.documents.ingest.rebuilding import RebuildStatus
    from penstock.pipelines.documents.service import Documents
    from penstock.pipelines.documents.submit.folder_sync import SyncReport
    from penstock.pipelines.documents.submit.submitter import RefusedFile, SubmitResult

__all__ = ["reindex", "submit", "sync"]

wait_option = click.option("--wait", is_flag=True, help="Wait until all jobs have ended.")
timeout_option = click.option(
    "--timeout", type=duration, metavar="TIME", help="Longest wait, such as 10m; then exit with 5."
)


@click.command()
@rag_option
@click.option("--path", "paths", multiple=True, help="File or folder to submit; repeatable.")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--reindex", is_flag=True, help="Also index unchanged and unreadable files.")
@click.option("--skip-validation", is_flag=True, help="Go by content, not by extension.")
@click.option(
    "--no-preserve-metadata",
    is_flag=True,
    help="Drop the present metadata of the documents.",
)
@click.option(
    "--meta",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="Metadata to store; repeatable.",
)
@click.option(
    "--priority",
    type=click.Choice(["high", "normal", "low"]),
    help="Priority of the jobs, instead of the RAG's lane.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be submitted.")
@wait_option
@timeout_option
@click.option("--quiet", is_flag=True, help="Print only the ids of the jobs, one per line.")
@output_option
@json_option
@pass_place
def submit(
    settings: Settings,
    rag_id: str,
    paths: tuple[str, ...],
    files: tuple[str, ...],
    reindex: bool,
    skip_validation: bool,
    no_preserve_metadata: bool,
    pairs: tuple[str, ...],
    priority: Priority | None,
    dry_run: bool,
    wait: bool,
    timeout: float | None,
    quiet: bool,
    output: str,
    as_json: bool,
) -> None:
    """Submit files to a RAG: one job for each, all of them one batch.

    A folder stands for its files with extensions that the RAG accepts. Files outside of the RAG's
    incoming/ are copied there. Exits 1 if a file was refused or, with --wait, failed.

    Example: penstock ingest submit --rag policies --wait handbook.pdf
    """
    if not paths and not files:
        raise click.UsageError("which files? --path, or after the options")
    _check_timeout(timeout, wait=wait)
    metadata = _metadata(pairs)
    as_json = as_json or output == "json"

    async def act(documents: Documents) -> tuple[SubmitResult, DocumentBatchView | None]:
        done = await documents.submit(
            rag_id,
            [*paths, *files],
            reindex=reindex,
            skip_validation=skip_validation,
            preserve_metadata=not no_preserve_metadata,
            metadata=metadata,
            priority=priority,
            dry_run=dry_run,
        )
        if not as_json:
            _show_submission(done, quiet=quiet)
        if dry_run or not wait or not done.jobs:
            return done, None
        return done, await wait_batch(
            documents, done.batch_id, timeout_s=timeout, quiet=quiet or as_json
        )

    done, view = with_documents(settings, act)
    if as_json:
        result = msgspec.to_builtins(done)
        say_json(result if view is None else {**result, "batch": view.as_json()})
    elif view is not None:
        _show_end(view, quiet=quiet)
    if not done.jobs and not done.refused:
        fail("there is no file that this RAG takes", ExitCode.FOUND)
    if done.refused or (view is not None and not ended_well(view)):
        sys.exit(ExitCode.FOUND)


def _metadata(pairs: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not name or not sign:
            raise click.BadParameter(f"{pair[:60]!r}: expected NAME=VALUE", param_hint="--meta")
        found[name] = value
    return found


def _check_timeout(timeout: float | None, *, wait: bool) -> None:
    if timeout is not None and not wait:
        raise click.UsageError("--timeout is for --wait")


def _show_submission(done: SubmitResult, *, quiet: bool) -> None:
    if quiet:
        for job in done.jobs:
            if job.job_id:
                say(job.job_id)
    elif done.dry_run:
        say(f"{plural(len(done.jobs), 'file')} would be submitted to RAG {done.rag_id}")
        for job in done.jobs:
            say(f"  {job.document}")
    elif done.jobs:
        say(f"{done.batch_id}  {plural(len(done.jobs), 'file')}", bold=True)
        for job in done.jobs:
            say(f"  {job.job_id}  {job.document}{'' if job.created else ' (was on its way)'}")
    _show_refused(done.refused)


def _show_refused(refused: tuple[RefusedFile, ...]) -> None:
    for one in refused:
        say(f"penstock: {one.path}: {one.error} ({one.error_code})", err=True)
        for suggestion in one.suggestions:
            say(f"  try: {suggestion}", err=True)


def _show_end(view: DocumentBatchView, *, quiet: bool = False) -> None:
    show_failures(view)
    if not quiet:
        say(f"{view.status}: {batch_line(view)}")


@click.command()
@click.argument("folder", metavar="DIR")
@rag_option
@click.option(
    "--delete", is_flag=True, help="Forget documents whose files are gone from the folder."
)
@click.option("--dry-run", is_flag=True, help="Print what would be done.")
@wait_option
@timeout_option
@json_option
@pass_place
def sync(
    settings: Settings,
    folder: str,
    rag_id: str,
    delete: bool,
    dry_run: bool,
    wait: bool,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Submit new and changed files of a folder; the files stay in it.

    Exits 1 if a file was refused or, with --wait, failed.

    Example: penstock ingest sync docs/ --rag policies --delete
    """
    _check_timeout(timeout, wait=wait)

    async def act(documents: Documents) -> tuple[SyncReport, DocumentBatchView | None]:
        report = await documents.sync(rag_id, folder, delete=delete, dry_run=dry_run)
        if not as_json:
            _show_sync(report, delete=delete)
        submission = report.submission
        if not wait or submission is None or not submission.jobs:
            return report, None
        view = await wait_batch(documents, submission.batch_id, timeout_s=timeout, quiet=as_json)
        return report, view

    report, view = with_documents(settings, act)
    if as_json:
        result = msgspec.to_builtins(report)
        say_json(result if view is None else {**result, "batch": view.as_json()})
    elif view is not None:
        _show_end(view)
    if report.refused or (view is not None and not ended_well(view)):
        sys.exit(ExitCode.FOUND)


def _show_sync(report: SyncReport, *, delete: bool) -> None:
    say(
        f"RAG {report.rag_id}: {len(report.new):,} new, {len(report.changed):,} changed, "
        f"{report.unchanged:,} unchanged, {len(report.gone):,} gone, "
        f"{len(report.bad):,} known to be unreadable",
        bold=True,
    )
    names = [("new", report.new), ("changed", report.changed)]
    names += [("gone", report.gone), ("unreadable", report.bad)]
    if report.dry_run:
        for what, documents in names:
            for document in documents:
                say(f"  {what:10}  {document}")
    if report.forgotten:
        say(f"  {plural(report.forgotten, 'document')} forgotten")
    elif report.gone and not delete:
        say("  --delete forgets what is gone")
    if report.submission is not None and report.submission.jobs:
        say(f"  submitted as {report.submission.batch_id}")
    _show_refused(report.refused)


@click.command()
@rag_option
@wait_option
@timeout_option
@json_option
@pass_place
def reindex(
    settings: Settings, rag_id: str, wait: bool, timeout: float | None, as_json: bool
) -> None:
    """Rebuild a RAG by its present file, in a new collection that replaces the old one.

    Searches use the old collection until the new one is complete. Resumes a rebuild under way.

    Example: penstock ingest reindex --rag policies --wait
    """
    _check_timeout(timeout, wait=wait)

    async def act(documents: Documents) -> tuple[RebuildStatus, DocumentBatchView | None, bool]:
        rebuild = await documents.reindex(rag_id)
        if not as_json:
            _show_rebuild(rebuild)
        if rebuild.swapped or not wait:
            return rebuild, None, rebuild.swapped
        view = await wait_batch(documents, rebuild.batch_id, timeout_s=timeout, quiet=as_json)
        return rebuild, view, not (await documents.rag(rag_id)).rebuilding

    rebuild, view, swapped = with_documents(settings, act)
    if as_json:
        result: dict[str, Any] = {**msgspec.to_builtins(rebuild), "swapped": swapped}
        say_json(result if view is None else {**result, "batch": view.as_json()})
    elif view is not None:
        _show_end(view)
    if view is None:
        return
    if not swapped:
        fail(
            f"collection {rebuild.collection} has not taken over: see those that failed with "
            f"penstock ingest explain, or go without them with penstock rag swap {rag_id} --force",
            ExitCode.FOUND,
        )
    if not as_json:
        say(f"collection {rebuild.collection} has taken over")


def _show_rebuild(rebuild: RebuildStatus) -> None:
    if rebuild.swapped:
        say(f"collection {rebuild.collection} has taken over")
        return
    say(
        f"{rebuild.batch_id}  {plural(rebuild.missing, 'document')} to go into collection "
        f"{rebuild.collection}"
    )
