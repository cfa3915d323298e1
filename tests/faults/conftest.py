"""What the fault tests of topics share."""

from __future__ import annotations

import pytest

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
