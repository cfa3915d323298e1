"""What the file system tells by itself about folders: a thread that listens, and only wakes."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from watchfiles import Change, watch

from penstock.quiet import RateLimitedLog

__all__ = ["Signs"]

DEBOUNCE_MS: Final = 200
"""Signs of this long come together."""
STEP_MS: Final = 50
"""How often the thread looks whether it is to end."""
SILENCE_MS: Final = 200
"""After this long without a sign it is known that listening has begun."""
POLL_MS: Final = 1_000
"""How often a file system that tells nothing is looked through."""


class Signs:
    """Calls `woken(gone)` in the event loop after something happened in one of the folders.

    `gone` has the paths that were taken away, and may be there again. Nothing may rely on signs
    alone: a network file system tells nothing, a full queue of the kernel forgets. `woken` is also
    called when listening has begun, as what came before is not told.

    Where the kernel cannot listen (its limit of watches is reached) the folders are compared every
    second instead; if even that fails, it says so and stays silent.

    The thread is its own, not one of `awatch`'s: that one would outlive whoever used it.
    """

    def __init__(
        self,
        folders: frozenset[Path],
        woken: Callable[[frozenset[str]], None],
        *,
        quiet: RateLimitedLog,
    ) -> None:
        self._folders, self._woken, self._quiet = folders, woken, quiet
        _quieten()
        self._loop = asyncio.get_running_loop()
        self._end = threading.Event()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._listen, name="penstock signs", daemon=True)
        self._thread.start()

    def ask_to_end(self) -> None:
        """Only asks; `close()` waits."""
        self._end.set()

    async def close(self) -> None:
        """Return when the thread has ended, which takes `STEP_MS` at most."""
        self._end.set()
        await self._ended.wait()
        self._thread.join()  # it has said its last word

    def join(self) -> None:
        """The same, for whoever has been cancelled and cannot wait in the loop."""
        self._end.set()
        self._thread.join()

    def _listen(self) -> None:
        try:
            if not self._hear(polling=None):
                self._hear(polling=True)
        finally:
            self._tell(self._ended.set)

    def _hear(self, *, polling: bool | None) -> bool:
        """Listen until the end; False if that does not work (any more)."""
        begun = False
        try:
            for changes in watch(
                *self._folders,
                watch_filter=None,
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
                how = "folders are looked through now and then" if polling else "comparing instead"
                self._quiet.warning(
                    "signs", "the file system does not tell of new files, %s: %s", how, error
                )
            return False
        return True

    def _tell(self, call: Callable[..., object], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # the loop has been closed
            logging.getLogger(__name__).debug("nobody listens any more")
            self._end.set()


def _quieten() -> None:
    """Let the library not tell of each change, unless somebody has asked it to."""
    log = logging.getLogger("watchfiles")
    if log.level == logging.NOTSET:
        log.setLevel(logging.WARNING)
