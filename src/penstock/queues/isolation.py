"""Running a function in a child process of its own, with limits on its memory and time."""

from __future__ import annotations

import asyncio
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from penstock.errors import ConfigError, NotOpen, SettingError
from penstock.queues import child as wire
from penstock.queues.child_process import Answer, Child, all_gone

__all__ = ["ChildDied", "ChildPool", "ChildTraceback", "Isolation", "place_of"]

_LEAST_MEMORY_MB = 64  # Python with Penstock takes half of that
_LONGEST_GRACE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Isolation:
    """How a task runs in child processes: `@app.task(isolate=Isolation(memory_mb=512))`.

    - `memory_mb`: the address space a child may use, in MiB (RLIMIT_AS). What asks for more gets a
      `MemoryError`, an ordinary failure. Libraries reserve more than they use: leave some room.
    - `grace_s`: from SIGTERM, at which the function's `finally` blocks run, to SIGKILL.
    - `reuse`: after so many calls a child is replaced.

    It protects a worker from accidents (leaks, crashes, endless loops), not from hostile code.
    """

    memory_mb: int | None = None
    grace_s: float = 1.0
    reuse: int = 100

    def __post_init__(self) -> None:
        memory_mb, grace_s = cast("object", self.memory_mb), cast("object", self.grace_s)
        if memory_mb is not None and (type(memory_mb) is not int or memory_mb < _LEAST_MEMORY_MB):
            expected = f"a whole number of MiB, at least {_LEAST_MEMORY_MB}"
            raise SettingError("Isolation.memory_mb", memory_mb, expected)
        if type(grace_s) not in {int, float} or not 0 <= self.grace_s <= _LONGEST_GRACE_S:
            expected = f"a number of seconds from 0 to {_LONGEST_GRACE_S:g}"
            raise SettingError("Isolation.grace_s", grace_s, expected)
        if type(cast("object", self.reuse)) is not int or self.reuse < 1:
            raise SettingError("Isolation.reuse", self.reuse, "a whole number, at least 1")


class ChildDied(Exception):
    """The process that ran the function ended before the function did.

    Either `signal` or `exit_code` is set; neither if somebody else has waited for the process.
    `max_rss_kb` is its peak of resident memory in KiB, as far as it is known.
    """

    def __init__(
        self, signal: int | None, exit_code: int | None, max_rss_kb: int | None = None
    ) -> None:
        super().__init__(signal, exit_code, max_rss_kb)
        self.signal, self.exit_code, self.max_rss_kb = signal, exit_code, max_rss_kb

    def __str__(self) -> str:
        if self.signal is not None:
            end = f"was killed by {_signal_name(self.signal)}"
        elif self.exit_code is not None:
            end = f"exited with code {self.exit_code}"
        else:
            end = "ended, how is not known"
        peak = f" (peak memory {self.max_rss_kb / 1024:.0f} MiB)" if self.max_rss_kb else ""
        return f"the child process {end}{peak}"


class ChildTraceback(Exception):
    """The cause of an exception that came out of a child: where it was raised there, as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"in the child process\n{self.text.rstrip()}"


def place_of(function: Callable[..., Any]) -> tuple[str, str]:
    """Module and qualified name, by which a child finds a function; ConfigError if it cannot.

    Of a task it is the place of its function.
    """
    real: object = getattr(function, "function", function)
    module, qualname = getattr(real, "__module__", None), getattr(real, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str) or "<" in qualname:
        raise ConfigError(
            f"{real!r} cannot run in a child process, which finds a function by its name: "
            "define it at the top level of a module"
        )
    return module, qualname


class ChildPool:
    """Up to `size` child processes, started when needed, each used again while it is healthy.

        async with ChildPool(Isolation(memory_mb=512), size=4) as pool:
            text = await pool.call(render, (page,), {}, timeout_s=30)

    Arguments and results are pickled, for the way between parent and child only: both belong to
    one user, and the socket pair between them to nobody else. Nothing pickled is stored.

    A child ends with its parent, also after `kill -9`. On Linux that means: with the thread whose
    event loop the pool is used in.
    """

    def __init__(self, isolation: Isolation | None = None, *, size: int = 1) -> None:
        if type(cast("object", size)) is not int or size < 1:
            raise SettingError("ChildPool.size", size, "a whole number, at least 1")
        self.isolation = isolation or Isolation()
        self._slots = asyncio.Semaphore(size)
        self._children: set[Child] = set()
        self._idle: list[Child] = []
        self._open = False

    @property
    def pids(self) -> frozenset[int]:
        """The processes that live now."""
        return frozenset(child.pid for child in self._children)

    async def open(self) -> None:
        self._open = True

    async def close(self) -> None:
        """End all children; returns when they are gone. A call under way raises `NotOpen`."""
        self._open = False
        self._idle.clear()
        children = tuple(self._children)
        for child in children:
            if child.at_work:
                child.terminate()
            else:
                child.leave()
        await all_gone(children)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        timeout_s: float | None,
        context: object = None,
        on_report: Callable[[object], None] | None = None,
    ) -> Any:
        """Call a function, sync or async, in a child, and return or raise what it does.

        - An exception comes back as it is, its traceback there as a `ChildTraceback` for its cause;
          one that cannot be pickled as `RuntimeError` with its text.
        - `TimeoutError`: `timeout_s` went by since the function began (the wait for a free child
          and the import of its module do not count). `ChildDied`: the process ended.
        - When either happens, or the caller is cancelled, the child and all processes that it has
          started (and that stayed in its process group) have ended before this returns.
        - `context` is what `penstock.queues.child.context()` gives in the child. `on_report` is
          called with what the function gives to `penstock.queues.child.report()` there.
        """
        module, qualname = place_of(function)
        arguments = pickle.dumps((args, kwargs))
        needs_main = module == "__main__" or b"__main__" in arguments
        order = wire.Order(module, qualname, _main_place() if needs_main else None, context)
        request = wire.frame(wire.ORDER, pickle.dumps(order))
        request += wire.frame(wire.ARGUMENTS, arguments)
        del arguments
        self._check_open()
        await self._slots.acquire()
        child: Child | None = None
        try:
            while True:
                self._check_open()
                child = self._take()
                answer = await child.call(request, timeout_s, on_report)
                if isinstance(answer, Answer):
                    return _outcome(answer)
                self._check_open()
                if child.began or child.calls == 1:
                    raise ChildDied(*answer)
                # It had died while it was idle, which is no fault of this function.
        except MemoryError:
            if child is not None:
                child.leave()  # what fills its memory may be there to stay
            raise
        finally:
            self._give_back(child)

    def _take(self) -> Child:
        while self._idle:
            child = self._idle.pop()
            if child in self._children:
                return child
        child = Child(memory_mb=self.isolation.memory_mb, grace_s=self.isolation.grace_s)
        self._children.add(child)
        child.ended.add_done_callback(lambda _: self._children.discard(child))
        return child

    def _give_back(self, child: Child | None) -> None:
        if child is None or child.ended.done():
            self._slots.release()
        elif self._open and not child.leaving and child.calls < self.isolation.reuse:
            self._idle.append(child)
            self._slots.release()
        else:
            child.leave()
            child.ended.add_done_callback(lambda _: self._slots.release())

    def _check_open(self) -> None:
        if not self._open:
            raise NotOpen("the pool of child processes is not open")


def _outcome(answer: Answer) -> Any:
    try:
        content = pickle.loads(answer.body)  # noqa: S301  from our own child
    except Exception as error:
        raise RuntimeError("the result cannot be unpickled in the parent process") from error
    if answer.kind == wire.DONE:
        return content
    failure = cast("wire.Failure", content)
    error: object = None
    if failure.pickled is not None:
        # An exception whose __init__ wants other arguments than it passes on cannot be made again.
        with suppress(Exception):
            error = pickle.loads(failure.pickled)  # noqa: S301  as above
    if not isinstance(error, Exception):  # the likes of KeyboardInterrupt would end the worker
        error = RuntimeError(failure.text)
    raise error from ChildTraceback(failure.trace)


def _main_place() -> dict[str, str]:
    """Where the main module is, in the words of `multiprocessing.spawn.prepare`.

    That makes it known as `__mp_main__` in the child; here, importing multiprocessing did so.
    """
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None:
        return {"init_main_from_name": name}
    path = getattr(main, "__file__", None)
    return {} if path is None else {"init_main_from_path": str(Path(path).absolute())}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time one
        return f"signal {number}"
