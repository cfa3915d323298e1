"""Queues emptied: drained by their workers, or purged."""

import asyncio

import pytest
from tests.kit.queue_scripts import claim, everything, ids, job, join, push, submit
from tests.kit.scripts import scripts_of

from penstock.errors import CommandRefused


async def test_a_drain_ends_when_nothing_is_left(client, keys, admin):
    assert await admin.drain("mail", 1)
    await push(client, keys, job("a"), lane="g")
    await join(client, keys)
    assert not await admin.drain("mail", 0.05)
    await claim(client, keys)
    draining = asyncio.create_task(admin.drain("mail", 10))
    assert not await admin.drain("mail", 0.05)
    await scripts_of(client).claim_jobs(keys=keys, worker="w1", first=9, most=0, done=["1:g"])
    assert await draining


async def test_a_purge_empties_every_lane_and_closes_records(client, keys, admin):
    await push(client, keys, *(job(f"p{number}") for number in range(700)))
    await push(client, keys, b"text", b"\xff\x00", lane="low")
    await submit(client, keys, "tracked", lane="high", unique="u")
    await push(client, keys, job("g1"), lane="g")
    await submit(client, keys, "later", wait=60_000, unique="v")
    assert await admin.purge("mail", who="anna") == 704
    assert (await admin.facts("mail")).waiting == 0
    record = await admin.job("mail", "tracked")
    assert (record.status, record.error) == ("cancelled", "purged")
    assert await client.call("PTTL", keys.record("tracked")) > 0
    assert await client.call("EXISTS", keys.unique("u")) == 0
    assert (await admin.job("mail", "later")).status == "submitted"
    assert await admin.purge("mail", delayed=True) == 1
    assert (await admin.job("mail", "later")).status == "cancelled"
    assert await client.call("EXISTS", keys.unique("v"), keys.delayed, keys.delayed_bodies) == 0
    assert await client.call("HGET", keys.counters, "purged") == b"705"
    acts = await admin.audit("mail")
    assert [(act.what, act.count) for act in acts] == [("purge", 1), ("purge", 704)]
    assert acts[-1].who == "anna"


async def test_a_purge_of_one_lane_leaves_the_others(client, keys, admin):
    await push(client, keys, job("a"))
    for group in ("g", "h"):
        await push(client, keys, job(group), lane=group)
        await submit(client, keys, f"later-{group}", lane=group, wait=60_000)
    assert await admin.purge("mail", "g", delayed=True) == 2
    assert await ids(client, keys.waiting) == ["a"]
    assert await client.call("ZRANGE", keys.delayed, 0, -1) == [b"later-h"]
    assert await client.call("LRANGE", keys.ring, 0, -1) == [b"h"]
    await push(client, keys, job("again"), lane="g")
    assert await client.call("LRANGE", keys.ring, 0, -1) == [b"h", b"g"]
    assert await admin.purge("mail", "") == 1


async def test_a_purge_takes_no_job_from_a_worker(client, keys, admin):
    await push(client, keys, *(job(f"{number}") for number in range(600)))
    await join(client, keys)

    async def work():
        taken = []
        for first in range(1, 200, 10):
            taken += (await claim(client, keys, 10, first=first)).get("", [])
        return taken

    removed, taken = await asyncio.gather(admin.purge("mail"), work())
    assert removed + len(taken) == 600
    assert await client.call("LLEN", keys.waiting) == 0
    assert await client.call("HLEN", keys.claimed("w1")) == len(taken)


async def test_a_purge_keeps_the_count_of_bytes(client, keys, admin):
    await client.call("HSET", keys.state, "bytes", 0)
    await scripts_of(client).push_jobs(
        keys=keys, lane="", side="right", policy="reject",
        max_size=0, max_bytes=10_000, max_overflow=0, max_lanes=0, items=[job("a"), job("b")],
    )  # fmt: skip
    assert (await admin.facts("mail")).bytes > 0
    await admin.purge("mail")
    assert (await admin.facts("mail")).bytes == 0


async def test_a_purge_of_a_queue_that_is_pushed_from_the_left(client, keys, admin):
    await client.call("HSET", keys.state, "side", "left")
    await client.call("LPUSH", keys.waiting, *(job(f"{number}") for number in range(120)))
    assert await admin.purge("mail") == 120


async def test_delayed_ids_without_a_job_are_purged_too(client, keys, admin):
    await client.call("ZADD", keys.delayed, 9e14, "ghost", 9e14, "odd")
    await client.call("HSET", keys.delayed_bodies, "odd", b"\xffnothing", "orphan", "bx\ny")
    assert await admin.purge("mail", delayed=True) == 2
    assert await client.call("ZCARD", keys.delayed) == 0


@pytest.mark.parametrize("part", ["ring", "state", "counters", "waiting"])
async def test_a_key_of_a_wrong_type_stops_a_purge_or_move_before_it_writes(
    client, keys, admin, part
):
    if part != "waiting":
        await client.call("RPUSH", keys.waiting, job("a"))
    await client.call("SET", getattr(keys, part), "x")
    before = await everything(client, keys)
    for act in (admin.purge("mail"), admin.purge("mail", ""), admin.delete("mail")):
        with pytest.raises(CommandRefused, match="WRONGTYPE"):
            await act
    assert await everything(client, keys) == before
    if part in ("ring", "state"):
        with pytest.raises(CommandRefused, match="WRONGTYPE"):
            await admin.move("mail", "slow")
        assert await ids(client, keys.waiting) == ["a"]


async def test_a_foreign_key_under_the_name_of_a_record_holds_no_purge_up(client, keys, admin):
    await push(client, keys, job("a"), job("b"))
    await client.call("SET", keys.record("b"), "x")
    await admin.purge("mail")
    assert await client.call("EXISTS", keys.waiting) == 0
    assert await client.call("GET", keys.record("b")) == b"x"


async def test_counts_that_are_no_numbers_stop_a_purge_before_it_writes(client, keys, admin):
    await push(client, keys, job("a"))
    for place, name in ((keys.counters, "purged"), (keys.state, "bytes")):
        await client.call("HSET", place, name, "many")
        with pytest.raises(CommandRefused, match="not a number"):
            await admin.purge("mail")
        await client.call("HDEL", place, name)
    assert await ids(client, keys.waiting) == ["a"]
    assert await admin.purge("mail") == 1
