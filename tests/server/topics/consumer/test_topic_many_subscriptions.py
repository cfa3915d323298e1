"""Each subscription waits on the server over a connection of its own, however many there are."""

import asyncio
import os
import re
import resource
import time
from contextlib import asynccontextmanager, contextmanager

import pytest
from tests.kit.patience import patient

from penstock import Penstock
from penstock.settings import Settings, TopicSettings, WorkerSettings
from penstock.testing.eventually import eventually

MANY = 40  # far above `pools.queue`


@asynccontextmanager
async def working(app):
    worker = app.worker()
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        await worker.stop()
        await running


async def until_ready(worker):
    while not worker.readiness():  # noqa: ASYNC110  no later than it is so
        await asyncio.sleep(0)


def subscribe(app, count, seen):
    for number in range(count):

        @app.topic(f"topic-{number}", type=int).subscribe("group")
        async def handle(value: int) -> None:
            seen.append(value)


def waiting_reads(server):
    lines = str(server.command("CLIENT", "LIST")).splitlines()
    return sum(" cmd=xreadgroup " in line and " flags=b " in line for line in lines)


@contextmanager
def few_descriptors():
    """Leave this process fewer descriptors than dedicated connections spare."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 40, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def open_app(started, url, **topics):
    settings = Settings(url=url, topics=TopicSettings(**topics), worker=WorkerSettings(poll_s=100))
    return await started(Penstock(settings=settings))


@pytest.fixture
async def opened(request):
    apps = []

    async def enter(app):
        apps.append(app)
        return await app.__aenter__()

    yield enter
    for app in apps:
        await app.__aexit__(None, None, None)


async def test_a_ready_worker_waits_for_messages_of_every_subscription(start_server, opened):
    server, seen = start_server(), []
    app = await open_app(opened, server.url)
    subscribe(app, MANY, seen)
    async with working(app) as worker:
        await until_ready(worker)
        await eventually(lambda: waiting_reads(server) == MANY, patient(0.5))
        for number in range(MANY):
            await app.topic(f"topic-{number}", type=int).send(number)
        await eventually(lambda: sorted(seen) == list(range(MANY)))
    await eventually(lambda: waiting_reads(server) == 0)


def calls(server):
    """How often scripts and reads were called so far: what scripts themselves call not counted."""
    info = str(server.command("INFO", "commandstats"))
    return sum(map(int, re.findall(r"cmdstat_(?:evalsha|xreadgroup):calls=(\d+)", info)))


async def test_many_subscriptions_that_wait_ask_little_of_the_server(start_server, opened):
    server, seen = start_server(), []
    app = await open_app(opened, server.url)
    subscribe(app, MANY, seen)
    async with working(app) as worker:
        await until_ready(worker)
        await eventually(lambda: waiting_reads(server) == MANY)
        before, began = calls(server), time.monotonic()
        await asyncio.sleep(1)
        a_second = (calls(server) - before) / (time.monotonic() - began)
        assert a_second < 5 * MANY, f"{a_second:.0f} calls a second"


async def test_so_it_does_on_a_cluster_with_several_partitions(cluster, namespace, opened):
    settings = Settings(url=cluster.url, namespace=namespace, worker=WorkerSettings(poll_s=100))
    app, seen = await opened(Penstock(settings=settings)), []
    before = sum(map(waiting_reads, cluster.nodes))
    for number in range(MANY // 2):

        @app.topic(f"topic-{number}", type=int, partitions=4).subscribe("group")
        async def handle(value: int) -> None:
            seen.append(value)

    async with working(app) as worker:
        await until_ready(worker)

        def waiting():
            return sum(map(waiting_reads, cluster.nodes)) - before

        await eventually(lambda: waiting() == 2 * MANY)
        for number in range(MANY // 2):
            for partition in range(4):
                forced = {"x-force-partition-id": str(partition)}
                await app.topic(f"topic-{number}", type=int, partitions=4).send(1, headers=forced)
        await eventually(lambda: len(seen) == 2 * MANY)


async def test_a_consumer_without_partitions_holds_no_connection(start_server, opened):
    server, seen = start_server(), []
    quick = {"lease_ttl_s": 1.5, "balance_s": 0.05}
    first, second = [await open_app(opened, server.url, **quick) for _ in range(2)]
    subscribe(first, 1, seen)
    subscribe(second, 1, seen)
    async with working(first) as worker:
        await until_ready(worker)
        async with working(second) as other:
            await until_ready(other)
            assert waiting_reads(server) == 1
            await worker.stop()
            await eventually(lambda: waiting_reads(server) == 1)
            await first.topic("topic-0", type=int).send(1)
            await eventually(lambda: seen == [1])
    await eventually(lambda: waiting_reads(server) == 0)


async def test_after_an_outage_all_read_again_and_meanwhile_none_spins(start_server, opened):
    server, seen = start_server(), []
    app = await open_app(opened, server.url)
    subscribe(app, MANY, seen)
    async with working(app) as worker:
        await until_ready(worker)
        server.stop()
        await eventually(lambda: not worker.readiness())
        before = app.redis.counters.attempts
        await asyncio.sleep(1.5)
        assert app.redis.counters.attempts - before <= 4  # two a second, whoever asks
        server.start()
        await eventually(lambda: waiting_reads(server) == MANY)
        await eventually(worker.readiness)
        await app.topic("topic-7", type=int).send(7)
        await eventually(lambda: seen == [7])


async def test_without_descriptors_to_spare_it_polls_and_says_so(start_server, opened):
    server, seen = start_server(), []
    app = await open_app(opened, server.url)
    subscribe(app, 3, seen)
    with few_descriptors():
        async with working(app) as worker:
            await until_ready(worker)
            await app.topic("topic-0", type=int).send(1)
            await eventually(lambda: seen == [1])
            assert waiting_reads(server) == 0
            [note] = worker.readiness().notes
            assert "poll" in note
            assert "ulimit -n" in note
            assert worker.readiness().ready


async def test_a_server_that_takes_no_more_connections_is_polled(start_server, opened):
    server, seen = start_server(), []
    app = await open_app(opened, server.url)
    subscribe(app, 3, seen)
    orders = app.topic("topic-2", type=int)
    await orders.send(0)
    # This one's, the heartbeat's, and that of the command itself.
    server.command("CONFIG", "SET", "maxclients", "3")
    async with working(app) as worker:
        await until_ready(worker)
        await orders.send(1)
        await eventually(lambda: seen == [0, 1])
        assert "maxclients" in str(worker.readiness())
    server.command("CONFIG", "SET", "maxclients", "1000")
