"""Topics shared with the Java library redis-streaming: what we write is what it reads."""

import os
import re

import msgspec
import pytest

from penstock.redis.codec import Codec
from penstock.topics.message import Outgoing
from penstock.topics.partitioners import JavaHash
from penstock.topics.storage.keys import PartitionKeys
from penstock.topics.topic import Topic

LARGE = 2_000
INSTANT = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")

pytestmark = [pytest.mark.one_server, pytest.mark.settings(topics={"claim_above": LARGE})]


@pytest.fixture
def orders(client):
    return Topic(client, Codec(client.settings.codec), "orders", partitions=3, interop=True)


async def entries(client, index):
    stream = PartitionKeys.of(client.keys, "orders", index).stream
    return [
        dict(zip(fields[::2], fields[1::2], strict=True))
        for _, fields in await client.call("XRANGE", stream, "-", "+")
    ]


async def test_every_field_of_the_java_library_is_written(client, orders):
    await orders.send({"total": 12.5}, key="customer-7", headers={"trace": "t"})
    index = JavaHash().partition("customer-7", 3)
    (entry,) = await entries(client, index)
    assert INSTANT.fullmatch(entry.pop(b"timestamp"))
    assert entry == {
        b"payload": b'{"total":12.5}',
        b"retryCount": b"0",
        b"maxRetries": b"3",
        b"topic": b"orders",
        b"partitionId": b"%d" % index,
        b"key": b"customer-7",
        b"headers": b'{"trace":"t"}',
    }


async def test_each_way_of_sending_writes_them(client, orders):
    forced = {"x-force-partition-id": "1"}
    await orders.send(1, headers=forced, idempotency_key="k")
    await orders.send_batch([Outgoing(2, headers=forced), Outgoing(3, headers=forced)])
    await orders.send(os.urandom(LARGE).hex(), headers=forced)
    stored = await entries(client, 1)
    assert len(stored) == 4
    for entry in stored:
        assert entry[b"retryCount"] == b"0"
        assert entry[b"topic"] == b"orders"
        assert entry[b"partitionId"] == b"1"


async def test_keys_are_placed_as_java_places_them(client, orders):
    # "polygenelubricants".hashCode() is -2147483648, "Aa" and "BB" share 2112.
    for key, index in (("polygenelubricants", 1), ("Aa", 0), ("BB", 0), ("a", 1)):
        await orders.send(key, key=key)
        assert (await entries(client, index))[-1][b"key"] == key.encode()


async def test_payloads_are_never_compressed(client, orders):
    text = "to be read by anybody " * 80
    await orders.send({"text": text}, headers={"x-force-partition-id": "0"})
    (entry,) = await entries(client, 0)
    assert msgspec.json.decode(entry[b"payload"]) == {"text": text}


async def test_a_large_payload_is_a_json_text_at_the_key_that_the_header_names(client, orders):
    payload = ["long enough"] * LARGE
    await orders.send(payload, headers={"x-force-partition-id": "0"})
    (entry,) = await entries(client, 0)
    headers = msgspec.json.decode(entry[b"headers"])
    assert headers["x-payload-storage-type"] == "hash"
    reference = headers["x-payload-hash-ref"]
    assert reference.startswith(f"{client.settings.namespace}::streaming:mq:payload:orders:p:0:")
    body = await client.call("GET", reference)
    assert msgspec.json.decode(body) == payload
    assert headers["x-payload-original-size"] == str(len(body))
    assert b"payload" not in entry


async def test_the_streams_have_the_names_that_java_looks_for(client, orders):
    await orders.metadata()
    space = client.settings.namespace
    assert await client.call("TYPE", f"{space}::stream:topic:orders:p:2") == b"stream"
    meta = f"{space}::streaming:mq:topic:orders:meta"
    assert await client.call("HGET", meta, "partitionCount") == b"3"
    assert await client.call("SMEMBERS", f"{space}::streaming:mq:topics:registry") == [b"orders"]
