"""How long things may take in tests: longer where the machine is busy, and never for ever."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["WAIT_S", "busyness", "patient"]

WAIT_S = 60.0
"""For what has no bound of its own: reached by what hangs, not by what is slow."""


def busyness() -> float:
    """How many processes want each processor: in the last minute or now, and at least 1."""
    wanted = os.getloadavg()[0]
    with suppress(OSError):
        running, _, _ = Path("/proc/loadavg").read_text().split()[3].partition("/")
        wanted = max(wanted, float(running))
    return max(1.0, wanted / (os.cpu_count() or 1))


def patient(seconds: float) -> float:
    """What takes `seconds` at most on a machine that keeps up may take that long on this one."""
    return seconds * busyness()
