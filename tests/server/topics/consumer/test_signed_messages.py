"""Topics that require signatures: what our producers send is handled, what strangers add is not."""

import itertools
import json
import secrets

import pytest
from tests.kit.settings import QUICK_TOPICS
from tests.kit.signing import NEW, OLD, signing

from penstock import Fixed, Message, Outgoing, Penstock, RetryPolicy
from penstock.errors import InvalidMessage
from penstock.settings import Settings, SigningSettings, TopicSettings, WorkerSettings
from penstock.testing.eventually import eventually
from penstock.topics.storage.keys import PartitionKeys, TopicKeys
from penstock.topics.storage.message_signatures import MessageSignatures

pytestmark = pytest.mark.settings(signing=signing(require="all"))

QUICK = RetryPolicy(max_attempts=2, backoff=Fixed(0.01))


@pytest.fixture
async def open_signed(place, namespace, opened):
    """`await open_signed(sign_with="new", …)` is a program with keys of its own."""

    async def open_one(namespace=namespace, topics=None, **keys):
        settings = Settings(
            url=place.url,
            namespace=namespace,
            topics=TopicSettings(**{**QUICK_TOPICS, **(topics or {})}),
            worker=WorkerSettings(poll_s=0.2),
            signing=SigningSettings(**keys),
        )
        return await opened.enter_async_context(Penstock(settings=settings))

    return open_one


async def letters_of(topic, count=1):
    async def are_there():
        return len((await topic.dead_letters.list()).letters) == count

    await eventually(are_there)
    return (await topic.dead_letters.list()).letters


async def entries(topic, index=0):
    stream = PartitionKeys.of(topic.client.keys, topic.name, index).stream
    return await topic.client.call("XRANGE", stream, "-", "+")


async def add(topic, *fields, index=0):
    stream = PartitionKeys.of(topic.client.keys, topic.name, index).stream
    await topic.client.call("XADD", stream, "*", *fields)


def changed(fields, name, value):
    pairs = dict(zip(fields[::2], fields[1::2], strict=True))
    pairs[name] = value
    return [part for pair in pairs.items() for part in pair]


SHAPES = {
    "in order": {},
    "by key": {"ordering": "key"},
    "without order": {"ordering": "none"},
    "in batches": {"batch": 3},
    "once": {"retry": RetryPolicy(max_attempts=1)},
    "batches, once": {"batch": 3, "retry": RetryPolicy(max_attempts=1)},
}


@pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_what_is_sent_in_every_way_is_handled_and_nothing_else(app, consume, options, kind):
    topic, seen = app.topic("orders"), []
    take = seen.extend if options.get("batch") else seen.append

    async def handle(payload: object) -> None:
        take(payload)

    def handle_in_thread(payload: object) -> None:
        take(payload)

    for one in (handle, handle_in_thread):
        one.__annotations__["payload"] = list[object] if options.get("batch") else object

    await topic.send(1)
    await topic.send(2, key="k")
    await topic.send(3, key="", headers={"who": "me", "b": "c"})
    await topic.send_batch([4, Outgoing(5, key="k", headers={"a": "b"})])
    await topic.send(6, idempotency_key="once")
    await topic.send(7, delay=0.05)
    large = secrets.token_hex(100_000)
    await topic.send(large, key="k")
    (_, good), *_ = await entries(topic)
    (_, keyed) = (await entries(topic))[1]
    evil = [
        [b"payload", b"666"],
        changed(good, b"payload", b"666"),
        changed(good, b"key", b"k"),
        changed(keyed, b"key", b"other"),
        changed(keyed, b"headers", b"{}"),
        changed(good, b"headers", b'{"x":"y",' + good[-1][1:]),
        [b"payload", b"", b"payload", b"1", *good[2:]],
        [b"targetGroup", b"group", b"payload", b"666"],
        [b"other", b"field"],
    ]
    for fields in evil:
        await add(topic, *fields)
    handler = handle if kind == "coroutine" else handle_in_thread
    consumer = await consume(topic, handler, **options)
    letters = await letters_of(topic, len(evil))
    assert {letter.reason for letter in letters} == {"refused"}
    assert {letter.error_class for letter in letters} == {"penstock.errors.BadSignature"}
    assert {letter.attempts for letter in letters} == {1}
    await eventually(lambda: len(seen) == 8)
    assert sorted(map(str, seen)) == sorted(map(str, [*range(1, 8), large]))
    assert consumer.counts.dead == len(evil)


@pytest.mark.one_server
@pytest.mark.parametrize("options", [{}, {"batch": 2}], ids=["one by one", "in batches"])
async def test_quotes_of_a_retry_by_java_do_not_change_what_is_handled(app, consume, options):
    topic, seen = app.topic("orders"), []
    await topic.send({"n": 1}, headers={"a": "b"})
    ((_, good),) = await entries(topic)
    quoted = changed(good, b"payload", json.dumps(good[1].decode()).encode())
    await add(topic, *quoted, b"retryCount", b"1")

    async def handle(payload: object) -> None:
        seen.extend(payload if options else [payload])

    handle.__annotations__["payload"] = list[object] if options else object

    await consume(topic, handle, **options)
    await eventually(lambda: len(seen) >= 1)
    if options:
        await letters_of(topic)
    else:
        await eventually(lambda: len(seen) == 2)
    assert all(payload == {"n": 1} for payload in seen)


@pytest.mark.one_server
async def test_a_handler_does_not_see_the_signature(app, consume):
    topic, seen = app.topic("orders"), []
    await topic.send(1, headers={"who": "me"})

    async def handle(message: Message) -> None:
        seen.append(message.headers)

    await consume(topic, handle)
    await eventually(lambda: seen == [{"who": "me"}])
    ((_, fields),) = await entries(topic)
    assert b"x-penstock-signature" in fields[-1]


@pytest.mark.one_server
async def test_a_large_payload_that_was_exchanged_is_refused(app, consume):
    topic, seen = app.topic("orders"), []
    await topic.send(secrets.token_hex(100_000))
    prefix = PartitionKeys.of(app.redis.keys, "orders", 0).payload_prefix
    (key,) = [key async for key in scanned(app.redis, f"{prefix}*")]
    await app.redis.call("SET", key, json.dumps("x" * 200_000))

    async def handle(payload: str) -> None:
        seen.append(payload)

    await consume(topic, handle)
    (letter,) = await letters_of(topic)
    assert (letter.reason, seen) == ("refused", [])


async def scanned(client, pattern):
    cursor = b"0"
    while True:
        cursor, keys = await client.call("SCAN", cursor, "MATCH", pattern, "COUNT", 1_000)
        for key in keys:
            yield key
        if cursor == b"0":
            return


@pytest.mark.one_server
async def test_a_signed_message_of_another_topic_or_namespace_is_refused(app, consume, open_signed):
    topic, seen = app.topic("orders"), []
    there = await open_signed(namespace=f"{app.settings.namespace}2", **signing())
    for other in (app.topic("others"), there.topic("orders")):
        await other.send(5, key="k")
        ((_, fields),) = await entries(other)
        await topic.send(1)
        await add(topic, *fields)

    async def handle(payload: int) -> None:
        seen.append(payload)

    await consume(topic, handle)
    await letters_of(topic, 2)
    await eventually(lambda: seen == [1, 1])


@pytest.mark.one_server
async def test_failed_messages_are_retried_buried_replayed_and_edited(app, consume):
    topic, seen = app.topic("orders"), []

    async def handle(payload: object) -> None:
        seen.append(payload)
        if payload != {"mended": 1}:
            raise ValueError("no")

    large = secrets.token_hex(100_000)
    await topic.send("small", key="k", headers={"who": "me"})
    await topic.send(large, key="k")
    await consume(topic, handle, retry=QUICK)
    letters = await letters_of(topic, 2)
    assert {letter.reason for letter in letters} == {"exhausted"}
    assert (await topic.dead_letters.replay()).replayed == 2
    await eventually(lambda: (seen.count("small"), seen.count(large)) == (4, 4))
    for letter in await letters_of(topic, 2):
        await topic.dead_letters.edit(letter.id, payload={"mended": 1})
    assert (await topic.dead_letters.replay()).replayed == 2
    await eventually(lambda: seen[8:] == [{"mended": 1}] * 2)


@pytest.mark.one_server
async def test_neither_a_replay_nor_half_an_edit_blesses_what_was_refused(app, consume):
    topic, seen = app.topic("orders"), []

    async def handle(message: Message) -> None:
        seen.append((message.payload, message.headers.get("evil")))

    await topic.send(1)
    await add(topic, "payload", "666", "headers", '{"evil":"yes"}')
    await consume(topic, handle)
    (letter,) = await letters_of(topic)
    assert (await topic.dead_letters.replay()).replayed == 1
    await eventually(lambda: _other_letter(topic, letter.id))
    (letter,) = await letters_of(topic)
    with pytest.raises(InvalidMessage, match="give the payload"):
        await topic.dead_letters.edit(letter.id, headers={"evil": "no"})
    await topic.dead_letters.edit(letter.id, payload=2)
    await topic.dead_letters.replay()
    await eventually(lambda: seen == [(1, None), (2, None)])


@pytest.mark.one_server
async def test_an_edit_signs_the_payload_that_it_has_verified(app, consume, monkeypatch):
    topic, seen = app.topic("orders"), []
    await topic.send(secrets.token_hex(100_000))
    ((_, fields),) = await entries(topic)
    dlq = TopicKeys.of(app.redis.keys, "orders").dlq
    await app.redis.call("XADD", dlq, "*", *fields, "partitionId", 0)
    (letter,) = await letters_of(topic)
    pipeline, read = app.redis.pipeline, []

    async def exchanging(commands):
        replies = await pipeline(commands)
        for name, *arguments in commands:
            if name == "GET":
                read.append(arguments[0])
                await app.redis.call("SET", arguments[0], json.dumps("y" * 300_000))
        return replies

    monkeypatch.setattr(app.redis, "pipeline", exchanging)
    await topic.dead_letters.edit(letter.id, headers={"who": "me"})
    monkeypatch.undo()
    assert read
    await topic.dead_letters.replay()
    await consume(topic, seen.append)
    letters = await letters_of(topic, 2)
    assert ([letter.reason for letter in letters], seen) == (["refused", "refused"], [])


async def _other_letter(topic, id_):
    letters = (await topic.dead_letters.list()).letters
    return [letter.id for letter in letters] not in ([], [id_])


@pytest.mark.one_server
def test_no_key_is_another_key_than_an_empty_one(app):
    signatures = MessageSignatures(app.redis, "orders")
    headers = signatures.signed(b"1", None, None)
    assert signatures.refusal("0-1-0", b"1", None, headers) is None
    assert signatures.refusal("0-1-0", b"1", b"", headers).error_code == "altered"


@pytest.mark.one_server
async def test_signed_messages_survive_growth_and_delays(app, consume):
    topic, seen = app.topic("orders"), []
    for number in range(6):
        await topic.send(number, key=f"k{number}", delay=0.3 if number % 2 else None)
    await app.topics.grow("orders", 3)

    async def handle(payload: int) -> None:
        seen.append(payload)

    await consume(topic, handle)
    await eventually(lambda: sorted(seen) == [*range(6)])
    assert (await topic.dead_letters.list()).letters == []


@pytest.mark.one_server
async def test_messages_for_java_are_signed_as_well(app, consume):
    topic, seen = app.topic("orders", interop=True), []
    await topic.send({"n": 1}, key="k", headers={"a": "b"})
    await topic.send({"n": "x" * 100_000})

    async def handle(payload: dict) -> None:
        seen.append(len(str(payload["n"])))

    await consume(topic, handle)
    await eventually(lambda: sorted(seen) == [1, 100_000])


@pytest.mark.one_server
async def test_keys_are_rotated_and_programs_without_keys_read_what_is_signed(open_signed, consume):
    stages = [
        signing(keys=OLD),
        signing(keys=f"{OLD},{NEW}"),
        signing(keys=f"{OLD},{NEW}", sign_with="new"),
        signing(keys=NEW, sign_with="new"),
        {},
    ]
    programs = [await open_signed(**stage) for stage in stages]
    for stage, (sender, reader) in enumerate(itertools.pairwise(programs)):
        topic, seen = reader.topic(f"orders-{stage}"), []

        async def handle(payload: int, *, seen=seen) -> None:
            seen.append(payload)

        await sender.topic(topic.name).send(stage)
        await consume(topic, handle)
        await eventually(lambda: seen == [stage])  # noqa: B023


@pytest.mark.one_server
async def test_only_the_named_topics_are_signed(open_signed):
    app = await open_signed(**signing(sign="orders", require="payments"))
    for name, is_signed in (("orders", True), ("payments", True), ("other", False)):
        await app.topic(name).send(1)
        ((_, fields),) = await entries(app.topic(name))
        assert (b"headers" in fields) == is_signed
