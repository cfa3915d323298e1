"""RQ with the worker that does not fork: `work`, or `offer <one by one> <in bulk>`."""

from __future__ import annotations

import asyncio

import offering
import sending
from redis import Redis
from rq import Queue, Retry, SimpleWorker
from rq.serializers import JSONSerializer

redis = Redis.from_url(sending.URL)
queue = Queue("orders", connection=redis, serializer=JSONSerializer)
HANDLER = "rq_handler.handle"
NO_TIMEOUT = -1
OPTIONS = {"result_ttl": 0, "retry": Retry(max=3)}


def send() -> None:
    queue.enqueue(HANDLER, sending.ORDER, job_timeout=NO_TIMEOUT, **OPTIONS)


async def send_many(count: int) -> None:
    queue.enqueue_many(
        [
            Queue.prepare_data(HANDLER, (sending.ORDER,), timeout=NO_TIMEOUT, **OPTIONS)
            for _ in range(count)
        ]
    )


if __name__ == "__main__":
    if offering.is_asked():
        asyncio.run(offering.offer(offering.blocking(send), send_many))
    else:
        worker = SimpleWorker([queue], connection=redis, serializer=JSONSerializer)
        worker.work(logging_level="ERROR")
