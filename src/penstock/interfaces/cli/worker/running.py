"""What the commands that run workers share: options, logs, and how they are stopped."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace

import click

from penstock.interfaces.cli.lines import STANDARD_INPUT
from penstock.interfaces.cli.main import given, log_settings_notes
from penstock.runtime import Service, Worker, configure
from penstock.runtime.logs import log_what_python_prints
from penstock.settings import Settings

__all__ = [
    "child_environ",
    "command_of",
    "configure_logs",
    "grace_of_children",
    "log_json_option",
    "run_worker",
    "stop_on_eof_option",
    "supervisor",
]

# A child has its grace period, and then this long to exit before it is killed.
_MARGIN_S = 2.0
_LONGEST_GRACE_S = 86_400

stop_on_eof_option = click.option(
    "--stop-on-eof",
    is_flag=True,
    help="Stop at the end of standard input, that is, when the supervisor exits.",
)
log_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Log JSON, one object per line."
)


def configure_logs(settings: Settings, *, as_json: bool) -> None:
    """Log as the settings have it, or as JSON."""
    configure(replace(settings.log, format="json") if as_json else settings.log)
    log_what_python_prints()
    log_settings_notes()


def command_of(*arguments: str) -> list[str]:
    """The command of a child process: nothing is imported from its working directory."""
    return [sys.executable, "-P", "-m", "penstock", *arguments]


def child_environ() -> dict[str, str]:
    """The environment with the options that precede the command.

    They are passed this way because an address may contain a password, and command lines are
    visible to every user of the machine.
    """
    return os.environ | {f"PENSTOCK_{name.upper()}": value for name, value in given().items()}


def grace_of_children(settings: Settings) -> float:
    """Seconds that a supervisor leaves its children to exit."""
    return min(settings.worker.grace_s + _MARGIN_S, _LONGEST_GRACE_S)


def supervisor(children: Sequence[Service], settings: Settings) -> Worker:
    """A worker whose work is child processes that have the grace period of the settings."""
    own = replace(settings.worker, grace_s=grace_of_children(settings))
    return Worker(work=children, settings=own)


async def run_worker(worker: Worker, *, stop_on_eof: bool = False) -> int:
    """Run a worker until a signal, or the end of standard input, stops it; its exit code."""
    if stop_on_eof:
        loop = asyncio.get_running_loop()

        def read() -> None:
            try:
                while os.read(STANDARD_INPUT, 4096):
                    continue
            except OSError:
                pass  # it was closed from the start
            loop.call_soon_threadsafe(worker.ask_to_stop)

        # In a thread, because a file or a device cannot be polled.
        threading.Thread(target=read, name="penstock stop on eof", daemon=True).start()
    return await worker.run(handle_signals=True)
