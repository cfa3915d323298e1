"""The Java library itself, beside us: what we take for its entries is what it writes.

Runs where PENSTOCK_JAVA_LIBRARY is a class path with version 0.1.1 of the library's `mq` and all
that it needs, and `java` is 17 or later.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from penstock import Penstock
from penstock.settings import Settings, TopicSettings, WorkerSettings
from penstock.testing.eventually import eventually
from penstock.topics.consumer.consumer import Consumer
from penstock.topics.message import Message
from penstock.topics.storage.keys import PartitionKeys, TopicKeys
from penstock.topics.subscription import Subscription

from .test_java_entries import LETTER, PLAIN, RETRIED, WITH_KEY, Order, stored

REFEREE = Path(__file__).parent / "java" / "Referee.java"
CLASS_PATH = os.environ.get("PENSTOCK_JAVA_LIBRARY")

pytestmark = [
    pytest.mark.torture,
    pytest.mark.skipif(not CLASS_PATH, reason="PENSTOCK_JAVA_LIBRARY names no class path"),
    pytest.mark.skipif(not shutil.which("java"), reason="there is no java"),
]


@pytest.fixture
async def app(start_server):
    settings = Settings(
        url=start_server().url,
        topics=TopicSettings(balance_s=0.05, lease_ttl_s=1.0),
        worker=WorkerSettings(poll_s=0.2),
    )
    async with Penstock(settings=settings) as app:
        yield app


@pytest.fixture
async def java(app):
    """A Java process that sends, fails and holds its lease."""
    command = ("java", "-cp", CLASS_PATH, str(REFEREE), app.settings.url, "60000")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert await process.stdout.readline() == b"ready\n"
    yield process
    process.kill()
    await process.wait()


async def test_the_library_writes_what_the_fixtures_say_and_keeps_its_partition(app, java):
    orders = app.topic("orders", type=Order, interop=True)
    keys = app.redis.keys

    async def buried():
        return await app.redis.call("XLEN", TopicKeys.of(keys, "orders").dlq) == 3

    await eventually(buried)
    entries = await stored(app, PartitionKeys.of(keys, "orders", 0).stream)
    assert [set(entry) for entry in entries[:2]] == [set(PLAIN), set(WITH_KEY)]
    retried = [entry for entry in entries if entry.get("key") and entry["retryCount"] == "1"]
    assert set(retried[0]) == set(RETRIED)
    assert retried[0]["payload"] == RETRIED["payload"]
    letters = await stored(app, TopicKeys.of(keys, "orders").dlq)
    assert set(LETTER) in [set(letter) for letter in letters]
    assert LETTER["payload"] in [letter["payload"] for letter in letters]

    got: list[Message] = []

    async def note(message: Message) -> None:
        assert message.payload == Order(123)
        got.append(message)

    same, other = Subscription(group="java-group"), Subscription(group="ours")
    async with Consumer(orders, note, same) as beside, Consumer(orders, note, other) as ours:
        # Three messages and three retries of each; large ones were removed by Java's group.
        await eventually(lambda: ours.counts.handled >= 12)
        assert beside.partitions == [], "the lease of a live Java consumer holds"
        java.kill()
        replayed = await orders.dead_letters.replay(limit=3)
        assert (replayed.replayed, replayed.skipped) == (3, {})
        await eventually(lambda: ours.counts.handled >= 15)
    assert {message.attempt for message in got} == {1}
