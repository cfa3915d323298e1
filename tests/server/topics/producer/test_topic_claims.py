"""Large payloads, kept beside the stream: every group reads them, nobody keeps them for ever."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from penstock.delivery.retries import Fixed, RetryPolicy
from penstock.testing.eventually import eventually
from penstock.topics.admin.retention import trim_partition
from penstock.topics.message import Message
from penstock.topics.storage.keys import PartitionKeys
from penstock.topics.storage.metadata import Retention

QUICK = RetryPolicy(max_attempts=2, backoff=Fixed(0.02))
# Random, so that it stays large when compressed.
LARGE = random.Random(7).randbytes(100_000)  # noqa: S311  no secret


async def bodies(app, partition=0):
    keys = PartitionKeys.of(app.redis.keys, "files", partition)
    return await app.redis.call("ZCARD", keys.payloads)


async def reference(app, partition=0):
    """Key at which the body of the first message is stored."""
    stream = PartitionKeys.of(app.redis.keys, "files", partition).stream
    [[_, fields]] = await app.redis.call("XRANGE", stream, "-", "+", "COUNT", 1)
    headers = msgspec.json.decode(dict(zip(fields[::2], fields[1::2], strict=True))[b"headers"])
    return headers["x-payload-hash-ref"]


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
async def test_a_large_payload_reaches_every_group_as_any_other(app, consume, ordering):
    files = app.topic("files", type=bytes)
    seen: dict[str, list[Any]] = {"a": [], "b": []}
    consumers = []
    for group, messages in seen.items():

        async def handle(message: Message, messages: list[Any] = messages) -> None:
            messages.append((message.payload, message.key, message.headers, message.attempt))

        consumers.append(await consume(files, handle, group=group, ordering=ordering))
    # Groups that are registered when a large payload is sent find it.
    await eventually(lambda: all(consumer.partitions == [0] for consumer in consumers))
    await files.send(b"small", key="k")
    await files.send(LARGE, key="k", headers={"trace": "t"})
    await eventually(lambda: all(consumer.counts.handled == 2 for consumer in consumers))
    expected = [(b"small", "k", {}, 1), (LARGE, "k", {"trace": "t"}, 1)]
    for messages in seen.values():
        assert sorted(messages, key=lambda one: len(one[0])) == expected


async def test_the_body_stays_until_the_last_group_is_past_it(app, consume):
    files = app.topic("files", type=bytes)
    await files.send(LARGE)
    where = await reference(app)
    late: list[int] = []
    ready = asyncio.Event()

    async def quick(_: bytes) -> None: ...

    async def slow(data: bytes) -> None:
        await ready.wait()
        late.append(len(data))

    second = await consume(files, slow, group="slow")
    first = await consume(files, quick, group="quick")
    await eventually(lambda: first.counts.handled == 1)
    freed = await trim_partition(app.redis, "files", 0, Retention())
    assert freed == (0, 0, 0)
    assert await app.redis.call("EXISTS", where) == 1
    ready.set()
    await eventually(lambda: second.counts.handled == 1)
    assert late == [len(LARGE)]

    async def is_freed() -> bool:
        return not await app.redis.call("EXISTS", where) and not await bodies(app)

    await eventually(is_freed)  # by the janitors of the consumers


async def test_the_body_stays_while_its_message_waits_for_a_retry(app, consume):
    files = app.topic("files", type=bytes)
    await files.send(LARGE)
    seen: list[tuple[int, int]] = []

    async def handle(message: Message) -> None:
        seen.append((len(message.payload), message.attempt))
        if message.attempt == 1:
            await trim_partition(app.redis, "files", 0, Retention())
            raise ValueError

    consumer = await consume(files, handle, retry=RetryPolicy(backoff=Fixed(0.3)))
    await eventually(lambda: consumer.counts.handled == 1)
    assert seen == [(len(LARGE), 1), (len(LARGE), 2)]
    await eventually(lambda: freed_all(app))


async def freed_all(app) -> bool:
    return await bodies(app) == 0


async def test_a_body_whose_message_was_trimmed_is_swept(app):
    files = app.topic("files", type=bytes)
    for _ in range(3):
        await files.send(LARGE)
    where = await reference(app)
    stream = PartitionKeys.of(app.redis.keys, "files", 0).stream
    await app.redis.call("XTRIM", stream, "MAXLEN", "=", 1)
    assert await trim_partition(app.redis, "files", 0, Retention()) == (0, 0, 2)
    assert await app.redis.call("EXISTS", where) == 0
    assert await bodies(app) == 1


async def test_without_any_group_bodies_stay_as_long_as_their_messages(app):
    files = app.topic("files", type=bytes)
    await files.send(LARGE)
    assert await trim_partition(app.redis, "files", 0, Retention()) == (0, 0, 0)
    assert await app.redis.call("EXISTS", await reference(app)) == 1


async def test_more_bodies_than_one_sweep_looks_at_are_freed_by_and_by(app, consume):
    files = app.topic("files", type=bytes)
    await asyncio.gather(*(files.send(LARGE[:70_000]) for _ in range(450)))

    async def handle(_: bytes) -> None: ...

    consumer = await consume(files, handle)
    await eventually(lambda: consumer.counts.handled == 450)
    await eventually(lambda: freed_all(app))


async def test_a_body_that_is_gone_makes_a_dead_letter_not_a_loop(app, consume):
    files = app.topic("files", type=bytes)
    await files.send(LARGE, key="k")
    await files.send(b"small")
    await app.redis.call("DEL", await reference(app))
    seen: list[bytes] = []

    async def handle(data: bytes) -> None:
        seen.append(data)

    consumer = await consume(files, handle, retry=QUICK)
    await eventually(lambda: consumer.counts.handled == 2)
    assert seen == [b"small"]
    [letter] = (await files.dead_letters.list()).letters
    assert (letter.reason, letter.key, letter.payload.is_missing) == ("undecodable", "k", True)


async def test_a_dead_letter_keeps_the_body_that_the_stream_frees(app, consume):
    files = app.topic("files", type=bytes)
    await files.send(LARGE, key="k")
    failing = True
    seen: list[bytes] = []

    async def handle(data: bytes) -> None:
        if failing:
            raise ValueError
        seen.append(data)

    consumer = await consume(files, handle, retry=QUICK)
    await eventually(lambda: consumer.counts.dead == 1)
    await eventually(lambda: freed_all(app))
    failing = False
    assert (await files.dead_letters.replay()).replayed == 1
    await eventually(lambda: seen == [LARGE])


async def test_a_delayed_large_payload_arrives_whole(app, consume):
    files = app.topic("files", type=bytes)
    seen: list[bytes] = []

    async def handle(data: bytes) -> None:
        seen.append(data)

    await consume(files, handle)
    await files.send(LARGE, delay=0.3)
    for _ in range(3):
        await trim_partition(app.redis, "files", 0, Retention())
    await eventually(lambda: seen == [LARGE])
