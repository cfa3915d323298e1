"""Crews as fixtures: `make_queue_crew(server.url, …)` gives workers around one queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
from tests.kit.crews.document_site import BACKOFF, MAX_ATTEMPTS, Site
from tests.kit.crews.queue_crew import QueueCrew
from tests.kit.crews.topic_crew import TopicCrew
from tests.kit.crews.window_crew import WindowCrew
from tests.kit.crews.worker_crew import Launcher
from tests.kit.crews.wrong_clock import WrongClock

from penstock.delivery.retries import RetryPolicy
from penstock.errors import DocumentRefused
from penstock.pipelines.documents.submit import job_message
from penstock.testing.servers import ServerProcess


@pytest.fixture(scope="session")
def launcher() -> Iterator[Callable[[str], Launcher]]:
    """`launcher("queue_worker")` starts processes of that program; it is started once."""
    launchers: dict[str, Launcher] = {}
    with ExitStack() as running:

        def of(program: str) -> Launcher:
            if program not in launchers:
                launchers[program] = running.enter_context(closing(Launcher(program)))
            return launchers[program]

        yield of


@pytest.fixture
def clock(tmp_path_factory) -> WrongClock:
    return WrongClock(tmp_path_factory.mktemp("clock"))


@pytest.fixture
def server(clock, start_server, monkeypatch) -> ServerProcess:
    """A server whose clock is `clock`."""
    with monkeypatch.context() as patched:
        for name, value in clock.environment.items():
            patched.setenv(name, value)
        return start_server()


@pytest.fixture
def make_crew(launcher, namespace, tmp_path) -> Callable[..., TopicCrew]:
    """`make_crew(server.url, …)` gives consumers, a producer and a nemesis for one topic."""

    def make(url, **options):
        return TopicCrew(launcher("topic_worker"), url, namespace, tmp_path, **options)

    return make


@pytest.fixture
def make_queue_crew(launcher, namespace, tmp_path) -> Callable[..., QueueCrew]:
    """`make_queue_crew(server.url, …)` gives workers, a producer and a nemesis for one queue."""

    def make(url, **options):
        return QueueCrew(launcher("queue_worker"), url, namespace, tmp_path, **options)

    return make


@pytest.fixture
def make_window_crew(launcher, namespace, tmp_path) -> Callable[..., WindowCrew]:
    """`make_window_crew(server, keys=…, items=…)` gives aggregators around one window."""

    def make(server, **options):
        return WindowCrew(launcher("window_aggregator"), server, namespace, tmp_path, **options)

    return make


@pytest.fixture
def make_site(launcher, namespace, tmp_path, monkeypatch) -> Callable[..., Site]:
    """`make_site(server.url, …)` gives a data directory with workers that take documents in."""

    def make(url, **options):
        policy = RetryPolicy(
            max_attempts=options.get("max_attempts", MAX_ATTEMPTS),
            backoff=tuple(options.get("backoff", BACKOFF)),
            give_up_on=(DocumentRefused,),
        )
        monkeypatch.setattr(job_message, "RETRY", policy)
        return Site(launcher("document_worker"), url, namespace, tmp_path, **options)

    return make
