"""`penstock feed`: follow numbered events."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from penstock.app import Penstock
from penstock.coordination.feeds.events import Event
from penstock.coordination.feeds.feed import Feed
from penstock.delivery.payloads import show_bytes
from penstock.errors import CoordinationError
from penstock.inspector.feeds import run_feed, window_feed
from penstock.interfaces.cli.administer import with_app
from penstock.interfaces.cli.main import pass_settings
from penstock.interfaces.cli.output import encode_json, json_option, reader_left, say, say_json
from penstock.interfaces.cli.wording import moment, payload_line, plural
from penstock.settings import Settings

__all__ = ["feed"]

_LOOK_S = 1.0
"""How often to look whether anybody still reads."""


@click.group()
def feed() -> None:
    """Follow numbered events: of a feed, a run or a window."""


@feed.command()
@click.argument("name", required=False)
@click.option("--run", help="What happens to this run, instead of a feed.")
@click.option("--window", help="What happens in this window, instead of a feed.")
@click.option(
    "--partition", type=click.IntRange(0), help="Of a window that closes into a topic: which."
)
@click.option("--after", type=click.IntRange(0), help="Go on after event N; 0 for all there are.")
@click.option("--no-follow", is_flag=True, help="End where the feed ends now.")
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
    """Show how a feed stands, then its events as they come, until the final one or Ctrl-C.

    A feed that is not there yet is waited for. With --json, one object per line, data in full.
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


def _show(event: Event, as_json: bool) -> bool:
    """Print it; False if nobody reads it any more."""
    if as_json:
        return say_json(event, indent=0)
    when = moment(event.ms, "milliseconds") if event.ms else "-"
    notes = [
        "snapshot" if event.is_snapshot and event.type != "snapshot" else "",
        f"{plural(event.missed, 'event')} missed" if event.missed else "",
        "final" if event.final else "",
    ]
    told = ", ".join(filter(None, notes))
    data = _as_line(event.data)
    return say(f"{when}  {event.number}  {event.type}{f' ({told})' if told else ''}  {data}")


def _as_line(data: Any) -> str:
    text = data if isinstance(data, bytes) else encode_json(data)
    return payload_line(show_bytes(text))
