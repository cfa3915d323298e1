"""`penstock up`: everything, on one machine, with one command."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from dataclasses import replace

import click

from penstock.app import Penstock
from penstock.errors import EmbeddedError
from penstock.interfaces.cli.main import given, pass_settings
from penstock.interfaces.cli.output import say, say_json
from penstock.redis.embedded import Embedded
from penstock.redis.health import Health
from penstock.runtime import Worker, configure, run_process
from penstock.runtime.child import ChildProcess
from penstock.settings import Settings

__all__ = ["up"]

# The worker has its grace period, and then this long to be gone before it is killed.
_MARGIN_S = 2.0
_LONGEST_GRACE_S = 86_400
_STOP_TIMEOUT_S = 5.0


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Greet and log in JSON, one object per line.")
@pass_settings
def up(settings: Settings, as_json: bool) -> None:
    """Run the server (embedded, unless --url names another) and a worker until Ctrl-C."""
    configure(replace(settings.log, format="json") if as_json else settings.log)
    command = [sys.executable, "-m", "penstock", "worker", "--stop-on-eof"]
    command += ["--json"] if as_json else []
    # By the environment: an address may hold a password, and everybody can read a command line.
    environ = os.environ | {f"PENSTOCK_{name.upper()}": value for name, value in given().items()}

    async def serve() -> int:
        async with Penstock(settings=settings) as app:
            worker = ChildProcess("worker", command, environ)
            grace_s = min(settings.worker.grace_s + _MARGIN_S, _LONGEST_GRACE_S)
            runner = Worker(work=[worker], settings=replace(settings.worker, grace_s=grace_s))
            _greet(await app.health(), as_json)
            return await runner.run()

    code = run_process(serve)
    if settings.url is None:
        _stop_server(Embedded(settings.home_path, settings.embedded))
    if not as_json:
        say("Penstock is down.")
    sys.exit(code)


def _greet(health: Health, as_json: bool) -> None:
    if as_json:
        say_json({"address": health.address, "status": health.status}, indent=0)
        return
    program = "penstock" if shutil.which("penstock") else f"{sys.executable} -m penstock"
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
    """Do not let the server linger when nobody else uses it."""
    if not embedded.status().pinned:
        with suppress(EmbeddedError, TimeoutError):
            embedded.stop(timeout_s=_STOP_TIMEOUT_S)
