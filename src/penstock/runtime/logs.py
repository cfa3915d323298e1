"""Logs of a Penstock process: for people or for machines, one line per event, never a secret.

`SafeText` is the one filter that makes a record fit to be written: control characters are escaped
(a name with a line break cannot forge a line, one with an escape sequence cannot drive a
terminal), and secrets are taken out, see `penstock.redaction`. `configure` puts it on every handler
of the root logger; a handler added elsewhere takes it with `handler.addFilter(SafeText())`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO, cast

from penstock.redaction import HIDDEN, is_secret_name, redacted
from penstock.settings import LogSettings

__all__ = [
    "UNSAFE",
    "SafeText",
    "cleaned",
    "configure",
    "escaped_controls",
    "log_what_python_prints",
]

OWN_PREFIX = "penstock."
DEEPEST = 6

UNSAFE = (
    "\x7f-\x9f"  # DEL and C1 controls
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line ends, and what reorders a text
    # What is not seen: soft hyphens, fillers, zero-width characters and tags.
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200d\u2060-\u2065\u206a-\u206f\u3164"
    "\ufeff\uffa0\ufff9-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Characters that a terminal obeys or does not show, as a class of a regular expression."""
# With C0 controls, and halves of surrogate pairs, which no UTF-8 stream can write.
_UNSAFE = re.compile(f"[\x00-\x1f{UNSAFE}\ud800-\udfff]")
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_FRAME = re.compile(r'[ |+-]*File "')
# The traceback of another process, which came as the text of an exception.
_REMOTE = re.compile(r"[ |+-]*[\w.]*Traceback: ")

_IN_MESSAGE = frozenset({"failure"})
"""Extras that the message has as text: only JSON repeats them."""
_HTTP_CLIENTS = ("httpx", "httpcore")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(settings: LogSettings, stream: TextIO | None = None) -> logging.Handler:
    """Send the logs of the whole process to `stream` (standard error, if none is given).

    Calling it again replaces what it set up before; handlers of others stay and become safe. HTTP
    clients, whose lines show the address of each request, log from WARNING on, unless their
    loggers have a level.
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
        for present in [one for one in known.filters if isinstance(one, SafeText)]:
            known.removeFilter(present)
        known.addFilter(SafeText(redacts=settings.redact))
    root.setLevel(settings.level.upper())
    for name in _HTTP_CLIENTS:
        client = logging.getLogger(name)
        if client.level == logging.NOTSET:
            client.setLevel(logging.WARNING)
    return handler


def log_what_python_prints() -> None:
    """Log warnings, and errors of threads and finalizers: as text they would pass no filter."""
    warnings.showwarning = _log_warning
    threading.excepthook = _log_error_of_thread
    sys.unraisablehook = _log_ignored_error


def cleaned(text: str) -> str:
    """`text` on one line, with control characters escaped and secrets hidden.

    Cleaning twice changes nothing more.
    """
    # Redacted after the escaping: a line break in a password would otherwise end it too early.
    return redacted(escaped_controls(text))


def escaped_controls(text: str) -> str:
    """`text` on one line, without characters that a terminal obeys or does not show."""
    return _UNSAFE.sub(_escape, text) if _UNSAFE.search(text) else text


class SafeText(logging.Filter):
    """Makes message, extras, traceback and stack of a record safe, in place, and lets it pass.

    Without `redacts`, secrets stay; control characters never do.
    """

    def __init__(self, *, redacts: bool = True) -> None:
        super().__init__()
        self._redacts = redacts
        self._safe = cleaned if redacts else escaped_controls

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self._safe(_message(record)), None
        record.name = self._safe(record.name)
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text = "\n".join(self._traceback(*record.exc_info[1:]))
        elif record.exc_text:
            record.exc_text = self._lines(record.exc_text)
        if record.stack_info:
            record.stack_info = self._lines(record.stack_info)
        for name, value in _extras(record).items():
            del record.__dict__[name]
            record.__dict__[self._safe(name)] = self._field(name, value, 0)
        return True

    def _traceback(self, error: BaseException, trace: TracebackType | None) -> Iterable[str]:
        """The traceback's own lines stay lines; line breaks in an error's message are escaped."""
        for chunk in traceback.TracebackException(type(error), error, trace).format():
            if _FRAME.match(chunk) or _REMOTE.match(chunk):
                yield self._lines(chunk.rstrip("\n"))
            elif text := chunk.strip("\n"):
                yield self._safe(text)

    def _lines(self, text: str) -> str:
        if self._redacts:
            text = redacted(text)  # as a whole: a private key has many lines
        return "\n".join(map(self._safe, text.split("\n")))

    def _field(self, name: str, value: object, depth: int) -> Any:
        if self._redacts and is_secret_name(name):
            return HIDDEN
        try:
            return self._plain(value, depth)
        except Exception:  # noqa: BLE001  a broken __str__ must not break the caller
            return f"<unprintable {type(value).__name__}>"

    def _plain(self, value: object, depth: int) -> Any:
        """`value` as JSON has it, safe in every text; what JSON does not know becomes its `str`."""
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float) and math.isfinite(value):
            return value
        if depth < DEEPEST and isinstance(value, Mapping):
            pairs = [
                (str(name), item) for name, item in cast("Mapping[Any, object]", value).items()
            ]
            return {self._safe(name): self._field(name, item, depth + 1) for name, item in pairs}
        if depth < DEEPEST and isinstance(value, list | tuple | set | frozenset):
            return [self._plain(item, depth + 1) for item in cast("Iterable[object]", value)]
        return self._safe(str(value))


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


def _log_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001  the signature is Python's
    line: str | None = None,  # noqa: ARG001
) -> None:
    logging.getLogger("py.warnings").warning(
        "%s:%d: %s: %s", filename, lineno, category.__name__, message
    )


def _log_error_of_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        name = args.thread.name if args.thread else "?"
        error = (args.exc_type, args.exc_value, args.exc_traceback)
        logging.getLogger("threading").error("thread %s failed", name, exc_info=error)


def _log_ignored_error(args: sys.UnraisableHookArgs) -> None:
    what = args.err_msg or "Exception ignored in"
    error = args.exc_value or args.exc_type()
    logging.getLogger("sys.unraisable").error("%s: %r", what, args.object, exc_info=error)


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
    if code <= 0xFF:  # noqa: PLR2004
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _shown(value: object) -> str:
    if isinstance(value, str) and value and " " not in value:
        return value
    return json.dumps(value, default=str, ensure_ascii=False)
