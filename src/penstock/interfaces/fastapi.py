"""Penstock within FastAPI.

    work = Penstock()
    api = FastAPI(lifespan=lifespan(work))

    @api.post("/users/{user_id}/welcome")
    async def greet(user_id: int) -> str:
        return (await welcome.send(user_id)).id

Marks of FastAPI (`Annotated[Db, Depends(get_db)]`) hold for tasks as well, as long as the provider
asks for nothing that only a request has.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from penstock.app import Penstock
from penstock.errors import NotOpen
from penstock.runtime.worker import Worker

try:
    from fastapi import FastAPI
    from starlette.requests import HTTPConnection
except ImportError as missing:
    raise ImportError(
        "penstock.interfaces.fastapi needs FastAPI: pip install 'penstock[fastapi]'"
    ) from missing

__all__ = ["get_app", "lifespan"]

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]
"""With a state or without: FastAPI takes one or the other, but no union of both."""


def lifespan(app: Penstock, *, worker: bool = False, around: Lifespan | None = None) -> Lifespan:
    """Open `app` when the API starts and close it when the API ends.

        FastAPI(lifespan=lifespan(app))
        FastAPI(lifespan=lifespan(app, worker=True))             # run the tasks in here as well
        FastAPI(lifespan=lifespan(app, around=my_lifespan))      # with yours around it

    What `around` opens is there for the tasks: it begins before the worker and ends after it. `app`
    is open in it already. A worker in here has `worker.grace_s` to finish at the end; the signals
    stay the web server's.
    """

    @asynccontextmanager
    async def live(api: FastAPI) -> AsyncGenerator[Any]:
        async with app:
            api.state.penstock = app
            async with (around or _nothing)(api) as state:
                if worker:
                    async with _running(app.worker()):
                        yield state
                else:
                    yield state

    return live


async def get_app(connection: HTTPConnection) -> Penstock:
    """Return the API's Penstock, for FastAPI's `Depends`; `NotOpen` without `lifespan`."""
    app = getattr(connection.app.state, "penstock", None)
    if app is None:
        raise NotOpen("no Penstock here: FastAPI(lifespan=lifespan(app)) opens one")
    return app


@asynccontextmanager
async def _nothing(_: FastAPI) -> AsyncGenerator[None]:
    yield


@asynccontextmanager
async def _running(worker: Worker) -> AsyncGenerator[None]:
    # A worker that fails logs its error; the API keeps running, and other workers do the jobs.
    running = asyncio.create_task(worker.run(), name="penstock worker")
    try:
        yield
    finally:
        await worker.stop()
        await running
