"""The blocking application of a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.settings import Settings
from penstock.sync import Penstock
from penstock.testing.servers import ServerProcess


@pytest.fixture
def app(valkey_server: ServerProcess, namespace: str) -> Iterator[Penstock]:
    with Penstock(settings=Settings(url=valkey_server.url, namespace=namespace)) as opened:
        yield opened
