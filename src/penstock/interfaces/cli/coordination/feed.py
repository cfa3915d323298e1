"""`penstock feed`: follow numbered events."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from penstock.app import Penstock
from penstock.coordination.feeds.events import FeedEvent
from penstock.coordination.feeds.feed import Feed
from penstock.delivery.payloads import show_bytes
from penstock.errors import CoordinationError
from penstock.inspector.runs import run_feed, window_feed
from penstock.interfaces.cli.administer import with_app
from penstock.interfaces.cli.main import pass_settings
from penstock.interfaces.cli.output import encode_json, json_option, reader_left, say, say_json
from penstock.interfaces.cli.wording import moment, payload_line, plural
from penstock.settings import Settings

__all__ = ["feed"]

_LOOK_S = 1.0
"""How often to check that the output is still read."""


@click.group()
def feed() -> None:
    """Follow numbered events: of a feed, a run or a window."""


@feed.command()
@click.argument("name", required=False)
@click.option("--run", help="Follow the events of this run.")
@click.option("--window", help="Follow the events of this window.")
@click.option(
    "--partition", type=click.IntRange(0), help="Partition, for a window that closes into a topic."
)
@click.option("--after", type=click.IntRange(0), help="Start after event N; 0 for all.")
@click.option("--no-follow", is_flag=True, help="Exit at the current end of the feed.")
@json_option
@pass_settings
def tail(
    settings: Settings,
    name: str | None,
    run: str | None,
    window: str | None,
    partition: int | None,
    after: int | None,
    no_follow: bool,
    as_json: bool,
) -> None:
    """Show the snapshot of a feed, then its events, until the final one or Ctrl-C.

    Example: penstock feed tail --run nightly

    Waits for a feed that does not exist yet. With --json, one object per line, with complete data.
    """
    if sum(given is not None for given in (name, run, window)) != 1:
        raise click.UsageError("which feed? Its NAME, or --run, or --window")
    if partition is not None and window is None:
        raise click.UsageError("--partition is for --window")

    async def follow(app: Penstock) -> None:
        if run is not None:
            found = await run_feed(app, run)
        elif window is not None:
            found = await window_feed(app, window, partition)
        else:
            found = app.feed(name or "")
        await _follow(found, after, no_follow, as_json)

    with_app(settings, follow)


async def _follow(found: Feed, after: int | None, no_follow: bool, as_json: bool) -> None:
    last = (await found.snapshot()).number if no_follow else None
    if last == 0:
        raise CoordinationError(f"feed {found.name!r} has no events")
    if last is not None and after is not None and after >= last:
        return
    async with found.read(after) as reader:
        while True:
            try:
                async with asyncio.timeout(_LOOK_S):
                    event = await anext(reader, None)
            except TimeoutError:
                if reader_left():
                    return
                continue
            if event is None or not _show(event, as_json):
                return
            if last is not None and event.number >= last:
                return


def _show(event: FeedEvent, as_json: bool) -> bool:
    """Print it; False if the reader has gone."""
    if as_json:
        return say_json(event, indent=0)
    when = moment(event.ms, "milliseconds") if event.ms else "-"
    notes = [
        "snapshot" if event.is_snapshot and event.type != "snapshot" else "",
        f"{plural(event.missed, 'event')} missed" if event.missed else "",
        "final" if event.final else "",
    ]
    note = ", ".join(filter(None, notes))
    data = _as_line(event.data)
    line = f"{when}  {event.number}  {event.type}{f' ({note})' if note else ''}  {data}"
    return say(line, is_data=True)


def _as_line(data: Any) -> str:
    text = data if isinstance(data, bytes) else encode_json(data)
    return payload_line(show_bytes(text))
