"""An event loop in a thread, and methods that wait for their asynchronous siblings on it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from penstock import app as asynchronous
from penstock.errors import NotOpen, OutcomeUnknown
from penstock.settings import Settings

__all__ = ["Blocking", "BlockingApplication", "Facade", "Portal", "application_of"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")


class Portal:
    """An event loop in a thread, with an open application. `run` waits for a coroutine on it."""

    def __init__(self, settings: Settings) -> None:
        self.app = asynchronous.Penstock(settings=settings)
        self._opened: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._gate = threading.Lock()
        self._closing = False
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._opening: asyncio.Task[Any] | None = None
        self._thread = threading.Thread(target=self._serve, name="penstock", daemon=True)
        self._pid = os.getpid()

    @property
    def is_ours(self) -> bool:
        """Whether its thread is in this process; False after a fork."""
        return self._pid == os.getpid()

    def open(self) -> None:
        """Start the thread; return when the application is open, or raise its error."""
        self._thread.start()
        try:
            self._opened.result()
        except BaseException:
            self.close()
            raise

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine on the loop, and return its result."""
        return self.wait(self.begin(work))

    def wait(self, future: concurrent.futures.Future[R]) -> R:
        """Wait for the result of `begin`."""
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise OutcomeUnknown("Penstock was closed during the call") from None
        except BaseException:
            future.cancel()  # Ctrl-C must not leave the work running
            raise

    def begin(self, work: Coroutine[Any, Any, R]) -> concurrent.futures.Future[R]:
        """Start a coroutine on the loop without waiting for it."""
        if not self.is_ours:
            work.close()
            raise NotOpen("it was made by the process that this one was forked from")
        with self._gate:
            if self._closing or self._loop is None or threading.current_thread() is self._thread:
                work.close()
                raise NotOpen(
                    "Penstock was closed by another thread"
                    if self._closing
                    else "a blocking call from inside Penstock's own loop would wait for itself"
                )
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def post(self, callback: Callable[[], object]) -> None:
        """Call it on the loop soon, if that still runs. Never waits: for finalizers."""
        try:
            if self.is_ours and self._loop is not None:
                self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            return  # the loop is closed

    def close(self) -> None:
        """Close the application and end the thread; calls in flight raise."""
        with self._gate:
            if self._loop is not None and not self._closing:
                self._loop.call_soon_threadsafe(self._ask_to_stop)
            self._closing = True
        # The garbage collector may call this in any thread, the loop's own as well.
        if threading.current_thread() is not self._thread:
            self._thread.join()
            if self._failure is not None:
                raise self._failure

    def _serve(self) -> None:
        # Not asyncio.run, which starts a thread to end its executor: from Python 3.12 on that fails
        # at the interpreter's exit, where a program that never closes relies on this.
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self._live())
        except BaseException as error:  # noqa: BLE001  it is raised where it is awaited
            if self._opened.done():
                self._failure = error
            else:
                self._opened.set_exception(error)
        finally:
            loop.close()

    def _ask_to_stop(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        self._stop.set()

    async def _live(self) -> None:
        with self._gate:
            self._loop = asyncio.get_running_loop()
            if self._closing:
                return
        try:
            self._opening = asyncio.current_task()
            try:
                await self.app.open()
            finally:
                self._opening = None
            self._opened.set_result(None)
            await self._stop.wait()
        finally:
            with self._gate:
                self._closing = True
            try:
                await self.app.close()
            finally:
                await _cancel_others()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


class Facade(Protocol[T_co]):
    """An object with a sibling on the loop of a portal."""

    def reach(self) -> tuple[Portal, T_co]: ...


class Blocking(Generic[T, P, R]):
    """A coroutine method of T, as a method that blocks; same signature, same result."""

    def __init__(self, method: Callable[Concatenate[T, P], Coroutine[Any, Any, R]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, facade: None, owner: object = None) -> Self: ...
    @overload
    def __get__(self, facade: Facade[T], owner: object = None) -> Callable[P, R]: ...
    def __get__(self, facade: Facade[T] | None, owner: object = None) -> Self | Callable[P, R]:
        if facade is None:
            return self

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            portal, target = facade.reach()
            return portal.run(self._method(target, *args, **kwargs))

        return functools.update_wrapper(call, MethodType(self._method, facade))


class BlockingApplication:
    """Base of `penstock.sync.Penstock`, for code that must not import it."""

    twin: asynchronous.Penstock
    """The application that a worker runs: it has the declared tasks, handlers and schedules."""
    siblings: dict[int, tuple[object, object]]
    """By the id of an object of the twin: that object, and its blocking sibling."""


def application_of(value: object) -> asynchronous.Penstock | None:
    """The application that a worker runs, of a blocking or an asynchronous one; else None."""
    if isinstance(value, BlockingApplication):
        return value.twin
    return value if isinstance(value, asynchronous.Penstock) else None
