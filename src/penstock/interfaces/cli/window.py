"""`penstock window`: see which batches are open, and close them before their time."""

from __future__ import annotations

import click

from penstock.app import Penstock
from penstock.errors import PenstockError
from penstock.inspector.windows import (
    ClosedBatch,
    WindowView,
    close_all,
    close_one,
    list_windows,
)
from penstock.interfaces.cli.administer import with_app
from penstock.interfaces.cli.main import pass_settings
from penstock.interfaces.cli.output import ExitCode, fail, json_option, say, say_json
from penstock.interfaces.cli.wording import age, plural, size, table
from penstock.settings import Settings

__all__ = ["window"]

_MOST = 10_000


@click.group()
def window() -> None:
    """See which batches are open, and close them before their time."""


@window.command("list")
@click.option(
    "--count",
    type=click.IntRange(1, _MOST),
    default=20,
    help="Batches of each window, at most (default: 20).",
)
@json_option
@pass_settings
def list_(settings: Settings, count: int, as_json: bool) -> None:
    """List every window that was used, with its open batches, those that are due first in front."""
    found = with_app(settings, lambda app: list_windows(app, count))
    if as_json:
        say_json(found)
    elif not found:
        say("no windows")
    else:
        for view in found:
            if not _show(view):
                return


def _show(view: WindowView) -> bool:
    closing = (
        f"after {age(view.max_age_ms)}, {age(view.idle_ms)} idle, "
        f"{plural(view.max_items, 'item')} or {size(view.max_bytes)}"
    )
    told = say(f"{view.name}: into {view.kind} {view.target}", bold=True)
    told = told and say(f"  closes   {closing}")
    if view.problem:
        return told and say(f"  its batches cannot be shown: {view.problem}")
    if view.is_missing:
        return told and say("  its topic is gone, with its batches")
    told = told and say(f"  open     {plural(view.open, 'batch').replace('batchs', 'batches')}")
    rows = [
        (
            batch.count,
            size(batch.bytes),
            age(batch.age_ms),
            age(batch.due_in_ms) if batch.due_in_ms >= 0 else f"{age(-batch.due_in_ms)} late",
            batch.batch_id,
            batch.key,
        )
        for batch in view.batches
    ]
    if rows:
        told = told and table(("ITEMS", "BYTES", "AGE", "DUE IN", "BATCH", "KEY"), rows)
    if len(rows) < view.open:
        told = told and say(f"  and {view.open - len(rows):,} more")
    return told


@window.command()
@click.argument("name")
@click.argument("key", required=False)
@click.option("--all", "everything", is_flag=True, help="Every batch that is open now.")
@json_option
@pass_settings
def close(settings: Settings, name: str, key: str | None, everything: bool, as_json: bool) -> None:
    """Close the open batch of a key now: it becomes its job or message.

    Exits 1 if there is none, or no room for it. With --all, batches that others have changed and
    that cannot be closed are named one by one, the rest is closed, and it exits 1. Example:
    penstock window close batch --all
    """
    if (key is None) != everything:
        raise click.UsageError("which batch? Name its key, or --all")
    if key is None:
        _close_all(settings, name, as_json)
        return
    closed = with_app(settings, lambda app: close_one(app, name, key))
    if closed is None:
        fail(f"window {name} has no open batch of {key}", ExitCode.FOUND)
    if as_json:
        say_json({"window": name, "closed": [closed]})
    else:
        say(closed)


def _close_all(settings: Settings, name: str, as_json: bool) -> None:
    closed: list[str] = []
    refused: list[ClosedBatch] = []

    async def act(app: Penstock) -> None:
        async for batch in close_all(app, name):
            if batch.problem:
                refused.append(batch)
                say(f"not closed: {batch.key}: {batch.problem}", err=True)
            else:
                closed.append(batch.batch_id)
                if not as_json:
                    say(batch.batch_id)

    problem: PenstockError | None = None
    try:
        with_app(settings, act)
    except PenstockError as error:
        if not closed and not refused:
            raise
        problem = error  # told after what was done before
    if as_json:
        left = [{"key": one.key, "problem": one.problem} for one in refused]
        say_json({"window": name, "closed": closed, "refused": left})
    else:
        say(f"{len(closed):,} closed")
    if problem is not None:
        raise problem
    if refused:
        fail(f"{len(refused):,} could not be closed", ExitCode.FOUND)
