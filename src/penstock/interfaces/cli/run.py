"""`penstock run`: see how runs are, what failed in them and what happened last."""

from __future__ import annotations

from typing import Any

import click

from penstock.coordination.runs.records import STATUSES, Failure, RunEvent, RunRecord, TaskStart
from penstock.inspector.runs import RunView, show_run
from penstock.interfaces.cli.administer import with_app
from penstock.interfaces.cli.main import pass_settings
from penstock.interfaces.cli.output import encode_json, json_option, say, say_json
from penstock.interfaces.cli.wording import age, moment, plural, table
from penstock.settings import Settings

__all__ = ["run"]

_MOST = 1_000
_SHOWN = 80
"""Characters of an error or an event on its line."""


@click.group()
def run() -> None:
    """See how runs are, what failed in them and what happened last."""


@run.command("list")
@click.option("--status", type=click.Choice(STATUSES), help="Only runs of this status.")
@click.option("--count", type=click.IntRange(1, _MOST), default=50, help="At most (default: 50).")
@click.option("--before", metavar="ID", help="Go on after this run, the last of an earlier page.")
@json_option
@pass_settings
def list_runs(
    settings: Settings, status: str | None, count: int, before: str | None, as_json: bool
) -> None:
    """List runs, the latest first."""
    found = with_app(settings, lambda app: app.runs.list(count, before, status))
    if as_json:
        say_json(found)
    elif not found:
        say("no such runs" if status or before else "no runs")
    else:
        rows = [
            (one.status, one.processed, one.failures, moment(one.started_ms), one.kind, one.id)
            for one in found
        ]
        table(("STATUS", "PROCESSED", "FAILED", "STARTED", "KIND", "ID"), rows)
        if len(found) == count:
            say(f"more: --before {found[-1].id}")


@run.command()
@click.argument("id_", metavar="ID")
@click.option(
    "--failures", type=click.IntRange(1, _MOST), default=20, help="At most (default: 20)."
)
@click.option("--events", type=click.IntRange(1, _MOST), default=10, help="At most (default: 10).")
@json_option
@pass_settings
def show(settings: Settings, id_: str, failures: int, events: int, as_json: bool) -> None:
    """Show a run, its open failures, starts of its tasks and its latest events.

    Exits 1 if there is no such run.
    """
    view = with_app(settings, lambda app: show_run(app, id_, failures=failures, events=events))
    if as_json:
        say_json(view)
        return
    _show_record(view.run)
    if view.failures:
        _show_failures(view)
    if view.starts:
        _show_starts(view.starts)
    _show_events(view.events)


def _show_record(record: RunRecord) -> None:
    say(f"run {record.id}: {record.status}", bold=True)
    facts = {
        "kind": record.kind,
        "version": f"{record.version:,}",
        "started": moment(record.started_ms),
        "changed": moment(record.updated_ms),
        "ended": "" if record.ended_ms is None else moment(record.ended_ms),
        "kept until": "" if record.ends_ms is None else moment(record.ends_ms),
        "processed": plural(record.processed, "item"),
        "failed": plural(record.failures, "open failure"),
        "checkpoint": "" if record.checkpoint is None else _as_line(record.checkpoint),
        "watermark": "" if record.watermark is None else str(record.watermark),
        "facts": "  ".join(f"{name}={value}" for name, value in record.facts.items()),
    }
    for name, value in facts.items():
        if value:
            say(f"  {name:10}  {value}")


def _show_failures(view: RunView) -> None:
    say("")
    rows = [
        (one.attempts, one.api_calls, _due(one, view.at_ms), one.item, _cut(_error(one)))
        for one in view.failures
    ]
    table(("ATTEMPTS", "CALLS", "DUE", "ITEM", "ERROR"), rows)
    more = view.run.failures - len(view.failures)
    if more > 0:
        say(f"and {plural(more, 'failure')} more")


def _due(failure: Failure, now_ms: int) -> str:
    if failure.due_ms is None:
        return "never"
    wait_ms = failure.due_ms - now_ms
    return f"in {age(wait_ms)}" if wait_ms > 0 else "now"


def _error(failure: Failure) -> str:
    return ": ".join(filter(None, (failure.error_type, failure.error)))


def _show_starts(starts: list[TaskStart]) -> None:
    say("")
    rows = [
        (
            moment(one.started_ms),
            one.attempt,
            one.task if one.map_index is None else f"{one.task}[{one.map_index}]",
        )
        for one in starts
    ]
    table(("BEGAN", "ATTEMPT", "TASK"), rows)


def _show_events(events: list[RunEvent]) -> None:
    say("")
    rows = [(one.number, moment(one.ms), one.type, _cut(_as_line(one.data))) for one in events]
    table(("EVENT", "AT", "TYPE", "DATA"), rows)


def _as_line(value: Any) -> str:
    return encode_json(value).decode()


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
