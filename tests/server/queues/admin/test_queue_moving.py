"""Jobs that move from one queue to another."""

import asyncio

import pytest
from tests.kit.queue_scripts import CODEC, claim, ids, job, join, push, submit
from tests.kit.scripts import scripts_of

from penstock.errors import CommandRefused, InvalidJob, JobMissing, OutcomeUnknown, Unreachable
from penstock.queues.admin.queue_admin import QueueAdmin
from penstock.queues.storage.keys import QueueKeyring
from penstock.redis.client import Client
from penstock.settings import Settings


async def test_jobs_move_to_another_queue_in_their_order(client, keys, admin):
    other = QueueKeyring.of(client.keys, "slow")
    await push(client, keys, *(job(f"{number}") for number in range(130)))
    await push(client, other, job("there"))
    assert await admin.move("mail", "slow", limit=70, who="anna") == 70
    assert await ids(client, other.waiting) == ["there", *(f"{number}" for number in range(70))]
    assert await admin.move("mail", "slow") == 60
    assert await client.call("EXISTS", keys.waiting) == 0
    assert len(await ids(client, other.waiting)) == 131
    assert await client.call("EXISTS", keys.workers, keys.dead_workers) == 0
    assert {line.name for line in await admin.list()} == {"slow"}
    assert sum(act.count for act in await admin.audit("mail")) == 130
    assert {(act.who, act.what, act.detail) for act in await admin.audit("slow")} >= {
        ("anna", "receive", "from mail")
    }


async def test_jobs_move_by_id_with_their_records_and_unique_keys(client, keys, admin):
    other = QueueKeyring.of(client.keys, "slow")
    for name in ("a", "b", "c"):
        await submit(client, keys, name, unique=f"u-{name}")
    assert await admin.move("mail", "slow", ids=["b", "nobody"]) == 1
    assert await ids(client, keys.waiting) == ["a", "c"]
    assert await ids(client, other.waiting) == ["b"]
    old, new = await admin.job("mail", "b"), await admin.job("slow", "b")
    assert (old.status, old.error) == ("cancelled", "moved to queue slow")
    assert (new.status, new.task, new.queue) == ("queued", "mail.send", "slow")
    assert await client.call("EXISTS", keys.unique("u-b")) == 0
    assert await client.call("GET", other.unique("u-b")) == b"b"
    with pytest.raises(JobMissing):
        await admin.move("mail", "slow", ids=["nobody"])


async def test_jobs_move_from_lane_to_lane(client, keys, admin):
    other = QueueKeyring.of(client.keys, "slow")
    await push(client, keys, job("a"), lane="g")
    assert await admin.move("mail", "slow", lane="g") == 1
    assert await client.call("LRANGE", other.ring, 0, -1) == [b"g"]
    assert await client.call("EXISTS", keys.ring) == 0
    assert await admin.move("slow", "mail", lane="g", to_lane="high") == 1
    assert await ids(client, keys.list_of("high")) == ["a"]
    await push(client, keys, job("b"), lane="g")
    assert await client.call("LRANGE", keys.ring, 0, -1) == [b"g"]


async def test_jobs_move_between_queues_that_are_pushed_from_different_sides(client, keys, admin):
    other = QueueKeyring.of(client.keys, "slow")
    await client.call("HSET", other.state, "side", "left")
    await push(client, keys, job("a"), job("b"))
    await admin.move("mail", "slow")
    assert await ids(client, other.waiting) == ["b", "a"]
    assert [one.id for one in await admin.peek("slow")] == ["a", "b"]
    await admin.move("slow", "mail")
    assert await ids(client, keys.waiting) == ["a", "b"]


async def test_jobs_that_cannot_be_added_return_to_where_they_were(client, keys, admin):
    other = QueueKeyring.of(client.keys, "slow")
    await push(client, keys, *(job(f"{number}") for number in range(5)))
    await client.call("SET", other.waiting, "x")
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await admin.move("mail", "slow", limit=3)
    assert await ids(client, keys.waiting) == [f"{number}" for number in range(5)]
    assert await client.call("EXISTS", keys.workers, keys.dead_workers) == 0


async def test_a_move_that_is_cut_off_doubles_at_most_and_loses_nothing(
    valkey_server, namespace, fault_proxy
):
    async with Client(Settings(url=valkey_server.url, namespace=namespace)) as client:
        keys, other = (QueueKeyring.of(client.keys, name) for name in ("mail", "slow"))
        await push(client, keys, *(job(f"{number}") for number in range(20)))
        await QueueAdmin(client, CODEC).move("mail", "slow", limit=10)
        proxy = fault_proxy(valkey_server)
        async with Client(Settings(url=proxy.url, namespace=namespace)) as weak:
            scripts = scripts_of(weak)
            add = scripts.receive_jobs

            async def cut_before_the_end(**told):
                await add(**told)
                proxy.cut_before("*", times=None)

            scripts.receive_jobs = cut_before_the_end
            with pytest.raises((OutcomeUnknown, Unreachable)):
                await QueueAdmin(weak, CODEC).move("mail", "slow")
        arrived = len(await ids(client, other.waiting)) - 10
        assert arrived > 0
        [worker] = await QueueAdmin(client, CODEC).workers("mail")
        assert worker.claims == arrived
        await client.call("ZADD", keys.workers, 1, worker.name)
        assert await scripts_of(client).find_dead(keys=keys, silence_ms=1_000) == [
            worker.name.encode()
        ]
        claims = await client.call("HGETALL", keys.claimed(worker.name))
        told = []
        for name, item in zip(claims[::2], claims[1::2], strict=True):
            told += (name, "", "", "back", item, "")
        await scripts_of(client).reap_claims(keys=keys, worker=worker.name, keep_ms=1, jobs=told)
        assert await ids(client, keys.waiting) == [f"{number}" for number in range(10, 20)]


async def test_no_worker_gets_a_job_that_is_being_moved(client, keys, admin):
    other = QueueKeyring.of(client.keys, "slow")
    await push(client, keys, *(job(f"{number}") for number in range(400)))
    await join(client, keys)

    async def work():
        taken = []
        for first in range(1, 200, 10):
            taken += (await claim(client, keys, 10, first=first)).get("", [])
        return taken

    moved, taken = await asyncio.gather(admin.move("mail", "slow"), work())
    there = await ids(client, other.waiting)
    assert moved == len(there)
    left = await ids(client, keys.waiting)
    assert sorted([*there, *taken, *left]) == sorted(f"{number}" for number in range(400))


@pytest.mark.parametrize(
    "arguments",
    [
        {"to": "mail"},
        {"to": "slow", "limit": 0},
        {"to": "slow", "limit": 1, "ids": ["a"]},
        {"to": "slow", "ids": "abc"},
        {"to": "slow", "ids": [""]},
        {"to": "slow", "lane": None},
    ],
)
async def test_a_move_that_cannot_be_is_refused(client, keys, admin, arguments):
    await push(client, keys, job("a"))
    with pytest.raises(InvalidJob):
        await admin.move("mail", **arguments)
    assert await ids(client, keys.waiting) == ["a"]
