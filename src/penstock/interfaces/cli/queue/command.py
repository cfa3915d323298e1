"""`penstock queue`: show queues, push to them, pause, drain, purge and delete them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from penstock.app import Penstock
from penstock.delivery.payloads import SHOWN_BYTES
from penstock.delivery.queries import exact
from penstock.errors import QueueError
from penstock.inspector.queues import known_facts
from penstock.interfaces.cli.administer import with_app
from penstock.interfaces.cli.main import pass_settings
from penstock.interfaces.cli.output import ExitCode, fail, json_option, say, say_json
from penstock.interfaces.cli.queue.push import push
from penstock.interfaces.cli.queue.status import list_queues, status
from penstock.interfaces.cli.values import confirm, duration, yes_option
from penstock.interfaces.cli.wording import age, payload_line, plural, table
from penstock.queues.admin.queue_admin import QueueAdmin
from penstock.queues.admin.views import QueueFacts
from penstock.queues.storage.lanes import shown_lane
from penstock.settings import Settings

__all__ = ["queue"]

T = TypeVar("T")

_MOST = 1_000
_WHOLE = 2**40
_SHOWN = 60
"""Characters of a job in a list."""

Lane = str | bytes


def _lane(given: str) -> Lane:
    """A lane as a shell passes it on: one that is not UTF-8 is named as it stands in keys."""
    try:
        given.encode()
    except UnicodeEncodeError:
        return given.encode(errors="surrogateescape")
    return given


lane_option = click.option(
    "--lane",
    type=_lane,
    help=r"Lane: a priority or the group of a fair lane; in bash, $'\xff' for bytes.",
)


@click.group()
def queue() -> None:
    """Show queues, push jobs to them, pause, drain, purge and delete them."""


for command in (list_queues, status, push):
    queue.add_command(command)


def _on_queue(settings: Settings, name: str, act: Callable[[QueueAdmin], Awaitable[T]]) -> T:
    """Run `act` if the queue exists, so that a misspelled name is an error."""

    async def checked(app: Penstock) -> T:
        await known_facts(app, name)
        return await act(app.queues)

    return with_app(settings, checked)


@queue.command()
@click.argument("queue")
@lane_option
@click.option(
    "--start", type=click.IntRange(0), default=0, help="Number of jobs to skip (default: 0)."
)
@click.option(
    "--limit",
    type=click.IntRange(1, _MOST),
    default=20,
    help="Maximum number of jobs (default: 20).",
)
@json_option
@pass_settings
def peek(
    settings: Settings, queue: str, lane: Lane | None, start: int, limit: int, as_json: bool
) -> None:
    """Show waiting jobs without taking them, the next one first.

    Example: penstock queue peek mail --lane high --limit 5
    """
    max_bytes = _WHOLE if as_json else SHOWN_BYTES
    jobs = _on_queue(
        settings,
        queue,
        lambda admin: admin.peek(queue, lane or "", start, limit, max_bytes=max_bytes),
    )
    if as_json:
        say_json(jobs)
    elif not jobs:
        say("no job waits here")
    else:
        rows = [
            (
                job.place,
                job.id or "-",
                job.task or "-",
                job.attempts,
                payload_line(job.payload, _SHOWN),
            )
            for job in jobs
        ]
        table(("PLACE", "ID", "TASK", "ATTEMPTS", "JOB"), rows)


@queue.command()
@click.argument("queue")
@lane_option
@json_option
@pass_settings
def pause(settings: Settings, queue: str, lane: Lane | None, as_json: bool) -> None:
    """Start no more jobs of a queue or of one lane; running jobs finish.

    Example: penstock queue pause mail
    """
    changed = _on_queue(settings, queue, lambda admin: admin.pause(queue, lane))
    if as_json:
        say_json({"queue": queue, "lane": _shown(lane), "paused": True, "changed": changed})
    else:
        say(f"{_place(queue, lane)} {'is' if changed else 'was'} paused")


@queue.command()
@click.argument("queue")
@lane_option
@json_option
@pass_settings
def resume(settings: Settings, queue: str, lane: Lane | None, as_json: bool) -> None:
    """Start jobs of a paused queue or lane again.

    Example: penstock queue resume mail
    """
    changed = _on_queue(settings, queue, lambda admin: admin.resume(queue, lane))
    if as_json:
        say_json({"queue": queue, "lane": _shown(lane), "paused": False, "changed": changed})
    else:
        say(f"{_place(queue, lane)} {'is resumed' if changed else 'was not paused'}")


def _place(queue: str, lane: Lane | None) -> str:
    if lane is None:
        return f"queue {queue}"
    return f"lane {_shown(lane)} of queue {queue}" if lane else f"the plain list of queue {queue}"


def _shown(lane: Lane | None) -> str | None:
    """A lane as `queue status` shows it."""
    return shown_lane(exact(lane)) if isinstance(lane, bytes) else lane


@queue.command()
@click.argument("queue")
@lane_option
@click.option("--delayed", is_flag=True, help="Delete delayed jobs as well.")
@yes_option
@json_option
@pass_settings
def purge(
    settings: Settings, queue: str, lane: Lane | None, delayed: bool, yes: bool, as_json: bool
) -> None:
    """Delete waiting jobs; running jobs are not affected.

    Example: penstock queue purge mail --lane low
    """

    def question() -> str:
        facts = with_app(settings, lambda app: known_facts(app, queue))
        return f"Delete {_waiting(facts, lane, delayed)} of queue {queue} for good?"

    confirm(yes, question)
    done = _on_queue(settings, queue, lambda admin: admin.purge(queue, lane, delayed=delayed))
    if as_json:
        say_json({"queue": queue, "lane": _shown(lane), "purged": done})
    else:
        say(f"{plural(done, 'job')} of {_place(queue, lane)} deleted")


def _waiting(facts: QueueFacts, lane: Lane | None, delayed: bool) -> str:
    name = _shown(lane)
    lanes = (one.waiting for one in facts.lanes if one.name == name)
    waiting = facts.waiting if lane is None else sum(lanes)
    where = "" if lane is None else f" in {'its plain list' if not lane else f'lane {name}'}"
    later = " and those not yet due" if delayed else ""
    return f"{plural(waiting, 'waiting job')}{where}{later}"


@queue.command()
@click.argument("queue")
@click.option("--timeout", type=duration, metavar="TIME", help="Maximum time to wait, as in 5m.")
@json_option
@pass_settings
def drain(settings: Settings, queue: str, timeout: float | None, as_json: bool) -> None:
    """Wait until no job of a queue waits or runs; exits 5 after --timeout.

    Example: penstock queue drain mail --timeout 5m

    Jobs can still be added meanwhile.
    """
    drained = _on_queue(settings, queue, lambda admin: admin.drain(queue, timeout))
    if as_json:
        say_json({"queue": queue, "drained": drained})
    if not drained:
        took = age((timeout or 0) * 1000)
        fail(f"queue {queue} is not empty after {took}", ExitCode.TIMEOUT)
    if not as_json:
        say(f"queue {queue} is empty, and nothing of it runs")


@queue.command()
@click.argument("queue")
@click.argument("to")
@lane_option
@click.option(
    "--limit", type=click.IntRange(1), help="Maximum number of jobs, the next ones first."
)
@json_option
@pass_settings
def move(
    settings: Settings, queue: str, to: str, lane: Lane | None, limit: int | None, as_json: bool
) -> None:
    """Move waiting jobs of a lane to the back of another queue, in order.

    Example: penstock queue move mail slow-mail --limit 100
    """
    done = _on_queue(
        settings, queue, lambda admin: admin.move(queue, to, limit=limit, lane=lane or "")
    )
    if as_json:
        say_json({"queue": queue, "to": to, "moved": done})
    else:
        say(f"{plural(done, 'job')} moved from queue {queue} to {to}")


@queue.command()
@click.argument("queue")
@click.option("--rename", nargs=2, metavar="KEY NEW", help="Rename a key of the wrong type.")
@click.option("--delete", metavar="KEY", help="Delete a key of the wrong type with its contents.")
@yes_option
@json_option
@pass_settings
def repair(
    settings: Settings,
    queue: str,
    rename: tuple[str, str] | None,
    delete: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Find keys of a queue that have the wrong type; exits 1 if there are any.

    Example: penstock queue repair orders --rename orders:low old-orders-low

    Another program may have stored a string where the queue has a list. Workers do not touch such a
    key, and jobs that belong there wait. Fair lanes that lost their turns to such a key get them
    back.
    """
    if rename and delete:
        raise click.UsageError("give --rename or --delete, not both")
    if delete:
        confirm(yes, lambda: f"Delete {delete} with all that it holds?")
        with_app(settings, lambda app: app.queues.delete_foreign(queue, delete))
    elif rename:
        with_app(settings, lambda app: app.queues.rename_foreign(queue, *rename))
    left = with_app(settings, lambda app: app.queues.foreign_keys(queue))
    found = 0 if left else with_app(settings, lambda app: app.queues.relist_lanes(queue))
    if as_json:
        say_json(left)
    elif found:
        say(f"queue {queue}: {plural(found, 'lane')} with jobs had no turns, and got them back")
    for key in () if as_json else left:
        say(f"queue {queue}: {key}")
    if left:
        fail(f"{plural(len(left), 'key')} of another type in the way", ExitCode.FOUND)
    if not as_json:
        say(f"queue {queue}: every key holds what it should")


@queue.command()
@click.argument("queue")
@yes_option
@json_option
@pass_settings
def delete(settings: Settings, queue: str, yes: bool, as_json: bool) -> None:
    """Delete a queue with its jobs, dead letters and records; exits 1 while it has workers.

    Example: penstock queue delete mail
    """

    def question() -> str:
        facts = with_app(settings, lambda app: known_facts(app, queue))
        return (
            f"Delete queue {queue} with {_waiting(facts, None, False)}, "
            f"{facts.delayed:,} not yet due and {plural(facts.dead_letters, 'dead letter')}?"
        )

    confirm(yes, question)
    if not with_app(settings, lambda app: app.queues.delete(queue)):
        raise QueueError(f"there is no queue {queue!r}")
    if as_json:
        say_json({"queue": queue, "deleted": True})
    else:
        say(f"queue {queue} deleted")
