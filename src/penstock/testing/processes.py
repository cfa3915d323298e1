"""Which processes live, and how to freeze one. For tests on Linux: it reads /proc."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from penstock.testing.servers import wait_until

__all__ = ["all_gone", "frozen", "is_alive", "processes_in"]


def is_alive(pid: int) -> bool:
    """Whether a process runs; False for a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}


def processes_in(folder: Path, program: str = "") -> set[int]:
    """Ids of the living processes whose working directory is `folder`.

    With `program`, only those whose executable's name begins so: `valkey-server`, `python`.
    """
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            place = str((entry / "cwd").readlink()).removesuffix(" (deleted)")
            name = (entry / "exe").readlink().name
        except OSError:
            continue  # it has ended, or belongs to another user
        if place == str(folder.resolve()) and name.startswith(program):
            found.add(int(entry.name))
    return found


def all_gone(folder: Path, within_s: float = 3.0) -> bool:
    """Wait until no process has `folder` as its working directory; TimeoutError otherwise."""
    wait_until(lambda: not processes_in(folder), what=f"the end in {folder}", timeout_s=within_s)
    return True


@contextmanager
def frozen(pid: int) -> Generator[None]:
    """Let a process stand still within the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
