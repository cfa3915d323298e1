"""Dramatiq. Consumes under its own command line; run as a program it sends."""

from __future__ import annotations

import time

import dramatiq
import sending
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import Retries

# Fewer middlewares are faster; the retries are what makes it comparable.
dramatiq.set_broker(RedisBroker(url=sending.URL, middleware=[Retries()]))


@dramatiq.actor
def handle(order: dict[str, object]) -> None:
    pass


if __name__ == "__main__":
    started = time.perf_counter()
    for _ in range(sending.count()):
        handle.send(sending.ORDER)  # it blocks: there is nothing to await, and one thread is best
    sending.tell(sending.count(), started)
