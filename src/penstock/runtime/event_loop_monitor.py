"""A thread that notices when the event loop is blocked."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Self

from penstock.runtime.stack_location import place_of_thread
from penstock.throttled_log import RateLimitedLog

__all__ = ["EventLoopMonitor"]

logger = logging.getLogger(__name__)


class EventLoopMonitor:
    """Calls into the event loop once per poll, from a daemon thread, and waits for it to answer.

    While it does not (a handler computes for long, or calls something that blocks), `blocked_s` is
    the time since and one log line names the place. What has to continue even then, such as a
    heartbeat over a connection of its own, is registered with `each_poll`: a plain function that
    the thread calls once per poll. It should return within a poll, as it delays the next check; if
    it raises, that is logged and the next poll calls it again.

    The thread lives within `async with`. Its time is the machine's: it watches real threads.
    """

    def __init__(self, poll_s: float) -> None:
        self._poll_s = poll_s
        self._each_poll: list[Callable[[], object]] = []
        self._quiet = RateLimitedLog(logger)
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._ended = asyncio.Event()
        self._thread: threading.Thread | None = None
        self._asked_at: float | None = None
        self._blocked_since: float | None = None

    @property
    def blocked_s(self) -> float:
        """How long the event loop has been blocked; 0 while it runs. From any thread."""
        since = self._blocked_since
        return 0.0 if since is None else time.monotonic() - since

    def each_poll(self, call: Callable[[], object]) -> None:
        """Have the thread call this once per poll."""
        self._each_poll.append(call)

    async def __aenter__(self) -> Self:
        self._thread = threading.Thread(
            target=self._run,
            args=(asyncio.get_running_loop(), threading.get_ident()),
            name="penstock event loop monitor",
            daemon=True,
        )
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end.set()
        # Not a bare join: a call of `each_poll` may wait for a server, the event loop must not.
        await self._ended.wait()
        if self._thread is not None:
            self._thread.join()

    def _run(self, loop: asyncio.AbstractEventLoop, loop_thread: int) -> None:
        try:
            while not self._end.wait(self._poll_s):
                self._check(loop, loop_thread)
                self._call_others()
            loop.call_soon_threadsafe(self._ended.set)
        except RuntimeError:
            # The loop was closed without leaving `async with`: nothing is left to watch.
            logger.debug("the event loop was closed under its monitor")

    def _check(self, loop: asyncio.AbstractEventLoop, loop_thread: int) -> None:
        now = time.monotonic()
        with self._lock:
            newly_blocked = self._asked_at is not None and self._blocked_since is None
            if newly_blocked:
                self._blocked_since = self._asked_at
            elif self._asked_at is None:
                self._asked_at = now
                loop.call_soon_threadsafe(self._answer)
        if newly_blocked:
            self._quiet.warning(
                "blocked",
                "event loop blocked for %.1f s at %s",
                self.blocked_s,
                place_of_thread(loop_thread),
            )

    def _answer(self) -> None:
        """Run by the event loop, as soon as it runs at all."""
        blocked_s = self.blocked_s
        with self._lock:
            self._asked_at = self._blocked_since = None
        if blocked_s:
            self._quiet.info("runs again", "event loop runs again after %.1f s", blocked_s)

    def _call_others(self) -> None:
        for call in self._each_poll:
            try:
                call()
            except Exception as error:  # noqa: BLE001  the monitor must continue
                self._quiet.warning(
                    f"each poll: {type(error).__name__}",
                    "event loop monitor: a call failed",
                    exc_info=error,
                )
