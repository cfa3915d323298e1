"""Groups of a topic: lag in messages, pending pages, owners, another position, the end."""

from datetime import UTC, datetime

import msgspec
import pytest
from tests.kit.scripts import scripts_of

from penstock.delivery.failures import Failure
from penstock.errors import GroupMissing, InvalidMessage, TopicError
from penstock.redis.codec import Codec
from penstock.settings import CodecSettings
from penstock.topics.admin import groups
from penstock.topics.admin.topic_admin import TopicAdmin
from penstock.topics.storage.group_registration import register_group
from penstock.topics.storage.keys import PartitionKeys, TopicKeys
from penstock.topics.storage.metadata import read_metadata
from penstock.topics.storage.scripts import PartitionOwner

pytestmark = pytest.mark.places("valkey", "redis7", "redis62", "cluster")


@pytest.fixture
async def admin(client):
    admin = TopicAdmin(client, Codec(CodecSettings()))
    await admin.create("orders", 2)
    return admin


def part(client, index):
    return PartitionKeys.of(client.keys, "orders", index)


async def add(client, index, count=1, **fields):
    ids = []
    for number in range(count):
        named = [text for item in fields.items() for text in item]
        ids.append(
            await client.call("XADD", part(client, index).stream, "*", "payload", number, *named)
        )
    return [id_.decode() for id_ in ids]


async def register(client, group="billing", start="0"):
    await register_group(client, await read_metadata(client, "orders"), group, start)


async def own(client, index, owner="me", group="billing"):
    keys = part(client, index)
    return await scripts_of(client).acquire_partition(
        lease=keys.lease(group),
        epochs=keys.epochs,
        group=group,
        owner=owner,
        ttl_ms=30_000,
        fences=keys.fence(group, 0).removesuffix("0"),
        dead_owner="",
    )


async def read(client, index, count, group="billing"):
    command = ("XREADGROUP", "GROUP", group, "penstock", "COUNT", count, "STREAMS")
    [[_, entries]] = await client.call(*command, part(client, index).stream, ">")
    return [id_.decode() for id_, _ in entries]


async def settle(client, index, epoch, ids, group="billing"):
    owner = PartitionOwner.of(part(client, index), group, "me", epoch)
    return await scripts_of(client).ack_messages(owner, failed_before=0, ids=ids)


# --- lag


async def test_lag_counts_messages_not_ids(client, admin):
    await register(client)
    await add(client, 0, 5)
    await add(client, 1, 2)
    assert (await admin.lag("orders", "billing")).lag == 7
    epoch = await own(client, 0)
    ids = await read(client, 0, 3)
    await settle(client, 0, epoch, ids[:1])
    view = await admin.lag("orders", "billing")
    assert (view.lag, view.approximate, view.pending) == (4, False, 2)
    first, second = view.partitions
    assert (first.lag, first.pending, second.lag, second.pending) == (2, 2, 2, 0)
    assert first.last_delivered_id == f"0-{ids[-1]}"
    assert first.settled_id is not None
    assert first.oldest_pending_ms is not None
    assert second.oldest_pending_ms is None


async def test_lag_is_right_for_a_group_that_begins_in_the_middle_and_after_deletions(
    client, admin
):
    ids = await add(client, 0, 10)
    stream = part(client, 0).stream
    await client.call("XGROUP", "CREATE", stream, "middle", ids[3])
    await client.call("XDEL", stream, ids[6])
    view = await admin.lag("orders", "middle")
    assert (view.partitions[0].lag, view.partitions[0].approximate) == (5, False)
    await register(client, "late", "$")
    assert (await admin.lag("orders", "late")).lag == 0


async def test_lag_beyond_what_is_counted_is_flagged(client, admin, monkeypatch):
    monkeypatch.setattr(groups, "COUNTED", 5)
    ids = await add(client, 0, 20)
    await client.call("XGROUP", "CREATE", part(client, 0).stream, "middle", ids[3])
    first = (await admin.lag("orders", "middle")).partitions[0]
    assert first.approximate
    assert 5 <= first.lag <= 16


async def test_lag_does_not_count_what_a_hard_cap_dropped(client, admin):
    await register(client)
    await add(client, 0, 20)
    await admin.trim("orders", max_length=5, hard=True)
    assert (await admin.lag("orders", "billing")).lag == 5


# --- looking


async def test_groups_tell_owners_epochs_members_and_start(client, admin):
    await register(client)
    await register(client, "audit", "$")
    epoch = await own(client, 0)
    await own(client, 1, "you")
    keys = TopicKeys.of(client.keys, "orders")
    await scripts_of(client).beat_member(
        members=keys.members("billing"),
        member_info=keys.member_info("billing"),
        meta=keys.meta,
        member="me",
        about=b'{"host":"h"}',
        ttl_ms=60_000,
    )
    audit, billing = await admin.groups("orders")
    assert (audit.name, audit.start, audit.members) == ("audit", "$", [])
    first = billing.partitions[0]
    assert (first.owner, first.epoch) == ("me", epoch)
    assert 0 < first.lease_ms <= 30_000
    assert await admin.owners("orders", "billing") == {0: "me", 1: "you"}
    [member] = billing.members
    assert (member.name, member.alive, member.about) == ("me", True, '{"host":"h"}')
    assert member.silent_ms < 5_000


async def test_a_silent_member_is_not_alive(client, admin):
    await register(client)
    await client.call(
        "ZADD", TopicKeys.of(client.keys, "orders").members("billing"), 1_000, "ghost"
    )
    [member] = (await admin.lag("orders", "billing")).members
    assert not member.alive


async def test_unknown_groups_are_missing_not_empty(client, admin):
    await add(client, 0, 2)
    for look in (
        admin.lag("orders", "nobody"),
        admin.pending("orders", "nobody"),
        admin.owners("orders", "nobody"),
        admin.reset_group("orders", "nobody", "0"),
        admin.delete_group("orders", "nobody"),
    ):
        with pytest.raises(GroupMissing):
            await look
    assert await admin.groups("orders") == []


async def test_a_group_known_in_some_partitions_only_is_shown_as_such(client, admin):
    await add(client, 1, 3)
    await client.call("XGROUP", "CREATE", part(client, 0).stream, "half", "0")
    view = await admin.lag("orders", "half")
    assert [line.is_missing for line in view.partitions] == [False, True]
    assert view.partitions[1].approximate


# --- pending


async def test_pending_pages_are_in_order_and_stay_stable_while_messages_are_settled(client, admin):
    await register(client)
    for index in range(2):
        await add(client, index, 5)
    everything = [f"{index}-{id_}" for index in range(2) for id_ in await read(client, index, 5)]
    seen = []
    page = await admin.pending("orders", "billing", limit=3)
    while True:
        seen += [line.id for line in page.pending]
        # What was shown is settled meanwhile; nothing is skipped or shown twice for that.
        for line in page.pending:
            entry_id = line.id.partition("-")[2]
            await client.call("XACK", part(client, line.partition).stream, "billing", entry_id)
        if page.cursor is None:
            break
        page = await admin.pending("orders", "billing", page.cursor, limit=3)
    assert seen == everything
    with pytest.raises(InvalidMessage):
        await admin.pending("orders", "billing", "garbage")


async def test_a_pending_message_tells_key_attempts_failure_and_when_it_is_due(client, admin):
    await register(client)
    await add(client, 0, 2, key="k")
    epoch = await own(client, 0)
    first, second = await read(client, 0, 2)
    keys = part(client, 0)
    failure = Failure(
        error_class="ValueError", message="boom", stack="", fingerprint="f", at_ms=1, attempt=1
    )
    failures = msgspec.json.encode([failure])
    owner = PartitionOwner.of(keys, "billing", "me", epoch)
    await scripts_of(client).retry_later(owner, failed=(first, 60_000, failures))
    await client.call("XDEL", keys.stream, second)
    waiting, gone = (await admin.pending("orders", "billing")).pending
    assert (waiting.id, waiting.key, waiting.attempts, waiting.owner) == (
        f"0-{first}",
        "k",
        1,
        "me",
    )
    assert waiting.last_failure == "ValueError: boom"
    assert 50_000 < waiting.due_in_ms <= 60_000
    assert waiting.idle_ms < 60_000
    assert (gone.is_gone, gone.due_in_ms, gone.last_failure) == (True, None, None)


# --- reset


async def test_a_reset_drops_what_is_pending_and_fences_the_owner(client, admin):
    await register(client)
    await add(client, 0, 4)
    epoch = await own(client, 0)
    ids = await read(client, 0, 3)
    keys = part(client, 0)
    await client.call("ZADD", keys.retry("billing"), 1, ids[0])
    await client.call("HSET", keys.failures("billing"), ids[0], "[]")
    await admin.reset_group("orders", "billing", "0", who="ann")
    assert await settle(client, 0, epoch, ids) == -1
    view = await admin.lag("orders", "billing")
    assert (view.lag, view.pending, view.partitions[0].owner) == (4, 0, None)
    assert (await admin.pending("orders", "billing")).pending == []
    gone = (keys.retry("billing"), keys.failures("billing"))
    assert await client.call("EXISTS", *gone) == 0
    assert await own(client, 0, "you") > epoch
    assert await read(client, 0, 10) == ids + (await read_all(client, 0))[3:]
    [act] = await admin.dead_letters("orders").audit()
    assert (act.who, act.what) == ("ann", "reset group")


async def read_all(client, index):
    entries = await client.call("XRANGE", part(client, index).stream, "-", "+")
    return [id_.decode() for id_, _ in entries]


async def test_a_read_under_the_old_fence_fails_after_a_reset(client, admin):
    await register(client)
    epoch = await own(client, 0)
    keys = part(client, 0)
    await admin.reset_group("orders", "billing", "$")
    read = ("XREADGROUP", "GROUP", "billing", "penstock", "STREAMS", keys.stream)
    with pytest.raises(Exception, match="NOGROUP"):
        await client.call(*read, keys.fence("billing", epoch), ">", ">")


async def test_a_group_can_be_set_to_the_end_an_id_or_a_time(client, admin):
    await register(client)
    stream = part(client, 0).stream
    for number in range(5):
        await client.call("XADD", stream, f"{1_000 + number}-0", "payload", number)
    for position, lag in (
        ("$", 0),
        ("earliest", 5),
        ("1002-0", 2),
        (datetime.fromtimestamp(1.002, UTC), 3),
    ):
        await admin.reset_group("orders", "billing", position)
        assert (await admin.lag("orders", "billing")).partitions[0].lag == lag
    with pytest.raises(ValueError, match="position"):
        await admin.reset_group("orders", "billing", "yesterday")


async def test_a_group_that_the_server_lost_goes_on_where_it_was_reset_to(client, admin):
    ids = await add(client, 0, 4)
    await register(client)
    await admin.reset_group("orders", "billing", ids[1])
    await client.call("XGROUP", "DESTROY", part(client, 0).stream, "billing")
    await register(client)
    assert await read(client, 0, 10) == ids[2:]


# --- the end


async def test_a_group_with_living_consumers_is_deleted_by_force_only(client, admin):
    await register(client)
    await add(client, 0, 2)
    await own(client, 0)
    await read(client, 0, 2)
    keys = TopicKeys.of(client.keys, "orders")
    await scripts_of(client).beat_member(
        members=keys.members("billing"),
        member_info=keys.member_info("billing"),
        meta=keys.meta,
        member="me",
        about=b"",
        ttl_ms=60_000,
    )
    with pytest.raises(TopicError, match="living consumers"):
        await admin.delete_group("orders", "billing")
    await admin.delete_group("orders", "billing", force=True)
    assert await admin.groups("orders") == []
    assert await client.call("EXISTS", keys.members("billing"), keys.member_info("billing")) == 0
    for index in range(2):
        one = part(client, index)
        left = (one.lease("billing"), one.retry("billing"), one.fence("billing", 1), one.epochs)
        assert await client.call("EXISTS", *left) == 0
    assert (await admin.describe("orders")).length == 2
