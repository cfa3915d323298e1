"""Validation of what callers pass to runs, before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, TypeAlias

import msgspec

from penstock.coordination.runs.records import FINAL, OWN_FIELDS, STATUSES
from penstock.errors import InvalidItem, InvalidName
from penstock.errors.base import shown
from penstock.redaction import redacted
from penstock.redis.codec.escaping import unescaped
from penstock.redis.keys.names import MAX_ID
from penstock.redis.wire import Argument

__all__ = [
    "ItemId",
    "Watermark",
    "check_cursor",
    "check_expected",
    "check_facts",
    "check_final",
    "check_items",
    "check_kind",
    "check_run",
    "check_status",
    "check_task",
    "check_version",
    "check_watermark",
    "check_whole",
    "describe_error",
]

ItemId: TypeAlias = str | int
"""A number stands for its digits: 12345 and "12345" are the same item."""
Watermark: TypeAlias = int | float | str | datetime

_MOST_FACTS: Final = 500
_LONGEST_ERROR: Final = 2_000
_LONGEST_READ: Final = 16_000
"""Of a longer error only this much is looked at for secrets, and the rest cut off."""
_EXACT: Final = 2**53
"""Up to here scripts compare whole numbers exactly."""
_is_score = re.compile(r"[+-]?(inf|[0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?)").fullmatch
_LARGEST_ITEM: Final = 10**MAX_ID


def check_run(run: str) -> str:
    """Return the id of a run, whatever characters it has. Its length is checked with its keys."""
    if not isinstance(run, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidName("run", run, f"must be text (a str), not {type(run).__name__}")
    if not _is_text(run):
        raise InvalidName("run", run, "is not Unicode text")
    return run


def check_kind(kind: str) -> None:
    """Raise InvalidItem unless it can be the kind of a run."""
    if not isinstance(kind, str) or not kind or not _is_text(kind):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidItem(f"kind {shown(kind)}: expected a text that is not empty")


def check_items(items: Iterable[ItemId]) -> list[str]:
    """Return ids as they are stored."""
    return [_item(item) for item in items]


def _item(item: object) -> str:
    text = str(item) if type(item) is int and abs(item) < _LARGEST_ITEM else item
    if not isinstance(text, str) or not 1 <= len(text) <= MAX_ID or not _is_text(text):
        raise InvalidItem(
            f"item {shown(item, 60)}: expected a text of 1 to {MAX_ID} characters, or a number"
        )
    return text


def check_task(task: str, attempt: int, map_index: int | None) -> None:
    """Raise InvalidItem unless it can be the start of a task."""
    if not isinstance(task, str) or not task or not _is_text(task):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidItem(f"task {shown(task, 60)}: expected a text that is not empty")
    check_whole("attempt", attempt, 1)
    if map_index is not None:
        check_whole("map_index", map_index, 0)


def check_whole(name: str, value: int, least: int) -> None:
    """Raise InvalidItem unless it is an integer from `least` on that scripts represent exactly."""
    if type(value) is not int or value < least:
        raise InvalidItem(f"{name} {shown(value)}: expected a whole number from {least} on")
    if value > _EXACT:
        raise InvalidItem(f"{name} {shown(value)}: expected a whole number up to {_EXACT}")


def check_status(status: str) -> str:
    """Return a status that a run can have."""
    if status not in STATUSES:
        raise InvalidItem(f"status {shown(status)}: expected one of {', '.join(STATUSES)}")
    return status


def check_final(status: str) -> str:
    """Return a status in which a run can end."""
    if not isinstance(status, str) or status not in FINAL:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidItem(f"status {shown(status)}: expected one of {', '.join(sorted(FINAL))}")
    return status


def check_expected(expect: str | Collection[str] | None) -> str:
    """Return statuses that a run may have, each between commas."""
    if expect is None:
        return ""
    if not isinstance(expect, Collection):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidItem(f"expect {shown(expect)}: expected a status, or several")
    statuses = [expect] if isinstance(expect, str) else list(expect)
    if not statuses:
        raise InvalidItem("expect: no status at all; leave it out if any will do")
    return f",{','.join(map(check_status, statuses))},"


def check_cursor(cursor: str) -> tuple[str, bytes]:
    """Return the score and the id of the failure that ended an earlier page, byte for byte."""
    if isinstance(cursor, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        score, blank, item = cursor.partition(" ")
        with suppress(ValueError):
            if _is_score(score) and blank:
                return score, unescaped(item)
    raise InvalidItem(f"cursor {shown(cursor)}: expected that of an earlier page")


def check_version(version: int | None) -> str:
    """Return a version as scripts take it."""
    if version is None:
        return ""
    check_whole("version", version, 0)
    return str(version)


def check_facts(facts: Mapping[str, str] | None) -> list[Argument]:
    """Return names and values of facts in turn."""
    facts = {} if facts is None else facts
    if not isinstance(facts, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidItem(f"facts {shown(facts)}: expected texts by their names")
    if len(facts) > _MOST_FACTS:
        raise InvalidItem(f"{len(facts)} facts: at most {_MOST_FACTS} are taken")
    arguments: list[Argument] = []
    for name, value in facts.items():
        if not isinstance(name, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidItem(f"fact {shown(name)}: expected a text under a text")
        if not name or not _is_text(name) or not _is_text(value):
            raise InvalidItem(
                f"fact {shown(name)}: expected a name that is not empty, and Unicode text"
            )
        if name in OWN_FIELDS:
            raise InvalidItem(
                f"fact {shown(name)}: a field of every run has this name; take another"
            )
        arguments += (name, value)
    return arguments


def check_watermark(watermark: Watermark | None) -> bytes:
    """Return a watermark as JSON; nothing for None. A datetime becomes text in UTC."""
    if watermark is None:
        return b""
    if isinstance(watermark, datetime):
        if watermark.utcoffset() is None:
            raise InvalidItem(f"watermark {shown(watermark)}: no time zone; add one, as in UTC")
        moment = watermark.astimezone(UTC).isoformat(timespec="microseconds")
        return msgspec.json.encode(moment.replace("+00:00", "Z"))
    if isinstance(watermark, str):
        if not _is_text(watermark):
            raise InvalidItem(f"watermark {shown(watermark)}: not Unicode text")
    elif type(watermark) not in {int, float}:
        raise InvalidItem(f"watermark {shown(watermark)}: expected a number, a text or a datetime")
    elif not -_EXACT <= watermark <= _EXACT:  # nor is this true of NaN
        raise InvalidItem(
            f"watermark {shown(watermark)}: cannot be compared exactly; write it as text"
        )
    return msgspec.json.encode(watermark)


def describe_error(error: BaseException | str, *, redacts: bool) -> tuple[str, str]:
    """Return the class and the message of an error, truncated."""
    if isinstance(error, BaseException):
        return type(error).__name__, _truncated(_message(error), redacts)
    if not isinstance(error, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidItem(f"error {shown(error)}: expected an exception or a text")
    return "", _truncated(error, redacts)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as fault:  # noqa: BLE001  the failure is recorded whatever its `__str__` does
        return f"({type(fault).__name__} when it was asked for its words)"


def _truncated(text: str, redacts: bool) -> str:
    if redacts:
        text = redacted(text[:_LONGEST_READ])
    shown = text if len(text) <= _LONGEST_ERROR else f"{text[:_LONGEST_ERROR]}…"
    return shown.encode(errors="backslashreplace").decode()


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
