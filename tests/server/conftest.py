"""Applications with short timings, consumers, workers and shells of a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from tests.kit.keyspace import unaccounted
from tests.kit.library import library, open_library  # noqa: F401  fixtures
from tests.kit.settings import QUICK_TOPICS
from tests.kit.shell import Nursery, Shell
from tests.kit.workplace import Workplace

from penstock import Penstock
from penstock.settings import QueueSettings, Settings, TopicSettings, WorkerSettings
from penstock.testing.cluster import ClusterProcess
from penstock.testing.servers import ServerProcess
from penstock.topics.consumer.consumer import Consumer
from penstock.topics.subscription import Subscription
from penstock.topics.topic import Topic


@pytest.fixture
async def open_app(namespace: str) -> AsyncIterator[Callable[..., Awaitable[Penstock]]]:
    """`await open_app(server, lease_ttl_s=…)` is another process, as far as the server can tell."""
    async with AsyncExitStack() as opened:

        async def open_one(
            server: ServerProcess | ClusterProcess | str,
            *,
            worker: WorkerSettings | None = None,
            **topics: Any,
        ) -> Penstock:
            settings = Settings(
                url=server if isinstance(server, str) else server.url,
                namespace=namespace,
                topics=TopicSettings(**{**QUICK_TOPICS, **topics}),
                worker=worker or WorkerSettings(poll_s=0.2),
            )
            return await opened.enter_async_context(Penstock(settings=settings))

        yield open_one


@pytest.fixture
async def consume(
    open_app: Callable[..., Awaitable[Penstock]], opened: AsyncExitStack
) -> AsyncIterator[Callable[..., Awaitable[Consumer]]]:
    """`await consume(topic, handler, ordering="key")` starts a consumer; all stop with the test."""
    async with AsyncExitStack() as running:

        async def start(
            topic: Topic, handler: Callable[..., Any], group: str = "group", **options: Any
        ) -> Consumer:
            consumer = Consumer(topic, handler, Subscription(group=group, **options))
            return await running.enter_async_context(consumer)

        yield start


@pytest.fixture
async def open_queues(
    namespace: str, place: ServerProcess | ClusterProcess
) -> AsyncIterator[Callable[..., Awaitable[Penstock]]]:
    """`await open_queues(max_job_bytes=…)` is another process, as far as the server can tell."""
    async with AsyncExitStack() as opened:

        async def open_one(**queues: Any) -> Penstock:
            settings = Settings(url=place.url, namespace=namespace, queues=QueueSettings(**queues))
            return await opened.enter_async_context(Penstock(settings=settings))

        yield open_one


@pytest.fixture
async def workplace(
    valkey_server: ServerProcess, namespace: str, opened: AsyncExitStack
) -> AsyncIterator[Workplace]:
    """Where applications send jobs and run workers: see `tests/kit/workplace.py`."""
    async with Workplace(valkey_server.url, namespace) as place:
        yield place


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    with closing(Nursery()) as nursery:
        yield nursery


@pytest.fixture
def open_shell(nursery: Nursery, namespace: str, tmp_path: Path) -> Callable[..., Shell]:
    """`open_shell(PENSTOCK_URL=server.url)` runs commands in an empty folder: see `shell.py`."""

    def open_one(namespace: str = namespace, **place: str) -> Shell:
        return Shell(nursery, tmp_path, namespace, **place)

    return open_one


@pytest.fixture
def shell(valkey_server: ServerProcess, open_shell: Callable[..., Shell]) -> Shell:
    return open_shell(PENSTOCK_URL=valkey_server.url)


@pytest.fixture
def in_code(namespace: str) -> Callable[..., Any]:
    """`in_code(server, act)` runs `await act(app)` in a program of its own."""

    def run(
        server: ServerProcess | ClusterProcess, act: Callable[[Penstock], Awaitable[Any]]
    ) -> Any:
        async def opened() -> Any:
            async with Penstock(settings=Settings(url=server.url, namespace=namespace)) as app:
                return await act(app)

        return asyncio.run(opened())

    return run


_COORDINATION = (
    *("once", "cache", "limit", "window", "run", "slot", "feed", "coordination", "courtlistener"),
    *("hourly", "httpx", "asgi"),
)


@pytest.fixture(autouse=True)
def every_key_is_accounted_for(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test of the coordination primitives, each key that is left is as the contract says.

    Unless the test itself stores something that is not: it asks for `leaves_foreign_keys`.
    """
    places = [name for name in ("place", "valkey_server") if name in request.fixturenames]
    name = request.path.stem.removeprefix("test_").removeprefix("kit_").removeprefix("cli_")
    if "leaves_foreign_keys" in request.fixturenames:
        places = []
    if not places or "namespace" not in request.fixturenames or not name.startswith(_COORDINATION):
        yield
        return
    place, namespace = map(request.getfixturevalue, (places[0], "namespace"))
    yield
    assert unaccounted(place, namespace) == []


@pytest.fixture
def leaves_foreign_keys() -> None:
    """For tests that store what the contract does not know."""
