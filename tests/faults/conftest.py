"""What the fault tests of topics and queues share."""

from __future__ import annotations

import pytest

from .queues.crew import WORKER as QUEUE_WORKER
from .queues.crew import Crew as QueueCrew
from .topics.crew import Crew, Launcher


@pytest.fixture(scope="session")
def launcher():
    """Starts worker processes quickly; they share nothing but the memory they begin with."""
    launcher = Launcher()
    yield launcher
    launcher.close()


@pytest.fixture
def make_crew(launcher, namespace, tmp_path):
    """`make_crew(server.url, …)` gives workers, a producer and a nemesis for one topic."""

    def make(url, **options):
        return Crew(launcher, url, namespace, tmp_path, **options)

    return make


@pytest.fixture(scope="session")
def queue_launcher():
    """As `launcher`, for workers of queues."""
    launcher = Launcher(QUEUE_WORKER)
    yield launcher
    launcher.close()


@pytest.fixture
def make_queue_crew(queue_launcher, namespace, tmp_path):
    """`make_queue_crew(server.url, …)` gives workers, a producer and a nemesis for one queue."""

    def make(url, **options):
        return QueueCrew(queue_launcher, url, namespace, tmp_path, **options)

    return make
