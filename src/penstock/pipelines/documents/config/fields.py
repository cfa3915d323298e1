"""Fields of a file and the environment into a validated model, with all mistakes.

Generic: the fields are those of the model, foreign names those of `ForeignNames`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, cast, get_args, get_origin, get_type_hints

import msgspec

from penstock.errors.base import shown
from penstock.runtime.logs import cleaned
from penstock.settings.reading import dotted, expected

__all__ = ["ConfigFields", "ForeignNames", "RawValue", "names_of", "words_for"]

HIDDEN: Final = "…"
_SECRETS = frozenset({"api_key", "api_key_env", "password"})
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class ForeignNames:
    """Fields of other programs' files: ignored ones, and foreign names of Penstock's."""

    ignored: frozenset[str] = frozenset()
    names: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class RawValue:
    """A value, with the name that its author wrote."""

    written: str
    value: Any
    lax: bool = False
    """Whether a text may be a number, as in environment variables."""


class ConfigFields:
    """Given fields of a model, and the mistakes so far."""

    def __init__(self, model: type[msgspec.Struct], foreign: ForeignNames) -> None:
        self.problems: list[str] = []
        self.given: dict[str, RawValue] = {}
        """By dotted name; foreign names are translated."""
        self._model, self._foreign = model, foreign
        self._wrong: set[str] = set()

    def take(self, found: Mapping[str, Any]) -> None:
        """Add the content of a file."""
        sections = _sections(self._model)
        for name, value in found.items():
            if name in self._foreign.ignored:
                continue
            if name not in sections:
                self._take_one(name, value)
            elif isinstance(value, dict):
                for key, entry in cast("dict[str, Any]", value).items():
                    self._take_one(dotted(name, key), entry)
            elif value is not None:
                self.mistake(name, f"{name} = {shown(value)}: expected fields of its own")

    def override(self, name: str, variable: str, text: str) -> None:
        """Replace the value in the file by that of an environment variable."""
        self.given[name] = RawValue(variable, text, lax=True)

    def resolve(self, environ: Mapping[str, str]) -> None:
        """Replace texts like `${QDRANT_API_KEY}` by the values of variables."""
        for name, given in list(self.given.items()):
            match = _VARIABLE.fullmatch(given.value) if isinstance(given.value, str) else None
            if match is None:
                continue
            if match[1] in environ:
                self.given[name] = RawValue(given.written, environ[match[1]], lax=True)
            else:
                self.wrong(name, "the environment variable to be set")

    def build(self) -> dict[str, Any]:
        """Valid values, converted: fields, and sections of fields."""
        sections = _sections(self._model)
        made: dict[str, Any] = {name: {} for name in sections}
        for name, kind in names_of(self._model).items():
            if (given := self.given.get(name)) is None or name in self._wrong:
                continue
            try:
                value = msgspec.convert(given.value, kind, strict=not given.lax)
            except msgspec.ValidationError:
                self.wrong(name, words_for(kind))
                continue
            section, _, key = name.rpartition(".")
            (made[section] if section else made)[key] = value
        return {name: sections[name](**value) if name in sections else value
                for name, value in made.items()}  # fmt: skip

    def right(self, *names: str) -> bool:
        """Whether these fields have no mistakes."""
        return self._wrong.isdisjoint(names)

    def written(self, name: str) -> str:
        """Name of a field as its author wrote it."""
        given = self.given.get(name)
        return given.written if given else name

    def wrong(self, name: str, expected: str, value: object = None) -> None:
        """Note a mistake: `chunking.overlap = 600: expected less than chunking.size (512)`."""
        given = self.given.get(name)
        if value is None and given is not None:
            value = given.value
        by_default = "" if given else " (by default)"
        text = f"{self.written(name)} = {_spelled(name, value)}{by_default}: expected {expected}"
        self.mistake(name, text)

    def mistake(self, name: str, text: str) -> None:
        self._wrong.add(name)
        self.problems.append(text)

    def _take_one(self, written: str, value: Any) -> None:
        name = self._foreign.names.get(written, written)
        if value is None or written in self._foreign.ignored:
            return  # `name:` without a value sets nothing
        if name not in names_of(self._model):
            # Without its value, which may be a password under a misspelled name.
            self.mistake(written, f"{written}: unknown{self._hint(written)}")
        elif (before := self.given.get(name)) is not None:
            self.mistake(name, f"{written}: the same as {before.written}; expected one of them")
        else:
            self.given[name] = RawValue(written, value)

    def _hint(self, written: str) -> str:
        section, _, key = written.rpartition(".")
        ours = [*names_of(self._model), *_sections(self._model)]
        known = _within(section, [*ours, *self._foreign.ignored, *self._foreign.names])
        if close := difflib.get_close_matches(key, known, n=1):
            return f"; did you mean {dotted(section, close[0])}?"
        return f"; there are {', '.join(dotted(section, name) for name in _within(section, ours))}"


def names_of(model: type[msgspec.Struct]) -> dict[str, Any]:
    """Types of all fields by dotted name."""
    names: dict[str, Any] = {}
    for name, kind in _kinds(model).items():
        if name in _sections(model):
            names |= {dotted(name, key): each for key, each in _kinds(kind).items()}
        else:
            names[name] = kind
    return names


def words_for(kind: Any) -> str:
    """Description of a field's values: `a whole number from 64 to 4096`."""
    if get_origin(kind) is tuple:
        return "a list of texts"
    options = [option for option in get_args(kind) if option is not type(None)]
    if type(None) in get_args(kind):
        return words_for(options[0])
    if any(getattr(option, "pattern", None) for option in options):
        return "1 to 64 letters, digits or _"
    return expected(kind)


def _within(section: str, names: Iterable[str]) -> list[str]:
    parts = (name.rpartition(".") for name in names)
    return [key for parent, _, key in parts if parent == section]


def _spelled(name: str, value: object) -> str:
    if name.rpartition(".")[2] in _SECRETS:
        return HIDDEN
    return cleaned(shown(value))


@cache
def _kinds(model: type[msgspec.Struct]) -> dict[str, Any]:
    hints = get_type_hints(model, include_extras=True)
    return {name: hints[name] for name in model.__struct_fields__}


@cache
def _sections(model: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct]]:
    return {
        name: kind
        for name, kind in _kinds(model).items()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    }
