"""`penstock job`: send, find, show, cancel and replay jobs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, cast

import click
import msgspec

from penstock.app import Penstock
from penstock.delivery.payloads import show_bytes
from penstock.delivery.retries import MOST_ATTEMPTS
from penstock.errors import DecodeError, InvalidJob
from penstock.inspector.queues import known_facts
from penstock.interfaces.cli.administer import server_ms, with_app
from penstock.interfaces.cli.main import pass_settings
from penstock.interfaces.cli.output import ExitCode, fail, json_option, say, say_json
from penstock.interfaces.cli.queue.push import job_options
from penstock.interfaces.cli.values import header_option, headers_of, instant
from penstock.interfaces.cli.wording import age, moment, payload_line, table
from penstock.queues.admin.queue_admin import Cancelled
from penstock.queues.admin.views import JobPage
from penstock.queues.dead_letters.filters import MOST_AT_ONCE
from penstock.queues.storage.job_record import STATES, JobProgress, JobRecord, JobState
from penstock.redaction import redacted
from penstock.settings import Settings

__all__ = ["job"]

_ERROR = 40
"""Characters of an error in a list."""


@click.group()
def job() -> None:
    """Send, find, show, cancel and replay jobs."""


@job.command()
@click.argument("task")
@click.argument("args", required=False, metavar="[ARGS]")
@click.option("--queue", default="default", help="Queue to send to (default: default).")
@click.option("--kwargs", help="Keyword arguments, as a JSON object.")
@job_options
@click.option("--job-id", help="Id of the job.")
@click.option("--idempotency-key", help="Do not add the job twice; keeps a record of it.")
@click.option(
    "--max-attempts", type=click.IntRange(1, MOST_ATTEMPTS), help="Maximum number of attempts."
)
@header_option
@json_option
@pass_settings
def send(
    settings: Settings,
    task: str,
    args: str | None,
    queue: str,
    kwargs: str | None,
    headers: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Queue a call of a task by its name, without its code.

    Example: penstock job send shop.welcome '[42]' --kwargs '{"lang": "de"}' --queue mail

    ARGS is JSON: an array of arguments, or an object of keyword arguments. They are checked when a
    worker runs the task.
    """
    positional, named = _arguments(args, kwargs)
    chosen = {name: value for name, value in options.items() if value is not None}
    if headers:
        chosen["headers"] = headers_of(headers)
    sent = with_app(settings, lambda app: app.send(task, positional, named, queue=queue, **chosen))
    if as_json:
        say_json({"id": sent.id, "queue": sent.queue, "created": sent.created})
    else:
        say(sent.id if sent.created else f"{sent.id} was there")


def _arguments(args: str | None, kwargs: str | None) -> tuple[list[Any], dict[str, Any]]:
    positional: Any = _read(args, "ARGS") if args is not None else []
    named: Any = _read(kwargs, "--kwargs") if kwargs is not None else {}
    if isinstance(positional, dict) and kwargs is None:
        positional, named = [], cast("Any", positional)
    if not isinstance(positional, list):
        raise InvalidJob("ARGS: expected a JSON array, or an object without --kwargs")
    if not isinstance(named, dict):
        raise InvalidJob("--kwargs: expected a JSON object")
    return cast("list[Any]", positional), cast("dict[str, Any]", named)


def _read(text: str, what: str) -> Any:
    try:
        return msgspec.json.decode(text.encode(errors="surrogateescape"))
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise InvalidJob(f"{what}: not JSON: {error}") from None


# --- looking


@job.command()
@click.argument("queue")
@click.argument("id_", metavar="ID")
@json_option
@pass_settings
def show(settings: Settings, queue: str, id_: str, as_json: bool) -> None:
    """Show the record of a job; exits 1 if it has none.

    Example: penstock job show mail ID
    """

    async def look(app: Penstock) -> tuple[JobRecord, Any]:
        record = await app.queues.job(queue, id_)
        return record, _result(app, record)

    record, result = with_app(settings, look)
    if as_json:
        say_json({**msgspec.structs.asdict(record), "result": result})
        return
    say(f"job {record.job_id} of queue {record.queue}: {record.status}", bold=True)
    attempts = f"{record.attempt:,}" + (
        f" of {record.max_attempts:,}" if record.max_attempts else ""
    )
    took = "" if record.duration_s is None else age(record.duration_s * 1000)
    facts = {
        "task": record.task,
        "group": record.group,
        "attempt": attempts if record.attempt else "",
        "submitted": moment(record.submitted_ms),
        "started": moment(record.started_ms) if record.started_ms is not None else "",
        "ended": moment(record.ended_ms) if record.ended_ms is not None else "",
        "took": took,
        "worker": record.worker,
        "progress": _progress(record.progress),
        "cancelled": "it was asked to stop" if record.cancel_asked else "",
        "reason": record.reason,
        "error": ": ".join(filter(None, (record.error_type, record.error))),
        "error code": record.error_code,
        "result": "" if record.result is None else _as_line(result),
        "fields": "  ".join(f"{name}={value}" for name, value in record.fields.items()),
    }
    for name, value in facts.items():
        if value:
            say(f"  {name:10}  {value}", is_data=name in {"fields", "progress", "result"})
    for suggestion in record.suggestions:
        say(f"  {'try':10}  {suggestion}")
    for line in redacted(record.traceback).splitlines():
        say(f"    {line}")


def _result(app: Penstock, record: JobRecord) -> Any:
    """What the job returned; bytes that are no result of ours are shown as they are."""
    if record.result is None:
        return None
    try:
        return app.codec.decode(record.result, Any)
    except DecodeError:
        return show_bytes(record.result).text


def _as_line(result: Any) -> str:
    return payload_line(show_bytes(msgspec.json.encode(result)))


def _progress(progress: JobProgress) -> str:
    of = "" if progress.total is None else f" of {progress.total:,}"
    done = "" if progress.done is None else f"{progress.done:,}{of}"
    return "  ".join(filter(None, (done, progress.note)))


@job.command()
@click.argument("queue")
@click.option("--state", type=click.Choice(STATES), help="Only jobs in this state.")
@click.option("--name", help="Only jobs whose task name contains this.")
@click.option("--error", help="Only jobs whose error contains this text.")
@click.option(
    "--since",
    type=instant,
    metavar="WHEN",
    help="Only jobs in their state since then: a time, or 2h for 2 hours ago.",
)
@click.option(
    "--until",
    type=instant,
    metavar="WHEN",
    help="Only jobs in their state before then; as --since.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, MOST_AT_ONCE),
    default=100,
    help="Maximum number of jobs (default: 100).",
)
@click.option("--cursor", help="Continue an earlier page: the cursor it printed.")
@json_option
@pass_settings
def search(
    settings: Settings,
    queue: str,
    state: JobState | None,
    name: str | None,
    error: str | None,
    since: datetime | timedelta | None,
    until: datetime | timedelta | None,
    limit: int,
    cursor: str | None,
    as_json: bool,
) -> None:
    """Find jobs that have a record, by state, the newest first.

    Example: penstock job search mail --state failed --error Timeout --since 2h
    """
    first, last = _moment(settings, since), _moment(settings, until)

    async def find(app: Penstock) -> JobPage:
        await known_facts(app, queue)
        return await app.queues.jobs(
            queue,
            state=state,
            name=name,
            error=error,
            since=first,
            until=last,
            cursor=cursor,
            limit=limit,
        )

    page = with_app(settings, find)
    if as_json:
        say_json(page)
        return
    if page.jobs:
        rows = [
            (one.status, one.attempt, one.task or "-", one.job_id, _shortened(one.error))
            for one in page.jobs
        ]
        table(("STATE", "ATTEMPT", "TASK", "ID", "ERROR"), rows)
    elif not page.cursor:
        say("no such jobs")
    if page.cursor:
        say(f"more: --cursor {page.cursor}")


def _moment(settings: Settings, when: datetime | timedelta | None) -> datetime | float | None:
    """A time; a duration counts back from the clock of the server."""
    if isinstance(when, timedelta):
        return server_ms(settings, when.total_seconds()) / 1000
    return when


def _shortened(text: str) -> str:
    return text if len(text) <= _ERROR else f"{text[:_ERROR]}…"


# --- acting


@job.command()
@click.argument("queue")
@click.argument("id_", metavar="ID")
@json_option
@pass_settings
def cancel(settings: Settings, queue: str, id_: str, as_json: bool) -> None:
    """Cancel a waiting job, or ask a running one to stop; exits 1 if it has ended.

    Example: penstock job cancel mail ID
    """
    done = with_app(settings, lambda app: app.queues.cancel(queue, id_))
    if as_json:
        say_json({"queue": queue, "id": id_, "outcome": done})
    elif done is not Cancelled.ENDED:
        say(f"job {id_} {'was asked to stop' if done is Cancelled.ASKED else 'is cancelled'}")
    if done is Cancelled.ENDED:
        fail(f"job {id_} of queue {queue} had ended", ExitCode.FOUND)


@job.command()
@click.argument("queue")
@click.argument("id_", metavar="ID")
@json_option
@pass_settings
def replay(settings: Settings, queue: str, id_: str, as_json: bool) -> None:
    """Queue a failed job again; it needs a dead letter.

    Example: penstock job replay mail ID
    """
    with_app(settings, lambda app: app.queues.replay(queue, id_))
    if as_json:
        say_json({"queue": queue, "id": id_, "queued": True})
    else:
        say(f"job {id_} is queued again")
