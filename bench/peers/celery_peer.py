"""Celery. Works under its own command line, acknowledging late; run as a program it sends."""

from __future__ import annotations

import asyncio

import offering
import sending
from celery import Celery

app = Celery("celery_peer", broker=f"redis+socket://{sending.URL.removeprefix('unix://')}")
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=64,
    task_default_queue="orders",
)


@app.task(name="handle", max_retries=3)
def handle(order: dict[str, object]) -> None:
    pass


if __name__ == "__main__":
    asyncio.run(offering.offer(offering.blocking(lambda: handle.delay(sending.ORDER))))
