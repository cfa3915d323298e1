"""`penstock queue list` and `penstock queue status`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import click

from penstock.app import Penstock
from penstock.inspector.queues import QueueStatus, all_statuses, queue_status
from penstock.interfaces.cli.administer import with_app
from penstock.interfaces.cli.main import pass_settings
from penstock.interfaces.cli.output import json_option, reader_left, say, say_json, say_lines
from penstock.interfaces.cli.wording import age, table
from penstock.queues.admin.views import LaneView, QueueLine
from penstock.settings import Settings

__all__ = ["list_queues", "status"]

WATCH_S = 2.0


@click.command("list")
@json_option
@pass_settings
def list_queues(settings: Settings, as_json: bool) -> None:
    """List all queues with their lengths.

    Example: penstock queue list
    """
    found = with_app(settings, lambda app: app.queues.list())
    if as_json:
        say_json(found)
    elif not found:
        say("no queues")
    else:
        rows = [
            (
                f"{line.waiting:,} and {line.fair_lanes:,} lanes"
                if line.fair_lanes
                else line.waiting,
                line.delayed,
                line.dead_letters,
                line.overflow,
                line.workers,
                ", ".join(_states(line)),
                line.name,
            )
            for line in found
        ]
        table(("WAITING", "DELAYED", "DEAD", "OVERFLOW", "WORKERS", "STATE", "QUEUE"), rows)


@click.command()
@click.argument("queue", required=False)
@click.option("--watch", is_flag=True, help="Refresh every 2 s until Ctrl-C.")
@json_option
@pass_settings
def status(settings: Settings, queue: str | None, watch: bool, as_json: bool) -> None:
    """Show lengths, workers and counters of a queue, or of all; exits 1 if it does not exist.

    Example: penstock queue status mail --watch

    With --watch and --json, prints one line per refresh.
    """

    async def look(app: Penstock) -> QueueStatus | list[QueueStatus]:
        return await all_statuses(app) if queue is None else await queue_status(app, queue)

    async def follow(app: Penstock) -> None:
        earlier: dict[str, QueueStatus] = {}
        while True:
            found = await look(app)
            found = (
                [_rated(one, earlier) for one in found]
                if isinstance(found, list)
                else _rated(found, earlier)
            )
            if as_json:
                is_read = say_json(found, indent=0)
            else:
                if sys.stdout and sys.stdout.isatty():
                    click.clear()
                is_read = _show(found)
            if not is_read:
                return
            await asyncio.sleep(WATCH_S)
            if reader_left():
                return

    if watch:
        with_app(settings, follow)
        return
    found = with_app(settings, look)
    if as_json:
        say_json(found)
    else:
        _show(found)


def _states(line: QueueLine) -> Iterator[str]:
    if line.foreign:
        yield "keys of another type"
    if line.paused:
        yield "paused"


def _rated(now: QueueStatus, earlier: dict[str, QueueStatus]) -> QueueStatus:
    before, earlier[now.queue_name] = earlier.get(now.queue_name), now
    return now if before is None else now.since(before)


def _show(found: QueueStatus | list[QueueStatus]) -> bool:
    """Print it; False if the reader has closed the output."""
    if isinstance(found, list):
        return _show_all(found)
    facts = {
        "Queue name": found.queue_name,
        "Connection": found.connection,
        "Queue length": f"{found.queue_length:,}",
        "Processing": f"{found.processing:,}",
        "Queued": f"{found.queued:,}",
        "Worker connected": f"yes, {found.workers:,}" if found.worker_connected else "no",
        "Delayed": f"{found.delayed:,}",
        "Dead letters": f"{found.dead_letters:,}",
        "Overflow": f"{found.overflow:,}",
        "Paused": "yes" if found.paused else "no",
        "Oldest": age(found.oldest_ms),
        "Counted": "  ".join(f"{name} {count:,}" for name, count in found.counters.items()) or "-",
    }
    if found.fair_lanes:
        limit = f" of {found.max_lanes:,}" if found.max_lanes else ""
        facts["Fair lanes"] = f"{found.fair_lanes:,}{limit}"
    if found.rates is not None:
        rates = (f"{name} {rate:,.1f}" for name, rate in found.rates.items() if rate)
        facts["Per second"] = "  ".join(rates) or "-"
    is_read = say_lines(f"{name}: {value}" for name, value in facts.items())
    for key in found.foreign:
        is_read = is_read and say(f"In its way: {key}")
    if found.foreign:
        is_read = is_read and say(f"See: penstock queue repair {found.queue_name}")
    lanes = [lane for lane in found.lanes if not lane.name or _is_used(lane)]
    if len(lanes) > 1:
        rows = [
            (lane.waiting, lane.running, lane.weight, _lane_state(lane), lane.name or "-")
            for lane in lanes
        ]
        is_read = is_read and table(("WAITING", "RUNNING", "WEIGHT", "STATE", "LANE"), rows)
    return is_read


def _is_used(lane: LaneView) -> bool:
    return bool(lane.waiting or lane.running or _lane_state(lane))


def _lane_state(lane: LaneView) -> str:
    if lane.paused:
        return "paused"
    if lane.parked_ms > 0:
        return f"again in {age(lane.parked_ms)}"
    return "at its limit" if lane.at_limit else ""


def _state(one: QueueStatus) -> str:
    if one.foreign:
        return "keys of another type"
    return "paused" if one.paused else "" if one.worker_connected else "no worker"


def _show_all(found: list[QueueStatus]) -> bool:
    if not found:
        return say("no queues")
    rows = [
        (
            one.queue_length,
            one.processing,
            one.delayed,
            one.dead_letters,
            one.overflow,
            one.workers,
            age(one.oldest_ms),
            _state(one),
            one.queue_name,
        )
        for one in found
    ]
    titles = ("WAITING", "RUNNING", "DELAYED", "DEAD", "OVERFLOW", "WORKERS", "OLDEST", "STATE")
    return table((*titles, "QUEUE"), rows)
