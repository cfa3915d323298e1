"""Wakeups: others wake us, over one connection, whatever happens to it."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from tests.kit.patience import patient

from penstock.coordination import wakeups as wakeups_module
from penstock.coordination.feeds.keys import FeedKeys
from penstock.coordination.slots.keys import SlotKeys
from penstock.coordination.wakeups import Wakeups
from penstock.errors import NotOpen
from penstock.redis.client import Client
from penstock.settings import Settings, TimeoutSettings
from penstock.testing.eventually import eventually

QUICK = TimeoutSettings(connect_s=0.5, command_s=0.5)


class Woken:
    """Counts how often it was woken."""

    def __init__(self):
        self.times = 0

    def __call__(self):
        self.times += 1


@asynccontextmanager
async def hints_on(url, **settings):
    async with Client(Settings(url=url, **settings)) as client:
        wakeups = Wakeups(client)
        try:
            yield client, wakeups
        finally:
            await wakeups.close()


@pytest.fixture
async def here(place, namespace):
    async with hints_on(place.url, namespace=namespace) as (client, wakeups):
        yield client, wakeups, SlotKeys.of(client.keys, "gpu").holders


async def test_whoever_watches_is_woken_by_each_message_from_then_on(here):
    client, wakeups, channel = here
    woken, other = Woken(), Woken()
    await wakeups.watch(channel, woken)
    await wakeups.watch(channel + "-other", other)
    assert wakeups.is_connected
    before, before_other = woken.times, other.times
    for _ in range(3):
        await client.call("PUBLISH", channel, "")
    await eventually(lambda: woken.times == before + 3)
    assert other.times == before_other


async def test_a_hint_from_inside_a_script_arrives_whichever_node_ran_it(here):
    client, wakeups, _ = here
    channels = [FeedKeys.of(client.keys, f"feed-{number}").events for number in range(12)]
    woken = [Woken() for _ in channels]
    for channel, wake in zip(channels, woken, strict=True):
        await wakeups.watch(channel, wake)
    before = [wake.times for wake in woken]
    for channel in channels:
        script = "return redis.call('PUBLISH', KEYS[1], '1')"
        await client.call("EVAL", script, 1, channel)
    await eventually(lambda: [wake.times for wake in woken] == [n + 1 for n in before])


async def test_all_who_watch_a_channel_are_woken_until_they_stop(here):
    client, wakeups, channel = here
    first, second = Woken(), Woken()
    for wake in (first, second, second):
        await wakeups.watch(channel, wake)
    await wakeups.unwatch(channel, first)
    await wakeups.unwatch(channel, second)  # it watched twice
    stopped, before = first.times, second.times
    await client.call("PUBLISH", channel, "")
    await eventually(lambda: second.times == before + 1)
    assert first.times == stopped
    await wakeups.unwatch(channel, second)
    await wakeups.unwatch(channel, second)
    await wakeups.unwatch("never watched", second)


async def test_watching_again_at_once_does_not_wait_and_does_not_miss(here):
    client, wakeups, channel = here
    woken = Woken()
    async with asyncio.timeout(60):
        for _ in range(50):
            await wakeups.watch(channel, woken)
            await wakeups.unwatch(channel, woken)
        await wakeups.watch(channel, woken)
    await client.call("PUBLISH", channel + "-elsewhere", "")
    before = woken.times
    await client.call("PUBLISH", channel, "")
    await eventually(lambda: woken.times > before)


async def test_what_nobody_watches_is_not_subscribed(valkey_server, namespace):
    async with hints_on(valkey_server.url, namespace=namespace) as (client, wakeups):
        channel = SlotKeys.of(client.keys, "gpu").holders
        await wakeups.watch(channel, woken := Woken())
        assert await client.call("PUBSUB", "NUMSUB", channel) == [channel.encode(), 1]
        await wakeups.unwatch(channel, woken)

        async def nobody():
            return await client.call("PUBSUB", "NUMSUB", channel) == [channel.encode(), 0]

        await eventually(nobody)


async def test_thousands_of_channels_share_one_connection(valkey_server, namespace):
    async with hints_on(valkey_server.url, namespace=namespace) as (client, wakeups):
        channels = [FeedKeys.of(client.keys, str(number)).events for number in range(2500)]
        woken = Woken()
        await asyncio.gather(*(wakeups.watch(channel, woken) for channel in channels))
        clients = (await client.call("CLIENT", "LIST")).decode().splitlines()
        subscribed = [line for line in clients if " sub=2500 " in line]
        assert len(subscribed) == 1
        before = woken.times
        for channel in channels[::100]:
            await client.call("PUBLISH", channel, "")
        await eventually(lambda: woken.times == before + 25)


async def test_a_waker_that_fails_does_not_keep_others_asleep(here, caplog):
    client, wakeups, channel = here

    def fail():
        raise ValueError("no")

    await wakeups.watch(channel, fail)
    await wakeups.watch(channel, woken := Woken())
    before = woken.times
    await client.call("PUBLISH", channel, "")
    await client.call("PUBLISH", channel, "")
    await eventually(lambda: woken.times == before + 2)
    assert "a wakeup callback failed" in caplog.text


async def test_a_killed_connection_is_replaced_and_everybody_woken_once(start_server):
    server = start_server()
    async with hints_on(server.url) as (client, wakeups):
        first, second = Woken(), Woken()
        await wakeups.watch("first", first)
        await wakeups.watch("second", second)
        assert (first.times, second.times) == (1, 1)
        for kills in range(1, 4):
            assert await client.call("CLIENT", "KILL", "TYPE", "pubsub") == 1
            woken = (1 + 2 * kills - 1, 1 + kills)
            await eventually(lambda woken=woken: (first.times, second.times) == woken)
            assert server.command("PUBLISH", "first", "") == 1
            await eventually(lambda woken=woken: first.times == woken[0] + 1)


async def test_a_server_that_was_away_is_found_again(start_server, caplog):
    server = start_server()
    async with hints_on(server.url, timeouts=QUICK) as (_, wakeups):
        await wakeups.watch("channel", woken := Woken())
        server.kill()
        await eventually(lambda: not wakeups.is_connected)
        async with asyncio.timeout(patient(0.5)):  # nobody waits for a server that is away
            await eventually(lambda: wakeups._failures)
            await wakeups.watch("new", new := Woken())
        before = woken.times
        await asyncio.to_thread(server.start)
        await eventually(lambda: woken.times > before and new.times)
        assert server.command("PUBLISH", "new", "") == 1
    assert len([record for record in caplog.records if "no wakeups" in record.message]) < 5


async def test_a_silent_network_is_noticed(start_server, fault_proxy, monkeypatch):
    monkeypatch.setattr(wakeups_module, "_SILENCE_S", 0.1)
    server = start_server()
    proxy = fault_proxy(server)
    async with hints_on(proxy.url, timeouts=QUICK) as (_, wakeups):
        await wakeups.watch("channel", woken := Woken())
        await asyncio.sleep(0.35)  # quiet for longer than that is no reason to give up
        assert woken.times == 1
        proxy.blackhole()
        await eventually(lambda: not wakeups.is_connected)
        proxy.heal()
        await eventually(lambda: woken.times == 2)


async def test_the_new_primary_is_listened_to_after_a_failover(start_sentinel):
    setup = start_sentinel(sentinels=1)
    async with hints_on(setup.url, timeouts=QUICK) as (_, wakeups):
        await wakeups.watch("channel", woken := Woken())
        old = setup.primary
        old.kill()
        await eventually(lambda: not wakeups.is_connected)
        before = woken.times
        await eventually(lambda: woken.times > before)
        (new,) = (server for server in setup.servers if server is not old)
        assert new.command("PUBLISH", "channel", "") == 1


@pytest.mark.faults
async def test_another_node_is_listened_to_when_one_leaves_the_cluster(start_cluster):
    cluster = start_cluster(replicas=1)
    async with hints_on(cluster.url, timeouts=QUICK) as (client, wakeups):
        await wakeups.watch("channel", woken := Woken())
        (listened,) = (
            node for node in cluster.living if node.command("PUBSUB", "NUMSUB", "channel")[1]
        )
        before = woken.times
        await asyncio.to_thread(cluster.kill, listened)
        await eventually(lambda: woken.times > before)

        async def heard():
            times = woken.times
            await client.call("PUBLISH", "channel", "")
            return woken.times > times

        await eventually(heard)


async def test_it_may_be_closed_twice_or_never_begun_and_begin_again(here):
    client, wakeups, channel = here
    await Wakeups(client).close()
    await wakeups.watch(channel, Woken())
    await wakeups.close()
    await wakeups.close()
    assert not wakeups.is_connected
    await wakeups.watch(channel, woken := Woken())
    before = woken.times
    await client.call("PUBLISH", channel, "")
    await eventually(lambda: woken.times > before)


async def test_it_ends_with_the_client_and_begins_again_with_it(valkey_server, namespace):
    client = Client(Settings(url=valkey_server.url, namespace=namespace))
    wakeups = Wakeups(client)
    channel = SlotKeys.of(client.keys, "gpu").holders
    async with client:
        await wakeups.watch(channel, woken := Woken())
    task = wakeups._task
    await eventually(task.done)
    assert task.exception() is None
    with pytest.raises(NotOpen):
        await client.call("PING")
    async with client:
        await wakeups.watch(channel, Woken())
        before = woken.times
        await client.call("PUBLISH", channel, "")
        await eventually(lambda: woken.times > before)
        await wakeups.close()


async def test_a_cancelled_watch_leaves_nothing_behind(start_server, fault_proxy):
    server = start_server()
    proxy = fault_proxy(server)
    async with hints_on(proxy.url) as (_, wakeups):
        proxy.blackhole()
        watching = asyncio.create_task(wakeups.watch("channel", Woken()))
        await eventually(lambda: "channel" in wakeups._channels)
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
        assert wakeups._channels == {}
        proxy.heal()


def test_one_after_the_other_event_loop_may_use_it(valkey_server, namespace):
    client = Client(Settings(url=valkey_server.url, namespace=namespace))
    wakeups = Wakeups(client)

    async def use():
        async with client:
            await wakeups.watch("channel", woken := Woken())
            await wakeups.close()
            return woken.times

    assert [asyncio.run(use()), asyncio.run(use())] == [1, 1]
