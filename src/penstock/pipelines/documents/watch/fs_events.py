"""File system events of folders: a thread that wakes the event loop on changes."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from watchfiles import Change, DefaultFilter, watch

from penstock.throttled_log import RateLimitedLog

__all__ = ["FileSystemEvents"]

DEBOUNCE_MS: Final = 200
"""Events within this time are delivered together."""
STEP_MS: Final = 50
"""Interval at which the thread checks whether it should end."""
SILENCE_MS: Final = 200
"""Time without events after which listening is known to have begun."""
POLL_MS: Final = 1_000
"""Polling interval for file systems without events."""


class FileSystemEvents:
    """Calls `woken(gone)` in the event loop after a change in one of the folders.

    `gone` has the paths that were removed, and may exist again. Events can be lost (network file
    systems send none, the kernel's queue can overflow), so callers must rescan as well. `woken` is
    also called when listening has begun, as there are no events for earlier changes.

    Changes below folders called `ignored` are dropped.

    If the kernel's limit of watches is reached the folders are polled every second; if that fails
    too, a warning is logged and no events are sent.

    The thread is not one of `awatch`'s: that one would outlive its user.
    """

    def __init__(
        self,
        folders: frozenset[Path],
        woken: Callable[[frozenset[str]], None],
        *,
        ignored: str,
        quiet: RateLimitedLog,
    ) -> None:
        self._folders, self._woken, self._quiet = folders, woken, quiet
        self._filter = DefaultFilter(
            ignore_dirs=[ignored], ignore_entity_patterns=[], ignore_paths=[]
        )
        _quieten()
        self._loop = asyncio.get_running_loop()
        self._end = threading.Event()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._listen, name="penstock fs events", daemon=True)
        self._thread.start()

    def ask_to_end(self) -> None:
        """Ask the thread to end, without waiting."""
        self._end.set()

    async def close(self) -> None:
        """Return when the thread has ended, which takes `STEP_MS` at most."""
        self._end.set()
        await self._ended.wait()
        self._thread.join()

    def join(self) -> None:
        """As `close`, blocking, for a cancelled task that cannot await."""
        self._end.set()
        self._thread.join()

    def _listen(self) -> None:
        try:
            if not self._hear(polling=None):
                self._hear(polling=True)
        finally:
            self._tell(self._ended.set)

    def _hear(self, *, polling: bool | None) -> bool:
        """Listen until the end; False if listening fails."""
        begun = False
        try:
            for changes in watch(
                *self._folders,
                watch_filter=self._filter,
                debounce=DEBOUNCE_MS,
                step=STEP_MS,
                rust_timeout=SILENCE_MS,
                yield_on_timeout=True,
                stop_event=self._end,
                raise_interrupt=False,
                force_polling=polling,
                poll_delay_ms=POLL_MS,
                ignore_permission_denied=True,
            ):
                if changes or not begun:
                    gone = frozenset(path for what, path in changes if what is Change.deleted)
                    self._tell(self._woken, gone)
                begun = True
        except Exception as error:  # noqa: BLE001  OSError, or its own for what notify could not do
            if not self._end.is_set():
                how = "folders are only rescanned" if polling else "polling instead"
                self._quiet.warning("events", "no file system events, %s: %s", how, error)
            return False
        return True

    def _tell(self, call: Callable[..., object], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # the loop has been closed
            logging.getLogger(__name__).debug("the event loop is closed")
            self._end.set()


def _quieten() -> None:
    """Keep the library from logging each change, unless its level was set."""
    log = logging.getLogger("watchfiles")
    if log.level == logging.NOTSET:
        log.setLevel(logging.WARNING)
