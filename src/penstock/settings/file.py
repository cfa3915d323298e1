"""The TOML file with settings: which one counts, and who may have written it.

A file that was named is the choice of who starts the program. One that merely lies in the working
directory may have been put there, or come with a copied folder: it counts only if no other
user could have written it, and no password from elsewhere is sent to an address of it.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from penstock.errors import ConfigError
from penstock.settings.reading import dotted, is_secret

__all__ = ["CONFIG_FILE", "ConfigFile", "read_file"]

logger = logging.getLogger("penstock.settings")

CONFIG_FILE: Final = "penstock.toml"
_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_SENT_TO: Final = {
    "url": ("password", "password_file", "sentinel_password"),
    "vectors.url": ("vectors.api_key",),
}
"""Secrets that are sent to the server of an address."""

_noted: set[str] = set()


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file as it was read: values by dotted names."""

    path: Path
    is_named: bool
    mode: int
    values: Mapping[str, object]

    def check_secrets(self, known: Mapping[str, Any]) -> None:
        """Refuse a file with secrets that others can write; warn of one that others can read."""
        found = [name for name, value in self.values.items() if _has_secret(name, value, known)]
        if not found:
            return
        what = f"configuration file {self.path} has secrets ({', '.join(found)})"
        mend = f"chmod 600 {self.path}"
        if self.mode & stat.S_IWOTH:
            raise ConfigError(f"{what} and every user can write it: {mend}")
        if self.mode & stat.S_IROTH:
            _note(logging.WARNING, f"{what} and every user can read it: {mend}")

    def check_addresses(self, elsewhere: Iterable[str]) -> None:
        """Refuse to send a secret from `elsewhere` to an address of an unnamed file."""
        if self.is_named:
            return
        given = frozenset(elsewhere)
        outside = {"password_file"} if self._has_password_outside() else set[str]()
        for address, secrets in _SENT_TO.items():
            stored = [name for name in secrets if name in given | outside]
            if stored and address not in given and self.values.get(address):
                raise ConfigError(
                    f"{stored[0]} is not sent to the {address} of {self.path}, a file that was "
                    f"found and not named: set {address} by an argument or the environment, or "
                    f"name the file with --config or PENSTOCK_CONFIG"
                )

    def _has_password_outside(self) -> bool:
        """Whether its `password_file` is in another folder: it could be any file of the user."""
        folder = self.path.parent.resolve()
        file = folder / str(self.values.get("password_file", ""))
        return not file.resolve().is_relative_to(folder)


def read_file(named: str | Path | None) -> ConfigFile | None:
    """Read the file that was named, else that of the working directory, if there is one."""
    if named is None and not os.path.lexists(CONFIG_FILE):
        return None
    import tomllib  # noqa: PLC0415  most programs have no such file

    path = Path(named or Path(CONFIG_FILE).absolute())
    try:
        with open(path, "rb", opener=_opener if named is None else None) as stream:
            status = os.fstat(stream.fileno())
            if named is None:
                _check_owner(path, status)
            document = tomllib.loads(stream.read().decode())
    except OSError as error:
        raise ConfigError(f"configuration file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path}: not valid TOML: {error}") from None
    if named is None:
        _note(logging.INFO, f"settings come from {path}, the file of the working directory")
    return ConfigFile(path, named is not None, status.st_mode, _by_dotted_names(document))


def _opener(path: str, flags: int) -> int:
    """Does not wait for the other end of a FIFO, which anybody could have put there."""
    return os.open(path, flags | os.O_NONBLOCK)


def _by_dotted_names(document: Mapping[str, object]) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, value in document.items():
        if isinstance(value, dict):
            table = cast("dict[str, object]", value)
            values |= {dotted(name, key): entry for key, entry in table.items()}
        else:
            values[name] = value
    return values


def _check_owner(path: Path, status: os.stat_result) -> None:
    """Refuse a file that another user has written, could have written or exchanged."""
    ours = {os.geteuid(), 0}
    folders = dict.fromkeys((path.parent, path.resolve().parent))
    for place, found in ((path, status), *((folder, folder.stat()) for folder in folders)):
        if found.st_uid not in ours:
            problem, mend = f"{place} belongs to another user (uid {found.st_uid})", ""
        elif found.st_mode & _BY_OTHERS:
            problem, mend = f"other users can write {place}", f": chmod go-w {place}, or"
        else:
            continue
        raise ConfigError(
            f"configuration file {path} is not used, because {problem}{mend or '; if it is meant,'}"
            f" name it with --config or PENSTOCK_CONFIG"
        )


def _has_secret(name: str, value: object, known: Mapping[str, Any]) -> bool:
    if not is_secret(known.get(name)):
        return False
    if not name.endswith("url"):
        return True
    try:
        return isinstance(value, str) and urlsplit(value).password is not None
    except ValueError:
        return "@" in str(value)


def _note(level: int, text: str) -> None:
    """Log once in a process, however often the settings are read."""
    if text not in _noted:
        _noted.add(text)
        logger.log(level, text)
