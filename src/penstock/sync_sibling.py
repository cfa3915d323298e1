"""What blocking siblings of asynchronous objects have in common: see `penstock.sync`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from types import TracebackType
from typing import Final, Generic, Protocol, TypeVar

from penstock import app as asynchronous
from penstock.errors import NotOpen
from penstock.portal import Facade, Portal

__all__ = ["Application", "Bound", "Sibling", "Within", "each", "one_by_one"]

T = TypeVar("T")
R = TypeVar("R")
V = TypeVar("V")

_AT_ONCE: Final = 500


class Application(Facade[asynchronous.Penstock], Protocol):
    """`penstock.sync.Penstock`."""

    twin: asynchronous.Penstock


class Sibling(Generic[T]):
    """Stands for an object of the application, which is made anew where that is opened anew."""

    def __init__(self, app: Application, make: Callable[[asynchronous.Penstock], T]) -> None:
        self.declared = make(app.twin)
        """The one of the application that is not open; what cannot be is told here."""
        self._app, self._make = app, make
        self._made: tuple[Portal, T] | None = None

    def reach(self) -> tuple[Portal, T]:
        portal, app = self._app.reach()
        made = self._made
        if made is None or made[0] is not portal:  # opened anew, or after a fork

            async def make() -> T:  # on the loop: no two of them at the same time
                return self._make(app)

            made = self._made = (portal, portal.run(make()))
        return made


class Bound(Generic[T]):
    """Stands for an object of one loop, which ends with it: somebody holds it."""

    def __init__(self, portal: Portal, target: T) -> None:
        self._portal, self._target = portal, target

    def reach(self) -> tuple[Portal, T]:
        return self._portal, self._target


class Within(AbstractContextManager[R], Generic[R]):
    """`with` for what is asynchronous. A child forked inside leaves the end to its parent."""

    def __init__(
        self,
        facade: Facade[T],
        manager: Callable[[T], AbstractAsyncContextManager[V]],
        wrap: Callable[[Portal, V], R],
    ) -> None:
        def begin() -> tuple[Portal, R, AbstractAsyncContextManager[V]]:
            portal, target = facade.reach()
            opened = manager(target)

            async def enter() -> V:
                return await opened.__aenter__()

            return portal, wrap(portal, portal.run(enter())), opened

        self._begin = begin
        self._entered: tuple[Portal, AbstractAsyncContextManager[object]] | None = None

    def __enter__(self) -> R:
        portal, value, manager = self._begin()
        self._entered = (portal, manager)
        return value

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        entered, self._entered = self._entered, None
        if entered is None or not entered[0].is_ours:
            return None
        portal, manager = entered

        async def leave() -> bool | None:
            return await manager.__aexit__(kind, error, traceback)

        try:
            return portal.run(leave())
        except NotOpen:
            if error is None:
                raise
            return None  # what went wrong in the block matters more


def each(portal: Portal, items: AsyncIterator[R]) -> Iterator[R]:
    """All items of an iterator that ends by itself, hundreds with each wait."""

    async def some() -> list[R]:
        found: list[R] = []
        async for item in items:
            found.append(item)
            if len(found) == _AT_ONCE:
                break
        return found

    while found := portal.run(some()):
        yield from found


def one_by_one(portal: Portal, items: AsyncIterator[R]) -> Iterator[R]:
    """All items of an iterator that may never end, each as soon as it is there."""

    async def step() -> tuple[R] | None:
        async for item in items:
            return (item,)
        return None

    try:
        while (found := portal.run(step())) is not None:
            yield found[0]
    finally:
        close: Callable[[], Coroutine[object, object, None]] | None
        close = getattr(items, "aclose", None)
        if close is not None:
            with suppress(NotOpen):  # then it has ended with its loop
                portal.run(close())
