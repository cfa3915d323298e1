"""The signals that ask a process to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, ClassVar, Self

__all__ = ["STOP_SIGNALS", "StopSignals", "exit_code_of"]

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""SIGHUP is left alone: it means "reload" to some and "the terminal is gone" to others."""


def exit_code_of(number: int) -> int:
    """What a shell reports of a process that a signal has ended: 130 for SIGINT."""
    return 128 + number


class StopSignals:
    """Within `with`, SIGTERM and SIGINT call `on_signal(number, count)`; then all is as before.

    `count` is 1 for the first signal. The call comes in the main thread between two bytecodes, so
    it also comes while a handler blocks the event loop (the loop's own signal handlers would not);
    it may do no more than pass the signal on. Outside the main thread, where
    Python allows no handlers, nothing is installed; a handler that is not Python's is left alone,
    because it could not be put back.
    """

    _installed: ClassVar[int] = 0

    def __init__(self, on_signal: Callable[[int, int], None]) -> None:
        self._on_signal = on_signal
        self._count = 0
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                previous = signal.getsignal(number)
                if previous is not None:
                    self._previous[number] = previous
                    signal.signal(number, self._received)
            StopSignals._installed += signal.SIGINT in self._previous
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        StopSignals._installed -= signal.SIGINT in self._previous
        self._previous.clear()

    @classmethod
    def installed(cls) -> bool:
        """Whether Ctrl-C comes here: then a KeyboardInterrupt was raised by other code."""
        return cls._installed > 0

    def _received(self, number: int, _frame: FrameType | None) -> None:
        self._count += 1
        self._on_signal(number, self._count)
