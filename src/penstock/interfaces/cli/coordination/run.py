"""`penstock run`: list and show runs, their failures and events; resolve failures."""

from __future__ import annotations

import shlex
from typing import Any

import click

from penstock.app import Penstock
from penstock.coordination.runs.records import (
    STATUSES,
    FailurePage,
    RunEvent,
    RunFailure,
    RunRecord,
    TaskStart,
)
from penstock.delivery.queries import server_ms
from penstock.inspector.runs import RunView, show_run
from penstock.interfaces.cli.administer import with_app
from penstock.interfaces.cli.main import pass_settings
from penstock.interfaces.cli.output import ExitCode, encode_json, fail, json_option, say, say_json
from penstock.interfaces.cli.values import raw_bytes
from penstock.interfaces.cli.wording import age, moment, plural, table
from penstock.redis.codec.escaping import escaped
from penstock.settings import Settings

__all__ = ["run"]

_MOST = 1_000
_SHOWN = 80
"""Characters of an error or an event on its line."""


@click.group()
def run() -> None:
    """List and show runs, their failures and events; resolve failures."""


@run.command("list")
@click.option("--status", type=click.Choice(STATUSES), help="Only runs of this status.")
@click.option(
    "--limit", type=click.IntRange(1, _MOST), default=50, help="Maximum number (default: 50)."
)
@click.option(
    "--before", metavar="ID", help="Continue after this run, the last of an earlier page."
)
@json_option
@pass_settings
def list_runs(
    settings: Settings, status: str | None, limit: int, before: str | None, as_json: bool
) -> None:
    """List runs, the latest first.

    Example: penstock run list --status failed
    """
    found = with_app(settings, lambda app: app.runs.list(limit, before, status))
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
        if len(found) == limit:
            say(f"more: --before {found[-1].id}")


@run.command()
@click.argument("id_", metavar="ID")
@click.option(
    "--failures",
    type=click.IntRange(1, _MOST),
    default=20,
    help="Maximum number of failures (default: 20).",
)
@click.option(
    "--events",
    type=click.IntRange(1, _MOST),
    default=10,
    help="Maximum number of events (default: 10).",
)
@json_option
@pass_settings
def show(settings: Settings, id_: str, failures: int, events: int, as_json: bool) -> None:
    """Show a run with its open failures, task starts and latest events.

    Example: penstock run show nightly

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


@run.command()
@click.argument("id_", metavar="ID")
@click.option(
    "--limit", type=click.IntRange(1, _MOST), default=100, help="Maximum number (default: 100)."
)
@click.option("--after", metavar="CURSOR", help="Continue an earlier page: the cursor it printed.")
@json_option
@pass_settings
def failures(settings: Settings, id_: str, limit: int, after: str | None, as_json: bool) -> None:
    r"""List open failures of a run, those due first, each once.

    Bytes of an item that are not printable text are shown as \xHH, a backslash as two. Exits 1 if
    there is no such run. Example: penstock run failures nightly --limit 20
    """

    async def ask(app: Penstock) -> tuple[FailurePage, int]:
        run = app.runs.open(id_)
        await run.record()
        return await run.failures(limit, after), await server_ms(app.redis)

    page, at_ms = with_app(settings, ask)
    if as_json:
        say_json(page)
    elif not page.failures:
        say("no more failures" if after else "no open failures")
    else:
        _failure_table(page.failures, at_ms)
        if page.cursor is not None:
            say(f"more: --after {shlex.quote(page.cursor)}")


@run.command()
@click.argument("id_", metavar="ID")
@click.argument("item", type=raw_bytes)
@json_option
@pass_settings
def resolve(settings: Settings, id_: str, item: bytes, as_json: bool) -> None:
    r"""Resolve an open failure of a run: its item is not retried.

    Write the item as `penstock run failures` shows it. Exits 1 if no such failure is open. Example:
    penstock run resolve nightly 'docket-\xff'
    """
    if not with_app(settings, lambda app: app.runs.open(id_).resolve(item)):
        fail(f"run {id_} has no open failure of {escaped(item)}", ExitCode.FOUND)
    if as_json:
        say_json({"run": id_, "item": escaped(item), "resolved": True})
    else:
        say(f"run {id_}: the failure of {escaped(item)} is settled")


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
    _failure_table(view.failures, view.at_ms)
    more = view.run.failures - len(view.failures)
    if more > 0:
        say(f"and {plural(more, 'failure')} more: penstock run failures {shlex.quote(view.run.id)}")


def _failure_table(failures: list[RunFailure], at_ms: int) -> None:
    rows = [
        (
            *(one.attempts, one.api_calls, _due(one, at_ms)),
            escaped(one.raw or one.item.encode()),
            _cut(_error(one)),
        )
        for one in failures
    ]
    table(("ATTEMPTS", "CALLS", "DUE", "ITEM", "ERROR"), rows)


def _due(failure: RunFailure, now_ms: int) -> str:
    if failure.due_ms is None:
        return "never"
    wait_ms = failure.due_ms - now_ms
    return f"in {age(wait_ms)}" if wait_ms > 0 else "now"


def _error(failure: RunFailure) -> str:
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
