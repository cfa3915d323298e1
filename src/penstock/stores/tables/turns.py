"""Writers of one SQLite file take turns.

SQLite gives its lock to whoever asks at the right moment. A process that writes without a pause
asks again microseconds after it let go, the others ask every few milliseconds: some wait for
seconds, and one for too long. So a writer first takes its turn, a lock on a file beside the
database, and keeps it until it has SQLite's lock. Whoever has just written comes after those who
waited.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from collections.abc import Callable
from pathlib import Path

__all__ = ["Turn", "poll"]

_FIRST_PAUSE_S = 0.000_1
_LONGEST_PAUSE_S = 0.003


class Turn:
    """One writer's place among the writers of all processes. A process that dies gives it up."""

    def __init__(self, database: Path) -> None:
        place = database.with_name(f"{database.name}-turn")
        self._file: int | None = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _open.add(self)

    def take(self, deadline: float) -> bool:
        """Wait for the turn until `deadline` (monotonic); whether it came."""
        return poll(self._try, deadline)

    def pass_on(self) -> None:
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go, without giving up the turn of another process that has the same open file."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _try(self) -> bool:
        if self._file is None:
            return True
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def poll(attempt: Callable[[], bool], deadline: float) -> bool:
    """Try at least once, and again until `deadline` (monotonic); whether it succeeded."""
    pause_s = _FIRST_PAUSE_S
    while not attempt():
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
    return True


_open: weakref.WeakSet[Turn] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """A child that kept the file open would keep the turn of a parent that was killed."""
    for turn in list(_open):
        turn.close()


os.register_at_fork(after_in_child=_leave_to_parent)
