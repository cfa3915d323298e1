"""Logs of a Penstock process: for people or for machines, one line per event, never a secret.

`SafeText` is the one filter that makes a record fit to be written: control characters are escaped
(a name with a line break cannot forge a line, one with an escape sequence cannot drive a
terminal), and passwords are taken out. `configure` puts it on every handler of the root logger; a
handler added elsewhere takes it with `handler.addFilter(SafeText())`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO, cast

from penstock.settings import LogSettings

__all__ = ["SafeText", "cleaned", "configure"]

OWN_PREFIX = "penstock."
HIDDEN = "…"
DEEPEST = 6

# C0, DEL and C1 controls; the Unicode line ends; what reorders the text on a screen; and halves of
# surrogate pairs, which no UTF-8 stream can write.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_WORD = re.compile(r"[^\s'\"<>]+")
# Digits before a / are a port: `http://host:80/a@b` has no password.
_USER = re.compile(r"://[^:/?#@]*:(?!\d{1,5}[/?#])")
_NAMED_SECRET = re.compile(
    r"((?:password|passwd|secret|token|api_?key)=)[^\s&'\"<>]+", re.IGNORECASE
)
_SECRET_NAME = re.compile(r"(?:password|passwd|secret|token|api_?key)$", re.IGNORECASE)
_FRAME = re.compile(r'[ |+-]*File "')
# The traceback of another process, which came as the text of an exception.
_REMOTE = re.compile(r"[ |+-]*[\w.]*Traceback: ")

_IN_MESSAGE = frozenset({"failure"})
"""Extras that the message has as text: only JSON repeats them."""
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(settings: LogSettings, stream: TextIO | None = None) -> logging.Handler:
    """Send the logs of the whole process to `stream` (standard error, if none is given).

    Calling it again replaces what it set up before; handlers of others stay and become safe.
    """
    target = sys.stderr if stream is None else stream
    handler = _OwnHandler(target)
    as_json = settings.format == "json"
    handler.setFormatter(_JsonFormatter() if as_json else _HumanFormatter(colour=_coloured(target)))
    root = logging.getLogger()
    for known in list(root.handlers):
        if isinstance(known, _OwnHandler):
            root.removeHandler(known)
    root.addHandler(handler)
    for known in root.handlers:
        if not any(isinstance(present, SafeText) for present in known.filters):
            known.addFilter(SafeText())
    root.setLevel(settings.level.upper())
    return handler


def cleaned(text: str) -> str:
    """`text` on one line, with control characters escaped and passwords hidden.

    Cleaning twice changes nothing more.
    """
    if _UNSAFE.search(text):
        text = _UNSAFE.sub(_escape, text)
    # After the escaping: a line break in a password would otherwise end the match too early.
    if "://" in text:
        text = _WORD.sub(_hide_password, text)
    if "=" in text:
        text = _NAMED_SECRET.sub(rf"\1{HIDDEN}", text)
    return text


class SafeText(logging.Filter):
    """Makes message, extras, traceback and stack of a record safe, in place, and lets it pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = cleaned(_message(record)), None
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text = "\n".join(_traceback_lines(record.exc_info[1], record.exc_info[2]))
        elif record.exc_text:
            record.exc_text = _cleaned_lines(record.exc_text)
        if record.stack_info:
            record.stack_info = _cleaned_lines(record.stack_info)
        for name, value in _extras(record).items():
            del record.__dict__[name]
            record.__dict__[cleaned(name)] = HIDDEN if _SECRET_NAME.search(name) else _plain(value)
        return True


class _JsonFormatter(logging.Formatter):
    """One JSON object per line, in ASCII, so that it parses whatever the stream's encoding is.

    Extras become fields of their own; one named like a standard field gets a trailing `_`.
    """

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, Any] = {
            "ts": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_text:
            fields["exception"] = record.exc_text
        if record.stack_info:
            fields["stack"] = record.stack_info
        for name, value in _extras(record).items():
            fields[f"{name}_" if name in fields else name] = value
        return json.dumps(fields, default=str)


class _HumanFormatter(logging.Formatter):
    """`09:24:54.123 WARNING runtime.worker: message key=value`, in local time.

    Whatever follows on further lines (a traceback) is indented, so it cannot pass for a line.
    """

    _COLOURS = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[1;31m"}  # noqa: RUF012
    _DIM, _PLAIN = "\x1b[2m", "\x1b[0m"

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created).astimezone()
        time = moment.strftime("%H:%M:%S.") + f"{moment.microsecond // 1000:03}"
        level = f"{record.levelname:<7}"
        if self._colour:
            time = f"{self._DIM}{time}{self._PLAIN}"
            level = f"{self._COLOURS.get(record.levelname, self._DIM)}{level}{self._PLAIN}"
        extras = "".join(
            f" {name}={_shown(value)}"
            for name, value in _extras(record).items()
            if name not in _IN_MESSAGE
        )
        name = record.name.removeprefix(OWN_PREFIX)
        lines = [f"{time} {level} {name}: {record.getMessage()}{extras}"]
        for block in (record.exc_text, record.stack_info):
            lines += [f"    {line}" for line in (block or "").splitlines()]
        return "\n".join(lines)


class _OwnHandler(logging.StreamHandler[TextIO]):
    """Its type distinguishes it from other handlers."""


def _coloured(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _message(record: logging.LogRecord) -> str:
    """The message with its arguments; a log call with wrong ones must not break its caller."""
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001  an argument's own __str__ may raise anything
        return f"{record.msg} (its arguments do not fit)"


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}"  # noqa: PLR2004


def _hide_password(word: re.Match[str]) -> str:
    """Hide all from the colon after the user to the last @, as a password may hold an @ or a /."""
    text = word[0]
    user, end = _USER.search(text), text.rfind("@")
    if user is None or user.end() > end:
        return text
    return f"{text[: user.end()]}{HIDDEN}{text[end:]}"


def _traceback_lines(error: BaseException, trace: TracebackType | None) -> Iterable[str]:
    """The traceback's own lines stay lines; line breaks in an error's message are escaped."""
    for chunk in traceback.TracebackException(type(error), error, trace).format():
        if _FRAME.match(chunk) or _REMOTE.match(chunk):
            yield from map(cleaned, chunk.rstrip("\n").split("\n"))
        elif text := chunk.strip("\n"):
            yield cleaned(text)


def _cleaned_lines(text: str) -> str:
    return "\n".join(map(cleaned, text.split("\n")))


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _plain(value: object) -> Any:
    """`value` as JSON has it, safe in every text; what JSON does not know becomes its `str`."""
    try:
        return _plain_part(value, 0)
    except Exception:  # noqa: BLE001  a broken __str__ must not break the caller
        return f"<unprintable {type(value).__name__}>"


def _plain_part(value: object, depth: int) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if depth < DEEPEST and isinstance(value, Mapping):
        pairs = [(str(name), item) for name, item in cast("Mapping[Any, object]", value).items()]
        return {cleaned(name): _plain_field(name, item, depth + 1) for name, item in pairs}
    if depth < DEEPEST and isinstance(value, list | tuple | set | frozenset):
        return [_plain_part(item, depth + 1) for item in cast("Iterable[object]", value)]
    return cleaned(str(value))


def _plain_field(name: str, value: object, depth: int) -> Any:
    return HIDDEN if _SECRET_NAME.search(name) else _plain_part(value, depth)


def _shown(value: object) -> str:
    if isinstance(value, str) and value and " " not in value:
        return value
    return json.dumps(value, default=str, ensure_ascii=False)
