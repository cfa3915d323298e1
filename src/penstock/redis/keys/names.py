"""Names that people choose are checked; identifiers that come from elsewhere are encoded.

Either way nothing from outside can put a separator, a brace, a pattern character, a blank or a
control character into a key.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from typing import Final
from urllib.parse import unquote

from penstock.errors import InvalidName

__all__ = [
    "HOUR",
    "ID",
    "MAX_ID",
    "MAX_NAME",
    "NAME",
    "NUMBER",
    "QUEUE_WORD",
    "check_hour",
    "check_name",
    "check_number",
    "check_queue",
    "decode_id",
    "encode_id",
]

MAX_NAME: Final = 128
MAX_ID: Final = 512

NAME: Final = rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{MAX_NAME - 1}}}"
ID: Final = r"(?:[A-Za-z0-9_.+@=-]|%[0-9A-F]{2})+"
NUMBER: Final = r"(?:0|[1-9][0-9]*)"
HOUR: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}_[0-9]{2}"

QUEUE_WORD: Final = "queue"
"""Last part of every queue name that has colons."""

_NOTHING: Final[frozenset[str]] = frozenset()
_RULE = f"1 to {MAX_NAME} of the letters A-Z and a-z, digits, '_', '.' and '-'"

_is_name = re.compile(NAME).fullmatch
_is_hour = re.compile(HOUR).fullmatch
_is_safe_id = re.compile(r"[A-Za-z0-9_.+@=-]+").fullmatch
_unsafe = re.compile(r"[^A-Za-z0-9_.+@=-]")
_forbidden = re.compile(r"[^A-Za-z0-9_.-]")

_WHY_NOT = {
    ":": "separates the parts of a key",
    "{": "decides where a key lives on a cluster",
    "}": "decides where a key lives on a cluster",
    "*": "is a pattern when keys are searched",
    "?": "is a pattern when keys are searched",
    "[": "is a pattern when keys are searched",
    "]": "is a pattern when keys are searched",
    "/": "reads as a path",
    "\\": "reads as a path",
    "%": "marks encoded characters",
}


def check_name(kind: str, name: str, reserved: AbstractSet[str] = _NOTHING) -> str:
    """Return a topic, group or similar name unchanged, or raise `InvalidName` with the remedy."""
    if isinstance(name, str) and _is_name(name) and name not in reserved:  # pyright: ignore[reportUnnecessaryIsInstance]
        return name
    raise InvalidName(kind, name, _reason(kind, name, reserved))


def check_queue(name: str, reserved: AbstractSet[str], inner: AbstractSet[str]) -> str:
    """Return a queue's name unchanged, or raise `InvalidName` with the remedy.

    It is one plain name, or several joined by colons of which the last is `queue`, as in
    `rag:ingest:queue`. Without that rule `mail:bulk` would be both a queue and the lane `bulk` of
    the queue `mail`. `reserved` words may not come first, `inner` words not before the last colon.
    """
    if not isinstance(name, str) or ":" not in name:  # pyright: ignore[reportUnnecessaryIsInstance]
        return check_name("queue", name, reserved)
    *area, last = name.split(":")
    if (
        last == QUEUE_WORD
        and len(name) <= MAX_NAME
        and area[0] not in reserved
        and inner.isdisjoint(area)
        and all(map(_is_name, area))
    ):
        return name
    raise InvalidName("queue", name, _queue_reason(name, reserved, inner))


def check_number(kind: str, number: int) -> int:
    """Return a partition or part number unchanged, or raise `InvalidName`."""
    if type(number) is int and number >= 0:  # not isinstance: True is no partition
        return number
    raise InvalidName(kind, number, "must be a whole number from 0 on, given as an int")


def check_hour(hour: str) -> str:
    """Return an hour such as `2024-09-17_14` (UTC) unchanged, or raise `InvalidName`."""
    if isinstance(hour, str) and _is_hour(hour):  # pyright: ignore[reportUnnecessaryIsInstance]
        return hour
    raise InvalidName("hour", hour, "must look like '2024-09-17_14' (UTC)")


def encode_id(kind: str, value: str, taken: AbstractSet[str] = _NOTHING) -> str:
    """Spell an identifier as it stands in a key: unchanged if safe, else percent-encoded.

    Different identifiers stay different, and `decode_id` gives back the original. One that equals
    a word `taken` by another key has its first character encoded.
    """
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidName(kind, value, f"must be text (a str), not {type(value).__name__}")
    if _is_safe_id(value) and len(value) <= MAX_ID:
        return f"%{ord(value[0]):02X}{value[1:]}" if value in taken else value
    if not value:
        raise InvalidName(kind, value, "is empty")
    if len(value) > MAX_ID:
        raise InvalidName(
            kind, value, f"has {len(value)} characters, at most {MAX_ID} fit; use its hash instead"
        )
    return _unsafe.sub(_percent, value)


def decode_id(encoded: str) -> str:
    """Give back what `encode_id` was given."""
    try:
        return unquote(encoded, errors="surrogatepass")
    except UnicodeDecodeError:
        return unquote(encoded)  # nothing that `encode_id` has written


def _percent(found: re.Match[str]) -> str:
    # surrogatepass: even text that is not valid Unicode has exactly one encoding
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))


def _reason(kind: str, name: object, reserved: AbstractSet[str]) -> str:
    """Say what is wrong with a refused name, and what to write instead."""
    if not isinstance(name, str):
        return f"must be text (a str), not {type(name).__name__}"
    if not name or name.isspace() or len(name) > MAX_NAME:
        fault = (
            f"has {len(name)} characters" if name.strip() else "is blank" if name else "is empty"
        )
        return f"{fault}; write {_RULE}"
    if name in reserved:
        return f"is reserved for other keys; write '{name}-{kind}' or the like"
    found = _forbidden.search(name)
    if found:
        return f"contains {_complaint(found[0])}; {_suggestion(kind, name, reserved)}"
    start = "a command-line option" if name[0] == "-" else "a hidden file"
    return f"starts with {name[0]!r}, which reads as {start}; {_suggestion(kind, name, reserved)}"


def _queue_reason(name: str, reserved: AbstractSet[str], inner: AbstractSet[str]) -> str:
    """Say what is wrong with a refused queue name that has colons."""
    *area, last = name.split(":")
    if len(name) > MAX_NAME:
        return _reason("queue", name, _NOTHING)
    if not all((*area, last)):
        return "has nothing before, between or after its colons"
    if area[0] in reserved:
        return f"its part {area[0]!r} {_reason('queue', area[0], reserved)}"
    for part in (*area, last):
        if not _is_name(part):
            return f"its part {part!r} {_reason('queue', part, _NOTHING)}"
    if last != QUEUE_WORD:
        dotted = ".".join((*area, last))
        longer = name if inner.isdisjoint((*area, last)) else dotted
        return (
            f"a name with colons must end in ':{QUEUE_WORD}', because '<queue>:<lane>' is a lane; "
            f"write {dotted!r} or '{longer}:{QUEUE_WORD}'"
        )
    part = next(part for part in area if part in inner)
    return f"its part {part!r} has a meaning of its own in keys; write another word"


def _complaint(character: str) -> str:
    if character in _WHY_NOT:
        return f"{character!r}, which {_WHY_NOT[character]}"
    if not character.isascii():
        return f"U+{ord(character):04X}, which is not ASCII and may look like another character"
    if character.isspace():
        return "a blank" if character == " " else f"the control character {character!r}"
    if not character.isprintable():
        return f"the control character {character!r}"
    return f"{character!r}, which is not allowed"


def _suggestion(kind: str, name: str, reserved: AbstractSet[str]) -> str:
    better = _forbidden.sub("-", name.replace(":", ".")).strip("-.")
    if better in reserved:
        better = f"{better}-{kind}"
    return f"write {better!r}" if better else f"write {_RULE}"
