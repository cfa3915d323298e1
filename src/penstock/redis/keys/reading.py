"""From a stored key back to its family and the arguments it was built from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from penstock.redis.keys import names
from penstock.redis.keys.family import Family
from penstock.redis.keys.space import namespace_prefix

__all__ = ["KeyRead", "KeyReader", "any_but"]


@dataclass(frozen=True, slots=True)
class KeyRead:
    """What a key's name says."""

    family: Family
    arguments: dict[str, str]
    """By the names in the family's pattern; identifiers as they were before they were encoded."""


class KeyReader:
    """Recognises the keys of some families.

    `arguments` has the spelling, as a regular expression, of those that are not just any encoded
    identifier.
    """

    def __init__(self, families: Iterable[Family], arguments: Mapping[str, str]) -> None:
        self._families, self._arguments = tuple(families), arguments

    def read(self, key: str | bytes, namespace: str = "") -> KeyRead | None:
        """Family and arguments of a key in either layout; None if it is of no family."""
        if isinstance(key, bytes):
            try:
                key = key.decode("utf-8")
            except UnicodeDecodeError:
                return None
        root = namespace_prefix(namespace)
        if not key.startswith(root):
            return None
        key = key.removeprefix(root)
        for family, pattern in self.patterns.get(key.partition(":")[0], self.patterns[""]):
            match = pattern.fullmatch(key)
            if match:
                return KeyRead(family, dict(_argument(*item) for item in match.groupdict().items()))
        return None

    @cached_property
    def patterns(self) -> dict[str, list[tuple[Family, re.Pattern[str]]]]:
        """All patterns by their first word, "" for an argument; made when first needed."""
        patterns: dict[str, list[tuple[Family, re.Pattern[str]]]] = {"": []}
        for family in self._families:
            for spelling in family.patterns:
                first = spelling.partition(":")[0]
                word = "" if "<" in first else first
                patterns.setdefault(word, []).append((family, self._compiled(spelling)))
        return patterns

    def _compiled(self, spelling: str) -> re.Pattern[str]:
        parts = re.split(r"<(\w+)>", spelling)  # text and arguments in turn
        return re.compile(
            "".join(
                f"(?P<{part}>{self._arguments.get(part, names.ID)})" if at % 2 else re.escape(part)
                for at, part in enumerate(parts)
            )
        )


def any_but(words: Iterable[str]) -> str:
    """Look ahead: the part of a key that begins here is none of these words."""
    return rf"(?!(?:{'|'.join(sorted(words))})(?:[:}}]|\Z))"


def _argument(name: str, text: str) -> tuple[str, str]:
    if name == "area":
        return "queue", f"{text}:{names.QUEUE_WORD}"
    return name, names.decode_id(text)  # a checked name has no '%', so it stays as it is
