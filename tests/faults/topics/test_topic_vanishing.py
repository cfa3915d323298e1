"""What consumers rely on vanishes under them: scripts, groups, leases, everything."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

import pytest
from tests.kit.crews.topic_crew import TOPIC

from penstock.errors import PenstockError, TopicMissing
from penstock.testing.eventually import eventually
from penstock.topics.storage.keys import PartitionKeys

ASKED = ("evalsha", "eval", "xreadgroup")
MOST_PER_S = 300
"""A consumer that waits is quiet; one that spins asks thousands of times a second."""


async def repeatedly(action, every_s):
    while True:
        await action()
        await asyncio.sleep(every_s)


@contextlib.asynccontextmanager
async def meanwhile(action, every_s):
    task = asyncio.create_task(repeatedly(action, every_s))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def calls(server):
    """How often each command was carried out."""
    return Counter(
        {
            name.removeprefix("cmdstat_"): int(facts.partition("calls=")[2].partition(",")[0])
            for name, facts in server.info("commandstats").items()
        }
    )


async def is_quiet(server, workers):
    """Whether the workers ask no more than they do when all is well and nothing comes in."""
    before = calls(server)
    await asyncio.sleep(1.0)
    asked = calls(server) - before  # what scripts do is counted as well
    assert sum(asked[name] for name in ASKED) < MOST_PER_S * workers, asked
    return True


async def test_forgotten_scripts_are_sent_again(make_crew, start_server):
    server = start_server()
    crew = make_crew(server.url, work_s=0.001)
    async with crew:
        await crew.hire(2)

        async def forget():
            await crew.app.redis.call("SCRIPT", "FLUSH")

        async with meanwhile(forget, 0.05):
            await crew.send_many(1_000, pace_s=0.005)
            await crew.drained()
        await crew.dismiss()
        verdict = await crew.verdict(attempt_gaps=False)
        assert verdict.ok, str(verdict)
        assert verdict.counts.duplicated == 0


async def test_a_lost_lease_key_costs_nothing_but_a_renewal(make_crew, valkey_server):
    crew = make_crew(valkey_server.url, work_s=0.001)
    async with crew:
        await crew.hire(2)
        keys = [
            PartitionKeys.of(crew.app.redis.keys, TOPIC, index) for index in range(crew.partitions)
        ]

        async def lose_leases():
            with crew.nemesis.losing():
                for key in keys:
                    await crew.app.redis.call("DEL", key.lease(crew.group))

        async with meanwhile(lose_leases, 0.3):
            await crew.send_many(1_000, pace_s=0.01)
        await crew.drained()
        await crew.dismiss()
        verdict = await crew.verdict()
        assert verdict.ok, str(verdict)


async def test_a_group_that_vanishes_goes_on_where_all_was_settled(make_crew, start_server):
    server = start_server()
    crew = make_crew(server.url, partitions=2, work_s=0.001)
    async with crew:
        (hand,) = await crew.hire()
        await crew.at_work(hand)
        await crew.send_many(200, failing=0)
        await crew.drained()
        async with asyncio.TaskGroup() as group:
            group.create_task(crew.send_many(400, seed=1, failing=0, pace_s=0.01))
            for _ in range(3):
                await asyncio.sleep(0.1)
                with crew.nemesis.losing():
                    for index in range(crew.partitions):
                        stream = PartitionKeys.of(crew.app.redis.keys, TOPIC, index).stream
                        await crew.app.redis.call("XGROUP", "DESTROY", stream, crew.group)
        await crew.drained()
        assert await is_quiet(server, 1)
        assert (await hand.counts())["trouble"] is None
        await crew.dismiss()
        # A group that was made anew has forgotten how often each message was tried.
        verdict = await crew.verdict(waive={"I12"})
        assert verdict.ok, str(verdict)
        assert verdict.counts.finished == 600


async def test_an_emptied_server_is_noticed_and_waited_for(make_crew, start_server):
    server = start_server()
    crew = make_crew(server.url, partitions=2)
    async with crew:
        (hand,) = await crew.hire()
        await crew.at_work(hand)
        await crew.send_many(100, failing=0)
        await crew.drained()
        with crew.nemesis.losing():
            await crew.app.redis.call("FLUSHALL")

        async def told():
            trouble = (await hand.counts())["trouble"]
            return trouble and "no topic" in trouble

        await eventually(told)
        assert await is_quiet(server, 1)
        assert hand.log.count("WARNING") < 20
        with pytest.raises(TopicMissing):
            await crew.send("k")
        keys = await crew.app.redis.call("KEYS", f"*{crew.app.settings.namespace}*")
        assert not [key for key in keys if b"worker" not in key], keys
        await crew.make_topic_again()
        await crew.send_many(100, seed=1, failing=0)
        await crew.drained()
        await crew.dismiss()
        verdict = await crew.verdict()
        assert verdict.ok, str(verdict)
        assert verdict.counts.finished == 200


@pytest.mark.parametrize("again", [True, False])
async def test_a_deleted_topic_stays_deleted_under_its_users(make_crew, start_server, again):
    server = start_server()
    crew = make_crew(server.url, partitions=3, work_s=0.002)
    async with crew:
        hands = await crew.hire(2)
        await crew.at_work(*hands)
        refused = asyncio.Event()

        async def send_for_ever(number):
            with contextlib.suppress(PenstockError):
                while True:
                    await crew.send(f"key-{number}", fail=number == 0, dead=number == 1)
            refused.set()

        senders = [asyncio.create_task(send_for_ever(number)) for number in range(4)]
        await crew.handled_some(50)
        await crew.app.topics.delete(TOPIC)
        await asyncio.wait_for(refused.wait(), 60)
        for sender in senders:
            await asyncio.wait_for(sender, 60)
        crew.nemesis.write("purge")

        async def told():
            return all([(await hand.counts())["trouble"] for hand in hands])

        await eventually(told)
        assert await is_quiet(server, 2)
        assert await keys_of_topics(crew) == []
        crew.nemesis.write("lose")
        if again:
            await crew.make_topic_again()
            await crew.send_many(100, failing=0)
            await crew.drained()
        await crew.dismiss()
        if again:
            verdict = await crew.verdict()
            assert verdict.ok, str(verdict)
            assert verdict.counts.finished >= 100
        else:
            assert await keys_of_topics(crew) == []


async def keys_of_topics(crew):
    """All keys but those of workers' heartbeats."""
    keys = await crew.app.redis.call("KEYS", "*")
    return sorted(key for key in keys if b"worker" not in key)
