"""Running a function in a child process of its own, with limits on its memory and time."""

from __future__ import annotations

import asyncio
import logging
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from penstock.errors import ConfigError, NotOpen, PenstockError, SettingError
from penstock.processes.child import IdleChildren, signal_name
from penstock.queues.isolation import child_program as wire
from penstock.queues.isolation.child_process import CallReply, FunctionProcess
from penstock.throttled_log import RateLimitedLog

if TYPE_CHECKING:
    from penstock.queues.worker.job_context import JobContext

__all__ = ["ChildDied", "ChildPool", "ChildReports", "ChildTraceback", "Isolation", "place_of"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

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

    Either `signal` or `exit_code` is set; neither if other code has waited for the process.
    `max_rss_kb` is its peak of resident memory in KiB, as far as it is known.
    """

    def __init__(
        self, signal: int | None, exit_code: int | None, max_rss_kb: int | None = None
    ) -> None:
        super().__init__(signal, exit_code, max_rss_kb)
        self.signal, self.exit_code, self.max_rss_kb = signal, exit_code, max_rss_kb

    def __str__(self) -> str:
        if self.signal is not None:
            end = f"was killed by {signal_name(self.signal)}"
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

    Arguments and results are pickled between parent and child only: both belong to one user, and no
    other process has the socket pair between them. Nothing pickled is stored.

    A child ends with its parent, also after `kill -9`. On Linux that means: with the thread whose
    event loop the pool is used in.
    """

    def __init__(self, isolation: Isolation | None = None, *, size: int = 1) -> None:
        if type(cast("object", size)) is not int or size < 1:
            raise SettingError("ChildPool.size", size, "a whole number, at least 1")
        self.isolation = isolation or Isolation()
        self._children: IdleChildren[FunctionProcess] = IdleChildren(size)

    @property
    def pids(self) -> frozenset[int]:
        """The processes that live now."""
        return self._children.pids

    async def open(self) -> None:
        self._children.is_open = True

    async def close(self) -> None:
        """End all children; returns when they are gone. A call under way raises `NotOpen`."""
        await self._children.close(
            lambda child: child.terminate() if child.at_work else child.leave()
        )

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
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
        - `context` is what `child_program.context()` gives in the child. `on_report` is called with
          what the function gives to `child_program.report()` there.
        """
        module, qualname = place_of(function)
        arguments = pickle.dumps((args, kwargs))
        needs_main = module == "__main__" or b"__main__" in arguments
        call = wire.FunctionCall(module, qualname, _main_place() if needs_main else None, context)
        request = wire.message(wire.CALL, pickle.dumps(call))
        request += wire.message(wire.ARGUMENTS, arguments)
        del arguments
        self._check_open()
        await self._children.free.acquire()
        child: FunctionProcess | None = None
        try:
            while True:
                self._check_open()
                child = self._take()
                reply = await child.call(request, timeout_s, on_report)
                if isinstance(reply, CallReply):
                    return _outcome(reply)
                self._check_open()
                if child.began or child.calls == 1:
                    raise ChildDied(*reply)
                # It had died while it was idle, which is no fault of this function.
        except MemoryError:
            if child is not None:
                child.leave()  # what fills its memory may be there to stay
            raise
        finally:
            self._give_back(child)

    def _take(self) -> FunctionProcess:
        if (child := self._children.take()) is not None:
            return child
        child = FunctionProcess(memory_mb=self.isolation.memory_mb, grace_s=self.isolation.grace_s)
        self._children.add(child)
        return child

    def _give_back(self, child: FunctionProcess | None) -> None:
        children = self._children
        if child is None or child.ended.done():
            children.free.release()
        elif children.is_open and not child.leaving and child.calls < self.isolation.reuse:
            children.put_back(child)
            children.free.release()
        else:
            child.leave()
            child.ended.add_done_callback(lambda _: children.free.release())

    def _check_open(self) -> None:
        if not self._children.is_open:
            raise NotOpen("the pool of child processes is not open")


class ChildReports:
    """Writes reports one after the other; those that come meanwhile are joined into one.

    What was reported is written before the call returns. A report that cannot be written is logged:
    the job continues.
    """

    def __init__(self, job: JobContext) -> None:
        self._job = job
        self._fields: dict[str, Any] = {}
        self._writing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._writing is None:
            return
        if isinstance(error, asyncio.CancelledError):
            self._writing.cancel()
        await asyncio.gather(self._writing, return_exceptions=True)

    def put(self, report: object) -> None:
        """Take a report: fields of the record, by name."""
        self._fields |= cast("dict[str, Any]", report)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(), name="child reports")

    async def _write(self) -> None:
        job = self._job
        while self._fields:
            fields, self._fields = self._fields, {}
            try:
                await job.progress(**fields)
            except PenstockError as error:
                quiet.warning(
                    f"{job.queue} progress {type(error).__name__}",
                    "queue %s: progress of job %s was not written: %s",
                    job.queue,
                    job.id,
                    error,
                )


def _outcome(reply: CallReply) -> Any:
    try:
        content = pickle.loads(reply.body)  # noqa: S301  from our own child
    except Exception as error:
        raise RuntimeError("the result cannot be unpickled in the parent process") from error
    if reply.kind == wire.DONE:
        return content
    failure = cast("wire.ChildFailure", content)
    error: object = None
    if failure.pickled is not None:
        # An exception whose __init__ wants other arguments than it passes on cannot be made again.
        with suppress(Exception):
            error = pickle.loads(failure.pickled)  # noqa: S301  as above
    if not isinstance(error, Exception):  # the likes of KeyboardInterrupt would end the worker
        error = RuntimeError(failure.text)
    raise error from ChildTraceback(failure.trace)


def _main_place() -> dict[str, str]:
    """Where the main module is, as `multiprocessing.spawn.prepare` takes it.

    That makes it known as `__mp_main__` in the child; here, importing multiprocessing did so.
    """
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None:
        return {"init_main_from_name": name}
    path = getattr(main, "__file__", None)
    return {} if path is None else {"init_main_from_path": str(Path(path).absolute())}
