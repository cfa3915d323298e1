"""How a loop shows that it is alive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

__all__ = ["Progress", "Waiting"]


class Progress:
    """One life of one loop, as its watchdog sees it. The loop beats; the watchdog looks.

        async def consume(progress: Progress) -> None:
            while not progress.stopping:
                chunk = await read(block_s=poll_s)     # returns within a poll, empty or not
                progress.beat()
                if slots.full:
                    with progress.waiting("a free slot", lambda: slots.full):
                        await slots.freed()            # minutes or hours: nothing is frozen
                slots.take(chunk)

    Liveness is that of the read loop, not of the handlers it feeds: a handler may run for as long
    as it likes, in a slot or awaited in place, provided that the loop says it is waiting.
    """

    __slots__ = ("beats", "excused", "stop_asked")

    def __init__(self, stop_asked: asyncio.Event) -> None:
        self.beats = 0
        self.stop_asked = stop_asked
        """Set when the loop is to end; a loop whose reads are long waits for it beside them."""
        self.excused: Waiting | None = None
        """Set by `waiting`."""

    @property
    def stopping(self) -> bool:
        """Whether the loop is to end."""
        return self.stop_asked.is_set()

    def beat(self) -> None:
        """Say "I have polled". No clock, no lock: the hot loop calls it for every chunk."""
        self.beats += 1

    def waiting(self, reason: str, still: Callable[[], bool] | None = None) -> Waiting:
        """Be silent on purpose within a `with` block; `reason` says what for.

        If the loop can tell from outside whether it still has to wait (no slot is free), it hands
        that in as `still`, a cheap function: once it answers False the excuse is over, and a loop
        that has missed its wake-up is found like any other frozen one.
        """
        return Waiting(self, reason, still)

    @property
    def excuse(self) -> str | None:
        """What the loop waits for, if it does and still has to."""
        excused = self.excused
        if excused is None or (excused.still is not None and not excused.still()):
            return None
        return excused.reason


class Waiting:
    """Silence with a reason; made by `Progress.waiting`."""

    __slots__ = ("_outer", "_progress", "reason", "still")

    def __init__(self, progress: Progress, reason: str, still: Callable[[], bool] | None) -> None:
        self._progress, self.reason, self.still = progress, reason, still
        self._outer: Waiting | None = None

    def __enter__(self) -> None:
        self._outer, self._progress.excused = self._progress.excused, self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.excused = self._outer
        self._progress.beat()
