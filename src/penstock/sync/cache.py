"""The cache for code that does not await: see `penstock.sync`."""

from __future__ import annotations

import asyncio
import inspect
import queue
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, overload

from penstock.coordination.cache import cache as asynchronous
from penstock.sync.portal import Blocking
from penstock.sync.sibling import Application, Sibling

__all__ = ["Cache"]

T = TypeVar("T")
R = TypeVar("R")


class Cache(Sibling[asynchronous.Cache]):
    """`coordination.Cache`, blocking. Made by `Penstock.cache`."""

    def __init__(self, app: Application, space: str, ttl: float | timedelta | None) -> None:
        super().__init__(app, lambda app: app.cache(space, ttl=ttl))
        self.space = space

    def __repr__(self) -> str:
        return f"Cache({self.space!r})"

    @overload
    def get(self, key: str, default: None = None, *, type: type[T]) -> T | None: ...
    @overload
    def get(self, key: str, default: Any = None, *, type: Any = Any) -> Any: ...
    def get(self, key: str, default: Any = None, *, type: Any = Any) -> Any:  # noqa: A002
        """The value, or `default` on a miss, as `coordination.Cache.get`."""
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
        """The value; on a miss, the result of `make()`, as `coordination.Cache.get_or_set`.

        `make` is called in the caller's thread: it may use what belongs to that, such as a
        database connection of Django.
        """
        return self._made_here(
            lambda cache, made: cache.get_or_set(key, made, ttl=ttl, type=type), make
        )

    @overload
    def get_or_set_many(
        self,
        keys: Iterable[str],
        make_many: Callable[[list[str]], Mapping[str, T]],
        *,
        ttl: float | timedelta | None = None,
        type: type[T],
    ) -> dict[str, T]: ...
    @overload
    def get_or_set_many(
        self,
        keys: Iterable[str],
        make_many: Callable[[list[str]], Any],
        *,
        ttl: float | timedelta | None = None,
        type: Any = Any,
    ) -> dict[str, Any]: ...
    def get_or_set_many(
        self,
        keys: Iterable[str],
        make_many: Callable[[list[str]], Any],
        *,
        ttl: float | timedelta | None = None,
        type: Any = Any,  # noqa: A002
    ) -> dict[str, Any]:
        """The values by their keys, as `coordination.Cache.get_or_set_many`.

        `make_many` is called in the caller's own thread, as with `get_or_set`.
        """
        names = list(keys)  # do not read an iterator of the caller in another thread
        return self._made_here(
            lambda cache, made: cache.get_or_set_many(names, made, ttl=ttl, type=type), make_many
        )

    def _made_here(
        self,
        ask: Callable[[asynchronous.Cache, Callable[..., Any]], Coroutine[Any, Any, R]],
        make: Callable[..., Any],
    ) -> R:
        """Call `ask` with a `make` that runs in this thread."""
        portal, cache = self.reach()
        wanted: queue.SimpleQueue[tuple[asyncio.Future[_Made], tuple[Any, ...]] | None]
        wanted = queue.SimpleQueue()

        async def made(*arguments: Any) -> Any:
            answer: asyncio.Future[_Made] = asyncio.get_running_loop().create_future()
            wanted.put((answer, arguments))
            value = (await answer).value()
            return await value if inspect.isawaitable(value) else value

        future = portal.begin(ask(cache, made))
        future.add_done_callback(lambda _: wanted.put(None))
        try:
            while (wish := wanted.get()) is not None:
                portal.post(_settling(wish[0], _Made(partial(make, *wish[1]))))
        except BaseException:
            future.cancel()  # Ctrl-C: another process makes it
            raise
        return portal.wait(future)


class _Made:
    """Result or error of a call, for another thread."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._value: Any = None
        self._error: Exception | None = None
        try:
            self._value = make()
        except Exception as error:  # noqa: BLE001  it is raised where it is awaited
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
