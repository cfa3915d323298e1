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
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from penstock import app as asynchronous
from penstock.errors import NotOpen
from penstock.redis import client as asynchronous_client
from penstock.settings import Settings

__all__ = ["Client", "Penstock"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")

# What a forked child finds of its parent's loop and sockets. Letting go of them would close
# descriptors that the parent's selector still watches, so they are kept, untouched.
_inherited: list[object] = []


class _Portal:
    """A loop in a thread. `run` hands it a coroutine and waits for the result."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="penstock", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        if threading.get_ident() == self._thread.ident:
            work.close()
            raise NotOpen("a blocking call from inside Penstock's own loop would wait for itself")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C must not leave the work running behind the caller's back
            raise

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()


class _Facade(Protocol[T_co]):
    def reach(self) -> tuple[_Portal, T_co]: ...


class _Blocking(Generic[T, P, R]):
    """A coroutine method of T, as a method that blocks; same signature, same result."""

    def __init__(self, method: Callable[Concatenate[T, P], Coroutine[Any, Any, R]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, facade: _Facade[T], owner: object = None) -> Callable[P, R]:
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            portal, target = facade.reach()
            return portal.run(self._method(target, *args, **kwargs))

        call.__doc__ = self._method.__doc__
        return call


class Client:
    """`penstock.redis.Client`, blocking. Made by `Penstock`."""

    def __init__(self, app: Penstock) -> None:
        self._app = app

    def reach(self) -> tuple[_Portal, asynchronous_client.Client]:
        portal, app = self._app.reach()
        return portal, app.redis

    call = _Blocking(asynchronous_client.Client.call)
    pipeline = _Blocking(asynchronous_client.Client.pipeline)


class Penstock:
    """`penstock.Penstock`, blocking. Opens at its first use, or by `with`."""

    def __init__(self, url: str | None = None, *, settings: Settings | None = None) -> None:
        self.settings = settings or Settings.load({"url": url})
        self.redis = Client(self)
        self._lock = threading.Lock()
        self._reached: tuple[_Portal, asynchronous.Penstock] | None = None
        self._finalizer: weakref.finalize[[_Portal, asynchronous.Penstock], Penstock] | None = None

    def __enter__(self) -> Self:
        self.reach()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reach(self) -> tuple[_Portal, asynchronous.Penstock]:
        """Return this process's loop and the open application on it."""
        reached = self._reached
        if reached is not None and reached[0].pid == os.getpid():
            return reached
        if reached is not None:
            self._leave_to_parent(reached)
        with self._lock:
            if self._reached is None:
                portal, app = _Portal(), asynchronous.Penstock(settings=self.settings)
                try:
                    portal.run(app.open())
                except BaseException:
                    portal.stop()
                    raise
                self._reached = portal, app
                self._finalizer = weakref.finalize(self, _close, portal, app)
            return self._reached

    def close(self) -> None:
        """End every connection and the thread. May come twice; a later call opens anew."""
        with self._lock:
            reached, self._reached = self._reached, None
            if reached is not None and self._finalizer is not None:
                self._finalizer.detach()
                _close(*reached)

    health = _Blocking(asynchronous.Penstock.health)
    doctor = _Blocking(asynchronous.Penstock.doctor)

    def _leave_to_parent(self, reached: tuple[_Portal, asynchronous.Penstock]) -> None:
        """After a fork: another thread may have held the lock, and the sockets are the parent's."""
        _inherited.append(reached)
        if self._finalizer is not None:
            self._finalizer.detach()
        self._lock, self._reached = threading.Lock(), None


def _close(portal: _Portal, app: asynchronous.Penstock) -> None:
    if portal.pid == os.getpid():
        portal.run(app.close())
        portal.stop()
