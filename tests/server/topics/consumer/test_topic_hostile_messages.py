"""Messages that are code, pushed past our producers: they stay bytes and text on every way."""

from __future__ import annotations

import base64
import os
import pickle
from typing import Any

import pytest
import zstandard

from penstock.delivery.retries import Fixed, RetryPolicy
from penstock.testing.eventually import eventually
from penstock.topics.storage.keys import PartitionKeys

pytestmark = pytest.mark.one_server


class Planted:
    """Makes a folder when it is unpickled."""

    def __init__(self, trace: str) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.trace,)


@pytest.fixture
def trace(tmp_path):
    """A folder that is there after the test if anything was run."""
    yield str(tmp_path / "run")
    assert not [*tmp_path.iterdir()]


def hostile_entries(trace: str) -> list[list[Any]]:
    planted = pickle.dumps(Planted(trace))
    payloads = [
        *(planted, zstandard.compress(planted), base64.b64encode(planted)),
        *(
            f"__import__('os').mkdir({trace!r})",
            b'{"task":"os:mkdir","args":["%b"]}' % trace.encode(),
        ),
        *(b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000, b"9" * 500_000, b"-1e999999999"),
    ]
    entries: list[list[Any]] = [["payload", payload] for payload in payloads]
    entries += [["payload", "1", "headers", payload] for payload in payloads]
    entries += [["payload", "1", "key", payload[:500]] for payload in payloads]
    entries += [["payload", "1", "retryCount", payload] for payload in payloads]
    return entries


@pytest.mark.parametrize("kind", [bytes, Any, dict], ids=["bytes", "any value", "objects"])
async def test_nothing_is_unpickled_or_run_when_delivered_buried_or_replayed(
    app, consume, trace, kind
):
    orders = app.topic("orders", type=kind)
    await orders.metadata()
    stream, entries = PartitionKeys.of(app.redis.keys, "orders", 0).stream, hostile_entries(trace)
    for fields in entries:
        await app.redis.call("XADD", stream, "*", *fields)

    async def handle(payload):
        raise ValueError(type(payload))

    once = RetryPolicy(max_attempts=1, backoff=Fixed(0))
    consumer = await consume(orders, handle, retry=once)
    await eventually(lambda: consumer.counts.dead == len(entries))
    letters = app.topics.dead_letters("orders")
    assert await letters.count() == len(entries)
    await letters.replay()
    await eventually(lambda: consumer.counts.dead == 2 * len(entries))
