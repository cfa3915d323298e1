"""Feeds through everything that may happen: no reader has a gap, and none an event twice."""

import asyncio
import random
import statistics
from contextlib import AsyncExitStack
from time import perf_counter

import pytest
from tests.kit.feeds import numbers, program, rest, take

from penstock.coordination.feeds.keys import FeedKeys
from penstock.errors import ReaderTooSlow, ServerError
from penstock.settings import TimeoutSettings
from penstock.testing.eventually import eventually

QUICK = TimeoutSettings(connect_s=0.5, command_s=0.5)


class Subscriber:
    """Reads up to the final event, resumes when cut or when told to, and keeps what it got."""

    def __init__(self, feed, pause=None):
        self.feed, self.pause = feed, pause
        self.got, self.lags = [], []
        self.last_of_cuts = []
        self.is_through = False
        self._reader = None

    @property
    def last(self):
        return self.got[-1] if self.got else 0

    def drop(self):
        """Lose the connection, as a browser does."""
        if self._reader is not None:
            self._reading.cancel()

    async def run(self):
        while not self.is_through:
            self._reader = self.feed.read(after=self.last)
            self._reading = asyncio.create_task(self._read(self._reader))
            try:
                await self._reading
            except ReaderTooSlow as cut:
                self.last_of_cuts.append((cut.last, self.last))
            except asyncio.CancelledError:
                if asyncio.current_task().cancelling():
                    raise
            finally:
                self._reader.stop()

    async def _read(self, reader):
        async for event in reader:
            assert not event.is_snapshot
            self.got.append(event.number)
            if event.data is not None:
                self.lags.append(perf_counter() - event.data["at"])
            if self.pause is not None:
                await self.pause()
        self.is_through = True


async def publish_all(feed, count, every_s=0.0):
    """Publish so many events and a final one, whatever becomes of the server."""
    for n in range(count):
        await publish(feed, "tick", event_id=str(n))
        await asyncio.sleep(every_s)  # the rhythm of what is measured
    await publish(feed, "end", event_id="end", final=True)


async def publish(feed, kind, **options):
    while True:
        try:
            return await feed.publish(kind, {"at": perf_counter()}, **options)
        except ServerError as error:
            if not error.transient:
                raise
            await asyncio.sleep(0.05)  # until it is back


async def run_all(subscribers, *beside, within_s=60):
    """Until every subscriber has had the final event."""
    async with asyncio.timeout(within_s), asyncio.TaskGroup() as tasks:
        for work in beside:
            tasks.create_task(work)
        for subscriber in subscribers:
            tasks.create_task(subscriber.run())


async def test_of_200_subscribers_a_tenth_reconnects_all_the_time(valkey_server, namespace):
    chance = random.Random(7)  # noqa: S311
    async with AsyncExitStack() as opened:
        programs = [
            await opened.enter_async_context(program(valkey_server.url, namespace))
            for _ in range(4)
        ]
        subscribers = [Subscriber(programs[n % 4].feed()) for n in range(200)]
        restless = subscribers[:20]

        async def disturb():
            while not all(subscriber.is_through for subscriber in restless):
                chance.choice(restless).drop()
                await asyncio.sleep(chance.random() / 100)

        await run_all(subscribers, publish_all(programs[0].feed(), 400, 0.002), disturb())
    for subscriber in subscribers:
        assert subscriber.got == list(range(1, 402))


@pytest.mark.torture
async def test_events_reach_200_subscribers_quickly(valkey_server, namespace, figure):
    """100 events a second for 20 seconds, a tenth of the subscribers reconnecting once a second."""
    chance = random.Random(11)  # noqa: S311
    async with AsyncExitStack() as opened:
        programs = [
            await opened.enter_async_context(program(valkey_server.url, namespace, cap=100_000))
            for _ in range(4)
        ]
        subscribers = [Subscriber(programs[n % 4].feed()) for n in range(200)]
        publisher = await opened.enter_async_context(program(valkey_server.url, namespace))

        async def disturb():
            while not all(subscriber.is_through for subscriber in subscribers):
                for subscriber in chance.sample(subscribers, 20):
                    subscriber.drop()
                    await asyncio.sleep(0.05)

        await run_all(subscribers, publish_all(publisher.feed(), 2000, 0.01), disturb())
    gaps = sum(subscriber.got != list(range(1, 2002)) for subscriber in subscribers)
    figure("feeds", "readers with a gap or a duplicate", gaps, "readers", "<=", 0)
    lags_ms = [lag * 1000 for subscriber in subscribers for lag in subscriber.lags]
    p50, p99 = (statistics.quantiles(lags_ms, n=100)[at] for at in (49, 98))
    figure("feeds", "publish to subscriber, median", p50, "ms", "<=", 50)
    figure("feeds", "publish to subscriber, p99", p99, "ms", "<=", 50)


async def test_a_killed_pubsub_connection_costs_no_event(start_server):
    server = start_server()
    async with program(server.url) as reading, program(server.url) as writing:
        subscribers = [Subscriber(reading.feed()) for _ in range(20)]

        async def kill():
            while not all(subscriber.is_through for subscriber in subscribers):
                server.command("CLIENT", "KILL", "TYPE", "pubsub")
                await asyncio.sleep(0.1)

        # It polls once in 30 s: all that is lost with a connection is found by the next one.
        await run_all(subscribers, publish_all(writing.feed(), 200, 0.005), kill(), within_s=25)
    for subscriber in subscribers:
        assert subscriber.got == list(range(1, 202))


async def test_a_server_killed_and_started_again_costs_no_event(start_server):
    server = start_server()
    async with program(server.url, timeouts=QUICK, poll_s=0.5) as opened:
        feed = opened.feed()
        subscribers = [Subscriber(feed) for _ in range(20)]

        async def kill():
            for least in (50, 150):
                await eventually(lambda least=least: subscribers[0].last > least)
                server.kill()
                await asyncio.to_thread(server.start)

        await run_all(subscribers, publish_all(feed, 300, 0.002), kill())
    for subscriber in subscribers:
        assert subscriber.got == list(range(1, 302))


@pytest.mark.parametrize("seed", [1, 2])
async def test_through_any_weather_there_is_no_gap_and_no_duplicate(
    start_server, fault_proxy, seed
):
    chance = random.Random(seed)  # noqa: S311
    server = start_server()
    proxy = fault_proxy(server)
    faults = [
        lambda: proxy.cut(reset=chance.random() < 0.5),
        lambda: proxy.reset_after(chance.randrange(3_000), way="to_client"),
        lambda: proxy.reset_after(chance.randrange(3_000), way="to_server"),
        lambda: proxy.swallow("EVALSHA", times=chance.randrange(1, 4)),
        lambda: proxy.swallow("XRANGE", times=chance.randrange(1, 4)),
        lambda: proxy.latency(chance.random() / 20),
        lambda: proxy.blackhole(way=chance.choice(["to_client", "to_server"])),
    ]
    async with program(proxy.url, timeouts=QUICK, poll_s=0.5) as opened:
        feed = opened.feed()
        subscribers = [Subscriber(feed) for _ in range(20)]
        published = asyncio.Event()

        async def storm():
            while not published.is_set():
                chance.choice(faults)()
                await asyncio.sleep(chance.random() / 4)
                proxy.heal()
                await asyncio.sleep(0.3)

        async def calm():
            await publish_all(feed, 300, 0.005)
            published.set()

        await run_all(subscribers, calm(), storm(), within_s=100)
    for subscriber in subscribers:
        assert subscriber.got == list(range(1, 302))


async def test_a_lost_answer_does_not_publish_twice(start_server, fault_proxy):
    server = start_server()
    proxy = fault_proxy(server)
    async with program(proxy.url, timeouts=QUICK) as opened:
        feed = opened.feed()
        assert await feed.publish("first") == 1
        proxy.swallow("EVALSHA", times=2)
        assert await feed.publish("second") == 2
        proxy.swallow("EVALSHA")
        assert await feed.publish("end", final=True) == 3
        assert numbers(await rest(feed.read(after=0))) == [1, 2, 3]


async def test_slow_readers_are_cut_and_resume_without_a_gap(valkey_server, namespace):
    async with program(valkey_server.url, namespace, buffer=20) as opened:
        feed = opened.feed()

        async def dawdle():
            await asyncio.sleep(0.003)

        slow = [Subscriber(feed, dawdle) for _ in range(10)]
        quick = [Subscriber(feed) for _ in range(40)]
        await run_all([*slow, *quick], publish_all(feed, 400))
    for subscriber in (*slow, *quick):
        assert subscriber.got == list(range(1, 402))
    for subscriber in slow:
        assert subscriber.last_of_cuts
        assert all(said == had for said, had in subscriber.last_of_cuts)


async def test_whenever_a_reader_joins_it_sees_how_it_ends(valkey_server, namespace):
    async with program(valkey_server.url, namespace) as opened:
        feeds = [opened.feed(f"feed-{n}") for n in range(50)]
        ends = []

        async def join(feed, delay_s):
            await asyncio.sleep(delay_s)
            ends.append((await rest(feed.read()))[-1])

        async def finish(feed):
            await feed.publish("progress", 50, state={"percent": 50})
            await feed.publish("done", 100, state={"percent": 100}, final=True)

        async with asyncio.TaskGroup() as tasks:
            for feed in feeds:
                tasks.create_task(finish(feed))
                for step in range(6):
                    tasks.create_task(join(feed, step * 0.004))
    assert len(ends) == 300
    assert all(end.final and end.number == 2 for end in ends)


async def test_readers_follow_a_feed_to_another_node(start_cluster):
    cluster = start_cluster(replicas=1)
    async with program(cluster.url, timeouts=QUICK, poll_s=0.5) as opened:
        feed = opened.feed()
        subscribers = [Subscriber(feed) for _ in range(10)]
        slot = cluster.slot_of(FeedKeys.of(opened.client.keys, "news").events)

        async def move():
            await eventually(lambda: subscribers[0].last > 20)
            await asyncio.to_thread(cluster.failover, cluster.primary_of(slot))

        await run_all(subscribers, publish_all(feed, 200, 0.005), move())
    for subscriber in subscribers:
        assert subscriber.got == list(range(1, 202))


async def test_a_feed_on_a_node_that_hangs_holds_up_no_other(start_cluster):
    cluster = start_cluster()
    # The node may be the one that hints come from: then the other feed is found by polling.
    slow = TimeoutSettings(command_s=30.0)
    async with program(cluster.url, timeouts=slow, poll_s=0.2) as opened:
        names = [f"feed-{n}" for n in range(20)]
        owners = {
            name: cluster.primary_of(cluster.slot_of(FeedKeys.of(opened.client.keys, name).events))
            for name in names
        }
        hung = owners[names[0]]
        other = next(name for name in names if owners[name] is not hung)
        readers = {name: opened.feed(name).read(after=0) for name in (names[0], other)}
        reading = [asyncio.create_task(take(reader, 1)) for reader in readers.values()]
        await eventually(lambda: all(reader._buffer for reader in readers.values()))
        hung.pause()
        try:
            for tail in opened.hub._tails.values():
                tail.wake()
            await opened.feed(other).publish("tick")
            async with asyncio.timeout(20):
                assert numbers(await reading[1]) == [1]
        finally:
            hung.resume()
            reading[0].cancel()
            await asyncio.gather(*reading, return_exceptions=True)
