"""Where values of settings come from, and the words for what each of them may be.

Knows no setting: what there is, is asked of the class that is handed in.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

import msgspec
from msgspec import Meta

from penstock.errors import ConfigError, SettingError

__all__ = [
    "CONFIG_VARIABLE",
    "checked",
    "dotted",
    "expected",
    "from_environment",
    "from_file",
    "groups_of",
    "kinds_of",
    "names_of",
    "suggestion",
    "variable_of",
]

ENVIRONMENT_PREFIX = "PENSTOCK_"
CONFIG_VARIABLE = "PENSTOCK_CONFIG"
CONFIG_FILE = "penstock.toml"


def from_file(path: str | Path | None) -> dict[str, object]:
    """Values of a TOML file by dotted names; without a path, of the working directory's, if any."""
    if path is None and not Path(CONFIG_FILE).is_file():
        return {}
    path = Path(path or CONFIG_FILE)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"configuration file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path}: not valid TOML: {error}") from None
    values: dict[str, object] = {}
    for name, value in document.items():
        if isinstance(value, dict):
            table = cast("dict[str, object]", value)
            values |= {dotted(name, key): entry for key, entry in table.items()}
        else:
            values[name] = value
    return values


def from_environment(
    environ: Mapping[str, str], settings: type, foreign: Mapping[str, str]
) -> dict[str, object]:
    """Values of the variables that begin with our prefix, by dotted names.

    `foreign` variables have other names, and count where ours do not say otherwise.
    """
    by_variable = {variable_of(name): name for name in names_of(settings)}
    values: dict[str, object] = {
        name: environ[variable] for variable, name in foreign.items() if variable in environ
    }
    for variable, value in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        if variable not in by_variable:
            close = difflib.get_close_matches(variable, by_variable, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise SettingError(variable, "…", f"a known PENSTOCK_ variable{hint}")
        values[by_variable[variable]] = value
    return values


def checked(name: str, value: object, kind: Any) -> object:
    """The value as its type wants it, or `SettingError`. A text may stand for a number."""
    try:
        return msgspec.convert(value, kind, strict=not isinstance(value, str))
    except msgspec.ValidationError:
        raise SettingError(name, _shown(name, value), expected(kind)) from None


def expected(kind: Any) -> str:
    """Words for what a type allows: `a whole number from 1 to 10000`."""
    options = [option for option in get_args(kind) if option is not type(None)]
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


def _shown(name: str, value: object) -> object:
    return "…" if name.endswith("password") or name == "url" else value


def suggestion(name: str, known: Iterable[str]) -> str:
    """Words for what an unknown name should have been."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return "a known setting" + (f"; did you mean {close[0]}?" if close else "")


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
