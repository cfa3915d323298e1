"""Odd entries, letters and facts among good messages: each ends in one place, nothing is stuck."""

import asyncio
import json
from collections import Counter
from random import Random

import pytest
from tests.kit.odd.odd_jobs import dice
from tests.kit.odd.odd_messages import odd_entry, odd_letter, odd_value

from penstock import DeadLetter, Fixed, Message, RetryPolicy
from penstock.testing.eventually import eventually
from penstock.topics.delayed.mover import Mover
from penstock.topics.message import TARGET_GROUP, field_of, is_marker
from penstock.topics.storage.keys import PartitionKeys, TopicKeys, TopicsKeys

PARTITIONS = 4
OF_TOPIC = ("meta", "groups", "dlq", "dlq_index", "members", "member_info")
OF_PARTITION = ("epochs", "commit", "stream", "retry", "failures", "lease")
AT_ONCE = RetryPolicy(max_attempts=3, backoff=Fixed(0.001))


async def write(app, commands):
    """Write past the library. A refusal, such as a name that XADD does not take, fails the test."""
    replies = []
    for start in range(0, len(commands), 500):
        replies += await app.redis.pipeline(commands[start : start + 500])
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def passes_over(fields, group=b"group"):
    target = field_of(fields, TARGET_GROUP)
    return is_marker(fields) or (target is not None and target != group)


async def add_odd(app, first, count):
    """Add odd entries; their fields by partition and entry id."""
    entries = [(rng.randrange(PARTITIONS), odd_entry(rng)) for rng in dice(first, count)]
    streams = [
        PartitionKeys.of(app.redis.keys, "orders", index).stream for index in range(PARTITIONS)
    ]
    ids = await write(app, [("XADD", streams[index], "*", *parts) for index, parts in entries])
    return {(index, id_): parts for (index, parts), id_ in zip(entries, ids, strict=True)}


async def spoil(app, rng, group="group"):
    """Write odd bytes under every key of the topic that holds more than one thing."""
    topic, commands = TopicKeys.of(app.redis.keys, "orders"), []
    for n in range(60):
        name, value = odd_value(rng)[:200] or b"x", odd_value(rng)[:5_000]
        commands += [
            ("HSET", topic.meta, b"barrier:" + name, value),
            ("HSET", topic.groups, name, value),
            ("HSET", topic.dlq_index, name, value),
            ("HSET", topic.member_info(group), name, value),
            ("ZADD", topic.members(group), rng.choice(["inf", "-inf", "1e300", str(n)]), name),
            ("SADD", TopicsKeys.of(app.redis.keys).registry, name),
            ("SADD", topic.partitions, name),
            ("XADD", topic.audit, "*", *odd_entry(rng)),
        ]
        keys = PartitionKeys.of(app.redis.keys, "orders", n % PARTITIONS)
        commands += [
            ("ZADD", keys.retry(group), rng.choice(["0", "-inf", "1", str(n)]), name),
            ("HSET", keys.failures(group), name, value),
            ("HSET", keys.epochs, b"other " + name, value),
            ("HSET", keys.commit, b"other " + name, value),
            ("HSET", keys.counters, b"odd " + name, value),
            ("HSET", keys.dedup, name, value),
            ("ZADD", keys.dedup_times, "inf", name),
            ("ZADD", keys.payloads, rng.choice(["0", "5", "inf"]), name),
            ("ZADD", keys.payloads, "1", name.split()[0] + b" 99999999999999999999999-1")
            if name.split()
            else ("PING",),
        ]
    await write(app, commands)


async def delay_odd(app, rng, count):
    """Put odd bodies where delayed messages wait, due at once; how many there are."""
    commands, real = [], app.codec.encode({"a": 1})
    for n in range(count):
        keys = PartitionKeys.of(app.redis.keys, "orders", n % PARTITIONS)
        commands += [("ZADD", keys.delayed, "1", f"odd-{n}")]
        body = odd_value(rng) if n % 3 else real
        commands += [("HSET", keys.delayed_bodies, f"odd-{n}", body)]
    await write(app, commands)
    return count


async def nothing_waits(app, group="group"):
    """Whether the group has read and settled all there is."""
    view = await app.topics.lag("orders", group)
    delayed = (await app.topics.describe("orders")).delayed
    return (view.lag, view.pending, delayed) == (0, 0, 0)


async def dead(app):
    """Partition and entry id of each message in the dead letters."""
    letters = await app.redis.call("XRANGE", TopicKeys.of(app.redis.keys, "orders").dlq, "-", "+")
    fields = [dict(zip(one[::2], one[1::2], strict=True)) for _, one in letters]
    return [(int(one[b"partitionId"]), one[b"originalMessageId"]) for one in fields]


async def run_all(app, consume, odd_count, good_count=400, limit_s=60):
    """Send odd and good ones, let one consumer end amid its work and another finish."""
    rng = Random(odd_count)  # noqa: S311  it keeps no secret
    orders = app.topic("orders", partitions=PARTITIONS, type=dict[str, int])
    await orders.metadata()
    sent = await orders.send_batch([{"good": n} for n in range(good_count // 2)])
    odd = await add_odd(app, 0, odd_count)
    handled, good, hung = Counter(), Counter(), asyncio.Event()

    async def hang(_: dict[str, int]) -> None:
        hung.set()
        await asyncio.sleep(60)

    first = await consume(orders, hang, ordering="none", retry=AT_ONCE)
    await hung.wait()
    first._task.cancel()
    await asyncio.wait([first._task])
    for (index, id_), value in zip(odd, (odd_value(rng) for _ in range(300)), strict=False):
        failures = PartitionKeys.of(app.redis.keys, "orders", index).failures("group")
        await app.redis.call("HSET", failures, id_, value)
    await spoil(app, rng)
    delayed = await delay_odd(app, rng, 100)

    async def handle(payload: dict[str, int], message: Message) -> None:
        if message.attempt < 2 and rng.random() < 0.3:
            raise ValueError("again")
        handled[message.partition, message.entry_id] += 1
        if "good" in payload:
            good[message.id] += 1

    async with Mover(app.redis) as mover:
        mover.watch("orders", PARTITIONS)
        consumer = await consume(orders, handle, ordering="none", retry=AT_ONCE)
        sent += [await orders.send({"good": n}, delay=0.05) for n in range(3)]
        sent += await orders.send_batch([{"good": n} for n in range(good_count // 2)])
        await eventually(lambda: set(sent) <= set(good), limit_s)
        await eventually(lambda: nothing_waits(app), limit_s)
        assert mover.trouble() is None
    assert consumer.running
    assert consumer.failing is None
    return sent, odd, delayed, handled, await dead(app)


async def all_entries(app):
    found = {}
    for index in range(PARTITIONS):
        stream = PartitionKeys.of(app.redis.keys, "orders", index).stream
        for id_, fields in await app.redis.call("XRANGE", stream, "-", "+"):
            found[index, id_] = fields
    return found


def each_in_one_place(entries, handled, letters):
    assert len(letters) == len(set(letters)), "a message has one letter"
    ends = Counter([*handled, *letters])
    for place, fields in entries.items():
        # Only where `targetGroup` stands first does every delivery look at it.
        wanted = {0} if passes_over(fields) else {1}
        wanted |= {1} if TARGET_GROUP in fields[2::2] else set()
        assert ends.pop(place, 0) in wanted, (place, fields)
    assert not ends


async def check_odd_entries(app, consume, count, **options):
    sent, odd, delayed, handled, letters = await run_all(app, consume, count, **options)
    entries = await all_entries(app)
    assert len(entries) == len(sent) + len(odd) + delayed, "nothing was lost on its way"
    each_in_one_place(entries, handled, letters)


async def test_each_odd_entry_is_handled_or_dead_and_no_good_one_is_lost(
    open_app, valkey_server, consume
):
    await check_odd_entries(await open_app(valkey_server), consume, 2_000)


async def test_odd_entries_hold_up_no_older_server(open_app, start_server, consume):
    await check_odd_entries(await open_app(start_server("redis62")), consume, 300)


@pytest.mark.torture
@pytest.mark.timeout(3_600)
async def test_a_hundred_thousand_odd_entries(open_app, valkey_server, consume):
    await check_odd_entries(await open_app(valkey_server), consume, 100_000, limit_s=1_800)


async def test_any_letter_is_listed_shown_replayed_edited_and_removed(
    open_app, valkey_server, consume
):
    app = await open_app(valkey_server)
    orders = app.topic("orders", partitions=PARTITIONS, type=dict[str, int])
    await orders.metadata()
    stay = await consume(orders, lambda payload, message: None, "billing", ordering="none")
    await eventually(lambda: len(stay.partitions) == PARTITIONS)
    dlq = TopicKeys.of(app.redis.keys, "orders").dlq
    commands = [("XADD", dlq, "*", *odd_letter(rng)) for rng in dice(0, 500)]
    ids = [id_.decode() for id_ in await write(app, commands)]
    many = [part for n in range(6_000) for part in (f"f{n}", "v")]
    ids += [id_.decode() for id_ in await write(app, [("XADD", dlq, "*", *many)])]
    await spoil(app, Random(1))  # noqa: S311
    letters = orders.dead_letters
    listed = (await letters.list(1_000)).letters
    assert [one.id for one in listed] == ids
    for view in listed[:100]:
        assert await letters.show(view.id) == view
    assert sum(kind.count for kind in (await letters.groups()).kinds) == len(ids)
    assert len(await letters.audit()) == 60
    edited = [await letters.edit(id_, payload={"good": 1}) for id_ in ids[:50]]
    dry = await letters.replay(dry_run=True, to="all")
    done = await letters.replay(to="all")
    assert (done.matched, dry.matched, dry.skipped) == (len(ids), len(ids), done.skipped)
    assert done.replayed + len(done.skipped) == done.matched
    assert not set(edited) & set(done.skipped), "what was mended can be sent"
    await eventually(lambda: nothing_waits(app, "billing"))
    left = await letters.count()
    assert await letters.purge([next(iter(done.skipped))]) == 1
    assert await letters.purge(everything=True) == left - 1
    assert await letters.count() == 0


def spoilt_keys(app):
    """One key for each of some topics, which are named after them."""
    names = {name: getattr(TopicKeys.of(app.redis.keys, name), name) for name in OF_TOPIC}
    names |= {
        name: getattr(PartitionKeys.of(app.redis.keys, name, 0), name) for name in OF_PARTITION
    }
    return {name: key("group") if callable(key) else key for name, key in names.items()}


async def restore(app, key):
    assert await app.redis.call("LRANGE", key, 0, -1) == [b"foreign"], "it is left alone"
    await app.redis.call("DEL", key)
    if await app.redis.call("EXISTS", f"{key}.aside"):
        await app.redis.call("RENAME", f"{key}.aside", key)


async def test_keys_of_another_type_are_reported_and_hold_up_no_other_topic(
    open_app, valkey_server
):
    """Each of the topics has one such key; all go on by themselves once it is gone."""
    app = await open_app(valkey_server)
    handled, topics = Counter(), {}

    async def handle(_: int, message: Message) -> None:
        if message.topic in {"dlq", "dlq_index"}:
            raise DeadLetter("for people")
        if message.attempt == 1:
            raise ValueError("again")
        handled[message.topic] += 1

    keys = spoilt_keys(app)
    for name in (*keys, "fine"):
        topics[name] = app.topic(name, partitions=1, type=int)
        topics[name].subscribe("group", retry=AT_ONCE)(handle)
        await topics[name].send(1)
    for key in keys.values():
        if await app.redis.call("EXISTS", key):
            await app.redis.call("RENAME", key, f"{key}.aside")
        await app.redis.call("RPUSH", key, "foreign")
    worker = app.worker()
    running = asyncio.create_task(worker.run())
    await eventually(lambda: handled["fine"] == 1)

    def reported():
        reasons = " ".join(worker.readiness().reasons)
        return all(f"key {key} holds a list" in reasons for key in keys.values())

    await eventually(reported)
    await topics["fine"].send(2)
    await eventually(lambda: handled["fine"] == 2)
    for key in keys.values():
        await restore(app, key)
    wanted = {name for name in topics if name not in {"dlq", "dlq_index"}}
    await eventually(lambda: wanted <= set(handled))
    for name in ("dlq", "dlq_index"):
        await eventually(topics[name].dead_letters.count)
    await eventually(lambda: not worker.readiness().reasons)
    await worker.stop()
    assert await running == 0


async def test_a_topic_with_keys_of_another_type_is_listed_and_deleted(open_app, valkey_server):
    app = await open_app(valkey_server)
    await app.topic("orders", partitions=2).send(1)
    topic, part = (
        TopicKeys.of(app.redis.keys, "orders"),
        PartitionKeys.of(app.redis.keys, "orders", 1),
    )
    for key in (topic.meta, topic.dlq, topic.groups, part.stream, part.epochs, part.payloads):
        await app.redis.call("DEL", key)
        await app.redis.call("RPUSH", key, "foreign")
    [line] = await app.topics.list()
    assert (line.name, line.partitions) == ("orders", 0)
    assert await app.topics.delete("orders")
    assert await app.topics.list() == []
    assert not await app.topics.delete("orders")


def test_commands_show_and_remove_odd_messages(shell, in_code, valkey_server):
    shell.ok("topic", "create", "orders", "--partitions", str(PARTITIONS))

    async def fill(app):
        odd = await add_odd(app, 0, 200)
        dlq = TopicKeys.of(app.redis.keys, "orders").dlq
        await write(app, [("XADD", dlq, "*", *odd_letter(rng)) for rng in dice(0, 60)])
        await spoil(app, Random(2))  # noqa: S311
        return len(odd)

    count = in_code(valkey_server, fill)
    assert (
        len(shell.objects("topic", "tail", "orders", "--from", "earliest", "--no-follow")) == count
    )
    tail = shell.ok("topic", "tail", "orders", "--from", "earliest", "--no-follow")
    assert "\x1b" not in tail
    consumed = shell("topic", "consume", "orders", "--group", "g", "--limit", "30", "--json")
    assert consumed.returncode == 0, consumed
    for line in consumed.stdout.splitlines():
        json.loads(line)
    shell.ok("topic", "show", "orders")
    assert "orders" in shell.ok("topic", "list")
    for command in (["list", "orders"], ["lag", "orders", "g"], ["pending", "orders", "g"]):
        shell.ok("group", *command)
    page = shell.json("dlq", "list", "orders", "--limit", "1000")
    ids = [one["id"] for one in page["letters"]]
    assert len(ids) >= 60
    shell.ok("dlq", "list", "orders")
    for id_ in ids[:3]:
        shell.ok("dlq", "show", "orders", id_)
        assert shell.json("dlq", "show", "orders", id_)["id"] == id_
    shell.ok("dlq", "groups", "orders")
    shell.ok("dlq", "audit", "orders")
    new = shell.ok("dlq", "edit", "orders", ids[0], "--payload", "{}").strip()
    replayed = shell("dlq", "replay", "orders", "--all", "--to", "all", "--yes", "--json")
    assert new not in json.loads(replayed.stdout)["skipped"]
    shell.ok("dlq", "purge", "orders", "--all", "--yes")
    assert shell.json("dlq", "list", "orders")["letters"] == []
    shell.ok("topic", "trim", "orders", "--max-length", "1")
    shell.ok("topic", "delete", "orders", "--yes")
