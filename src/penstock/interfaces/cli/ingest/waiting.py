"""Waiting for batches and jobs of documents, with their progress on the terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from penstock.interfaces.cli.output import reader_left, say, say_json
from penstock.interfaces.cli.wording import age, plural, table
from penstock.runtime.logs import cleaned

if TYPE_CHECKING:
    from click._termui_impl import ProgressBar

    from penstock.pipelines.documents.admin.views import DocumentBatchView, FileView
    from penstock.pipelines.documents.service import Documents

__all__ = [
    "batch_line",
    "ended_well",
    "follow_job",
    "follow_lines",
    "show_batch",
    "show_failures",
    "wait_batch",
]

FOLLOW_S = 0.5
_STEPS = 1_000
"""Of a progress bar: files in parts, so that one long document moves it as well."""
_WIDTH = 24
_ENDED = frozenset({"done", "failed", "cancelled", "expired", "lost"})

Tell = Callable[["DocumentBatchView"], object]


async def wait_batch(
    documents: Documents, batch_id: str, *, timeout_s: float | None = None, quiet: bool = False
) -> DocumentBatchView:
    """Wait until all files of a batch have ended; TimeoutError if that takes too long.

    On a terminal a bar shows how far it is, elsewhere a line for each change; on standard error,
    for the result is on the other.
    """
    latest: DocumentBatchView | None = None
    try:
        with _shown(quiet) as show:
            async with asyncio.timeout(timeout_s):
                async for view in documents.follow(batch_id, FOLLOW_S):
                    latest = view
                    show(view)
    except TimeoutError:
        far = "" if latest is None else f": {batch_line(latest)}"
        raise TimeoutError(f"{batch_id} has not ended in time, and goes on{far}") from None
    return latest or await documents.batch(batch_id)


@contextmanager
def _shown(quiet: bool) -> Generator[Tell]:
    if quiet:
        yield lambda _: None
    elif sys.stderr and sys.stderr.isatty():
        words = ""
        bar: ProgressBar[int] = click.progressbar(
            length=_STEPS,
            label="documents",
            file=sys.stderr,
            width=_WIDTH,
            show_eta=False,
            item_show_func=lambda _: words,
        )

        def show(view: DocumentBatchView) -> None:
            nonlocal words
            words = cleaned(batch_line(view))
            bar.update(int(view.part * _STEPS) - bar.pos)

        with bar:
            yield show
    else:
        yield _Lines().show


class _Lines:
    """One line for each change, where nothing can be drawn."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}

    def show(self, view: DocumentBatchView) -> None:
        if view.counts != self._told:
            self._told = view.counts
            say(batch_line(view), err=True)


def batch_line(view: DocumentBatchView) -> str:
    """`12 of 300 files, 1 failed, 2.5 min left`."""
    parts = [f"{view.ended:,} of {plural(len(view.files), 'file')}"]
    parts += [
        f"{count:,} {status}"
        for status, count in sorted(view.counts.items())
        if status not in {"done", "queued", "submitted"}
    ]
    left_s = view.estimated_remaining_s
    if left_s is not None and not view.is_final:
        parts.append(f"about {age(left_s * 1000)} left")
    return ", ".join(parts)


def show_batch(view: DocumentBatchView, *, verbose: bool = False) -> None:
    """A batch with each of its files."""
    say(f"{view.batch_id} of RAG {view.rag_id}: {view.status}", bold=True)
    say(f"  {batch_line(view)}, {plural(sum(one.chunks_created for one in view.files), 'chunk')}")
    rows = [
        (one.status, _stage(one), one.chunks_created, one.document, *((one.job_id,) * verbose))
        for one in view.files
    ]
    table(("STATUS", "STAGE", "CHUNKS", "DOCUMENT", *(("JOB",) * verbose)), rows)
    show_failures(view, err=False)


def _stage(file: FileView) -> str:
    if not file.total or file.status in _ENDED:
        return file.stage
    return f"{file.stage} {file.done or 0:,} of {file.total:,}"


def show_failures(view: DocumentBatchView, *, err: bool = True) -> None:
    for file in view.files:
        if file.status in _ENDED - {"done"}:
            why = f": {file.error}" if file.error else ""
            say(f"{file.status}  {file.document}{why} ({file.job_id})", err=err)


def ended_well(view: DocumentBatchView) -> bool:
    return view.is_final and all(file.status == "done" for file in view.files)


async def follow_lines(documents: Documents, batch_id: str) -> DocumentBatchView:
    """Print a batch as JSON on one line with each change, until all of it has ended."""
    shown = ""
    async for view in documents.follow(batch_id, FOLLOW_S):
        now = repr(view.files)
        if view.is_final or now != shown:
            shown = now
            if not say_json(view.as_json(), indent=0) or view.is_final:
                return view
        if reader_left():
            return view
    raise AssertionError  # it is followed until it is final


async def follow_job(
    documents: Documents, job_id: str, show: Callable[[dict[str, Any]], bool]
) -> str:
    """Report a job at each change until it has ended; its last status."""
    shown: dict[str, Any] = {}
    while True:
        status = await documents.status(job_id)
        if status != shown:
            shown = status
            if not show(status) or status["status"] in _ENDED:
                return str(status["status"])
        await asyncio.sleep(FOLLOW_S)
        if reader_left():
            return str(status["status"])
