"""How the command line speaks: exit codes, JSON or text, and no control characters from data."""

from __future__ import annotations

import re
import sys
from enum import IntEnum
from typing import Any

import click
import msgspec

from penstock.errors import (
    AuthenticationFailed,
    CodecError,
    ConfigError,
    EmbeddedError,
    InvalidName,
    OutcomeUnknown,
    PenstockError,
    PermissionRefused,
    PoolExhausted,
    StillLoading,
    Unreachable,
)

__all__ = ["ExitCode", "exit_code", "fail", "json_option", "say", "say_json"]

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class ExitCode(IntEnum):
    """What every command ends with. Documented in docs/reference/cli.md."""

    OK = 0
    FOUND = 1
    """A check found something wrong, or the input was not valid."""
    FAILED = 2
    """Wrong usage, or the server refused the command."""
    CONFIG = 3
    CONNECTION = 4
    TIMEOUT = 5
    INTERRUPTED = 130


def exit_code(error: PenstockError) -> ExitCode:
    """The exit code for an error that reached the command line."""
    for kinds, code in _CODES:
        if isinstance(error, kinds):
            return code
    return ExitCode.FAILED


_CODES = (
    ((InvalidName, CodecError), ExitCode.FOUND),
    ((ConfigError,), ExitCode.CONFIG),
    ((PoolExhausted,), ExitCode.TIMEOUT),
    (
        (
            AuthenticationFailed,
            EmbeddedError,
            OutcomeUnknown,
            PermissionRefused,
            StillLoading,
            Unreachable,
        ),
        ExitCode.CONNECTION,
    ),
)


def say(text: str, *, bold: bool = False, err: bool = False) -> None:
    """Print for people. Data may hold escape sequences; they are shown, not obeyed."""
    click.secho(_CONTROL.sub(lambda sign: f"\\x{ord(sign[0]):02x}", text), bold=bold, err=err)


def say_json(value: Any) -> None:
    """Print one JSON document for programs."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def fail(message: str, code: ExitCode) -> None:
    """One line on standard error, then out."""
    say(f"penstock: {message}", err=True)
    sys.exit(code)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
