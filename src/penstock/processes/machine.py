"""What the machine has, or the container: processors and memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["memory_bytes", "processors"]

_GROUPS = Path("/sys/fs/cgroup")


def processors() -> int:
    """Processors that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes(groups: Path = _GROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """Memory of the machine, or less if the cgroup of this process has a lower limit."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_limits(groups, own)])


def _limits(groups: Path, own: Path) -> list[int]:
    """Limits of the cgroup and of those around it, of either version."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    found: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found += _above(groups, path, "memory.max")
        elif "memory" in controllers.split(","):
            found += _above(groups / "memory", path, "memory.limit_in_bytes")
    return found


def _above(root: Path, path: str, name: str) -> list[int]:
    # In a container the path may be that outside of it, and then only the root is there.
    inner = root / path.lstrip("/")
    folders = [inner, *(parent for parent in inner.parents if parent.is_relative_to(root))]
    found: list[int] = []
    for folder in folders:
        try:
            found.append(int((folder / name).read_text()))
        except (OSError, ValueError):  # "max", or no such group
            continue
    return found
