"""What other programs and ours meet on: a server where the keys have no namespace before them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import redis
from tests.kit.workplace import Workplace

from penstock import Penstock
from penstock.settings import Settings
from penstock.testing.servers import ServerProcess


@pytest.fixture(scope="module", params=["valkey", "redis62"])
def own_server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """A server without a namespace: keys and channels are to be right to the letter."""
    with ServerProcess(request.param) as running:
        yield running


@pytest.fixture
def stock(own_server: ServerProcess) -> Iterator[redis.Redis]:
    """Another program: stock redis-py, which knows the names of keys and nothing else."""
    with redis.Redis(unix_socket_path=own_server.socket_path, decode_responses=True) as plain:
        plain.flushall()
        yield plain


@pytest.fixture
def cli(own_server: ServerProcess) -> Callable[..., Any]:
    """Another program, which sends plain commands: `cli("LLEN", "detection_queue")`."""
    own_server.command("FLUSHALL")
    return own_server.command


@pytest.fixture
async def app(own_server: ServerProcess, stock: redis.Redis) -> AsyncIterator[Penstock]:
    """Our side, whose keys `redis_py` reads."""
    async with Penstock(settings=Settings(url=own_server.url)) as opened:
        yield opened


@pytest.fixture
async def workplace(own_server: ServerProcess, cli: Callable[..., Any]) -> AsyncIterator[Workplace]:
    """Our side, with workers: see `tests/kit/workplace.py`."""
    async with Workplace(own_server.url) as place:
        yield place
