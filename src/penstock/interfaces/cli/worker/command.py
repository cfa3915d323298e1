"""`penstock worker` and `penstock workers`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from penstock.app import Penstock
from penstock.inspector.workers import WorkerView, list_workers
from penstock.interfaces.cli.main import pass_settings, run
from penstock.interfaces.cli.output import json_option, say, say_json
from penstock.interfaces.cli.values import names
from penstock.interfaces.cli.wording import size
from penstock.interfaces.cli.worker.application import add_folder_of, load_application, module_of
from penstock.interfaces.cli.worker.reload import Reloading, places_of
from penstock.interfaces.cli.worker.running import (
    child_environ,
    command_of,
    configure_logs,
    grace_of_children,
    log_json_option,
    run_worker,
    stop_on_eof_option,
    supervisor,
)
from penstock.runtime import run_process
from penstock.runtime.heartbeat import WorkerAbout
from penstock.settings import Settings

__all__ = ["show_workers", "worker", "workers"]


@click.command()
@click.argument("application", required=False, metavar="[MODULE:NAME]")
@click.option(
    "--queues", type=names, metavar="NAMES", help="Run only these queues, as in mail,reports."
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 10_000),
    help="Maximum number of running jobs per queue.",
)
@click.option("--reload", is_flag=True, help="Restart when a Python file changes.")
@stop_on_eof_option
@log_json_option
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
    one ends them at once. After kill -9 another worker runs the jobs that this one had started.
    """  # noqa: D301  \b keeps lines as they are
    configure_logs(settings, as_json=as_json)
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
            return await run_worker(runner, stop_on_eof=stop_on_eof)

    sys.exit(run_process(work))


def _reload(settings: Settings, application: str, options: list[str], stop_on_eof: bool) -> int:
    """Run the same command as a child process, and restart it after each change."""
    module_name = module_of(application)
    add_folder_of(module_name)
    command = command_of("worker", application, "--stop-on-eof", *options)

    async def watch() -> int:
        reloading = Reloading(
            command, child_environ(), places_of(module_name), stop_s=grace_of_children(settings)
        )
        runner = supervisor([reloading], settings)
        return await run_worker(runner, stop_on_eof=stop_on_eof) or reloading.exit_code

    return run_process(watch)


@click.command()
@json_option
@pass_settings
def workers(settings: Settings, as_json: bool) -> None:
    """List the workers of the last day with their load.

    Example: penstock workers
    """

    async def ask() -> list[WorkerView]:
        async with Penstock(settings=settings) as app:
            return await list_workers(app.redis)

    views = run(ask())
    if as_json:
        say_json(views)
    else:
        show_workers(views)


def show_workers(views: Sequence[WorkerView]) -> None:
    """Print workers for people."""
    if not views:
        say("no workers")
    for view in views:
        ready = view.about is not None and view.about.ready
        state = "dead" if not view.alive else "ready" if ready else "not ready"
        say(f"{state:9}  {view.id}  last beat {view.silent_ms / 1000:.1f} s ago", bold=True)
        for line in _load_lines(view.about) if view.about else ():
            say(f"           {line}")


def _load_lines(about: WorkerAbout) -> list[str]:
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
