"""Sending over broken connections, dying servers and moving slots: each send ends truthfully."""

import asyncio
import os
from contextlib import asynccontextmanager

import pytest

from penstock.errors import (
    OutcomeUnknown,
    Rejected,
    SendBatchFailed,
    ServerError,
    StillLoading,
    Unreachable,
)
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.settings import Settings, TimeoutSettings, TopicSettings
from penstock.testing.eventually import eventually
from penstock.topics.message import Outgoing
from penstock.topics.producer import sender
from penstock.topics.storage.keys import PartitionKeys
from penstock.topics.topic import Topic

QUICK = TimeoutSettings(connect_s=0.5, command_s=0.5)


@asynccontextmanager
async def topic_on(url, namespace, partitions=1, **settings):
    given = {"timeouts": QUICK, **settings}
    async with Client(Settings(url=url, namespace=namespace, **given)) as client:
        topic = Topic(client, Codec(client.settings.codec), "orders", partitions=partitions)
        await topic.metadata()
        try:
            yield topic, client
        finally:
            await topic.close()


def stored_on(server, client, partition=0):
    """Payloads by id, asked past the client."""
    entries = server.command(
        "XRANGE", PartitionKeys.of(client.keys, "orders", partition).stream, "-", "+"
    )
    return {f"{partition}-{id_}": fields[1] for id_, fields in entries}


@pytest.fixture
def shaky(valkey_server, fault_proxy):
    return fault_proxy(valkey_server)


async def test_a_lost_answer_is_told_and_the_send_is_not_repeated(shaky, valkey_server, namespace):
    async with topic_on(shaky.url, namespace) as (topic, client):
        shaky.swallow("XADD")
        with pytest.raises(OutcomeUnknown):
            await topic.send(1)
        assert list(stored_on(valkey_server, client).values()) == ["1"]
        await eventually(lambda: confirmed(topic.send(2)))
        assert list(stored_on(valkey_server, client).values()) == ["1", "2"]


async def test_under_an_idempotency_key_a_lost_answer_is_asked_for_again(
    any_server, fault_proxy, namespace
):
    proxy = fault_proxy(any_server)
    async with topic_on(proxy.url, namespace) as (topic, client):
        await topic.send("warm", idempotency_key="other")
        proxy.swallow("EVALSHA")
        id_ = await topic.send(1, idempotency_key="k")
        stored = stored_on(any_server, client)
        assert stored[id_] == "1"
        assert len(stored) == 2


@pytest.mark.parametrize("fault", ["swallow", "cut_before"])
async def test_under_an_idempotency_key_the_answer_is_asked_for_until_it_comes(
    shaky, valkey_server, namespace, fault
):
    async with topic_on(shaky.url, namespace) as (topic, client):
        await topic.send("warm", idempotency_key="other")
        getattr(shaky, fault)("EVALSHA", times=2)
        id_ = await topic.send(1, idempotency_key="k", delay=600)
        waiting = PartitionKeys.of(client.keys, "orders", 0).delayed
        assert valkey_server.command("ZRANGE", waiting, 0, -1) == [id_]


async def test_a_caller_that_repeats_itself_stores_one_message(
    shaky, valkey_server, namespace, monkeypatch
):
    monkeypatch.setattr(sender, "REPEAT_WITHIN_S", 0.0)
    async with topic_on(shaky.url, namespace) as (topic, client):
        await topic.send("warm", idempotency_key="other")
        shaky.swallow("EVALSHA")
        with pytest.raises(OutcomeUnknown):
            await topic.send(1, idempotency_key="k")
        id_ = await eventually(lambda: confirmed(topic.send(1, idempotency_key="k")))
        assert stored_on(valkey_server, client)[id_] == "1"
        assert len(stored_on(valkey_server, client)) == 2


async def confirmed(sending):
    try:
        return await sending
    except ServerError:
        return None


async def test_a_refusal_after_a_lost_answer_does_not_claim_that_nothing_was_stored(
    shaky, namespace, monkeypatch
):
    monkeypatch.setattr(sender, "REPEAT_WITHIN_S", 0.3)
    async with topic_on(shaky.url, namespace) as (topic, _):
        await topic.send("warm", idempotency_key="other")
        shaky.swallow("EVALSHA")
        shaky.answer("EVALSHA", "-NOPERM no", times=None)
        with pytest.raises(OutcomeUnknown):
            await topic.send(1, idempotency_key="k")


async def test_a_refusal_is_raised_and_stores_nothing(shaky, valkey_server, namespace):
    async with topic_on(shaky.url, namespace) as (topic, client):
        shaky.answer("XADD", "-LOADING Valkey is loading the dataset in memory")
        with pytest.raises(StillLoading):
            await topic.send(1)
        assert stored_on(valkey_server, client) == {}


async def test_a_connection_that_ended_unnoticed_costs_no_message(shaky, valkey_server, namespace):
    async with topic_on(shaky.url, namespace) as (topic, client):
        await topic.send(1)
        wire = await client.wire()
        shaky.cut()
        await eventually(lambda: not wire.alive)
        await eventually(lambda: confirmed(topic.send(2)))
        assert list(stored_on(valkey_server, client).values()) == ["1", "2"]


async def test_a_server_that_forgets_its_scripts_is_told_them_again(valkey_server, namespace):
    async with topic_on(valkey_server.url, namespace) as (topic, client):
        await topic.send(0, idempotency_key="a")
        valkey_server.command("SCRIPT", "FLUSH")
        await topic.send(1, idempotency_key="b")
        assert len(stored_on(valkey_server, client)) == 2


async def test_a_batch_cut_short_tells_the_truth_about_every_message(
    shaky, valkey_server, namespace
):
    async with topic_on(shaky.url, namespace) as (topic, client):
        shaky.reset_after(100_000, way="to_server")
        with pytest.raises(SendBatchFailed) as caught:
            await topic.send_batch(range(5_000))
        outcomes = caught.value.outcomes
        stored = stored_on(valkey_server, client)
        assert len(outcomes) == 5_000
        assert 0 < len(stored) < 5_000
        payloads = set(stored.values())
        for number, outcome in enumerate(outcomes):
            if isinstance(outcome, str):
                assert stored[outcome] == str(number)
            elif isinstance(outcome, Rejected):
                assert str(number) not in payloads
            else:
                assert isinstance(outcome, OutcomeUnknown)
        # Nothing overtakes: what was stored is a beginning of the batch.
        assert sorted(map(int, payloads)) == list(range(len(stored)))


async def test_a_batch_on_a_client_that_is_closed_meanwhile_ends(valkey_server, namespace):
    async with topic_on(valkey_server.url, namespace) as (topic, client):
        sending = asyncio.create_task(topic.send_batch(range(50_000)))
        await eventually(lambda: stored_on(valkey_server, client))
        await client.close()
        with pytest.raises(SendBatchFailed) as caught:
            await sending
        outcomes = caught.value.outcomes
        ids = [outcome for outcome in outcomes if isinstance(outcome, str)]
        assert ids
        assert set(ids) <= set(stored_on(valkey_server, client))
        assert len(outcomes) == 50_000


async def test_a_link_that_takes_nothing_more_makes_senders_wait_instead_of_filling_memory(
    shaky, valkey_server, namespace
):
    patient = TimeoutSettings(connect_s=5, command_s=10)
    trusting = TopicSettings(refresh_s=60)  # or all would wait for newer facts instead
    async with topic_on(shaky.url, namespace, timeouts=patient, topics=trusting) as (topic, client):
        shaky.blackhole(way="to_server")
        payload = os.urandom(30_000).hex()  # far more in all than the system's buffers take
        sending = [asyncio.create_task(confirmed(topic.send(payload))) for _ in range(3_000)]
        wire = await client.wire()
        await eventually(lambda: wire.behind)
        buffered = wire._transport.get_write_buffer_size()
        assert buffered < 8 * 1024 * 1024
        shaky.heal()
        ids = await asyncio.gather(*sending)
        stored = stored_on(valkey_server, client)
        assert {id_ for id_ in ids if id_} <= set(stored)


async def test_no_confirmed_message_is_lost_when_the_server_is_killed(start_server, namespace):
    server = start_server()
    async with topic_on(server.url, namespace, partitions=2) as (topic, client):
        confirmed_ids, stop = [], asyncio.Event()

        async def keep_sending(name):
            number = 0
            while not stop.is_set():
                number += 1
                try:
                    payload = f"{name}-{number}"
                    confirmed_ids.append((await topic.send(payload), f'"{payload}"'))
                except ServerError:
                    await asyncio.sleep(0.01)

        senders = [asyncio.create_task(keep_sending(name)) for name in range(20)]
        for _ in range(3):
            before = len(confirmed_ids)
            await eventually(lambda: len(confirmed_ids) > before + 200)  # noqa: B023
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.restart)
        before = len(confirmed_ids)
        await eventually(lambda: len(confirmed_ids) > before + 200)
        stop.set()
        await asyncio.gather(*senders)
        stored = [*stored_on(server, client, 0).items(), *stored_on(server, client, 1).items()]
        payloads = [payload for _, payload in stored]
        assert set(confirmed_ids) <= set(stored)
        assert len(payloads) == len(set(payloads))


async def test_under_an_idempotency_key_a_send_outlives_a_restart_of_the_server(
    start_server, namespace
):
    server = start_server()
    async with topic_on(server.url, namespace) as (topic, client):
        await topic.send(0, idempotency_key="warm")
        server.pause()
        sending = asyncio.create_task(topic.send(1, idempotency_key="k"))
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.restart)
        try:
            id_ = await sending
        except Unreachable:
            id_ = await topic.send(1, idempotency_key="k")
        assert stored_on(server, client)[id_] == "1"
        assert len(stored_on(server, client)) == 2


async def test_a_new_primary_is_found(start_sentinel, namespace):
    setup = start_sentinel(sentinels=1)
    async with topic_on(setup.url, namespace) as (topic, client):
        await topic.send(1)
        await asyncio.to_thread(setup.failover)
        await eventually(lambda: confirmed(topic.send(2)))
        await topic.send_batch([3, 4])
        assert {"1", "3", "4"} <= set(stored_on(setup.primary, client).values())


async def test_a_slot_that_moves_costs_neither_messages_nor_their_order(start_cluster, namespace):
    cluster = start_cluster(3)
    async with topic_on(cluster.url, namespace, partitions=3) as (topic, client):
        slot = cluster.slot_of(PartitionKeys.of(client.keys, "orders", 0).stream)
        forced = {"x-force-partition-id": "0"}
        sent, stop = [], asyncio.Event()

        async def send_on():
            while not stop.is_set():
                batch = [len(sent) + number for number in range(700)]
                await topic.send_batch([Outgoing(number, headers=forced) for number in batch])
                sent.extend(batch)
                sent.append(len(sent))
                await topic.send(sent[-1], headers=forced)

        sending = asyncio.create_task(send_on())
        nodes = list(cluster.living)
        for turn in range(4):
            before = len(sent)
            await eventually(lambda: len(sent) > before)  # noqa: B023
            owner = await asyncio.to_thread(cluster.primary_of, slot)
            target = nodes[(nodes.index(owner) + 1 + turn % 2) % 3]
            await asyncio.to_thread(cluster.move_slot, slot, target)
        stop.set()
        await sending
        stored = stored_on(cluster.primary_of(slot), client)
        assert [int(payload) for payload in stored.values()] == sent
