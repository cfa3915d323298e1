"""The `penstock` command."""

from __future__ import annotations

import asyncio
import io
import logging
import sys
from collections.abc import Callable, Coroutine
from functools import update_wrapper
from importlib import import_module
from typing import Any, Concatenate, ParamSpec, TypeVar

import click

from penstock.errors import PenstockError
from penstock.interfaces.cli.output import ExitCode, exit_code, fail, say
from penstock.redaction import redacted
from penstock.settings import Settings

__all__ = ["cli", "given", "log_settings_notes", "main", "pass_settings", "run"]

T = TypeVar("T")
P = ParamSpec("P")

COMMANDS = {
    "up": ("server.up", "Run the server and workers on this machine until Ctrl-C."),
    "worker": ("worker.command", "Run the tasks, handlers and schedules of an application."),
    "workers": ("worker.command", "List the workers of the last day with their load."),
    "server": ("server.command", "Start, stop or show the embedded server."),
    "health": ("server.health", "Show whether the server can work now."),
    "doctor": ("server.health", "Check the configuration of the server, and how to mend it."),
    "acl": ("server.acl", "Print the access list of a user with the least rights of a role."),
    "topic": ("topic.command", "Create, list, change, send to, follow and delete topics."),
    "group": ("topic.group", "Show the groups of a topic, move their positions, delete them."),
    "queue": ("queue.command", "Show, fill, pause, drain, purge and delete queues."),
    "job": ("queue.job", "Send, find, show, cancel and replay jobs."),
    "dlq": ("dlq.command", "List, show, edit, replay and delete dead letters."),
    "limit": ("coordination.limit", "Show, change, test and reset rate limits."),
    "window": ("coordination.window", "List open batches of windows, and close them early."),
    "run": ("coordination.run", "List and show runs, their failures and events."),
    "feed": ("coordination.feed", "Follow the numbered events of a feed, a run or a window."),
    "signing": ("signing.command", "Make keys that sign jobs and messages."),
    "repair": ("server.repair", "Find unusable registry entries and keys, and remove them."),
    "ingest": ("ingest.command", "Submit documents, follow their jobs, and search their text."),
    "rag": ("ingest.rag", "List, create, check and swap RAGs."),
}
"""Each command, its module and its line in the list of commands.

A module is imported when its command runs: importing all of them takes longer than most commands.
"""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"penstock.interfaces.cli.{COMMANDS[cmd_name][0]}")
        return getattr(module, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--url", help="Server address; without one the embedded server is used.")
@click.option("--home", help="Data directory of the embedded server.")
@click.option("--config", help="TOML file with settings (default: ./penstock.toml).")
@click.option(
    "--insecure",
    "allow_unauthenticated",
    flag_value="true",
    help="Use a server on a network although it asks for no password.",
)
@click.version_option(package_name="penstock")
def cli(url: str | None, **_: str | None) -> None:
    """Run background work on a Redis or Valkey server, and look after it.

    \b
      penstock worker shop:app    run the tasks and handlers of `app` in shop.py
      penstock queue status       how many jobs wait and run, and who runs them
      penstock dlq list mail      jobs of the queue `mail` that failed, and why
      penstock doctor             check how the server is set up

    Without --url these use an embedded server, started when it is first needed. Options win over
    PENSTOCK_… variables, those over the TOML file. Exit codes: 0 success, 1 a problem was found,
    2 wrong usage or refused, 3 configuration, 4 no connection, 5 time-out, 130 interrupted.
    """  # noqa: D301  \b keeps lines as they are
    if url is not None and redacted(url) != url:
        say(
            "penstock: warning: every user of this machine can read the password in --url; put it "
            "into a file, and its path into PENSTOCK_PASSWORD_FILE",
            err=True,
        )


def pass_settings(command: Callable[Concatenate[Settings, P], T]) -> Callable[P, T]:
    """Pass the settings to a command; read when it runs, so that help works without them."""

    def with_settings(*args: P.args, **kwargs: P.kwargs) -> T:
        options = given()
        config = options.pop("config", None)
        return command(Settings.load(options, config=config), *args, **kwargs)

    return update_wrapper(with_settings, command)


def given() -> dict[str, str]:
    """The options that precede the command, without those that were not given."""
    options = click.get_current_context().find_root().params
    return {name: value for name, value in options.items() if value is not None}


class _SettingsNotes(logging.Handler):
    """Holds what reading the settings has logged, until it is known where logs go."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


_settings_logger = logging.getLogger("penstock.settings")


def _hold_settings_notes() -> None:
    """Keep what reading the settings logs, from now on; see `log_settings_notes`."""
    _settings_logger.addHandler(_SettingsNotes())
    _settings_logger.setLevel(logging.INFO)
    _settings_logger.propagate = False


def log_settings_notes() -> None:
    """Log what was held, now that the logs are configured."""
    for note in _settings_notes():
        _settings_logger.handle(note)


def _settings_notes() -> list[logging.LogRecord]:
    """What was held, once; from now on such lines go where all others do."""
    held = [one for one in _settings_logger.handlers if isinstance(one, _SettingsNotes)]
    for handler in held:
        _settings_logger.removeHandler(handler)
        _settings_logger.setLevel(logging.NOTSET)
        _settings_logger.propagate = True
    return [record for handler in held for record in handler.records]


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine of a command. Errors are its result, so they are not logged as well."""
    for note in _settings_notes():
        if note.levelno >= logging.WARNING:
            say(f"penstock: warning: {note.getMessage()}", err=True)
    logging.getLogger("penstock").addHandler(logging.NullHandler())
    return asyncio.run(work)


def main() -> None:
    """Run the command line; every expected error becomes one line and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 is no error
    _hold_settings_notes()
    try:
        sys.exit(cli.main(prog_name="penstock", standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        fail("which command?", ExitCode.FAILED)
    except click.ClickException as error:
        fail(f"{error.format_message()} (try --help)", ExitCode(error.exit_code))
    except (click.Abort, KeyboardInterrupt):
        sys.exit(ExitCode.INTERRUPTED)
    except (PenstockError, OSError) as error:
        fail(str(error), exit_code(error))
