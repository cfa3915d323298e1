"""Record of a failed attempt: the error as text, and a fingerprint of the bug."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from traceback import TracebackException, walk_tb
from types import TracebackType
from typing import Self, cast

import msgspec

from penstock.delivery.retries import MOST_ATTEMPTS, DeadLetter, parts_of
from penstock.delivery.stored import read_json
from penstock.redaction import redacted

__all__ = ["Failure", "handler_part", "read_failures"]

_LONGEST_MESSAGE = 1000
_LONGEST_READ = 16_000
"""Of a longer message only this much is looked at for secrets, and the rest cut off."""
_LONGEST_STACK_BYTES = 8 * 1024
_MOST_FRAMES = 64
_MOST_CAUSES = 16
_LAST_MS = 2**53
# Frames that call a handler. They change with how it is run and with Penstock's version.
_CALLERS = re.compile(
    r"(penstock\.(topics|queues|delivery|runtime)|asyncio|concurrent\.futures|threading)(\.|$)"
)
# Python 3.12 and later run these within the function around them.
_COMPREHENSIONS = (".<listcomp>", ".<dictcomp>", ".<setcomp>")
_CHANGING = re.compile(r"0x[0-9a-f]+|\b(?=[a-f-]*\d)[0-9a-f-]{8,}\b|\d+", re.IGNORECASE)


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One failed attempt, as stored with the message.

    Equal bugs have equal fingerprints: made of the classes of the error and its causes and of the
    functions it passed through. The message counts only for what was not raised and for DeadLetter,
    numbers and addresses in it never.
    """

    error_class: str
    message: str
    stack: str
    fingerprint: str
    at_ms: int
    attempt: int

    @classmethod
    def of(cls, error: Exception, attempt: int, at_ms: int, *, redacts: bool = True) -> Self:
        """Describe an error, with its secrets only without `redacts`.

        Never raises, whatever the error's own code does.
        """
        return cls(
            error_class=_guarded(_class_name, error),
            message=_guarded(partial(_message, redacts=redacts), error),
            stack=_guarded(partial(_stack, redacts=redacts), error),
            fingerprint=_guarded(_fingerprint, error),
            at_ms=at_ms,
            attempt=attempt,
        )


def read_failures(stored: bytes) -> tuple[Failure, ...]:
    """How earlier attempts failed; empty if that cannot be read."""
    failures: tuple[Failure, ...] | None = read_json(stored, tuple[Failure, ...])
    if failures and all(
        0 <= one.at_ms <= _LAST_MS and 0 <= one.attempt <= MOST_ATTEMPTS for one in failures
    ):
        return failures
    return ()


def handler_part(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the handler's own frames on; None if it was not reached."""
    while traceback is not None and _is_caller(str(traceback.tb_frame.f_globals.get("__name__"))):
        traceback = traceback.tb_next
    return traceback


def _is_caller(module: str) -> bool:
    return _CALLERS.match(module) is not None


def _guarded(describe: Callable[[BaseException], str], error: BaseException) -> str:
    try:
        return describe(error)
    except Exception as raised:  # noqa: BLE001  an error's own __str__ may raise anything
        return f"<cannot be described: {type(raised).__name__}>"


def _cut(text: str, *, redacts: bool = False) -> str:
    """Shorten, and escape halves of surrogate pairs, which cannot be stored as UTF-8.

    Secrets are hidden first: what a cut leaves of one could not be recognised.
    """
    if redacts:
        text = redacted(text[:_LONGEST_READ])
    text = text[: _LONGEST_MESSAGE + 1].encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[: _LONGEST_MESSAGE - 1]}…"


def _class_name(error: BaseException) -> str:
    kind = type(error)
    return _cut(f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."))


def _message(error: BaseException, *, redacts: bool = False) -> str:
    return _cut(str(error), redacts=redacts)


def _stack(error: BaseException, *, redacts: bool) -> str:
    """Return the end of the printed traceback, in which a huge message hides no frame."""
    printed = TracebackException(type(error), error, error.__traceback__, limit=-_MOST_FRAMES)
    pieces = (_cut(piece.rstrip("\n"), redacts=redacts) for piece in printed.format())
    data = "\n".join(pieces).encode()
    if len(data) <= _LONGEST_STACK_BYTES:
        return data.decode()
    return "…\n" + data[-_LONGEST_STACK_BYTES:].partition(b"\n")[2].decode()


def _fingerprint(error: BaseException) -> str:
    traits: list[str] = []
    link: BaseException | None = error
    for _ in range(_MOST_CAUSES):  # errors can name each other as their cause
        if link is None:
            break
        traits += _traits(link)
        if isinstance(link, ExceptionGroup):  # in the order of their ends, which changes
            parts = parts_of(cast("ExceptionGroup[Exception]", link))
            traits += sorted({"\n".join(_traits(part)) for part in parts})
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return blake2b("\n".join(traits).encode(), digest_size=8).hexdigest()


def _traits(error: BaseException) -> list[str]:
    places = _places(error.__traceback__)
    by_message = isinstance(error, DeadLetter) or not places
    message = [_CHANGING.sub("#", _guarded(_message, error))] if by_message else []
    return [_class_name(error), *places, *message]


def _places(traceback: TracebackType | None) -> list[str]:
    """Name the functions that the error passed through, each once: recursion differs in depth."""
    named = [
        (str(frame.f_globals.get("__name__")), frame.f_code.co_qualname)
        for frame, _ in walk_tb(traceback)
    ]
    first = next((n for n, (module, _) in enumerate(named) if not _is_caller(module)), 0)
    places = [_cut(f"{module}:{name}") for module, name in named[first:]]
    return list(dict.fromkeys(place for place in places if not place.endswith(_COMPREHENSIONS)))
