"""Queues looked after: facts, peeking, pausing, purging, moving, searching, deleting."""

import asyncio
from datetime import UTC, datetime

import pytest

from penstock.errors import (
    CommandRefused,
    InvalidJob,
    InvalidName,
    JobMissing,
    OutcomeUnknown,
    OutOfMemory,
    QueueError,
    Unreachable,
)
from penstock.queues.admin import Cancelled, QueueAdmin
from penstock.queues.items import Meta, Trouble, new_id, read_item, task_item
from penstock.queues.letters import build_letter
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.keys import QueueKeyring
from penstock.redis.node import Role
from penstock.settings import CodecSettings, Settings
from penstock.testing.eventually import eventually

CODEC = Codec(CodecSettings())
DAY_MS = 86_400_000


@pytest.fixture(params=["valkey_server", "cluster"])
async def client(request, namespace):
    server = request.getfixturevalue(request.param)
    async with Client(Settings(url=server.url, namespace=namespace)) as client:
        yield client


@pytest.fixture
def keys(client):
    return QueueKeyring.of(client.keys, "mail")


@pytest.fixture
def admin(client):
    return QueueAdmin(client, CODEC)


def job(id_, meta=None, task="mail.send"):
    return task_item(CODEC, id=id_, task=task, args=b"[]", kwargs=b"{}", meta=meta)


def dead(id_):
    return build_letter(
        read_item(job(id_), CODEC), queue="mail", lane="", reason="exhausted", attempts=3,
        max_attempts=3, failures=[], now_ms=1,
    )  # fmt: skip


async def push(client, keys, *items, lane="", side="right"):
    return await client.scripts.push_jobs(
        keys=keys,
        lane=lane,
        queue=keys.queue,
        side=side,
        policy="reject",
        max_size=0,
        max_bytes=0,
        max_overflow=0,
        items=items,
    )


async def submit(client, keys, id_, *, lane="", unique="", wait="", meta=None, **fields):
    meta = meta or Meta(tracked=True, unique=unique)
    reply = await client.scripts.submit_job(
        keys=keys,
        record=keys.record(id_),
        unique=keys.unique(unique or "none"),
        lane=lane,
        queue=keys.queue,
        side="right",
        policy="reject",
        max_size=0,
        max_bytes=0,
        max_overflow=0,
        job_id=keys.record_name(id_),
        item=job(id_, meta),
        wait=wait,
        unique_ms=DAY_MS if unique else 0,
        keep_ms=DAY_MS,
        fields=[part for item in {"task": "mail.send", **fields}.items() for part in item],
    )
    assert reply[0] == 1


async def join(client, keys, worker="w1"):
    await client.scripts.join_queue(keys=keys, worker=worker)


async def claim(client, keys, most=100, *, worker="w1", first=1):
    """Ids that a claim gets, by lane."""
    reply = await client.scripts.claim_jobs(
        keys=keys, worker=worker, first=first, most=most, done=[]
    )
    taken = {}
    for lane, items in zip(reply[4::2], reply[5::2], strict=True):
        taken.setdefault(lane.decode(), []).extend(read_item(item, CODEC).id for item in items)
    return taken


async def ids(client, key):
    return [read_item(data, CODEC).id for data in await client.call("LRANGE", key, 0, -1)]


async def everything(client, keys):
    """All that is stored of a queue, to see that nothing was written."""
    places = [
        *(keys.waiting, keys.state, keys.counters, keys.overflow, keys.dead_letters, keys.ring),
        *(keys.parked, keys.weights, keys.delayed, keys.delayed_bodies, keys.workers),
        *(keys.dead_workers, keys.audit),
    ]
    return [await client.call("DUMP", place) for place in places]


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
    await push(client, keys, job("e"), job("f"), lane=keys.lane("acme & sons"))
    await submit(client, keys, "later", wait=60_000)
    await client.call("RPUSH", keys.dead_letters, "x", "y")
    await client.call("RPUSH", keys.overflow, "z")
    await client.call("SADD", client.keys.queues().registry, "mail")
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
    await client.scripts.find_dead(keys=keys, silence_ms=1_000)
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
async def test_what_cannot_be_looked_at_is_an_error_and_not_nothing(client, keys, admin, part):
    await client.call("SET", getattr(keys, part), "x")
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await admin.facts("mail")


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
    assert [one.id for one in await admin.peek("mail", start=1, count=1)] == ["b"]
    assert await admin.peek("mail", start=9) == []
    assert await client.call("LLEN", keys.waiting) == 5


async def test_peek_of_a_queue_that_is_pushed_from_the_left(client, keys, admin):
    await client.call("HSET", keys.state, "side", "left")
    await client.call("LPUSH", keys.waiting, job("a"), job("b"), job("c"))
    assert [one.id for one in await admin.peek("mail", count=2)] == ["a", "b"]
    assert [one.id for one in await admin.peek("mail", start=2)] == ["c"]


async def test_peek_into_lanes_and_over_many_pages(client, keys, admin):
    await push(client, keys, *(job(f"{number}") for number in range(1_200)), lane="high")
    await push(client, keys, job("x"), lane=keys.lane("a b"))
    jobs = await admin.peek("mail", "high", 100, 1_000)
    assert [one.id for one in jobs] == [f"{number}" for number in range(100, 1_100)]
    assert [one.id for one in await admin.peek("mail", "a b")] == ["x"]


@pytest.mark.parametrize(
    "arguments",
    [{"start": -1}, {"count": 0}, {"count": 1_001}, {"count": True}, {"lane": 5}, {"lane": None}],
)
async def test_a_peek_that_cannot_be_is_refused(admin, arguments):
    with pytest.raises(InvalidJob):
        await admin.peek("mail", **arguments)


# --- pausing


async def test_a_paused_queue_gives_nothing_until_it_is_resumed(client, keys, admin):
    await push(client, keys, job("a"))
    await join(client, keys)
    assert await admin.pause("mail", who="anna")
    assert not await admin.pause("mail")
    assert await claim(client, keys) == {}
    facts = await admin.facts("mail")
    assert facts.paused
    assert await admin.resume("mail", who="bo")
    assert not await admin.resume("mail")
    assert await claim(client, keys) == {"": ["a"]}
    assert [(act.who, act.what) for act in await admin.audit("mail")] == [
        ("bo", "resume"),
        ("anna", "pause"),
    ]


@pytest.mark.parametrize("lane", ["", "high", "normal", "low"])
async def test_one_priority_is_paused_and_the_others_flow(client, keys, admin, lane):
    for name in ("", "high", "normal", "low"):
        await push(client, keys, job(f"job{name}"), lane=name)
    await join(client, keys)
    assert await admin.pause("mail", lane)
    assert not await admin.pause("mail", lane)
    taken = await claim(client, keys)
    assert set(taken) == {"", "high", "normal", "low"} - {lane}
    shown = {one.name: one.paused for one in (await admin.facts("mail")).lanes}
    assert shown == {name: name == lane for name in ("", "high", "normal", "low")}
    assert await admin.resume("mail", lane)
    assert await claim(client, keys, first=10) == {lane: [f"job{lane}"]}
    assert await client.call("HEXISTS", keys.state, "paused_lanes") == 0


async def test_several_priorities_are_paused_and_resumed_one_by_one(client, keys, admin):
    await admin.pause("mail", "high")
    await admin.pause("mail", "")
    await admin.pause("mail", "low")
    assert await admin.resume("mail", "")
    assert not await admin.resume("mail", "")
    paused = {one.name for one in (await admin.facts("mail")).lanes if one.paused}
    assert paused == {"high", "low"}


async def test_a_paused_group_waits_and_the_others_take_their_turns(client, keys, admin):
    for group in ("a b", "c"):
        await push(client, keys, job(f"1{group}"), job(f"2{group}"), lane=keys.lane(group))
    await join(client, keys)
    assert await admin.pause("mail", "a b")
    await push(client, keys, job("3a b"), lane=keys.lane("a b"))
    assert await claim(client, keys) == {"c": ["1c", "2c"]}
    shown = {one.name: one for one in (await admin.facts("mail")).lanes}
    assert (shown["a b"].paused, shown["a b"].waiting) == (True, 3)
    assert not await admin.pause("mail", "a b")
    assert await admin.park("mail", "a b", 0) == 0
    assert await admin.resume("mail", "a b")
    assert await claim(client, keys, first=10) == {keys.lane("a b"): ["1a b", "2a b", "3a b"]}


async def test_a_group_that_was_paused_empty_gets_its_turn_with_its_first_job(client, keys, admin):
    await join(client, keys)
    await admin.pause("mail", "g")
    assert await admin.resume("mail", "g")
    await push(client, keys, job("a"), lane="g")
    assert await client.call("LRANGE", keys.ring, 0, -1) == [b"g"]
    assert await claim(client, keys) == {"g": ["a"]}


async def test_a_parked_group_comes_back_by_itself(client, keys, admin):
    await push(client, keys, job("a"), lane="g")
    await join(client, keys)
    until = await admin.park("mail", "g", 0.2)
    assert await claim(client, keys) == {}
    assert 0 < (await admin.facts("mail")).lanes[-1].parked_ms <= 200
    numbers = iter(range(100, 10_000))

    async def comes():
        return await claim(client, keys, first=next(numbers)) == {"g": ["a"]}

    await eventually(comes)
    seconds, micros = await client.call("TIME")
    assert int(seconds) * 1000 + int(micros) // 1000 >= until


async def test_a_parked_group_can_be_resumed_early(client, keys, admin):
    await push(client, keys, job("a"), lane="g")
    await join(client, keys)
    await admin.park("mail", "g", 3_600)
    assert await admin.resume("mail", "g")
    assert await claim(client, keys) == {"g": ["a"]}


async def test_a_heavier_group_gets_more_in_its_turn(client, keys, admin):
    for group in ("a", "b"):
        await push(client, keys, *(job(f"{group}{number}") for number in range(9)), lane=group)
    await join(client, keys)
    await admin.set_weight("mail", "a", 2)
    taken = await claim(client, keys, 6)
    assert (len(taken["a"]), len(taken["b"])) == (4, 2)
    await admin.set_weight("mail", "a", 1)
    assert await client.call("EXISTS", keys.weights) == 0


async def test_limits_are_set_and_lifted(client, keys, admin):
    await push(client, keys, job("a"), job("b"), job("c"))
    await join(client, keys)
    await admin.set_limits("mail", limit=2, lane_limit=5)
    facts = await admin.facts("mail")
    assert (facts.limit, facts.lane_limit) == (2, 5)
    assert await claim(client, keys) == {"": ["a", "b"]}
    await admin.set_limits("mail", limit=0)
    facts = await admin.facts("mail")
    assert (facts.limit, facts.lane_limit) == (0, 5)
    assert await claim(client, keys, first=10) == {"": ["c"]}


@pytest.mark.parametrize("value", [-1, True, "3", 1.5, float("nan"), 10**9])
async def test_numbers_that_cannot_be_are_refused(client, keys, admin, value):
    before = await everything(client, keys)
    for act in (
        admin.set_weight("mail", "g", value),
        admin.set_limits("mail", limit=value),
        admin.set_limits("mail", lane_limit=value),
    ):
        with pytest.raises(InvalidJob):
            await act
    with pytest.raises(InvalidJob):
        await admin.set_limits("mail")
    assert await everything(client, keys) == before


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "5", None, True])
async def test_times_that_cannot_be_are_refused(admin, seconds):
    with pytest.raises(InvalidJob):
        await admin.park("mail", "g", seconds)


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
        admin.retry(name, "x"),
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


@pytest.mark.parametrize("group", ["{a}b}", "a:b", "* ? [x]", "..", "a\nb", "☃", "%2e", "queue"])
async def test_any_group_has_a_lane_of_its_own(client, keys, admin, group):
    await push(client, keys, job("a"), lane=keys.lane(group))
    await join(client, keys)
    assert await admin.pause("mail", group)
    assert await claim(client, keys) == {}
    assert (await admin.facts("mail")).lanes[-1].name == group
    assert [one.id for one in await admin.peek("mail", group)] == ["a"]
    assert await admin.resume("mail", group)
    assert await claim(client, keys) == {keys.lane(group): ["a"]}


@pytest.mark.parametrize("part", ["state", "ring", "parked", "audit"])
async def test_a_key_of_a_wrong_type_stops_a_pause_before_it_writes(client, keys, admin, part):
    await client.call("SET", getattr(keys, part), "x")
    before = await everything(client, keys)
    for act in (
        admin.pause("mail"),
        admin.pause("mail", "high"),
        admin.pause("mail", "g"),
        admin.resume("mail"),
        admin.park("mail", "g", 1),
    ):
        with pytest.raises(CommandRefused, match="WRONGTYPE"):
            await act
    assert await everything(client, keys) == before


# --- draining and purging


async def test_a_drain_ends_when_nothing_is_left(client, keys, admin):
    assert await admin.drain("mail", 1)
    await push(client, keys, job("a"), lane="g")
    await join(client, keys)
    assert not await admin.drain("mail", 0.05)
    await claim(client, keys)
    draining = asyncio.create_task(admin.drain("mail", 10))
    assert not await admin.drain("mail", 0.05)
    await client.scripts.claim_jobs(keys=keys, worker="w1", first=9, most=0, done=["1:g"])
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
    await client.scripts.push_jobs(
        keys=keys, lane="", queue="mail", side="right", policy="reject",
        max_size=0, max_bytes=10_000, max_overflow=0, items=[job("a"), job("b")],
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


async def test_a_record_of_a_wrong_type_stops_a_purge_before_it_writes(client, keys, admin):
    await push(client, keys, job("a"), job("b"))
    await client.call("SET", keys.record("b"), "x")
    before = await everything(client, keys)
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await admin.purge("mail")
    assert await everything(client, keys) == before


async def test_counts_that_are_no_numbers_stop_a_purge_before_it_writes(client, keys, admin):
    await push(client, keys, job("a"))
    for place, name in ((keys.counters, "purged"), (keys.state, "bytes")):
        await client.call("HSET", place, name, "many")
        with pytest.raises(CommandRefused, match="not a number"):
            await admin.purge("mail")
        await client.call("HDEL", place, name)
    assert await ids(client, keys.waiting) == ["a"]
    assert await admin.purge("mail") == 1


# --- moving


async def test_jobs_move_to_another_queue_in_their_order(client, keys, admin):
    other = QueueKeyring.of(client.keys, "slow")
    await push(client, keys, *(job(f"{number}") for number in range(130)))
    await push(client, other, job("there"))
    assert await admin.move("mail", "slow", count=70, who="anna") == 70
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
        await admin.move("mail", "slow", count=3)
    assert await ids(client, keys.waiting) == [f"{number}" for number in range(5)]
    assert await client.call("EXISTS", keys.workers, keys.dead_workers) == 0


async def test_a_move_that_is_cut_off_doubles_at_most_and_loses_nothing(
    valkey_server, namespace, fault_proxy
):
    async with Client(Settings(url=valkey_server.url, namespace=namespace)) as client:
        keys, other = (QueueKeyring.of(client.keys, name) for name in ("mail", "slow"))
        await push(client, keys, *(job(f"{number}") for number in range(20)))
        await QueueAdmin(client, CODEC).move("mail", "slow", count=10)
        proxy = fault_proxy(valkey_server)
        async with Client(Settings(url=proxy.url, namespace=namespace)) as weak:
            scripts = weak.scripts
            add = scripts.receive_jobs

            async def cut_before_the_end(**told):
                await add(**told)
                proxy.cut_before("*", times=None)

            scripts.receive_jobs = cut_before_the_end
            with pytest.raises((OutcomeUnknown, Unreachable)):
                await QueueAdmin(weak, CODEC).move("mail", "slow")
        assert len(await ids(client, other.waiting)) == 20
        [worker] = await QueueAdmin(client, CODEC).workers("mail")
        assert worker.claims == 10
        await client.call("ZADD", keys.workers, 1, worker.name)
        assert await client.scripts.find_dead(keys=keys, silence_ms=1_000) == [worker.name.encode()]
        claims = await client.call("HGETALL", keys.claimed(worker.name))
        told = []
        for name, item in zip(claims[::2], claims[1::2], strict=True):
            told += (name, "", "", "back", item, "")
        await client.scripts.reap_claims(keys=keys, worker=worker.name, keep_ms=1, jobs=told)
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
        {"to": "slow", "count": 0},
        {"to": "slow", "count": 1, "ids": ["a"]},
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


# --- jobs with a record


async def test_the_record_of_a_job_is_shown_or_missing(client, keys, admin):
    await submit(client, keys, "a/b c", rag_id="r")
    record = await admin.job("mail", "a/b c")
    assert (record.status, record.task, record.fields) == ("queued", "mail.send", {"rag_id": "r"})
    with pytest.raises(JobMissing):
        await admin.job("mail", "other")
    with pytest.raises(InvalidJob):
        await admin.job("mail", "")


async def test_jobs_are_searched_by_state_name_error_and_time(client, keys, admin):
    for number in range(250):
        name, error = f"task{number % 5}", f"boom {number % 2}"
        await client.call(
            *("HSET", keys.record(f"j{number}"), "job_id", f"j{number}", "status", "failed"),
            *("task", name, "error", error, "error_type", "ValueError"),
        )
        await client.call("ZADD", keys.jobs("failed"), 1_000_000 + number * 1_000, f"j{number}")
    await submit(client, keys, "q")

    async def found(**filters):
        jobs, cursor = [], None
        while True:
            page = await admin.jobs("mail", cursor=cursor, **filters)
            jobs += [one.job_id for one in page.jobs]
            cursor = page.cursor
            if cursor is None:
                return jobs

    newest_first = [f"j{number}" for number in reversed(range(250))]
    assert await found(state="failed", count=7) == newest_first
    assert await found(count=33) == ["q", *newest_first]
    assert await found(state="queued") == ["q"]
    assert await found(state="done") == []
    assert await found(name="TASK3", count=10) == newest_first[1::5]
    assert await found(error="boom 1") == newest_first[0::2]
    assert await found(state="failed", error="valueerror", name="task0") == newest_first[4::5]
    assert await found(state="failed", since=1_000, until=1_002) == ["j2", "j1", "j0"]
    moment = datetime.fromtimestamp(1_248, UTC)
    assert await found(state="failed", since=moment) == ["j249", "j248"]


async def test_a_cursor_stays_good_while_jobs_come_go_and_share_a_moment(client, keys, admin):
    names = sorted(f"j{number:03}" for number in range(350))
    for name in names:
        await client.call("HSET", keys.record(name), "job_id", name, "status", "queued")
    await client.call("ZADD", keys.jobs("queued"), *(part for name in names for part in (5, name)))
    seen, cursor = [], None
    while True:
        page = await admin.jobs("mail", state="queued", count=40, cursor=cursor)
        seen += [one.job_id for one in page.jobs]
        if page.cursor is None:
            break
        cursor = page.cursor
        await client.call("ZREM", keys.jobs("queued"), seen[-1], seen[0])
        await client.call("ZADD", keys.jobs("queued"), 9, f"new-{len(seen)}")
    assert seen == names[::-1]


async def test_index_entries_without_a_record_are_passed_over(client, keys, admin):
    await client.call("ZADD", keys.jobs("done"), 1, "gone", 2, "other")
    await client.call("HSET", keys.record("other"), "status", "queued")
    page = await admin.jobs("mail", state="done")
    assert (page.jobs, page.cursor) == ([], None)


@pytest.mark.parametrize(
    "arguments",
    [
        {"state": "dead"},
        {"count": 0},
        {"count": 1_001},
        {"name": 5},
        {"error": b"x"},
        {"cursor": "junk"},
        {"cursor": "queued/x/y"},
        {"cursor": "queued/5/"},
        {"cursor": 5},
        {"cursor": "failed/5/x", "state": "queued"},
        {"since": datetime(2026, 1, 1)},  # noqa: DTZ001
        {"since": float("nan")},
        {"until": 1e300},
        {"until": "yesterday"},
        {"until": True},
    ],
)
async def test_a_search_that_cannot_be_is_refused(admin, arguments):
    with pytest.raises(InvalidJob):
        await admin.jobs("mail", **arguments)


async def test_a_job_is_cancelled_asked_to_stop_or_had_ended(client, keys, admin):
    await submit(client, keys, "waits")
    await submit(client, keys, "later", wait=60_000)
    await submit(client, keys, "runs")
    await client.call("HSET", keys.record("runs"), "status", "processing")
    await client.call("HSET", keys.record("ended"), "status", "done")
    assert await admin.cancel("mail", "waits", who="anna") is Cancelled.CANCELLED
    assert await admin.cancel("mail", "later") is Cancelled.CANCELLED
    assert await admin.cancel("mail", "runs") is Cancelled.ASKED
    assert await admin.cancel("mail", "ended") is Cancelled.ENDED
    with pytest.raises(JobMissing):
        await admin.cancel("mail", "nobody")
    assert (await admin.job("mail", "waits")).status == "cancelled"
    assert (await admin.job("mail", "runs")).cancel_asked
    acts = await admin.audit("mail")
    assert [(act.what, act.detail) for act in acts] == [
        ("cancel", "runs"),
        ("cancel", "later"),
        ("cancel", "waits"),
    ]
    assert acts[-1].who == "anna"


async def test_a_failed_job_is_tried_again(client, keys, admin):
    item = read_item(job("a", Meta(tracked=True)), CODEC)
    letter = build_letter(
        item, queue="mail", lane="high", reason="exhausted", attempts=3, max_attempts=3,
        failures=[], now_ms=1,
    )  # fmt: skip
    await client.call("RPUSH", keys.dead_letters, letter)
    await admin.retry("mail", "a")
    assert await ids(client, keys.list_of("high")) == ["a"]
    assert (await admin.job("mail", "a")).status == "queued"
    with pytest.raises(JobMissing):
        await admin.retry("mail", "a")
    assert await admin.dead_letters("mail").count() == 0


# --- deleting


async def test_a_deleted_queue_leaves_nothing_behind(client, keys, admin, namespace):
    await client.call("SADD", client.keys.queues().registry, "mail", "other")
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
        left |= set(await wire.call("KEYS", f"{namespace}*"))
    assert left == {client.keys.queues().registry.encode()}
    assert await client.call("SMEMBERS", client.keys.queues().registry) == [b"other"]
    assert not await admin.delete("mail")
    assert not (await admin.facts("mail")).known


async def test_a_queue_with_workers_or_their_jobs_is_not_deleted(client, keys, admin):
    await push(client, keys, job("a"))
    await join(client, keys)
    with pytest.raises(QueueError, match="has workers"):
        await admin.delete("mail")
    await claim(client, keys)
    await client.scripts.leave_queue(keys=keys, worker="w1")
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
        assert await admin.move("mail", "slow", count=20) == 20
        assert await admin.move("mail", "slow", ids=["30", "31"]) == 2
        await client.call("RPUSH", keys.dead_letters, *map(dead, ("a", "b", "c")))
        await letters.edit("b", "other")
        assert (await letters.requeue(["a"])).requeued == 1
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
        assert (await admin.dead_letters("mail").requeue(["a"])).requeued == 1
        assert await admin.dead_letters("mail").purge(["b"]) == 1
        assert await admin.dead_letters("mail").purge(everything=True) == 1
        with pytest.raises(OutOfMemory):
            await admin.move("mail", "slow", count=3)
        assert (await admin.facts("mail")).waiting == 62
        assert await admin.cancel("mail", "later") is Cancelled.CANCELLED
        assert await admin.purge("mail", delayed=True) == 62
        server.command("CONFIG", "SET", "maxmemory", "0")


async def test_an_application_has_its_queues_at_hand(open_app, valkey_server):
    app = await open_app(valkey_server)
    assert isinstance(app.queues, QueueAdmin)
    assert await app.queues.list() == []
