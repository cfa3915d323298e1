"""Runs for code that does not await: see `penstock.sync`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.coordination.runs import run as asynchronous_run
from penstock.coordination.runs import runs as asynchronous_runs
from penstock.sync.feeds import Feed
from penstock.sync.portal import Blocking
from penstock.sync.sibling import Application, Sibling, each

__all__ = ["Run", "Runs"]


class Runs(Sibling[asynchronous_runs.Runs]):
    """`coordination.Runs`, blocking: `Penstock.runs`."""

    def __init__(self, app: Application) -> None:
        super().__init__(app, lambda app: app.runs)

    get = Blocking(asynchronous_runs.Runs.get)
    list = Blocking(asynchronous_runs.Runs.list)

    def start(
        self, run_id: str, *, kind: str = "harvest", facts: Mapping[str, str] | None = None
    ) -> Run:
        """Return the run of this id, created if missing, as `coordination.Runs.start`."""
        portal, runs = self.reach()
        started = portal.run(runs.start(run_id, kind=kind, facts=facts))
        return Run(self._app, run_id, created=started.created)

    def open(self, run_id: str) -> Run:
        """Return a run without checking that it exists."""
        return Run(self._app, run_id)


class Run(Sibling[asynchronous_run.Run]):
    """`coordination.Run`, blocking. Made by `Runs.start` and `Runs.open`."""

    def __init__(self, app: Application, run_id: str, *, created: bool = False) -> None:
        super().__init__(app, lambda app: app.runs.open(run_id))
        self.id = run_id
        self.created = created
        """Whether this call of `Runs.start` made it."""

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    record = Blocking(asynchronous_run.Run.record)
    move = Blocking(asynchronous_run.Run.move)
    finish = Blocking(asynchronous_run.Run.finish)
    reopen = Blocking(asynchronous_run.Run.reopen)
    note = Blocking(asynchronous_run.Run.note)
    checkpoint = Blocking(asynchronous_run.Run.checkpoint)
    note_task_start = Blocking(asynchronous_run.Run.note_task_start)
    task_starts = Blocking(asynchronous_run.Run.task_starts)
    mark_processed = Blocking(asynchronous_run.Run.mark_processed)
    is_processed = Blocking(asynchronous_run.Run.is_processed)
    processed = Blocking(asynchronous_run.Run.processed)
    processed_count = Blocking(asynchronous_run.Run.processed_count)
    fail = Blocking(asynchronous_run.Run.fail)
    resolve = Blocking(asynchronous_run.Run.resolve)
    claim_due = Blocking(asynchronous_run.Run.claim_due)
    due_failures = Blocking(asynchronous_run.Run.due_failures)
    failures = Blocking(asynchronous_run.Run.failures)
    events = Blocking(asynchronous_run.Run.events)
    last_events = Blocking(asynchronous_run.Run.last_events)
    contract_view = Blocking(asynchronous_run.Run.contract_view)

    @property
    def feed(self) -> Feed:
        """The run's events for any number of readers, as `coordination.Run.feed`."""
        run_id = self.id
        return Feed(Sibling(self._app, lambda app: app.runs.open(run_id).feed), run_id)

    def iter_processed(self) -> Iterator[str]:
        """All items that were processed, as `coordination.Run.iter_processed`."""
        portal, run = self.reach()
        return each(portal, run.iter_processed())
