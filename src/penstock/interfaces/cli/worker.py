"""`penstock worker` and `penstock workers`."""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from pathlib import Path

import click

from penstock.app import Penstock
from penstock.errors import ConfigError
from penstock.inspector.workers import WorkerView, list_workers
from penstock.interfaces.cli.main import run
from penstock.interfaces.cli.output import json_option, say, say_json
from penstock.runtime import configure, run_process
from penstock.settings import Settings

__all__ = ["worker", "workers"]


@click.command()
@click.argument("application", required=False, metavar="[MODULE:NAME]")
@click.option(
    "--stop-on-eof",
    is_flag=True,
    help="Stop when standard input closes, so that no supervisor can leave the worker behind.",
)
@click.pass_obj
def worker(settings: Settings, application: str | None, stop_on_eof: bool) -> None:
    """Work until told to stop.

    MODULE:NAME is your Penstock object, as in shop:app. SIGTERM or Ctrl-C lets what is under way
    finish within the grace period (worker.grace_s); a second one ends it at once.
    """
    configure(settings.log)
    app = _find(application) if application else Penstock(settings=settings)

    async def work() -> int:
        async with app:
            runner = app.worker()
            if stop_on_eof:
                asyncio.get_running_loop().add_reader(sys.stdin, runner.ask_to_stop)
            try:
                return await runner.run()
            finally:
                if stop_on_eof:
                    asyncio.get_running_loop().remove_reader(sys.stdin)

    sys.exit(run_process(work))


@click.command()
@json_option
@click.pass_obj
def workers(settings: Settings, as_json: bool) -> None:
    """List the workers of the last day."""

    async def ask() -> list[WorkerView]:
        async with Penstock(settings=settings) as app:
            return await list_workers(app.redis)

    found = run(ask())
    if as_json:
        say_json(found)
        return
    if not found:
        say("no workers")
    for view in found:
        state = "dead" if not view.about else "ready" if view.about.ready else "not ready"
        say(f"{state:9}  {view.id}  last beat {view.silent_ms / 1000:.1f} s ago", bold=True)
        for reason in view.about.reasons if view.about else ():
            say(f"           {reason}")


def _find(application: str) -> Penstock:
    """Import the user's application; the working directory comes first, as with `python -m`."""
    module_name, colon, name = application.partition(":")
    if not colon or not module_name or not name:
        raise ConfigError(f"{application!r}: expected MODULE:NAME, as in shop:app")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(module_name), name)
    except ModuleNotFoundError as error:
        if error.name != module_name.partition(".")[0]:
            raise
        raise ConfigError(f"{application!r}: there is no module {module_name!r} here") from None
    except AttributeError:
        raise ConfigError(f"{application!r}: module {module_name!r} has no {name!r}") from None
    if not isinstance(found, Penstock):
        raise ConfigError(f"{application!r} is a {type(found).__name__}, not a Penstock")
    return found
