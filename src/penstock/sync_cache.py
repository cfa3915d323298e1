"""The cache for code that does not await: see `penstock.sync`."""

from __future__ import annotations

import asyncio
import inspect
import queue
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar, overload

from penstock.coordination import cache as asynchronous
from penstock.portal import Blocking
from penstock.sync_sibling import Application, Sibling

__all__ = ["Cache"]

T = TypeVar("T")


class Cache(Sibling[asynchronous.Cache]):
    """`penstock.Cache`, blocking. Made by `Penstock.cache`."""

    def __init__(self, app: Application, space: str, ttl: float | None) -> None:
        super().__init__(app, lambda app: app.cache(space, ttl=ttl))
        self.space = space

    def __repr__(self) -> str:
        return f"Cache({self.space!r})"

    @overload
    def get(self, key: str, default: None = None, *, type: type[T]) -> T | None: ...
    @overload
    def get(self, key: str, default: Any = None, *, type: Any = Any) -> Any: ...
    def get(self, key: str, default: Any = None, *, type: Any = Any) -> Any:  # noqa: A002
        """The value, or `default` if there is none, as `penstock.Cache.get`."""
        portal, cache = self.reach()
        return portal.run(cache.get(key, default, type=type))

    get_many = Blocking(asynchronous.Cache.get_many)
    set = Blocking(asynchronous.Cache.set)
    delete = Blocking(asynchronous.Cache.delete)
    exists = Blocking(asynchronous.Cache.exists)
    expire = Blocking(asynchronous.Cache.expire)
    ttl = Blocking(asynchronous.Cache.ttl)
    zadd = Blocking(asynchronous.Cache.zadd)
    zpopmax = Blocking(asynchronous.Cache.zpopmax)
    zpopmin = Blocking(asynchronous.Cache.zpopmin)
    zrangebyscore = Blocking(asynchronous.Cache.zrangebyscore)
    zremrangebyscore = Blocking(asynchronous.Cache.zremrangebyscore)
    zcard = Blocking(asynchronous.Cache.zcard)

    @overload
    def get_or_set(
        self,
        key: str,
        make: Callable[[], T],
        *,
        ttl: float | timedelta | None = None,
        type: type[T],
    ) -> T: ...
    @overload
    def get_or_set(
        self,
        key: str,
        make: Callable[[], Any],
        *,
        ttl: float | timedelta | None = None,
        type: Any = Any,
    ) -> Any: ...
    def get_or_set(
        self,
        key: str,
        make: Callable[[], Any],
        *,
        ttl: float | timedelta | None = None,
        type: Any = Any,  # noqa: A002  it is what the caller means
    ) -> Any:
        """The value; if there is none, what `make()` returns, as `penstock.Cache.get_or_set`.

        `make` is called in the caller's own thread: it may use what belongs to that, such as a
        database connection of Django's.
        """
        portal, cache = self.reach()
        wanted: queue.SimpleQueue[asyncio.Future[_Made] | None] = queue.SimpleQueue()

        async def made() -> Any:
            answer: asyncio.Future[_Made] = asyncio.get_running_loop().create_future()
            wanted.put(answer)
            value = (await answer).value()
            return await value if inspect.isawaitable(value) else value

        future = portal.begin(cache.get_or_set(key, made, ttl=ttl, type=type))
        future.add_done_callback(lambda _: wanted.put(None))
        try:
            while (answer := wanted.get()) is not None:
                portal.post(_settling(answer, _Made(make)))
        except BaseException:
            future.cancel()  # Ctrl-C: others make it
            raise
        return portal.wait(future)


class _Made:
    """What a call returned or raised, to be had in another thread."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._value: Any = None
        self._error: Exception | None = None
        try:
            self._value = make()
        except Exception as error:  # noqa: BLE001  it is raised where somebody waits for it
            self._error = error

    def value(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


def _settling(answer: asyncio.Future[_Made], made: _Made) -> Callable[[], None]:
    def settle() -> None:
        if not answer.done():
            answer.set_result(made)

    return settle
