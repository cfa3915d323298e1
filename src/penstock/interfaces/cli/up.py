"""`penstock up`: everything, on one machine, with one command."""

from __future__ import annotations

import os
import shutil
import sys

import click

from penstock.app import Penstock
from penstock.interfaces.cli.output import say
from penstock.redis.embedded import Embedded
from penstock.redis.health import Health
from penstock.runtime import Worker, configure, run_process
from penstock.runtime.child import ChildProcess
from penstock.settings import Settings

__all__ = ["up"]


@click.command()
@click.pass_obj
@click.pass_context
def up(ctx: click.Context, settings: Settings) -> None:
    """Run the server (embedded, unless --url names another) and a worker until Ctrl-C."""
    configure(settings.log)
    options = [f"--{name}={value}" for name, value in (ctx.parent or ctx).params.items() if value]
    command = [sys.executable, "-m", "penstock", *options, "worker", "--stop-on-eof"]

    async def serve() -> int:
        async with Penstock(settings=settings) as app:
            worker = ChildProcess("worker", command, dict(os.environ))
            runner = Worker(work=[worker], settings=settings.worker)
            _greet(await app.health())
            return await runner.run()

    code = run_process(serve)
    if settings.url is None:
        _stop_server(Embedded(settings.home_path, settings.embedded))
    say("Penstock is down.")
    sys.exit(code)


def _greet(health: Health) -> None:
    program = "penstock" if shutil.which("penstock") else sys.argv[0]
    say(f"Penstock is up on {health.address} ({health.status})", bold=True)
    say("From another terminal:")
    for command, purpose in (
        ("health", "is the server fit for work?"),
        ("workers", "who is at work?"),
        ("doctor", "is the server set up well?"),
    ):
        say(f"  {program} {command:8}  {purpose}")
    say("Ctrl-C stops it.")


def _stop_server(embedded: Embedded) -> None:
    status = embedded.status()
    if not status.in_use and not status.pinned:
        embedded.stop()
