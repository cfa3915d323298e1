"""Signs of life go on while the event loop stands still, and end with the service."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
import redis
from tests.kit.lifecycle import check_lifecycle

from penstock.runtime.heartbeat_thread import Beat, HeartbeatThread
from penstock.testing.eventually import eventually
from penstock.topics.storage.keys import PartitionKeys, TopicKeys
from penstock.topics.storage.scripts import TopicScripts

THREAD = "penstock heartbeats"


def heartbeat_threads():
    return [one for one in threading.enumerate() if one.name == THREAD]


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
async def test_a_consumer_keeps_all_that_it_holds_while_its_loop_is_blocked(
    valkey_server, open_app, consume, ordering
):
    """Without a worker around it: such a consumer starts the thread itself."""
    app = await open_app(valkey_server, lease_ttl_s=0.4)
    orders = app.topic("orders", partitions=2, type=int)
    keys = app.redis.keys
    seen: list[tuple[int, list[bool]]] = []

    def block() -> list[bool]:
        """Block for two leases, looking at the server now and then."""
        looks: list[bool] = []
        until = time.monotonic() + 0.8
        with redis.Redis.from_url(valkey_server.url) as other:
            leases = [PartitionKeys.of(keys, "orders", index).lease("group") for index in range(2)]
            while time.monotonic() < until:
                looks += [other.pttl(lease) > 0 for lease in leases]
                time.sleep(0.05)
            looks.append(other.zcard(TopicKeys.of(keys, "orders").members("group")) == 1)
        return looks

    async def handle(number: int) -> None:
        seen.append((number, block()))

    consumer = await consume(orders, handle, ordering=ordering)
    await eventually(lambda: consumer.partitions == [0, 1])
    before = consumer._assignment._owned.copy()
    await orders.send(1)
    await eventually(lambda: consumer.counts.handled == 1)
    await orders.send(2)
    await eventually(lambda: consumer.counts.handled == 2)
    assert [number for number, _ in seen] == [1, 2]
    assert all(all(looks) for _, looks in seen)
    assert consumer._assignment._owned == before
    assert consumer.counts.leases_lost == 0


async def test_a_worker_has_one_thread_for_topics_and_queues(valkey_server, open_app):
    app = await open_app(valkey_server)
    ran: list[object] = []
    for name in ("orders", "refunds"):

        @app.topic(name, type=int).subscribe(group="billing")
        async def handle(number: int) -> None:
            ran.append(number)

    @app.task
    async def bill(name: str) -> None:
        ran.append(name)

    worker = app.worker()
    running = asyncio.create_task(worker.run())
    await app.topic("orders", type=int).send(1)
    await bill.send("anna")
    await eventually(lambda: len(ran) == 2)
    assert len(heartbeat_threads()) == 1
    await worker.stop()
    await running
    assert not heartbeat_threads()


async def test_the_thread_keeps_the_contract_of_a_service(valkey_server, open_app):
    app = await open_app(valkey_server)

    async def beat(client):
        await TopicScripts.of(client).stay_member(members="nobody", member="anna")

    def make() -> HeartbeatThread:
        made = HeartbeatThread(app.redis)
        made.add(Beat("test", 0.01, beat))
        return made

    await check_lifecycle(make, within_s=20)


async def test_a_beat_that_fails_for_another_reason_than_the_server_ends_the_service(
    valkey_server, open_app
):
    app = await open_app(valkey_server)

    async def beat(_):
        raise KeyError("a defect")

    heartbeats = HeartbeatThread(app.redis)
    heartbeats.add(Beat("test", 0.01, beat))
    await heartbeats.start()
    with pytest.raises(KeyError):
        await heartbeats.wait()
