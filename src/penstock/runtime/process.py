"""Runs the process: its event loop, its exit code, and a hard end as the last resort."""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import importlib.util
import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from penstock.runtime.signals import StopSignals, exit_code_of
from penstock.runtime.stack_location import place_of_thread

__all__ = ["LastResort", "run_process", "run_to_the_end", "the_last_resort"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

CLEAN_UP_S = 0.8
"""From the end of the grace period to the hard end: cancelled tasks may still clean up on the
server, and a stop ends within a second after the grace period."""

_KEYBOARD_INTERRUPT = exit_code_of(2)

_current: contextvars.ContextVar[LastResort | None] = contextvars.ContextVar(
    "penstock_last_resort", default=None
)


def the_last_resort() -> LastResort | None:
    """The one of this process, if `run_process` owns it."""
    return _current.get()


@dataclass(frozen=True, slots=True)
class _Order:
    deadline: float
    exit_code: int

    def left_s(self) -> float | None:
        return None if self is _CALLED_OFF else max(0.0, self.deadline - time.monotonic())


_CALLED_OFF = _Order(math.inf, 0)


class LastResort:
    """Ends the process hard when an orderly end does not come in time.

    A task that swallows its cancellation, a handler that never yields, a thread that cannot
    be stopped: each can keep a Python process from ending. To lose it is safe, since other workers
    take over what it had accepted, as after `kill -9`; to wait for it is not.
    """

    def __init__(self) -> None:
        # A SimpleQueue, because `put` is called in signal handlers and this one is made for that.
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._main_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="penstock last resort", daemon=True)

    def within(self, delay_s: float, exit_code: int) -> None:
        """End the process after `delay_s` with this code, unless an earlier end is set already."""
        self._orders.put(_Order(time.monotonic() + delay_s, exit_code))

    def call_off(self) -> None:
        """The orderly end has come."""
        self._orders.put(_CALLED_OFF)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        order = _CALLED_OFF
        while True:
            try:
                new = self._orders.get(timeout=order.left_s())
            except queue.Empty:
                place = place_of_thread(self._main_thread)
                logger.critical("the process does not end, main thread at %s; ended hard", place)
                os._exit(order.exit_code)
            if new is None:
                return
            if new is _CALLED_OFF or new.deadline < order.deadline:
                order = new


def run_process(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run `main` as the purpose of this process and return its exit code.

        async def main() -> int:
            async with Penstock() as app:
                return await app.worker().run(handle_signals=True)

        sys.exit(run_process(main))

    Uses uvloop where it is installed (the extra `uvloop`). Ctrl-C before a worker has taken over
    the signals, or after it has ended, gives 130. When `main` has ended, tasks and threads of the
    default executor that are left have `CLEAN_UP_S` to end.
    """
    with LastResort() as last_resort:
        token = _current.set(last_resort)
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                exit_code = 1
                try:
                    exit_code = run_to_the_end(runner, main())
                except KeyboardInterrupt:
                    exit_code = _KEYBOARD_INTERRUPT
                finally:
                    last_resort.within(CLEAN_UP_S, exit_code)
        finally:
            _current.reset(token)
        return exit_code


def run_to_the_end(runner: asyncio.Runner, main: Coroutine[Any, Any, T]) -> T:
    """Run `main` until it ends, whatever other tasks and callbacks of its loop raise.

    asyncio stops the whole loop where a task raises `SystemExit`, as one does that a handler has
    started (`gather`, `wait_for`) and that calls `sys.exit()`. The handler gets the error where it
    awaits that task, so the loop continues: it is one failure of many jobs. The same applies to
    `KeyboardInterrupt`, unless it is Ctrl-C.
    """
    task = runner.get_loop().create_task(main)

    async def end_of_main() -> T:
        return await task

    while True:
        try:
            return runner.run(end_of_main())
        except (SystemExit, KeyboardInterrupt) as error:
            is_ctrl_c = isinstance(error, KeyboardInterrupt) and not StopSignals.installed()
            if task.done() or is_ctrl_c:
                raise
            logger.exception("an exit in a task or callback; others continue")


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if importlib.util.find_spec("uvloop") is None:
        return None
    return importlib.import_module("uvloop").new_event_loop
