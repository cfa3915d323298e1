"""A user's program that strict type checkers accept as it stands.

Pyright checks it with the sources. It is never run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI

from penstock import Message, Penstock, RetryPolicy, current_job, sync
from penstock.interfaces.fastapi import lifespan

app = Penstock()
shop = sync.Penstock()


@dataclass
class Order:
    number: int


orders = app.topic("orders", type=Order, partitions=4)


@app.task
async def welcome(user: int, lang: str = "en") -> str:
    return f"{lang} {user} {current_job().attempt}"


@app.task(queue="mail", retry=RetryPolicy(max_attempts=2), timeout_s=3)
def send_mail(address: str) -> int:
    return len(address)


@shop.task
def charge(amount: int) -> int:
    return amount


@app.cron("* * * * *")
async def every_minute() -> None: ...


@orders.subscribe("billing")
async def bill(order: Order) -> None: ...


@orders.subscribe("audit")
async def audit(message: Message) -> None: ...


@asynccontextmanager
async def own(_: FastAPI) -> AsyncGenerator[Mapping[str, Any]]:
    yield {"pool": 1}


@asynccontextmanager
async def stateless(_: FastAPI) -> AsyncGenerator[None]:
    yield


api = FastAPI(lifespan=lifespan(app))
api_with_worker = FastAPI(lifespan=lifespan(app, worker=True, around=own))
api_without_state = FastAPI(lifespan=lifespan(app, around=stateless))


async def main() -> None:
    async with app:
        job = await welcome.send(1, lang="fr")
        text: str = await job.result(timeout_s=1)
        jobs = await welcome.send_many([(1,), {"user": 2}, welcome.call(3, lang="fr")])
        lengths: list[int] = [await one.result() for one in await send_mail.send_many([("a",)])]
        message_id: str = await orders.send(Order(1), key="a")
        code: int = await app.worker().run(handle_signals=True)
        print(text, jobs, lengths, message_id, code)  # noqa: T201


def in_a_script() -> None:
    with shop:
        amount: int = charge.send(3).result(timeout_s=1)
        print(amount, charge.send_many([(1,), charge.call(2)]))  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
