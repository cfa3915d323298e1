"""arq: `work`, or `offer <one by one> <in bulk>`; it has no call for many jobs."""

from __future__ import annotations

import asyncio
from typing import Any

import msgpack
import offering
import sending
import uvloop
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import run_worker

SOCKET = RedisSettings(unix_socket_path=sending.URL.removeprefix("unix://"))


async def handle(_: dict[str, Any], order: dict[str, object]) -> None:
    pass


class WorkerSettings:
    """Read by arq."""

    functions = (handle,)
    redis_settings = SOCKET
    max_jobs = 20
    poll_delay = 0.05
    keep_result = 0
    log_results = False
    job_serializer = staticmethod(msgpack.packb)
    job_deserializer = staticmethod(msgpack.unpackb)


async def offer() -> None:
    pool = await create_pool(SOCKET, job_serializer=msgpack.packb)
    await offering.offer(lambda: pool.enqueue_job("handle", sending.ORDER))


if __name__ == "__main__":
    uvloop.install()
    if offering.is_asked():
        asyncio.run(offer())
    else:
        asyncio.set_event_loop(asyncio.new_event_loop())
        run_worker(WorkerSettings)
