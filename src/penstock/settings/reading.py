"""Read values of settings from the environment, and validate them by their types.

Knows no setting: names and types come from the class that is passed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import Meta

from penstock.errors import SettingError
from penstock.redaction import HIDDEN

__all__ = [
    "CONFIG_VARIABLE",
    "SECRET",
    "checked",
    "dotted",
    "expected",
    "from_environment",
    "groups_of",
    "is_secret",
    "kinds_of",
    "names_of",
    "suggestion",
    "variable_of",
]

ENVIRONMENT_PREFIX = "PENSTOCK_"
CONFIG_VARIABLE = "PENSTOCK_CONFIG"
SECRET = Meta(extra={"secret": True})
"""Marks a type whose values no error, `repr` or log line shows."""


def from_environment(
    environ: Mapping[str, str], settings: type, foreign: Mapping[str, str]
) -> dict[str, object]:
    """Values of the variables that begin with our prefix, by dotted names.

    `foreign` variables have other names, and count where ours are not set.
    """
    by_variable = {variable_of(name): name for name in names_of(settings)}
    values: dict[str, object] = {
        name: environ[variable] for variable, name in foreign.items() if variable in environ
    }
    for variable, value in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        if variable not in by_variable:
            raise SettingError(
                variable, "…", "a known PENSTOCK_ variable" + _close_match(variable, by_variable)
            )
        values[by_variable[variable]] = value
    return values


def checked(name: str, value: object, kind: Any) -> object:
    """The value converted to its type, or `SettingError`. Numbers may be given as text."""
    try:
        return msgspec.convert(value, kind, strict=not isinstance(value, str))
    except msgspec.ValidationError:
        shown = HIDDEN if is_secret(kind) else value
        raise SettingError(name, shown, expected(kind)) from None


def expected(kind: Any) -> str:
    """Describe what a type allows: `a whole number from 1 to 10000`."""
    options = [option for option in get_args(kind) if option is not type(None)]
    if len(options) == 1:  # Secret | None
        return expected(options[0])
    if options and all(isinstance(option, str) for option in options):
        return "one of " + ", ".join(options)
    words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    base, *metas = options or [kind]
    text = words.get(base, str(base))
    for meta in metas:
        if isinstance(meta, Meta):
            text += "".join(
                f" {word} {bound}"
                for word, bound in (
                    ("from", meta.ge), ("above", meta.gt), ("to", meta.le), ("like", meta.pattern)
                )
                if bound is not None
            )  # fmt: skip
    return text


def is_secret(kind: Any) -> bool:
    """Whether values of this type are secrets."""
    return any(part is SECRET or is_secret(part) for part in get_args(kind))


def suggestion(name: str, known: Iterable[str]) -> str:
    """The expectation of an error about an unknown name, with the closest known one."""
    return "a known setting" + _close_match(name, known)


def _close_match(name: str, known: Iterable[str]) -> str:
    import difflib  # noqa: PLC0415  only for an error

    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def dotted(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name


def variable_of(name: str) -> str:
    """The environment's name for a setting: `PENSTOCK_POOLS_CACHE` for `pools.cache`."""
    return ENVIRONMENT_PREFIX + name.replace(".", "_").upper()


@cache
def kinds_of(group: type) -> dict[str, Any]:
    """The members of a group by their names, with their types and ranges."""
    hints = get_type_hints(group, include_extras=True)
    return {item.name: hints[item.name] for item in fields(group)}


@cache
def groups_of(settings: type) -> dict[str, Any]:
    """The groups within all settings, by their sections."""
    return {name: kind for name, kind in kinds_of(settings).items() if is_dataclass(kind)}


@cache
def names_of(settings: type) -> dict[str, Any]:
    """Every setting by its dotted name, with its type."""
    groups = groups_of(settings)
    names = {name: kind for name, kind in kinds_of(settings).items() if name not in groups}
    for section, group in groups.items():
        names |= {dotted(section, name): kind for name, kind in kinds_of(group).items()}
    return names
