"""Penstock for code that does not await: Django views, scripts, notebooks.

    from penstock.sync import Penstock

    with Penstock() as app:
        app.redis.call("SET", "greeting", "hello")
        print(app.health().status)

There is one implementation, the asynchronous one. It runs on a loop in a thread of its own, and
each method here waits for its sibling there. Any number of threads may share one object. A forked
child gets a loop and connections of its own at its first call; the parent's are left alone.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from penstock import app as asynchronous
from penstock.errors import NotOpen, OutcomeUnknown
from penstock.redis import client as asynchronous_client
from penstock.settings import Settings
from penstock.topics import topic as asynchronous_topic
from penstock.topics.durability import Durability
from penstock.topics.facts import Retention
from penstock.topics.partitioners import Partitioner

__all__ = ["Client", "Penstock", "Topic"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")


class _Portal:
    """A loop in a thread, with an open application on it. `run` hands it a coroutine and waits."""

    def __init__(self, settings: Settings) -> None:
        self.app = asynchronous.Penstock(settings=settings)
        self._opened: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._gate = threading.Lock()
        self._closing = False
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name="penstock", daemon=True)

    def open(self) -> None:
        """Start the thread; return when the application is open, or raise why it is not."""
        self._thread.start()
        try:
            self._opened.result()
        except BaseException:
            self.close()
            raise

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        with self._gate:
            if self._closing or self._loop is None or threading.current_thread() is self._thread:
                work.close()
                raise NotOpen(
                    "Penstock was closed by another thread"
                    if self._closing
                    else "a blocking call from inside Penstock's own loop would wait for itself"
                )
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise OutcomeUnknown("Penstock was closed during the call") from None
        except BaseException:
            future.cancel()  # Ctrl-C must not leave the work running behind the caller's back
            raise

    def close(self) -> None:
        """Close the application and end the thread. Calls under way end, none with a false yes."""
        with self._gate:
            if self._loop is not None and not self._closing:
                self._loop.call_soon_threadsafe(self._stop.set)
            self._closing = True
        # The garbage collector may call this in any thread, the loop's own as well.
        if threading.current_thread() is not self._thread:
            self._thread.join()
            if self._failure is not None:
                raise self._failure

    def _serve(self) -> None:
        # Not asyncio.run, which starts a thread to end its executor: from Python 3.12 on that
        # fails at the interpreter's exit, just when a program that never closes relies on us.
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self._live())
        except BaseException as error:  # noqa: BLE001  it is raised where somebody waits for it
            if self._opened.done():
                self._failure = error
            else:
                self._opened.set_exception(error)
        finally:
            loop.close()

    async def _live(self) -> None:
        with self._gate:
            self._loop = asyncio.get_running_loop()
            if self._closing:
                return
        opening = asyncio.create_task(self.app.open())
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([opening, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                opening.cancel()
            await opening
            self._opened.set_result(None)
            await stopped
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


class _Facade(Protocol[T_co]):
    def reach(self) -> tuple[_Portal, T_co]: ...


class _Blocking(Generic[T, P, R]):
    """A coroutine method of T, as a method that blocks; same signature, same result."""

    def __init__(self, method: Callable[Concatenate[T, P], Coroutine[Any, Any, R]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, facade: None, owner: object = None) -> Self: ...
    @overload
    def __get__(self, facade: _Facade[T], owner: object = None) -> Callable[P, R]: ...
    def __get__(self, facade: _Facade[T] | None, owner: object = None) -> Self | Callable[P, R]:
        if facade is None:
            return self

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            portal, target = facade.reach()
            return portal.run(self._method(target, *args, **kwargs))

        return functools.update_wrapper(call, MethodType(self._method, facade))


class Client:
    """`penstock.redis.Client`, blocking. Made by `Penstock`."""

    def __init__(self, app: Penstock) -> None:
        self._app = app

    def reach(self) -> tuple[_Portal, asynchronous_client.Client]:
        portal, app = self._app.reach()
        return portal, app.redis

    call = _Blocking(asynchronous_client.Client.call)
    pipeline = _Blocking(asynchronous_client.Client.pipeline)


class Topic:
    """`penstock.Topic`, blocking: for sending. Made by `Penstock.topic`."""

    def __init__(self, app: Penstock, name: str, options: dict[str, Any]) -> None:
        self.name = name
        self._app, self._options = app, options
        self._made: tuple[_Portal, asynchronous_topic.Topic] | None = None
        self._lock = threading.Lock()

    def reach(self) -> tuple[_Portal, asynchronous_topic.Topic]:
        portal, app = self._app.reach()
        with self._lock:
            if self._made is None or self._made[0] is not portal:  # opened anew, or after a fork
                self._made = (portal, app.topic(self.name, **self._options))
            return self._made

    send = _Blocking(asynchronous_topic.Topic.send)
    send_batch = _Blocking(asynchronous_topic.Topic.send_batch)
    facts = _Blocking(asynchronous_topic.Topic.facts)


class Penstock:
    """`penstock.Penstock`, blocking. Opens at its first use, or by `with`."""

    def __init__(self, url: str | None = None, *, settings: Settings | None = None) -> None:
        self.settings = settings or Settings.load({"url": url})
        self.redis = Client(self)
        self._lock = threading.Lock()
        self._portal: _Portal | None = None
        self._finalizer: weakref.finalize[..., Penstock] | None = None
        _all.add(self)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Connect; without an address, start the embedded server unless it runs. May come twice."""
        self.reach()

    def close(self) -> None:
        """End every connection and the thread. May come twice; a later call opens anew."""
        with self._lock:
            portal, self._portal = self._portal, None
            if portal is not None and self._finalizer is not None:
                self._finalizer.detach()
                portal.close()

    def reach(self) -> tuple[_Portal, asynchronous.Penstock]:
        """Return this process's loop and the open application on it."""
        portal = self._portal
        if portal is None:
            with self._lock:
                portal = self._portal
                if portal is None:
                    portal = _Portal(self.settings)
                    portal.open()
                    self._finalizer = weakref.finalize(self, portal.close)
                    self._portal = portal
        return portal, portal.app

    def topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        type: Any = Any,  # noqa: A002  it is what the caller means
        partitioner: Partitioner | None = None,
        durability: Durability = "accepted",
        retention: Retention | None = None,
        dead_letter_retention: Retention | None = None,
        interop: bool = False,
    ) -> Topic:
        """Return a topic to send to, as `penstock.Penstock.topic` does."""
        options: dict[str, Any] = {
            "partitions": partitions,
            "type": type,
            "partitioner": partitioner,
            "durability": durability,
            "retention": retention,
            "dead_letter_retention": dead_letter_retention,
            "interop": interop,
        }
        return Topic(self, name, options)

    health = _Blocking(asynchronous.Penstock.health)
    doctor = _Blocking(asynchronous.Penstock.doctor)

    def leave_to_parent(self) -> None:
        """After a fork: another thread may have held the lock, and the sockets are the parent's."""
        if self._portal is not None and self._finalizer is not None:
            _inherited.append(self._portal)
            self._finalizer.detach()
        self._lock, self._portal = threading.Lock(), None


_all: weakref.WeakSet[Penstock] = weakref.WeakSet()
# What a forked child finds of its parent's loops and sockets. Letting go of them would close
# descriptors that the parent's selector still watches, so they are kept, untouched.
_inherited: list[_Portal] = []


def _after_fork_in_child() -> None:
    for app in list(_all):
        app.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)
