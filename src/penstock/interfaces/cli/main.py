"""The `penstock` command."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from importlib import import_module
from typing import Any, TypeVar

import click

from penstock.errors import PenstockError
from penstock.interfaces.cli.output import ExitCode, exit_code, fail
from penstock.settings import Settings

__all__ = ["cli", "main", "run"]

T = TypeVar("T")

COMMANDS = {
    "up": "up",
    "worker": "worker",
    "workers": "worker",
    "server": "server",
    "health": "health",
    "doctor": "health",
}
"""Each command and the module it is in, read only when the command is used."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"penstock.interfaces.cli.{COMMANDS[cmd_name]}")
        return getattr(module, cmd_name)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--url", help="Server address; without one the embedded server is used.")
@click.option("--home", help="Data directory of the embedded server.")
@click.option("--config", help="TOML file with settings (default: ./penstock.toml).")
@click.version_option(package_name="penstock")
@click.pass_context
def cli(ctx: click.Context, url: str | None, home: str | None, config: str | None) -> None:
    """Coordinate work on a Redis or Valkey server.

    Settings: arguments win over PENSTOCK_… variables, those over the TOML file. Exit codes: 0 well,
    1 something was found wrong, 2 wrong usage or refused, 3 configuration, 4 no connection,
    5 time-out, 130 interrupted.
    """
    ctx.obj = Settings.load({"url": url, "home": home}, config=config)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run one command's coroutine."""
    return asyncio.run(work)


def main() -> None:
    """Run the command line; every expected error becomes one line and an exit code."""
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output left; nothing to complain about
        sys.exit(ExitCode.OK)
    except PenstockError as error:
        fail(str(error), exit_code(error))
