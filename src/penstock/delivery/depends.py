"""Dependency injection for handlers: values made for a job and cleaned up after it.

    async def get_db() -> AsyncIterator[Db]:
        async with pool.acquire() as db, db.transaction():
            yield db

    @app.task(queue="mail")
    async def welcome(user_id: int, db: Annotated[Db, Depends(get_db)] = INJECTED) -> None: ...

    await welcome.send(42)        # `db` is not sent: the worker makes it

    with app.dependencies.override(get_db, lambda: fake_db): ...      # in a test

A direct call, `await welcome(42, db=mine)`, passes every argument itself.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import Executor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from contextvars import copy_context
from types import TracebackType
from typing import Any, Self, TypeVar

from penstock.delivery.injected import (
    INJECTED,
    Dependency,
    Depends,
    Provider,
    Scope,
    code_of,
    injected_parameters,
    name_of,
    needs_injection,
    plan_of,
)
from penstock.errors import ConfigError

__all__ = [
    "INJECTED",
    "Depends",
    "Overrides",
    "Resolver",
    "Scope",
    "injected_parameters",
    "needs_injection",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Overrides:
    """Replacements of providers; `app.dependencies` is one."""

    def __init__(self) -> None:
        self._replacements: dict[Provider, Provider] = {}

    @contextmanager
    def override(self, provider: Provider, with_: Provider) -> Generator[None]:
        """Use `with_` instead of `provider` within the block.

        `with_` is a provider too, so it may yield and depend on others: `lambda: fake` for a value.
        """
        replacement: Dependency = Depends(with_)
        if provider in self._reached(replacement.provider, set()):
            raise ConfigError(
                f"{name_of(with_)} cannot replace {name_of(provider)}: it depends on it itself"
            )
        before = self._replacements.get(provider)
        self._replacements[provider] = with_
        try:
            yield
        finally:
            if before is None:
                del self._replacements[provider]
            else:
                self._replacements[provider] = before

    def in_force(self, provider: Provider) -> Provider:
        """The replacement of `provider`, or `provider` itself."""
        return self._replacements.get(provider, provider) if self._replacements else provider

    def _reached(self, provider: Provider, seen: set[Provider]) -> set[Provider]:
        for _, dependency in plan_of(provider).parameters:
            if dependency.provider not in seen:
                seen.add(dependency.provider)
                self._reached(self.in_force(dependency.provider), seen)
        return seen


class Resolver:
    """Makes the dependencies of functions. One for each worker, closed when it ends.

        async with Resolver(app.dependencies) as resolver:
            async with resolver.resolve(function) as injected:
                await function(*args, **kwargs, **injected)

    Providers that are not async run in `executor`, by default in that of the event loop.
    """

    def __init__(
        self, overrides: Overrides | None = None, *, executor: Executor | None = None
    ) -> None:
        self._overrides = overrides or Overrides()
        self._threads = _Threads(executor)
        self._worker = _Made("worker")
        self._making: dict[Provider, asyncio.Lock] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def trouble(self) -> str | None:
        """Providers that do not return and the jobs that wait; None without. From any thread."""
        return self._threads.trouble()

    async def close(self) -> None:
        """Clean up values shared by jobs; failures are logged. Repeatable."""
        await self._worker.clean_up(None)

    @asynccontextmanager
    async def resolve(self, function: Callable[..., Any]) -> AsyncGenerator[dict[str, Any]]:
        """Values of a function's injected parameters, for the duration of one job."""
        job = _Made(name_of(function))
        try:
            yield await self._arguments(function, job)
        except BaseException as error:
            failure = await job.clean_up(error)
            if isinstance(failure, asyncio.CancelledError):
                raise failure from error
            raise
        failure = await job.clean_up(None)
        if failure is not None:
            raise failure

    async def _arguments(self, function: Callable[..., Any], job: _Made) -> dict[str, Any]:
        return {
            name: await self._value(dependency, job)
            for name, dependency in plan_of(function).parameters
        }

    async def _value(self, dependency: Dependency, job: _Made) -> Any:
        provider = self._overrides.in_force(dependency.provider)
        if dependency.scope == "job":
            if provider not in job.values:
                job.values[provider] = await self._make(provider, job)
            return job.values[provider]
        if provider not in self._worker.values:
            # Jobs may need it at the same time; if the first is cancelled, the next makes it.
            async with self._making.setdefault(provider, asyncio.Lock()):
                if provider not in self._worker.values:
                    self._worker.values[provider] = await self._make(provider, self._worker)
        return self._worker.values[provider]

    async def _make(self, provider: Provider, made: _Made) -> Any:
        arguments = await self._arguments(provider, made)
        code = code_of(provider)
        if inspect.isasyncgenfunction(code):
            return await made.enter(provider, asynccontextmanager(provider)(**arguments))
        if inspect.isgeneratorfunction(code):
            manager = contextmanager(provider)(**arguments)
            return await made.enter(provider, _InThread(manager, name_of(provider), self._threads))
        if inspect.iscoroutinefunction(code):
            return await provider(**arguments)
        make = functools.partial(provider, **arguments)
        value = await self._threads.call(name_of(provider), make)
        return await value if inspect.iscoroutine(value) else value


class _Made:
    """The values of one scope, and their clean-ups."""

    def __init__(self, name: str) -> None:
        self.values: dict[Provider, Any] = {}
        self._name = name
        self._open: list[tuple[Provider, AbstractAsyncContextManager[Any]]] = []

    async def enter(self, provider: Provider, manager: AbstractAsyncContextManager[Any]) -> Any:
        value = await manager.__aenter__()
        self._open.append((provider, manager))
        return value

    async def clean_up(self, error: BaseException | None) -> BaseException | None:
        """Clean up in reverse order of creation; return the first failure, if any.

        Each clean-up gets the job's error, or that of the failed clean-up before it.
        """
        self.values.clear()
        failure: BaseException | None = None
        while self._open:
            provider, manager = self._open.pop()
            cause = error or failure
            try:
                await manager.__aexit__(type(cause) if cause else None, cause, _trace(cause))
            except BaseException as raised:  # the others are to be cleaned up as well
                if raised is not cause:
                    logger.exception(
                        "%s: cleaning up after %s failed", self._name, name_of(provider),
                    )  # fmt: skip
                    failure = failure or raised
        return failure


def _trace(error: BaseException | None) -> TracebackType | None:
    return error.__traceback__ if error else None


class _InThread(AbstractAsyncContextManager[Any]):
    """A blocking context manager, entered and left in threads."""

    def __init__(self, manager: AbstractContextManager[Any], name: str, threads: _Threads) -> None:
        self._manager, self._name, self._threads = manager, name, threads
        self._entered = False

    async def __aenter__(self) -> Any:
        try:
            return await self._threads.call(self._name, self._enter)
        except asyncio.CancelledError as cancelled:
            if self._entered:
                await self.__aexit__(type(cancelled), cancelled, cancelled.__traceback__)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leave = functools.partial(self._manager.__exit__, kind, error, trace)
        await self._threads.call(self._name, leave)

    def _enter(self) -> Any:
        value = self._manager.__enter__()
        self._entered = True
        return value


class _Threads:
    """Threads of providers that are not async."""

    def __init__(self, executor: Executor | None) -> None:
        self._executor = executor
        self._overdue: dict[asyncio.Future[Any], str] = {}
        """Calls that were cancelled and have not returned, with the names of the providers."""

    def trouble(self) -> str | None:
        names = list(self._overdue.values())
        if not names:
            return None
        counted = ", ".join(f"{name} ({count})" for name, count in Counter(names).most_common(5))
        return (
            f"{len(names)} jobs that timed out or were cancelled wait for providers that still run "
            f"in their threads: {counted}"
        )

    async def call(self, name: str, function: Callable[[], T]) -> T:
        """Run a blocking function. A cancellation waits for its end: a thread cannot be stopped."""

        def run() -> T:
            try:
                return function()
            except StopIteration as error:
                # No future can hold it: the caller would wait for ever.
                raise RuntimeError(f"{name} raised StopIteration") from error

        running = asyncio.get_running_loop().run_in_executor(
            self._executor, copy_context().run, run
        )
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self._overdue[running] = name
            try:
                while not running.done():
                    await asyncio.wait([running])
            finally:
                del self._overdue[running]
            raise
