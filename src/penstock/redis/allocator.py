"""The memory allocator of the embedded server: jemalloc, where the system has it.

The wheel's Valkey is built for the allocator of the C library. With jemalloc loaded before it the
same server needs less processor time. Which one runs is read from the process itself: the server
only knows what it was built with.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

__all__ = ["allocator_of", "find_jemalloc"]

_NAME = "libjemalloc.so.2"


def find_jemalloc() -> str:
    """Path of the system's jemalloc; empty where there is none."""
    if sys.platform != "linux":
        return ""
    folders = (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64", "/usr/lib")
    for folder in (*folders, "/usr/local/lib64", "/usr/local/lib"):
        path = Path(folder) / _NAME
        if path.is_file():
            return str(path)
    return ""


def allocator_of(pid: int) -> str:
    """`jemalloc` or `libc`, as a process uses it; empty if that cannot be told."""
    try:
        mapped = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return ""
    return "jemalloc" if "libjemalloc" in mapped else "libc"
