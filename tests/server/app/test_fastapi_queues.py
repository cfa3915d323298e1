"""Penstock opens and closes with a FastAPI application, and may work within it."""

import asyncio
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import Annotated

import httpx
import pytest
from fastapi import Depends, FastAPI

from penstock import Penstock
from penstock.delivery.depends import injected_parameters
from penstock.errors import NotOpen
from penstock.interfaces.fastapi import get_app, lifespan
from penstock.settings import Settings


@pytest.fixture
def work(valkey_server, namespace):
    return Penstock(settings=Settings(url=valkey_server.url, namespace=namespace))


@asynccontextmanager
async def served(api):
    transport = httpx.ASGITransport(api)
    async with (
        api.router.lifespan_context(api),
        httpx.AsyncClient(transport=transport, base_url="http://test") as browser,
    ):
        yield browser


def with_visits(api):
    @api.get("/visits")
    async def visits(app: Annotated[Penstock, Depends(get_app)]) -> int:
        return await app.redis.call("INCR", f"{app.settings.namespace}:visits")

    return api


async def test_the_application_is_open_while_the_api_is_served_and_closed_afterwards(work):
    api = with_visits(FastAPI(lifespan=lifespan(work)))
    async with served(api) as browser:
        assert (await browser.get("/visits")).json() == 1
    with pytest.raises(NotOpen):
        await work.redis.call("PING")


async def test_ones_own_lifespan_runs_while_the_application_is_open_and_keeps_its_state(work):
    told = []

    @asynccontextmanager
    async def own(api):
        told.append(await work.redis.call("PING"))
        yield {"pool": "mine"}
        told.append(await work.redis.call("PING"))

    api = FastAPI(lifespan=lifespan(work, around=own))
    async with api.router.lifespan_context(api) as state:
        assert state == {"pool": "mine"}
    assert len(told) == 2


async def test_an_api_without_the_lifespan_is_told_what_is_missing():
    api = with_visits(FastAPI())
    async with served(api) as browser:
        with pytest.raises(NotOpen, match="lifespan"):
            await browser.get("/visits")


async def test_a_worker_within_leaves_the_signals_to_the_web_server(work):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    api = FastAPI(lifespan=lifespan(work, worker=True))
    async with api.router.lifespan_context(api):
        await asyncio.sleep(0)
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_marks_of_fastapi_hold_for_tasks():
    def get_db():
        return "db"

    class Query:
        pass

    def task(
        number: int,
        a: Annotated[str, Depends(get_db)],
        b: Annotated[Query, Depends()],
        c: str = Depends(get_db),
    ):
        pass

    assert injected_parameters(task) == {"a", "b", "c"}


def test_without_fastapi_the_import_says_what_to_install():
    code = "import sys; sys.modules['fastapi'] = None\nimport penstock.interfaces.fastapi"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'penstock[fastapi]'" in run.stderr


class Greeter:
    def __init__(self, word):
        self.word = word


async def get_greeter():
    return Greeter("hello")


GreeterNeeded = Annotated[Greeter, Depends(get_greeter)]


def with_tasks(work, **options):
    api = FastAPI(lifespan=lifespan(work, **options))

    @work.task(queue="mail", status=True)
    async def welcome(name: str, greeter: GreeterNeeded) -> str:
        return f"{greeter.word} {name}"

    @api.post("/welcome/{name}")
    async def greet(name: str, greeter: GreeterNeeded) -> str:
        assert greeter.word == "hello"
        job = await welcome.send(name)
        return await job.result(timeout_s=60)

    return api


async def test_a_worker_within_runs_what_the_endpoints_send(work):
    async with served(with_tasks(work, worker=True)) as browser:
        assert (await browser.post("/welcome/Ada")).json() == "hello Ada"


async def test_what_tasks_depend_on_can_be_replaced_in_a_test(work):
    async with served(with_tasks(work, worker=True)) as browser:
        with work.dependencies.override(get_greeter, lambda: Greeter("hi")):
            assert (await browser.post("/welcome/Ada")).json() == "hi Ada"
        assert (await browser.post("/welcome/Ada")).json() == "hello Ada"


async def test_what_the_own_lifespan_opens_is_there_until_the_last_task_has_ended(work):
    told, begun = [], asyncio.Event()

    @asynccontextmanager
    async def own(api):
        told.append("opened")
        yield
        told.append("closed")

    @work.task
    async def last() -> None:
        begun.set()
        await asyncio.sleep(0.05)
        told.append("task ended")

    api = FastAPI(lifespan=lifespan(work, worker=True, around=own))
    async with api.router.lifespan_context(api):
        await last.send()
        await begun.wait()
    assert told == ["opened", "task ended", "closed"]
