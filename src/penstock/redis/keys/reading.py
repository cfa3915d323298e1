"""From a stored key back to its family and the arguments it was built from."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from penstock.redis.keys import names
from penstock.redis.keys.contract import AREA_WORDS, FAMILIES, RESERVED
from penstock.redis.keys.family import Family
from penstock.redis.keys.queues import PRIORITIES

__all__ = ["KeyRead", "classify", "read_key"]


@dataclass(frozen=True, slots=True)
class KeyRead:
    """What a key's name says."""

    family: Family
    arguments: dict[str, str]
    """By the names in the family's pattern; identifiers as they were before they were encoded."""


def classify(key: str | bytes, namespace: str = "") -> Family | None:
    """Family of a key in either layout; None if it is not one of ours in this namespace.

    The name alone decides. A queue's jobs wait under its plain name, so without a namespace any
    foreign `word` or `word:other` reads as a queue or a lane: compare the type as well.
    """
    found = read_key(key, namespace)
    return found and found.family


def read_key(key: str | bytes, namespace: str = "") -> KeyRead | None:
    """Family and arguments of a key in either layout; None as for `classify`."""
    if isinstance(key, bytes):
        try:
            key = key.decode("utf-8")
        except UnicodeDecodeError:
            return None
    root = f"{namespace}:" if namespace else ""
    if not key.startswith(root):
        return None
    key = key.removeprefix(root)
    readers = _readers()
    for family, reader in readers.get(key.partition(":")[0], readers[""]):
        found = reader.fullmatch(key)
        if found:
            return KeyRead(family, dict(_argument(*item) for item in found.groupdict().items()))
    return None


def _any_but(words: Iterable[str]) -> str:
    """Look ahead: the part of a key that begins here is none of these words."""
    return rf"(?!(?:{'|'.join(sorted(words))})(?:[:}}]|\Z))"


_AREA_PART = f"{_any_but(AREA_WORDS)}{names.NAME}"
_AREA = f"{_any_but(RESERVED['queue'])}{_AREA_PART}(?::{_AREA_PART})*"
_ARGUMENTS = {
    "area": _AREA,
    "beside": r"(?:[A-Za-z0-9_.:-]|%[0-9A-F]{2})+",
    "chunk": names.NUMBER,
    "epoch": names.NUMBER,
    "group": names.NAME,
    "hour": names.HOUR,
    "index": names.NUMBER,
    "lane": f"{_any_but({*PRIORITIES, names.QUEUE_WORD})}{names.ID}",
    "name": names.NAME,
    "priority": "|".join(PRIORITIES),
    "queue": f"{_AREA}:{names.QUEUE_WORD}|{_any_but(RESERVED['queue'])}{names.NAME}",
    "topic": f"{_any_but(RESERVED['topic'])}{names.NAME}",
}
"""Spelling of the arguments that are not just any encoded identifier."""


def _argument(name: str, text: str) -> tuple[str, str]:
    if name == "area":
        return "queue", f"{text}:{names.QUEUE_WORD}"
    return name, names.decode_id(text)  # a checked name has no '%', so it stays as it is


@cache
def _readers() -> dict[str, list[tuple[Family, re.Pattern[str]]]]:
    """All patterns by their first word, '' for an argument; made when first needed."""
    readers: dict[str, list[tuple[Family, re.Pattern[str]]]] = {}
    for family in FAMILIES:
        for pattern in family.patterns:
            first = pattern.partition(":")[0]
            word = "" if "<" in first else first
            readers.setdefault(word, []).append((family, _reader(pattern)))
    return readers


def _reader(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"<(\w+)>", pattern)  # text and arguments in turn
    return re.compile(
        "".join(
            f"(?P<{part}>{_ARGUMENTS.get(part, names.ID)})" if position % 2 else re.escape(part)
            for position, part in enumerate(parts)
        )
    )
