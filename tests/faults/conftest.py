"""What the fault tests of topics, queues and documents share."""

from __future__ import annotations

import pytest

from penstock.delivery.retries import RetryPolicy
from penstock.errors import DocumentRefused
from penstock.pipelines.documents import sending

from .documents.site import BACKOFF, MAX_ATTEMPTS, Site
from .documents.site import WORKER as DOCUMENT_WORKER
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


@pytest.fixture(scope="session")
def document_launcher():
    """As `launcher`, for workers that take documents in."""
    launcher = Launcher(DOCUMENT_WORKER)
    yield launcher
    launcher.close()


@pytest.fixture
def make_site(document_launcher, namespace, tmp_path, monkeypatch):
    """`make_site(server.url, …)` gives a data directory with workers that take documents in."""

    def make(url, **options):
        policy = RetryPolicy(
            max_attempts=options.get("max_attempts", MAX_ATTEMPTS),
            backoff=tuple(options.get("backoff", BACKOFF)),
            give_up_on=(DocumentRefused,),
        )
        monkeypatch.setattr(sending, "RETRY", policy)
        return Site(document_launcher, url, namespace, tmp_path, **options)

    return make
