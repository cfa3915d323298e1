"""`penstock worker` and `penstock workers`."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import click

from penstock.app import Penstock
from penstock.errors import ConfigError, PenstockError
from penstock.inspector.workers import WorkerView, list_workers
from penstock.interfaces.cli.main import given, pass_settings, run
from penstock.interfaces.cli.output import json_option, say, say_json
from penstock.runtime import Worker, configure, run_process
from penstock.settings import Settings

__all__ = ["worker", "workers"]

STANDARD_INPUT = 0


@click.command()
@click.argument("application", required=False, metavar="[MODULE:NAME]")
@click.option(
    "--stop-on-eof",
    is_flag=True,
    help="Stop when standard input ends, so that no supervisor can leave the worker behind.",
)
@click.option("--json", "as_json", is_flag=True, help="Log JSON, one object per line.")
@pass_settings
def worker(settings: Settings, application: str | None, stop_on_eof: bool, as_json: bool) -> None:
    """Work until told to stop.

    MODULE:NAME is your Penstock object, as in shop:app. SIGTERM or Ctrl-C lets what is under way
    finish within the grace period (worker.grace_s); a second one ends it at once.
    """
    configure(replace(settings.log, format="json") if as_json else settings.log)
    app = _find(application) if application else Penstock(settings=settings)

    async def work() -> int:
        async with app:
            runner = app.worker()
            if stop_on_eof:
                _stop_on_eof(runner)
            return await runner.run()

    sys.exit(run_process(work))


@click.command()
@json_option
@pass_settings
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
        ready = view.about is not None and view.about.ready
        state = "dead" if not view.alive else "ready" if ready else "not ready"
        say(f"{state:9}  {view.id}  last beat {view.silent_ms / 1000:.1f} s ago", bold=True)
        for reason in view.about.reasons if view.about else ():
            say(f"           {reason}")


def _stop_on_eof(runner: Worker) -> None:
    """Read standard input to its end. In a thread, because a file or a device cannot be polled."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            while os.read(STANDARD_INPUT, 4096):
                continue
        except OSError:
            pass  # it was closed from the start
        loop.call_soon_threadsafe(runner.ask_to_stop)

    threading.Thread(target=read, name="penstock stop on eof", daemon=True).start()


def _find(application: str) -> Penstock:
    """Import the user's application; the working directory comes first, as with `python -m`.

    It reads its own settings: what was given on the command line reaches it by the environment.
    """
    module_name, _, name = application.partition(":")
    if not module_name or not name:
        raise ConfigError(f"{application!r}: expected MODULE:NAME, as in shop:app")
    os.environ.update({f"PENSTOCK_{option.upper()}": value for option, value in given().items()})
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = import_module(module_name)
    except PenstockError:
        raise
    except Exception as error:  # noqa: BLE001  it is the user's code
        raise ConfigError(f"{application!r}: {_import_failure(module_name, error)}") from None
    if not hasattr(module, name):
        raise ConfigError(f"{application!r}: module {module_name!r} has no {name!r}")
    found = getattr(module, name)
    if not isinstance(found, Penstock):
        raise ConfigError(f"{application!r} is a {type(found).__name__}, not a Penstock")
    return found


def _import_failure(module_name: str, error: Exception) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and f"{module_name}.".startswith(f"{missing}."):
        return f"there is no module {module_name!r} here"
    place = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"importing {module_name!r} failed: {type(error).__name__}: {error} "
        f"({place.filename}, line {place.lineno})"
    )
