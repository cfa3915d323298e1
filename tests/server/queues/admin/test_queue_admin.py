"""Queues looked after: facts, peeking, deleting, on every kind of server."""

import pytest
from tests.kit.queue_scripts import CODEC, claim, dead, job, join, push, submit
from tests.kit.scripts import scripts_of

from penstock.errors import (
    InvalidJob,
    InvalidName,
    OutcomeUnknown,
    OutOfMemory,
    QueueError,
    Unreachable,
)
from penstock.queues.admin.queue_admin import Cancelled, QueueAdmin
from penstock.queues.storage.keys import QueueKeyring, QueuesKeys, lane_name
from penstock.queues.storage.stored_job import Meta, Trouble, new_id
from penstock.redis.client import Client
from penstock.redis.node import Role
from penstock.settings import Settings

# --- facts


async def test_facts_of_a_queue_that_was_never_used_are_zeros(admin):
    facts = await admin.facts("mail")
    assert (facts.known, facts.waiting, facts.claimed, facts.oldest_ms) == (False, 0, 0, None)
    assert [lane.name for lane in facts.lanes] == ["", "high", "normal", "low"]
    assert await admin.list() == []
    assert await admin.workers("mail") == []
    assert await admin.audit("mail") == []
    assert (await admin.jobs("mail")).jobs == []


async def test_facts_tell_lanes_workers_counters_and_ages(client, keys, admin):
    await push(client, keys, job(new_id()), job("b"), job("c"))
    await push(client, keys, job("d"), lane="high")
    await push(client, keys, job("e"), job("f"), lane=lane_name("acme & sons"))
    await submit(client, keys, "later", wait=60_000)
    await client.call("RPUSH", keys.dead_letters, "x", "y")
    await client.call("RPUSH", keys.overflow, "z")
    await client.call("SADD", QueuesKeys.of(client.keys).registry, "mail")
    await admin.set_weight("mail", "acme & sons", 3)
    await join(client, keys, "w1")
    await join(client, keys, "w2")
    assert await claim(client, keys, 1, worker="w2") == {"high": ["d"]}
    facts = await admin.facts("mail")
    assert facts.known
    assert facts.waiting == 5
    lanes = {lane.name: lane for lane in facts.lanes}
    assert lanes[""].waiting == 3
    assert (lanes["acme & sons"].waiting, lanes["acme & sons"].weight) == (2, 3)
    assert (facts.delayed, facts.dead_letters, facts.overflow, facts.claimed) == (1, 2, 1, 1)
    assert 0 < facts.next_due_ms <= 60_000
    assert {worker.name: worker.claims for worker in facts.workers} == {"w1": 0, "w2": 1}
    assert all(worker.alive for worker in facts.workers)
    assert 0 <= facts.oldest_ms < 60_000
    assert facts.counters["added"] == 7
    assert (facts.side, facts.levels, facts.limit, facts.more_lanes) == (
        "right",
        "strict",
        0,
        False,
    )
    [line] = await admin.list()
    assert (line.name, line.waiting, line.fair_lanes, line.delayed) == ("mail", 3, 1, 1)
    assert (line.dead_letters, line.overflow, line.workers, line.paused) == (2, 1, 2, False)
    later = await admin.facts("mail")
    assert later.rates_since(later) == {}


async def test_dead_workers_are_told_with_what_they_hold(client, keys, admin):
    await push(client, keys, job("a"))
    await join(client, keys)
    await claim(client, keys)
    await client.call("ZADD", keys.workers, 1, "w1")
    await scripts_of(client).find_dead(keys=keys, silence_ms=1_000)
    [worker] = await admin.workers("mail")
    assert (worker.name, worker.claims, worker.alive) == ("w1", 1, False)
    assert (await admin.facts("mail")).claimed == 1
    [held] = await admin.claims("mail", "w1")
    assert (held.claim, held.job.id, held.job.task) == ("1", "a", "mail.send")


async def test_facts_bear_with_what_others_wrote(client, keys, admin):
    await client.call("HSET", keys.counters, "added", "many", "done", "3")
    await client.call("HSET", keys.state, "limit", "lots", "paused_lanes", "junk<high>")
    await client.call("RPUSH", keys.waiting, b"\xff\xfe")
    await client.call("RPUSH", keys.ring, "ghost")
    await client.call("ZADD", keys.workers, 1, "x" * 600)
    facts = await admin.facts("mail")
    assert facts.counters == {"added": 0, "done": 3}
    assert (facts.limit, facts.waiting, facts.oldest_ms) == (0, 1, None)
    assert {lane.name for lane in facts.lanes if lane.paused} == {"high"}


async def test_many_lanes_are_shown_up_to_a_number(client, keys, admin):
    for number in range(230):
        await push(client, keys, job(f"{number}"), lane=f"g{number}")
    facts = await admin.facts("mail")
    assert len(facts.lanes) == 204
    assert facts.more_lanes
    assert await admin.purge("mail") == 230
    assert (await admin.facts("mail")).waiting == 0


@pytest.mark.parametrize("part", ["waiting", "state", "counters", "delayed", "ring", "workers"])
async def test_what_cannot_be_looked_at_is_named_and_not_nothing(client, keys, admin, part):
    key = getattr(keys, part)
    await client.call("SET", key, "x")
    facts = await admin.facts("mail")
    assert [(one.key, one.type) for one in facts.foreign] == [(key, "string")]
    assert facts.known


async def test_a_server_that_is_gone_is_an_error_and_not_nothing(start_server, namespace):
    server = start_server()
    async with Client(Settings(url=server.url, namespace=namespace)) as client:
        admin = QueueAdmin(client, CODEC)
        await admin.facts("mail")
        server.kill()
        for look in (admin.facts("mail"), admin.list(), admin.peek("mail"), admin.jobs("mail")):
            with pytest.raises((Unreachable, OutcomeUnknown)):
                await look


# --- peeking


async def test_peek_shows_the_next_jobs_first(client, keys, admin):
    meta = Meta(attempts=2, history=(Trouble(attempt=2, at_ms=1, message="boom"),), group="g")
    await push(client, keys, job("a"), job("b", meta), b'{"camera":1}', b"text", b"\xff")
    jobs = await admin.peek("mail")
    assert [one.id for one in jobs] == ["a", "b", "", "", ""]
    assert [one.place for one in jobs] == [0, 1, 2, 3, 4]
    assert (jobs[1].attempts, jobs[1].last_error, jobs[1].group) == (2, "boom", "g")
    assert (jobs[2].payload.text, jobs[3].payload.text) == ('{"camera":1}', "text")
    assert not jobs[4].payload.is_text
    assert [one.id for one in await admin.peek("mail", start=1, limit=1)] == ["b"]
    assert await admin.peek("mail", start=9) == []
    assert await client.call("LLEN", keys.waiting) == 5


async def test_peek_of_a_queue_that_is_pushed_from_the_left(client, keys, admin):
    await client.call("HSET", keys.state, "side", "left")
    await client.call("LPUSH", keys.waiting, job("a"), job("b"), job("c"))
    assert [one.id for one in await admin.peek("mail", limit=2)] == ["a", "b"]
    assert [one.id for one in await admin.peek("mail", start=2)] == ["c"]


async def test_peek_into_lanes_and_over_many_pages(client, keys, admin):
    await push(client, keys, *(job(f"{number}") for number in range(1_200)), lane="high")
    await push(client, keys, job("x"), lane=lane_name("a b"))
    jobs = await admin.peek("mail", "high", 100, 1_000)
    assert [one.id for one in jobs] == [f"{number}" for number in range(100, 1_100)]
    assert [one.id for one in await admin.peek("mail", "a b")] == ["x"]


@pytest.mark.parametrize(
    "arguments",
    [{"start": -1}, {"limit": 0}, {"limit": 1_001}, {"limit": True}, {"lane": 5}, {"lane": None}],
)
async def test_a_peek_that_cannot_be_is_refused(admin, arguments):
    with pytest.raises(InvalidJob):
        await admin.peek("mail", **arguments)


# --- names


BAD_NAMES = ["", " ", "x" * 129, "a:b", "{a}", "a\nb", "a*", "..", "-x", "é", "dlq", 5, None]


@pytest.mark.parametrize("name", BAD_NAMES)
async def test_a_name_that_no_queue_can_have_is_refused_everywhere(admin, name):
    for act in (
        admin.facts(name),
        admin.peek(name),
        admin.pause(name),
        admin.resume(name),
        admin.purge(name),
        admin.move(name, "other"),
        admin.move("other", name),
        admin.job(name, "x"),
        admin.jobs(name),
        admin.cancel(name, "x"),
        admin.replay(name, "x"),
        admin.delete(name),
        admin.park(name, "g", 1),
        admin.set_weight(name, "g", 1),
        admin.set_limits(name, limit=1),
        admin.workers(name),
        admin.claims(name, "w"),
        admin.drain(name),
        admin.audit(name),
    ):
        with pytest.raises(InvalidName):
            await act


# --- deleting


async def test_a_deleted_queue_leaves_nothing_behind(client, keys, admin, namespace):
    await client.call("SADD", QueuesKeys.of(client.keys).registry, "mail", "other")
    await push(client, keys, *(job(f"{number}") for number in range(120)))
    await push(client, keys, job("g"), lane="g")
    await submit(client, keys, "tracked", unique="u")
    await submit(client, keys, "later", wait=60_000)
    await client.call("RPUSH", keys.dead_letters, "x")
    await client.call("RPUSH", keys.overflow, "x")
    await admin.set_weight("mail", "g", 3)
    await admin.pause("mail", "g")
    assert await admin.delete("mail")
    left = set()
    for node in await client.primaries():
        wire = await node.wire(Role.DEFAULT)
        left |= set((await wire.call("SCAN", 0, "MATCH", f"{namespace}*", "COUNT", 1_000_000))[1])
    assert left == {QueuesKeys.of(client.keys).registry.encode()}
    assert await client.call("SMEMBERS", QueuesKeys.of(client.keys).registry) == [b"other"]
    assert not await admin.delete("mail")
    assert not (await admin.facts("mail")).known


async def test_a_queue_with_workers_or_their_jobs_is_not_deleted(client, keys, admin):
    await push(client, keys, job("a"))
    await join(client, keys)
    with pytest.raises(QueueError, match="has workers"):
        await admin.delete("mail")
    await claim(client, keys)
    await scripts_of(client).leave_queue(keys=keys, worker="w1")
    with pytest.raises(QueueError, match="dead worker"):
        await admin.delete("mail")
    assert await client.call("HLEN", keys.claimed("w1")) == 1


# --- other servers


async def test_it_all_works_on_every_server(any_server, namespace):
    async with Client(Settings(url=any_server.url, namespace=namespace)) as client:
        admin, keys = QueueAdmin(client, CODEC), QueueKeyring.of(client.keys, "mail")
        letters = admin.dead_letters("mail")
        await push(client, keys, *(job(f"{number}") for number in range(60)))
        await push(client, keys, job("g"), lane="g")
        assert await admin.move("mail", "slow", limit=20) == 20
        assert await admin.move("mail", "slow", ids=["30", "31"]) == 2
        await client.call("RPUSH", keys.dead_letters, *map(dead, ("a", "b", "c")))
        await letters.edit("b", "other")
        assert (await letters.replay(["a"])).replayed == 1
        assert await letters.purge(["b"]) == 1
        assert await letters.purge(everything=True) == 1
        assert await admin.pause("mail", "g")
        assert await admin.pause("mail", "high")
        assert (await admin.facts("mail")).waiting == 40
        assert await admin.resume("mail", "g")
        assert await admin.park("mail", "g", 60) > 0
        assert (await admin.jobs("mail")).jobs == []
        assert await admin.purge("mail", delayed=True) == 40
        assert await admin.delete("mail")
        assert await admin.delete("slow")


@pytest.mark.parametrize("kind", ["valkey", "redis62"])
async def test_a_full_server_can_be_relieved(start_server, namespace, kind):
    server = start_server(kind)
    async with Client(Settings(url=server.url, namespace=namespace)) as client:
        admin, keys = QueueAdmin(client, CODEC), QueueKeyring.of(client.keys, "mail")
        await push(client, keys, *(job(f"{number}") for number in range(60)))
        await push(client, keys, job("g"), lane="g")
        await submit(client, keys, "later", wait=60_000)
        await client.call("RPUSH", keys.dead_letters, *map(dead, ("a", "b", "c")))
        server.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(OutOfMemory):
            await client.call("SET", f"{namespace}:x", "y")
        assert await admin.pause("mail")
        assert await admin.pause("mail", "g")
        assert await admin.resume("mail")
        assert (await admin.dead_letters("mail").replay(["a"])).replayed == 1
        assert await admin.dead_letters("mail").purge(["b"]) == 1
        assert await admin.dead_letters("mail").purge(everything=True) == 1
        with pytest.raises(OutOfMemory):
            await admin.move("mail", "slow", limit=3)
        assert (await admin.facts("mail")).waiting == 62
        assert await admin.cancel("mail", "later") is Cancelled.CANCELLED
        assert await admin.purge("mail", delayed=True) == 62
        server.command("CONFIG", "SET", "maxmemory", "0")


async def test_an_application_has_its_queues_at_hand(open_app, valkey_server):
    app = await open_app(valkey_server)
    assert isinstance(app.queues, QueueAdmin)
    assert await app.queues.list() == []
