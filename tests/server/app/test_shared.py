"""One client for a whole web application, as FastAPI hands it to its handlers."""

import asyncio
from contextlib import asynccontextmanager
from typing import Annotated

import httpx
import pytest
from fastapi import Depends, FastAPI

from penstock.errors import NotOpen, Unreachable
from penstock.redis.client import Client
from penstock.redis.shared import close_redis, get_redis, get_redis_optional, init_redis
from penstock.settings import RetrySettings, Settings
from penstock.testing.servers import free_port


@pytest.fixture(autouse=True)
async def closed_afterwards():
    yield
    await close_redis()


def make_application(url):
    @asynccontextmanager
    async def lifespan(_):
        await init_redis(url)
        yield
        await close_redis()

    application = FastAPI(lifespan=lifespan)

    @application.put("/values/{key}")
    async def put(key: str, value: str, redis: Annotated[Client, Depends(get_redis)]) -> str:
        await redis.call("SET", key, value)
        return "stored"

    @application.get("/values/{key}")
    async def get(
        key: str, redis: Annotated[Client | None, Depends(get_redis_optional)]
    ) -> str | None:
        if redis is None:
            return "no server"
        value = await redis.call("GET", key)
        return value and value.decode()

    return application


@asynccontextmanager
async def browser_of(application):
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as browser:
        yield browser


async def test_handlers_share_the_client_of_the_application(valkey_server, namespace):
    application = make_application(valkey_server.url)
    async with application.router.lifespan_context(application), browser_of(application) as browser:
        stored = await asyncio.gather(
            *(browser.put(f"/values/{namespace}{n}", params={"value": str(n)}) for n in range(50))
        )
        assert {reply.json() for reply in stored} == {"stored"}
        found = await asyncio.gather(*(browser.get(f"/values/{namespace}{n}") for n in range(50)))
        assert [reply.json() for reply in found] == [str(n) for n in range(50)]
    assert await get_redis_optional() is None


async def test_without_a_client_the_one_is_refused_and_the_other_is_none(namespace):
    application = make_application("redis://localhost")
    async with browser_of(application) as browser:
        assert (await browser.get(f"/values/{namespace}")).json() == "no server"
        with pytest.raises(NotOpen, match="init_redis"):
            await browser.put(f"/values/{namespace}", params={"value": "x"})
    with pytest.raises(NotOpen):
        await get_redis()
    assert await get_redis_optional() is None


async def test_opening_and_closing_may_come_twice(valkey_server):
    await close_redis()
    first = await init_redis(valkey_server.url)
    assert await init_redis(valkey_server.url) is first
    assert await get_redis() is first
    assert await get_redis_optional() is first
    await close_redis()
    await close_redis()
    with pytest.raises(NotOpen):
        await first.call("PING")


async def test_opening_at_the_same_time_gives_one_client(start_server):
    server = start_server()
    clients = await asyncio.gather(*(init_redis(server.url) for _ in range(10)))
    assert len({id(client) for client in clients}) == 1
    assert await clients[0].call("PING") == b"PONG"
    assert server.command("CLIENT", "LIST").count("name=penstock") == 1


async def test_it_waits_for_a_server_that_is_late_and_gives_up_in_the_end(start_server):
    port = free_port()
    settings = Settings(
        url=f"redis://127.0.0.1:{port}", retry=RetrySettings(tries=30, base_s=0.1, max_s=0.2)
    )
    opening = asyncio.create_task(init_redis(settings=settings))
    await asyncio.sleep(0)
    server = start_server("valkey", port=port)
    assert await (await opening).call("PING") == b"PONG"
    await close_redis()
    server.kill()
    hasty = Settings(url=settings.url, retry=RetrySettings(tries=2, base_s=0.01, max_s=0.01))
    with pytest.raises(Unreachable):
        await init_redis(settings=hasty)
    assert await get_redis_optional() is None
