"""`penstock worker` and `penstock workers`."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from penstock.app import Penstock
from penstock.inspector.workers import WorkerView, list_workers
from penstock.interfaces.cli.application import child_environ, load_application, module_of
from penstock.interfaces.cli.main import pass_settings, run
from penstock.interfaces.cli.output import json_option, say, say_json
from penstock.interfaces.cli.reload import Reloading, places_of
from penstock.interfaces.cli.values import names
from penstock.interfaces.cli.wording import size
from penstock.runtime import Worker, configure, run_process
from penstock.runtime.heartbeat import WorkerAbout
from penstock.settings import Settings

__all__ = ["show_workers", "stop_when_input_ends", "worker", "workers"]

STANDARD_INPUT = 0
# A worker has its grace period, and then this long to be gone before it is killed.
_MARGIN_S = 2.0
_LONGEST_GRACE_S = 86_400


@click.command()
@click.argument("application", required=False, metavar="[MODULE:NAME]")
@click.option("--queues", type=names, metavar="NAMES", help="Run only these queues: one, or a,b,c.")
@click.option(
    "--concurrency", type=click.IntRange(1, 10_000), help="Jobs of each queue to run at a time."
)
@click.option("--reload", is_flag=True, help="Restart when a Python file has changed.")
@click.option(
    "--stop-on-eof",
    is_flag=True,
    help="Stop when standard input ends, so that no supervisor can leave the worker behind.",
)
@click.option("--json", "as_json", is_flag=True, help="Log JSON, one object per line.")
@pass_settings
def worker(
    settings: Settings,
    application: str | None,
    queues: list[str] | None,
    concurrency: int | None,
    reload: bool,
    stop_on_eof: bool,
    as_json: bool,
) -> None:
    """Run the tasks, handlers and schedules of an application until stopped.

    MODULE:NAME is a Penstock object in your code, of `penstock` or `penstock.sync`: for `app` in
    shop.py, in the folder of that file:

    \b
      penstock worker shop:app
      penstock worker shop:app --queues mail,reports --concurrency 4
      penstock worker shop:app --reload

    SIGTERM or Ctrl-C lets running jobs finish within the grace period (worker.grace_s); a second
    one ends them at once. After kill -9 the next worker runs what this one had begun.
    """  # noqa: D301  \b keeps lines as they are
    configure(replace(settings.log, format="json") if as_json else settings.log)
    if reload:
        if application is None:
            raise click.UsageError("--reload needs MODULE:NAME")
        options = [f"--queues={','.join(queues)}"] if queues else []
        options += [f"--concurrency={concurrency}"] if concurrency else []
        options += ["--json"] if as_json else []
        sys.exit(_reload(settings, application, options, stop_on_eof))
    app = load_application(application) if application else Penstock(settings=settings)

    async def work() -> int:
        async with app:
            runner = app.worker(queues=queues, concurrency=concurrency)
            if stop_on_eof:
                stop_when_input_ends(runner)
            return await runner.run(handle_signals=True)

    sys.exit(run_process(work))


def _reload(settings: Settings, application: str, options: list[str], stop_on_eof: bool) -> int:
    """Run the same command as a child process, anew after each change."""
    module_name = module_of(application)
    sys.path.insert(0, str(Path.cwd()))
    command = [sys.executable, "-m", "penstock", "worker", application, "--stop-on-eof", *options]
    stop_s = min(settings.worker.grace_s + _MARGIN_S, _LONGEST_GRACE_S)

    async def watch() -> int:
        reloading = Reloading(command, child_environ(), places_of(module_name), stop_s=stop_s)
        runner = Worker(work=[reloading], settings=replace(settings.worker, grace_s=stop_s))
        if stop_on_eof:
            stop_when_input_ends(runner)
        return await runner.run(handle_signals=True) or reloading.exit_code

    return run_process(watch)


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
    show_workers(found)


def show_workers(found: Sequence[WorkerView]) -> None:
    """Print workers for people."""
    if not found:
        say("no workers")
    for view in found:
        ready = view.about is not None and view.about.ready
        state = "dead" if not view.alive else "ready" if ready else "not ready"
        say(f"{state:9}  {view.id}  last beat {view.silent_ms / 1000:.1f} s ago", bold=True)
        for line in _told(view.about) if view.about else ():
            say(f"           {line}")


def _told(about: WorkerAbout) -> list[str]:
    """Why a worker is not ready, and what it does for its queues."""
    load, lines = about.load, list(about.reasons)
    if load.queues:
        lines.append(
            f"{', '.join(load.queues)}: {load.running:,} running, {load.done:,} done, "
            f"{load.failed:,} failed, {load.per_s:,.1f} per second"
        )
    if load.jobs:
        others = load.running - len(load.jobs)
        lines.append(f"at {', '.join(load.jobs)}" + (f" and {others:,} more" if others > 0 else ""))
    if load.rss_kb:
        lines.append(f"{size(load.rss_kb * 1024)} of memory")
    return lines


def stop_when_input_ends(runner: Worker) -> None:
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
