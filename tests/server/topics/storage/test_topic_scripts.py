"""Topic scripts one by one: who owns no more is refused, a repeat changes nothing, a full server
drains, and no call holds the server up.
"""

from __future__ import annotations

import asyncio
import re

import pytest
from tests.kit.model.desk import GROUP, Desk
from tests.kit.scripts import NAMES, load_script

from penstock.errors import CommandRefused, OutOfMemory, TopicError
from penstock.redis.keys.hash_slot import key_slot
from penstock.redis.keys.space import KeySpace
from penstock.redis.node import Role
from penstock.testing.binaries import SERVER_NAMES
from penstock.testing.eventually import eventually
from penstock.topics.storage.keys import PartitionKeys
from penstock.topics.storage.metadata import metadata_of, open_partitions, read_metadata

STALE = -1


@pytest.fixture
async def desk(any_server, open_client, namespace):
    return Desk(await open_client(any_server.url, namespace=namespace))


@pytest.fixture
async def desk_on_cluster(cluster, open_client, namespace):
    return Desk(await open_client(cluster.url, namespace=namespace))


# ---- ownership


async def test_a_partition_passes_from_owner_to_owner_with_all_that_is_pending(desk):
    await hand_over(desk)


async def test_a_partition_passes_from_owner_to_owner_on_a_cluster(desk_on_cluster):
    await hand_over(desk_on_cluster)


async def hand_over(desk):
    ids = await desk.open(4)
    first = await desk.acquire("anna")
    assert await desk.read(first) == ids
    assert await desk.settle(first, ids[:1]) == 1
    assert await desk.fail(first, ids[1:2], wait_ms=0) > 0
    assert await desk.acquire("ben") == 0
    assert await desk.release(first, ids[2:3])
    second = await desk.acquire("ben")
    assert second > first
    rows = await desk.pending(second)
    assert [(row[0].decode(), row[1], row[2] > 0) for row in rows] == [
        (ids[1], 1, True),
        (ids[2], 0, False),
        (ids[3], 1, False),
    ]
    wait_ms, row = await desk.due(second)
    assert (wait_ms, row[0].decode(), row[3]) == (-1, ids[1], b"[]")
    assert await desk.begin(second, ids[1:2]) == [2]
    assert await desk.settle(second, ids[1:], failed_before=1) == 3
    assert await desk.pending(second) == []


@pytest.mark.parametrize(
    "act",
    [
        lambda desk, epoch, ids: desk.settle(epoch, ids, failed_before=1),
        lambda desk, epoch, ids: desk.fail(epoch, ids),
        lambda desk, epoch, ids: desk.begin(epoch, ids),
        lambda desk, epoch, ids: desk.pending(epoch),
        lambda desk, epoch, ids: desk.due(epoch),
        lambda desk, epoch, ids: desk.renew(epoch),
        lambda desk, epoch, ids: desk.release(epoch, ids),
    ],
    ids=["settle", "retry_later", "begin", "pending_page", "due_retries", "renew", "release"],
)
@pytest.mark.parametrize("loss", ["taken over", "reset", "deleted", "deleted and taken anew"])
async def test_an_owner_that_lost_its_partition_is_refused_and_changes_nothing(desk, act, loss):
    ids = await desk.open(3)
    epoch = await desk.acquire("anna")
    await desk.read(epoch)
    await desk.fail(epoch, ids[:1])
    await desk.expire()
    if loss == "reset":
        await desk.reset("0")
    elif loss.startswith("deleted"):
        await desk.drop()
    if loss == "deleted and taken anew":
        await desk.register()
    if loss.endswith(("over", "anew")):
        await desk.read(await desk.acquire("ben"), 2)
    before = await desk.stored()
    assert await act(desk, epoch, ids) in (STALE, False)
    assert await desk.stored() == before


async def test_a_stale_owner_cannot_read(desk):
    await desk.open(3)
    epoch = await desk.acquire("anna")
    await desk.expire()
    await desk.acquire("ben")
    before = await desk.stored()
    with pytest.raises(CommandRefused, match="NOGROUP"):
        await desk.read(epoch)
    assert await desk.stored() == before


@pytest.mark.parametrize("loss", ["taken over", "given up", "reset", "deleted"])
async def test_a_read_that_waits_gets_nothing_once_the_partition_has_passed_on(desk, loss):
    await desk.open()
    epoch = await desk.acquire("anna")
    command = desk.read_command(epoch, 10, block_ms=5_000)
    waiting = asyncio.create_task(desk.client.call(*command, role=Role.QUEUE, timeout_s=10))
    await eventually(lambda: has_blocked_client(desk))
    if loss == "taken over":
        await desk.expire()
        await desk.acquire("ben")
    elif loss == "given up":
        await desk.release(epoch, [])
    elif loss == "reset":
        await desk.reset("0")
    else:
        await desk.drop()
    await desk.add(1)
    with pytest.raises(CommandRefused, match=r"NOGROUP|UNBLOCKED"):
        await waiting


async def has_blocked_client(desk):
    return b"blocked_clients:0\r" not in await desk.client.call("INFO", "clients")


async def test_nobody_takes_a_partition_that_is_owned_or_whose_group_is_unknown(desk):
    await desk.open()
    await desk.acquire("anna")
    before = await desk.stored()
    assert await desk.acquire("ben") == 0
    assert await desk.acquire("ben", dead_owner="anna") == 0  # her lease is not too long
    assert await desk.stored() == before
    await desk.client.call("PEXPIRE", desk.keys.lease(GROUP), 100_000_000)
    assert await desk.acquire("ben", dead_owner="anna") > 0
    await desk.drop()
    before = await desk.stored()
    assert await desk.acquire("anna") == STALE
    assert await desk.stored() == before


async def test_a_lease_that_ran_out_is_revived_unless_somebody_took_it(desk):
    await desk.open(1)
    epoch = await desk.acquire("anna")
    await desk.client.call("DEL", desk.keys.lease(GROUP), desk.keys.fence(GROUP, epoch))
    assert await desk.renew(epoch)
    assert len(await desk.read(epoch)) == 1
    assert await desk.client.call("PTTL", desk.keys.lease(GROUP)) > 0
    assert await desk.client.call("PTTL", desk.keys.fence(GROUP, epoch)) > 0


async def test_a_renewal_that_arrives_after_the_release_revives_nothing(desk):
    """It comes from the heartbeat thread, on another connection than the release."""
    await desk.open(1)
    epoch = await desk.acquire("anna")
    assert await desk.release(epoch, [])
    assert not await desk.renew(epoch)
    assert await desk.client.call("EXISTS", desk.keys.lease(GROUP)) == 0
    assert await desk.acquire("ben") > epoch


async def test_a_heartbeat_that_arrives_after_the_farewell_makes_no_member(desk):
    await desk.open()
    keys, scripts = desk.topic_keys, desk.scripts
    members, info = keys.members(GROUP), keys.member_info(GROUP)
    told = {"members": members, "member_info": info, "meta": keys.meta}
    await scripts.beat_member(**told, member="anna", about=b"{}", ttl_ms=60_000)
    await desk.client.call("ZADD", members, 1, "anna")
    assert await scripts.stay_member(members=members, member="anna")
    assert float(await desk.client.call("ZSCORE", members, "anna")) > 1
    await scripts.leave_group(members=members, member_info=info, member="anna")
    assert not await scripts.stay_member(members=members, member="anna")
    assert await desk.client.call("EXISTS", members, info) == 0


# ---- members


@pytest.mark.parametrize("members", [10, 100, 1_000])
async def test_a_heartbeat_costs_the_same_however_many_members_there_are(busy, figure, members):
    await busy.open()
    for number in range(members - 1):
        await busy.beat(f"member-{number}")
    version, facts, *listed = await busy.beat("anna")
    assert len(listed) == 2 * members
    assert await busy.beat("anna", version) == [version, facts]
    for what, known, bar_ms in (("heartbeat among", version, 0.2), ("list of", b"", 5.0)):
        least_ms = 100.0
        for _ in range(5):
            before_ms = await processor_ms(busy.client)
            for _ in range(10):
                await busy.beat("anna", known)
            least_ms = min(least_ms, (await processor_ms(busy.client) - before_ms) / 10)
        figure("topic scripts", f"{what} {members} members", least_ms, "ms", "<=", bar_ms)


async def test_a_heartbeat_tells_what_the_topic_is(desk):
    await desk.open()
    meta, topic = desk.topic_keys.meta, desk.topic

    async def told():
        _, facts, *_ = await desk.beat("anna")
        return metadata_of(desk.client, topic, facts)

    assert await told() == await read_metadata(desk.client, topic)
    await desk.scripts.begin_growth(meta=meta, partitions=9, hold_ms=60_000)
    growing = await told()
    assert growing.growing_to == 9
    assert 0 < growing.switch_ms <= 60_000
    await desk.client.call("HDEL", meta, "life")
    assert not (await told()).life, "as the Java library makes it: to be given by `create_topic`"
    await desk.client.call("HSET", meta, "partitionCount", "many")
    with pytest.raises(TopicError, match="partitionCount"):
        await told()
    await desk.client.call("DEL", meta)
    assert await desk.beat("anna") is None


async def test_members_are_listed_again_when_one_comes_goes_or_dies(desk):
    await desk.open()

    async def beat_of(member, version):
        version, _, *listed = await desk.beat(member, version)
        return version, sorted(name.decode() for name in listed[::2])

    first, listed = await beat_of("anna", b"")
    assert listed == ["anna"]
    assert await beat_of("anna", first) == (first, [])
    second, listed = await beat_of("ben", b"")
    assert listed == ["anna", "ben"]
    assert await beat_of("anna", first) == (second, ["anna", "ben"])
    keys = desk.topic_keys
    members, info = keys.members(GROUP), keys.member_info(GROUP)
    await desk.scripts.leave_group(members=members, member_info=info, member="ben")
    third, listed = await beat_of("anna", second)
    assert listed == ["anna"]
    # As consumers of earlier versions do, who know of no version.
    await desk.client.call("ZADD", members, 9e12, "old")
    await desk.client.call("ZADD", members, "LT", await server_ms(desk), "old")
    await desk.client.call("HSET", info, "old", "{}")
    fourth, listed = await beat_of("anna", third)
    assert listed == ["anna", "old"]
    await desk.client.call("ZADD", members, 1, "old")
    assert (await beat_of("anna", fourth))[1] == ["anna"]


async def server_ms(desk):
    seconds, micros = map(int, await desk.client.call("TIME"))
    return seconds * 1000 + micros // 1000


async def test_a_member_that_beats_late_forgives_itself_alone(desk):
    await desk.open()
    for member in ("late", "dead", "alive"):
        await desk.beat(member)
    members = desk.topic_keys.members(GROUP)
    for member in ("late", "dead"):
        await desk.client.call("ZADD", members, 1, member)
    _, _, *listed = await desk.beat("late")
    assert sorted(listed[::2]) == [b"alive", b"late"]


# ---- a new fence under the same epoch


async def test_a_read_that_waits_gets_nothing_once_its_owner_has_a_new_fence(desk):
    await desk.open()
    epoch = await desk.acquire("anna")
    command = desk.read_command(epoch, 10, block_ms=5_000)
    waiting = asyncio.create_task(desk.client.call(*command, role=Role.QUEUE, timeout_s=10))
    await eventually(lambda: has_blocked_client(desk))
    assert await desk.refence(epoch, epoch + 1)
    ids = await desk.add(1)
    with pytest.raises(CommandRefused, match=r"NOGROUP|UNBLOCKED"):
        await waiting
    assert await desk.pending(epoch) == []
    assert await desk.read(epoch + 1) == ids
    assert await desk.settle(epoch, ids) == 1  # all other words are still valid


async def test_a_new_fence_on_a_cluster(desk_on_cluster):
    desk = desk_on_cluster
    ids = await desk.open(1)
    epoch = await desk.acquire("anna")
    assert await desk.refence(epoch, epoch + 1)
    with pytest.raises(CommandRefused, match="NOGROUP"):
        await desk.read(epoch)
    assert await desk.read(epoch + 1) == ids


async def test_an_old_fence_does_not_come_back(desk):
    """Calls that were held up on their way arrive late, and in any order."""
    await desk.open(1)
    epoch = await desk.acquire("anna")
    for number in (epoch + 1, epoch + 2):
        assert await desk.refence(epoch, number)
    await desk.client.call("DEL", desk.keys.fence(GROUP, epoch + 2))
    assert await desk.refence(epoch, epoch + 1)
    assert await desk.renew(epoch)
    for number in (epoch, epoch + 1):
        with pytest.raises(CommandRefused, match="NOGROUP"):
            await desk.read(number)
    assert len(await desk.read(epoch + 2)) == 1
    assert await desk.client.call("PTTL", desk.keys.fence(GROUP, epoch + 2)) > 0


@pytest.mark.parametrize("loss", ["taken over", "given up", "reset", "deleted"])
async def test_the_latest_fence_falls_with_the_ownership(desk, loss):
    await desk.open(1)
    epoch = await desk.acquire("anna")
    await desk.refence(epoch, epoch + 1)
    await desk.expire()
    if loss == "taken over":
        assert await desk.acquire("ben") > epoch + 1
    elif loss == "given up":
        await desk.release(epoch, [])
        assert await desk.acquire("ben") > epoch + 1
    elif loss == "reset":
        await desk.reset("0")
    else:
        await desk.drop()
        assert await desk.client.call("EXISTS", desk.keys.epochs) == 0
    with pytest.raises(CommandRefused, match="NOGROUP"):
        await desk.read(epoch + 1)
    before = await desk.stored()
    assert not await desk.refence(epoch, epoch + 2)
    assert await desk.stored() == before


# ---- charges


async def test_attempts_are_taken_back_whoever_owns_the_partition_and_what_it_has_begun(desk):
    ids = await desk.open(4)
    first = await desk.acquire("anna")
    await desk.read(first)
    await desk.settle(first, ids[3:])
    await desk.expire()
    second = await desk.acquire("ben")
    assert await desk.begin(second, ids[:1]) == [2]
    assert await desk.uncharge(ids) == 3
    assert [row[1] for row in await desk.pending(second)] == [1, 0, 0]
    # It took them over with one attempt each; now the next one is the first.
    assert await desk.begin(second, ids[1:2]) == [1]
    assert await desk.uncharge(ids[2:3]) == 0


async def test_a_delivery_is_no_attempt_where_every_start_is_counted(desk):
    ids = await desk.open(3)
    epoch = await desk.acquire()
    await desk.read(epoch)
    for _ in range(2):
        assert await desk.begin(epoch, ids[:1], attempt=1, not_attempts=1) == [1]
    assert [row[1] for row in await desk.pending(epoch)] == [2, 1, 1]
    await desk.release(epoch, ids[1:2])
    epoch = await desk.acquire()
    assert await desk.begin(epoch, ids[1:], attempt=1, not_attempts=1) == [1, 1]
    assert [row[1] for row in await desk.pending(epoch)] == [2, 2, 2]


# ---- repeats


async def test_repeating_what_was_done_changes_nothing(desk):
    ids = await desk.open(4)
    epoch = await desk.acquire()
    await desk.read(epoch)
    assert await desk.fail(epoch, ids[:2], wait_ms=1_000_000) > 0
    assert await desk.begin(epoch, ids[:1]) == [2]
    assert await desk.settle(epoch, ids[2:3]) == 1
    letter = await desk.bury(ids[3])
    assert (await desk.publish(once="k", body=b"large"))[1] == 1
    before = await desk.stored()
    assert await desk.settle(epoch, ids[2:3]) == 0
    assert await desk.bury(ids[3]) == letter
    assert (await desk.publish(once="k", body=b"large"))[1] == 0
    assert await desk.register("$") == 0
    await open_partitions(desk.client, desk.topic, range(1))
    assert await desk.trim() == (0, 0, 0)
    assert await desk.move() == (0, -1)
    assert await desk.stored() == before
    assert await desk.begin(epoch, ids[:1]) == [2]
    assert [row[1] for row in await desk.pending(epoch)] == [2, 1, 1]


async def test_what_is_not_pending_is_not_begun(desk):
    ids = await desk.open(2)
    epoch = await desk.acquire()
    await desk.read(epoch)
    await desk.settle(epoch, ids[:1])
    assert await desk.begin(epoch, ids) == [0, 2]


async def test_growth_marks_each_partition_once(desk):
    await desk.open()
    marks = {"stream": desk.keys.stream, "counters": desk.keys.counters, "generation": 2}
    marker = await desk.scripts.mark_barrier(**marks)
    assert await desk.scripts.mark_barrier(**marks) == marker
    meta = desk.topic_keys.meta
    assert (
        await desk.scripts.finish_growth(meta=meta, partitions=2, generation=2, markers=[marker])
        is False
    )  # nobody began it
    assert (await desk.scripts.begin_growth(meta=meta, partitions=2, hold_ms=0))[0] == 1
    for _ in range(2):
        assert await desk.scripts.finish_growth(
            meta=meta, partitions=2, generation=2, markers=[marker]
        )


async def test_a_deleted_group_leaves_nothing(desk):
    ids = await desk.open(3)
    epoch = await desk.acquire()
    await desk.read(epoch)
    await desk.fail(epoch, ids[:1], wait_ms=1_000_000)
    await desk.settle(epoch, ids[1:2])
    assert await desk.drop() is True
    assert [key for key in await desk.stored() if GROUP.encode() in key] == []
    assert await desk.client.call("EXISTS", desk.keys.epochs, desk.keys.commit) == 0
    assert await desk.drop() is False


# ---- publishing and moving


async def test_a_topic_that_is_not_there_stores_nothing(desk):
    assert await desk.publish(once="k", body=b"large", wait_ms=1) is None
    assert await desk.stored() == {}


async def test_a_repeat_is_not_confirmed_when_the_stream_is_gone(desk):
    await desk.open()
    assert await desk.publish(once="order-1")
    await desk.client.call("DEL", desk.keys.stream)
    before = await desk.stored()
    assert await desk.publish(once="order-1") is None
    assert await desk.stored() == before


async def test_a_message_with_a_key_is_stored_once_until_the_key_is_forgotten(desk):
    await desk.open()
    first = await desk.publish(once="k")
    assert await desk.publish(once="k") == (first[0], False, 0)
    await desk.client.call("ZADD", desk.keys.dedup_times, 1, "k")
    assert (await desk.publish(once="k"))[1] == 1
    assert await desk.client.call("XLEN", desk.keys.stream) == 2


async def test_delayed_messages_move_when_due_in_batches_and_keep_their_bodies(desk):
    await desk.open()
    for wait_ms in (-1, -1, 0, 100_000_000):
        await desk.publish(body=b"large", wait_ms=wait_ms)
    assert (await desk.move(2))[0] == 2
    moved, next_ms = await desk.move(2)
    assert moved == 1
    assert 90_000_000 < next_ms <= 100_000_000
    assert await desk.trim() == (0, 0, 0)  # the group needs all bodies
    bodies = await desk.client.call("ZRANGE", desk.keys.payloads, 0, -1)
    assert sum(b" " in body for body in bodies) == 3
    assert len(bodies) == 4


# ---- trimming


async def test_a_hard_cap_drops_no_more_than_it_must(desk):
    ids = await desk.open(6)
    epoch = await desk.acquire()
    await desk.read(epoch)
    await desk.settle(epoch, ids)
    assert await desk.trim(hard_length=5) == (1, 0, 0)
    assert await desk.client.call("XLEN", desk.keys.stream) == 5


async def test_a_hard_cap_counts_what_was_needed_however_much_it_drops(desk):
    ids = await desk.open(1_000)
    epoch = await desk.acquire()
    await desk.read(epoch, 350)
    await desk.settle(epoch, ids[:349])
    assert await desk.trim(hard_length=500) == (500, 151, 0)
    assert await desk.client.call("HGET", desk.keys.counters, "lost") == b"151"
    assert await desk.trim(hard_length=500) == (0, 0, 0)


async def test_a_group_that_the_server_lost_goes_on_where_all_was_settled_and_is_trimmed_for(desk):
    await desk.open()
    for id_ in ("5-0", "6-0", "7-0"):
        await desk.client.call("XADD", desk.keys.stream, id_, "payload", "x")
    epoch = await desk.acquire()
    await desk.read(epoch)
    await desk.settle(epoch, ["5-0"])
    await desk.client.call("XGROUP", "DESTROY", desk.keys.stream, GROUP)
    assert await desk.register("$") == 2
    assert await desk.trim(max_length=1) == (1, 0, 0)
    assert await desk.read(epoch) == ["6-0", "7-0"]


# ---- a full server


@pytest.fixture(params=SERVER_NAMES)
async def full(request, start_server, open_client, namespace):
    """A desk with work on it, on a server without room. `fill` is to be called."""
    server = start_server(request.param)
    desk = Desk(await open_client(server.url, namespace=namespace))

    async def fill():
        await desk.client.call("CONFIG", "SET", "maxmemory", "1")

    desk.fill = fill
    return desk


async def test_a_full_server_drains(full):
    ids = await full.open(6)
    await full.beat("ben")
    first = await full.acquire("anna")
    await full.read(first, 5)
    await full.fill()
    assert await full.renew(first)
    assert await full.refence(first, first + 1)
    assert await full.settle(first, ids[:1]) == 1
    assert await full.fail(first, ids[1:3]) > 0
    assert len(await full.due(first)) == 3
    assert await full.begin(first, ids[1:2]) == [2]
    assert await full.uncharge(ids[3:4]) == 1
    assert await full.park(first, ids[3:5]) == 2
    assert await full.unpark(first, ids[3:5]) == ids[3:5]
    assert await full.bury(ids[2])
    assert await full.release(first, ids[3:5])
    version, _, *members = await full.beat("anna")
    assert version
    assert sorted(members[::2]) == [b"anna", b"ben"]
    assert members[1::2] == [b"{}", b"{}"]
    second = await full.acquire("ben")
    assert len(await full.pending(second)) == 4
    assert await full.read(second) == ids[5:]
    assert await full.settle(second, ids[1:], failed_before=2) == 5
    assert await full.trim(max_length=1, hard_length=1) == (5, 0, 0)
    assert await full.reset("0") == 1
    assert await full.drop()


async def test_a_full_server_can_be_looked_after(full):
    await full.open(2)
    meta = full.topic_keys.meta
    assert (await full.scripts.begin_growth(meta=meta, partitions=2, hold_ms=0))[0] == 1
    letter = await full.bury("1-0")
    await full.fill()
    marker = await full.scripts.mark_barrier(
        stream=full.keys.stream, counters=full.keys.counters, generation=2
    )
    assert marker
    assert await full.scripts.finish_growth(meta=meta, partitions=2, generation=2, markers=[marker])
    assert (
        await full.scripts.remove_letters(
            dlq=full.topic_keys.dlq,
            dlq_index=full.topic_keys.dlq_index,
            audit=full.topic_keys.audit,
            who="me",
            what="purge",
            detail="",
            ids=[letter],
        )
        == 1
    )


@pytest.mark.parametrize("once", ["", "k"])
@pytest.mark.parametrize("wait_ms", [None, 0])
@pytest.mark.parametrize("body", [b"", b"large"])
async def test_a_full_server_refuses_to_publish_and_keeps_nothing_of_it(full, once, wait_ms, body):
    await full.open(1)
    await full.fill()
    before = await full.stored()
    with pytest.raises(OutOfMemory):
        await full.publish(once=once, wait_ms=wait_ms, body=body)
    assert await full.stored() == before


async def test_a_full_server_keeps_delayed_messages_until_there_is_room(full):
    await full.open()
    await full.publish(wait_ms=0, body=b"large")
    await full.fill()
    before = await full.stored()
    with pytest.raises(OutOfMemory):
        await full.move()
    assert await full.stored() == before
    await full.client.call("CONFIG", "SET", "maxmemory", "0")
    assert await full.move() == (1, -1)


# ---- cluster


def test_all_keys_of_a_partition_share_a_slot_and_partitions_spread():
    slots = set()
    for index in range(16):
        keys = PartitionKeys.of(KeySpace("app", cluster=True), "orders", index)
        names = [
            name for name in dir(type(keys)) if isinstance(getattr(type(keys), name), property)
        ]
        all_keys = [getattr(keys, name) for name in names if not name.startswith("_")]
        all_keys += [keys.lease(GROUP), keys.retry(GROUP), keys.failures(GROUP)]
        all_keys += [keys.fence(GROUP, 7), keys.payload("body")]
        assert len({key_slot(key) for key in all_keys}) == 1
        slots.add(key_slot(keys.stream))
    assert len(slots) == 16


# ---- time

BACKLOG = 10_000
LONGEST_MS = 5.0
# The server frees each pending message by itself when a group ends; people do that, not programs.
LONGEST_BY_PEOPLE = {"drop_group": 25.0, "reset_group": 25.0}


@pytest.fixture
async def busy(start_server, open_client, namespace):
    """A desk on a server that knows all scripts."""
    server = start_server("valkey")
    client = await open_client(server.url, namespace=namespace)
    for name in NAMES:
        await client.call("SCRIPT", "LOAD", load_script(name).text)
    return Desk(client)


async def processor_ms(client):
    """Time of the server's main thread, whatever other programs make of the clock on the wall."""
    used = (await client.call("INFO", "cpu")).decode()
    parts = re.findall(r"used_cpu_(?:sys|user)_main_thread:([\d.]+)", used)
    return 1000 * sum(map(float, parts))


async def test_no_script_holds_the_server_up_at_a_backlog_of_ten_thousand(busy, figure):
    least = {}

    async def measure(name, *calls):
        """Keep the least: what the server does beside them can only make it more."""
        for call in calls:
            before = await processor_ms(busy.client)
            await call
            took_ms = await processor_ms(busy.client) - before
            least[name] = min(took_ms, least.get(name, took_ms))

    ids = await busy.open(BACKLOG)
    for _ in range(3):
        await busy.register()
        epoch = await busy.acquire()
        await busy.read(epoch, BACKLOG)
        await measure("drop_group", busy.drop())
    await busy.register()
    for _ in range(3):
        epoch = await busy.acquire()
        await busy.read(epoch, BACKLOG)
        await measure("reset_group", busy.reset("0"))
    await measure("acquire", *(busy.acquire() for _ in range(3)))
    epoch = await busy.acquire()
    await busy.read(epoch, BACKLOG)
    for at in range(0, 9_000, 200):
        await measure("retry_later", busy.fail(epoch, ids[at : at + 200]))
    await measure("pending_page", *(busy.pending(epoch) for _ in range(5)))
    await measure("due_retries", *(busy.due(epoch) for _ in range(5)))
    await measure("begin", *(busy.begin(epoch, ids[:200]) for _ in range(5)))
    await measure("renew", *(busy.renew(epoch) for _ in range(5)))
    await measure("trim of what is needed", *(busy.trim(max_length=100) for _ in range(5)))
    for at in range(0, 5_000, 1_000):
        await measure("settle", busy.settle(epoch, ids[at : at + 1_000], 1_000))
    for length in (9_000, 8_000, 7_000):
        await measure("trim", busy.trim(max_length=length))
    await measure("park", *(busy.park(epoch, ids[5_000:5_250]) for _ in range(5)))
    await measure("unpark", *(busy.unpark(epoch, ids[5_000:5_016]) for _ in range(5)))
    await measure("release", *(busy.release(epoch, ids[5_000:6_000]) for _ in range(5)))
    for number in range(BACKLOG):
        await busy.publish(once=f"k{number}", wait_ms=-1)
    await measure("publish", *(busy.publish(wait_ms=-1, body=b"x" * 100_000) for _ in range(5)))
    await measure("move_due", *(busy.move(500) for _ in range(BACKLOG // 500)))
    for name, took_ms in least.items():
        bar = LONGEST_BY_PEOPLE.get(name, LONGEST_MS)
        figure("topic scripts", f"{name} at {BACKLOG}", took_ms, "ms", "<=", bar)
