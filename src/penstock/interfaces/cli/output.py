"""Output of commands: exit codes, JSON or text, without control characters and secrets.

Of secrets, errors and addresses are cleaned; payloads, ids and keys are shown as they are.
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, Final, NoReturn, cast

import click
import msgspec

from penstock.errors import (
    AuthenticationFailed,
    CodecError,
    ConfigError,
    ConfigurationWrong,
    CoordinationError,
    DocumentRefused,
    EmbeddedError,
    InvalidName,
    OutcomeUnknown,
    PermissionRefused,
    PoolExhausted,
    QueueError,
    StillLoading,
    StoreAway,
    StoreMismatch,
    TooMany,
    TopicError,
    Unreachable,
)
from penstock.redaction import redacted
from penstock.runtime.logs import UNSAFE, cleaned, escaped_controls

__all__ = [
    "ExitCode",
    "encode_json",
    "exit_code",
    "fail",
    "json_option",
    "reader_left",
    "say",
    "say_json",
    "say_lines",
]


class ExitCode(IntEnum):
    """Exit codes of all commands. Documented in docs/reference/cli.md."""

    OK = 0
    FOUND = 1
    """A check found a problem, a named object does not exist, or the input is invalid."""
    FAILED = 2
    """Wrong usage, or the server refused the command."""
    CONFIG = 3
    CONNECTION = 4
    TIMEOUT = 5
    INTERRUPTED = 130


def exit_code(error: Exception) -> ExitCode:
    """The exit code for an error that reached the command line."""
    for kinds, code in _CODES:
        if isinstance(error, kinds):
            return code
    return ExitCode.FAILED


_CODES = (
    # First, as ConfigurationWrong is a DocumentRefused as well.
    ((ConfigError, ConfigurationWrong), ExitCode.CONFIG),
    (
        (
            CodecError,
            CoordinationError,
            DocumentRefused,
            InvalidName,
            QueueError,
            StoreMismatch,
            TooMany,
            TopicError,
        ),
        ExitCode.FOUND,
    ),
    ((PoolExhausted, TimeoutError), ExitCode.TIMEOUT),
    (
        (
            AuthenticationFailed,
            EmbeddedError,
            OutcomeUnknown,
            PermissionRefused,
            StillLoading,
            StoreAway,
            Unreachable,
        ),
        ExitCode.CONNECTION,
    ),
)


def say(text: str, *, bold: bool = False, err: bool = False, is_data: bool = False) -> bool:
    """Print one line of text; False if the reader has closed the output.

    Line breaks, escape sequences and invisible characters are shown escaped. Secrets are hidden,
    unless the line is the user's data: a payload, an id, a key.
    """
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    styled = click.style(_cleaner(is_data)(text), bold=bold or None)
    return _write(styled, err=err, color=False if plain else None)


def say_lines(lines: Iterable[str], *, is_data: bool = False) -> bool:
    """Print many lines at once, as `say` does."""
    text = "\n".join(map(_cleaner(is_data), lines))
    return not text or _write(text)


def _cleaner(is_data: bool) -> Callable[[str], str]:
    return escaped_controls if is_data else cleaned


def say_json(value: Any, *, indent: int = 2) -> bool:
    """Print one JSON document for programs; without `indent`, on one line. As `say`.

    Secrets are hidden in fields that describe errors; data stays as it is.
    """
    shown = _without_secrets(msgspec.to_builtins(value), "")
    return _write(_visible(encode_json(shown, indent=indent).decode()))


_INVISIBLE = re.compile(f"[{UNSAFE}]")
_ERROR_FIELDS: Final = frozenset(
    {
        *("address", "detail", "error", "error_message", "fault", "fix", "last_error"),
        *("last_failure", "message", "notes", "problem", "problems", "reason", "reasons"),
        *("stack", "stack_trace", "suggestions", "traceback", "trouble", "unreadable", "url"),
        *("warning", "warnings"),
    }
)
"""Fields of views that describe errors or name servers."""
_DATA_FIELDS: Final = frozenset(
    {
        *("args", "body", "data", "fields", "headers", "item", "items", "job", "kwargs"),
        *("metadata", "original_job", "payload", "progress", "result", "value"),
    }
)
"""Fields of views that have the user's data, whatever the names within it are."""


def _without_secrets(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return redacted(value) if name in _ERROR_FIELDS else value
    if isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value).items()
        return {
            key: found if key in _DATA_FIELDS else _without_secrets(found, _field(key, name))
            for key, found in pairs
        }
    if isinstance(value, list | tuple):
        return [_without_secrets(found, name) for found in cast("list[Any]", value)]
    return value


def _field(key: object, outer: str) -> str:
    """The name by which a member counts: `{"problems": {"docs": "…"}}` has problems."""
    return outer if outer == "problems" else str(key)


def _visible(text: str) -> str:
    """JSON with characters that a terminal obeys, or does not show, as escapes: the same value."""
    return _INVISIBLE.sub(_json_escape, text)


def _json_escape(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]


def encode_json(value: Any, *, indent: int = 0) -> bytes:
    """Encode a view, also with text that is not Unicode and numbers of any size."""
    try:
        encoded = msgspec.json.encode(value)
    except (UnicodeEncodeError, OverflowError):  # stored by another program
        return json.dumps(msgspec.to_builtins(value), indent=indent or None).encode()
    return msgspec.json.format(encoded, indent=indent) if indent else encoded


def reader_left() -> bool:
    """Whether the reader has closed our output; tested without writing."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]  it was closed
        return False
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def fail(message: str, code: ExitCode) -> NoReturn:
    """Print one line on standard error and exit."""
    say(f"penstock: {message}", err=True)
    sys.exit(code)


def _write(text: str, *, err: bool = False, color: bool | None = None) -> bool:
    try:
        click.echo(text, err=err, color=color)
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`): no error, neither now nor when Python flushes,
        # and the exit code stays that of the command.
        os.dup2(os.open(os.devnull, os.O_WRONLY), (sys.stderr if err else sys.stdout).fileno())
        return False
    return True


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
