"""What blocking siblings of asynchronous objects share: see `penstock.sync`."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from types import MethodType, TracebackType
from typing import Concatenate, Final, Generic, ParamSpec, Protocol, Self, TypeVar, cast, overload

from penstock import app as asynchronous
from penstock.errors import NotOpen
from penstock.sync.portal import Facade, Portal

__all__ = [
    "Application",
    "Bound",
    "Named",
    "NamedSibling",
    "Sibling",
    "Within",
    "each",
    "one_by_one",
]

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V")

_AT_ONCE: Final = 500


class _HasName(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_HasName)


class Application(Facade[asynchronous.Penstock], Protocol):
    """`penstock.sync.Penstock`."""

    twin: asynchronous.Penstock
    siblings: dict[int, tuple[object, object]]


class Named(Generic[T, P, R]):
    """A method that returns an object by name, as one that returns its sibling; same signature.

    The sibling is the same for the same object, so naming it with every call costs little.
    """

    def __init__(
        self,
        method: Callable[Concatenate[asynchronous.Penstock, P], T],
        sibling: Callable[[Application, Callable[[asynchronous.Penstock], T]], R],
    ) -> None:
        self._method, self._sibling = method, sibling
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, app: None, owner: object = None) -> Self: ...
    @overload
    def __get__(self, app: Application, owner: object = None) -> Callable[P, R]: ...
    def __get__(self, app: Application | None, owner: object = None) -> Self | Callable[P, R]:
        if app is None:
            return self

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            declared = self._method(app.twin, *args, **kwargs)
            made = app.siblings.get(id(declared))
            if made is None:
                sibling = self._sibling(app, lambda one: self._method(one, *args, **kwargs))
                made = app.siblings[id(declared)] = (declared, sibling)
            return cast("R", made[1])

        return functools.update_wrapper(call, MethodType(self._method, app))


class Sibling(Generic[T]):
    """Blocking sibling of an object of the application; follows when that is reopened."""

    def __init__(self, app: Application, make: Callable[[asynchronous.Penstock], T]) -> None:
        self.declared = make(app.twin)
        """The object of the application that a worker runs; invalid options raise here."""
        self._app, self._make = app, make
        self._made: tuple[Portal, T] | None = None

    def reach(self) -> tuple[Portal, T]:
        portal, app = self._app.reach()
        made = self._made
        if made is None or made[0] is not portal:  # reopened, or after a fork

            async def make() -> T:  # on the loop: no two of them at the same time
                return self._make(app)

            made = self._made = (portal, portal.run(make()))
        return made


class NamedSibling(Sibling[N]):
    """Blocking sibling of an object with a name."""

    @property
    def name(self) -> str:
        return self.declared.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class Bound(Generic[T]):
    """Blocking sibling of an object that belongs to one loop, such as a held slot."""

    def __init__(self, portal: Portal, target: T) -> None:
        self._portal, self._target = portal, target

    def reach(self) -> tuple[Portal, T]:
        return self._portal, self._target


class Within(AbstractContextManager[R], Generic[R]):
    """`with` for an asynchronous context manager. A child forked inside does not exit it."""

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
            return None  # the error of the block matters more


def each(portal: Portal, items: AsyncIterator[R]) -> Iterator[R]:
    """All items of a finite iterator, hundreds per wait."""

    async def some() -> list[R]:
        page: list[R] = []
        async for item in items:
            page.append(item)
            if len(page) == _AT_ONCE:
                break
        return page

    while page := portal.run(some()):
        yield from page


def one_by_one(portal: Portal, items: AsyncIterator[R]) -> Iterator[R]:
    """All items of an iterator that may be endless, each as soon as it is available."""

    async def step() -> tuple[R] | None:
        async for item in items:
            return (item,)
        return None

    try:
        while (item := portal.run(step())) is not None:
            yield item[0]
    finally:
        close: Callable[[], Coroutine[object, object, None]] | None
        close = getattr(items, "aclose", None)
        if close is not None:
            with suppress(NotOpen):  # then it has ended with its loop
                portal.run(close())
