"""`penstock window`: list open batches, and close them early."""

from __future__ import annotations

import click

from penstock.app import Penstock
from penstock.coordination.windows.admin import (
    ClosedBatch,
    WindowView,
    close_all,
    close_one,
    list_windows,
)
from penstock.errors import PenstockError
from penstock.interfaces.cli.administer import with_app
from penstock.interfaces.cli.main import pass_settings
from penstock.interfaces.cli.output import ExitCode, fail, json_option, say, say_json
from penstock.interfaces.cli.wording import age, plural, size, table
from penstock.settings import Settings

__all__ = ["window"]

_MOST = 10_000


@click.group()
def window() -> None:
    """List open batches of windows, and close them early."""


@window.command("list")
@click.option(
    "--limit",
    type=click.IntRange(1, _MOST),
    default=20,
    help="Maximum number of batches per window (default: 20).",
)
@json_option
@pass_settings
def list_(settings: Settings, limit: int, as_json: bool) -> None:
    """List all windows with their open batches, the next one due first.

    Example: penstock window list --limit 5
    """
    found = with_app(settings, lambda app: list_windows(app, limit))
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
    is_read = say(f"{view.name}: into {view.kind} {view.target}", bold=True)
    is_read = is_read and say(f"  closes   {closing}")
    if view.problem:
        return is_read and say(f"  its batches cannot be shown: {view.problem}")
    if view.is_missing:
        return is_read and say("  its topic is gone, with its batches")
    is_read = is_read and say(
        f"  open     {plural(view.open, 'batch').replace('batchs', 'batches')}"
    )
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
        is_read = is_read and table(("ITEMS", "BYTES", "AGE", "DUE IN", "BATCH", "KEY"), rows)
    if len(rows) < view.open:
        is_read = is_read and say(f"  and {view.open - len(rows):,} more")
    return is_read


@window.command()
@click.argument("name")
@click.argument("key", required=False)
@click.option("--all", "everything", is_flag=True, help="Close every open batch.")
@json_option
@pass_settings
def close(settings: Settings, name: str, key: str | None, everything: bool, as_json: bool) -> None:
    """Close the open batch of a key now: it becomes a job or message.

    Example: penstock window close batch --all

    Exits 1 if it does not exist, or has no room. With --all, batches that other programs have
    changed and that cannot be closed are listed, the others are closed, and it exits 1.
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
        problem = error  # reported after what was closed before
    if as_json:
        left = [{"key": one.key, "problem": one.problem} for one in refused]
        say_json({"window": name, "closed": closed, "refused": left})
    else:
        say(f"{len(closed):,} closed")
    if problem is not None:
        raise problem
    if refused:
        fail(f"{len(refused):,} could not be closed", ExitCode.FOUND)
