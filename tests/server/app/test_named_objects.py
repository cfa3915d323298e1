"""Naming a topic, window or slots again makes nothing: programs name them with every call."""

import gc
from typing import Annotated

import pytest

from penstock import Penstock, Retention
from penstock.settings import Settings
from penstock.sync import Penstock as SyncPenstock
from penstock.topics.partitioners import ConsistentRing, Crc32, JavaHash, Random, RoundRobin
from penstock.topics.topic import Topic

OPTIONS = {
    "type": list[int],
    "partitions": 3,
    "partitioner": RoundRobin(),
    "durability": "accepted",
    "retention": Retention(max_length=5),
}


@pytest.fixture
def app(valkey_server, namespace):
    return Penstock(settings=Settings(url=valkey_server.url, namespace=namespace))


@pytest.fixture
def sync_app(valkey_server, namespace):
    with SyncPenstock(settings=Settings(url=valkey_server.url, namespace=namespace)) as app:
        yield app


def test_the_same_options_give_the_same_topic(app):
    made = app.topic("orders", **OPTIONS)
    again = {**OPTIONS, "retention": Retention(max_length=5), "partitioner": RoundRobin()}
    assert app.topic("orders", **again) is made
    assert app.topic("orders") is app.topic("orders")
    assert app.topic("orders") is not made
    assert app.topic("others", **OPTIONS) is not made


def test_a_type_that_cannot_be_hashed_is_a_type(app):
    odd = Annotated[int, ["metadata"]]
    assert app.topic("orders", type=odd) is app.topic("orders", type=odd)


def test_partitioners_that_place_alike_are_equal():
    for kind in (Crc32, RoundRobin, JavaHash, ConsistentRing):
        assert kind() == kind()
        assert hash(kind()) == hash(kind())
    assert Crc32() != JavaHash()
    assert Random() != Random()


async def test_naming_a_topic_with_every_send_costs_and_leaks_nothing(app):
    async with app:
        await app.topic("orders", type=int).send(0)
        before = await calls(app)
        for number in range(50):
            await app.topic("orders", type=int).send(number)
        assert await calls(app) - before < 55  # one for each, and a look at the facts now and then
        gc.collect()
        assert sum(type(one) is Topic for one in gc.get_objects()) < 10


async def calls(app):
    info = (await app.redis.call("INFO", "stats")).decode()
    [line] = [one for one in info.splitlines() if one.startswith("total_commands_processed")]
    return int(line.partition(":")[2])


def test_so_it_is_for_code_that_does_not_await(sync_app):
    assert sync_app.topic("orders", **OPTIONS) is sync_app.topic("orders", **OPTIONS)
    assert sync_app.topic("orders") is not sync_app.topic("orders", **OPTIONS)
    assert sync_app.queue("mail") is sync_app.queue("mail")
    sync_app.topic("orders", **OPTIONS).send([1])
    sync_app.close()
    sync_app.topic("orders", **OPTIONS).send([2])  # on the next loop
    assert sync_app.topics.describe("orders").length == 2


async def test_slots_and_windows_are_made_once(app):
    async with app:
        assert app.slots("gpu", 4) is app.slots("gpu", 4)
        assert app.slots("gpu", 4) is not app.slots("gpu", 5)
        queue = app.queue("batches")
        made = app.window("batch", to=queue, max_age=90)
        assert app.window("batch", to=queue, max_age=90) is made
        assert app.window("batch", to=queue, max_age=30) is not made
