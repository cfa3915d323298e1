"""A consumer by key survives the loss of a partition while its slots wait to be certain."""

import asyncio

from penstock import Penstock
from penstock.settings import Settings, TopicSettings, WorkerSettings
from penstock.testing.eventually import eventually
from penstock.topics import Consumer, Subscription
from penstock.topics.consumer.owned_partition import OwnedPartition


async def test_a_slot_that_waits_for_a_renewal_outlives_the_loss_of_its_partition(
    valkey_server, namespace, monkeypatch
):
    async def unanswered(*_: object) -> None:
        await asyncio.Event().wait()

    # A renewal under way would make certain what is to be uncertain here.
    monkeypatch.setattr(OwnedPartition, "_renew", unanswered)
    settings = Settings(
        url=valkey_server.url,
        namespace=namespace,
        topics=TopicSettings(lease_ttl_s=60, balance_s=0.05),
        worker=WorkerSettings(poll_s=0.2),
    )
    async with Penstock(settings=settings) as app:
        orders = app.topic("orders", type=int)
        begun: list[int] = []
        go_on = asyncio.Event()

        async def handle(number: int) -> None:
            begun.append(number)
            await go_on.wait()

        consumer = Consumer(orders, handle, Subscription(group="billing", ordering="key"))
        async with consumer:
            await orders.send(1, key="a")
            await eventually(lambda: begun == [1])
            [held] = consumer._serving
            held.deadline = 0  # as after a pause: nobody knows whether the partition is ours
            await orders.send(2, key="b")
            await eventually(lambda: sum(one is not None for one in consumer._runner._running) == 2)
            assert begun == [1]
            held.lose()
            go_on.set()
            await eventually(lambda: consumer.counts.handled == 2)
        assert begun.count(2) == 1
