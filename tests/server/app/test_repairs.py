"""Entries and keys that nothing can work with: shown, removed when named, and nothing else is."""

import asyncio
import contextlib
import json

import pytest
from tests.kit.odd.odd_bytes import odd, odd_score
from tests.kit.odd.odd_jobs import dice
from tests.kit.scripts import scripts_of
from tests.kit.shell import refused

from penstock import sync
from penstock.coordination.cache.keys import CacheKeys
from penstock.coordination.feeds.keys import FeedKeys
from penstock.coordination.limits.keys import LimitKeys, LimitsKeys
from penstock.coordination.once.keys import DedupeKeys
from penstock.coordination.runs.keys import RunKeys, RunsKeys
from penstock.coordination.slots.keys import SlotKeys
from penstock.coordination.windows.keys import BatchKeys, WindowKeys, WindowsKeys
from penstock.errors import CommandRefused, CoordinationError, InvalidItem
from penstock.inspector.key_contract import classify
from penstock.inspector.registries import KINDS, REGISTRIES
from penstock.queues.storage.keys import QueueKeys
from penstock.redis.codec.escaping import escaped, unescaped
from penstock.redis.keys.space import KeySpace
from penstock.runtime.keys import WorkersKeys
from penstock.settings import Settings
from penstock.topics.storage.keys import TopicKeys

pytestmark = pytest.mark.usefixtures("leaves_foreign_keys")

CASES = 60
BYTES = b"\xff\xfe \n\\x"
"""A name that no registry of ours has."""


def registry_key(app, kind):
    return REGISTRIES[kind].key(app.redis.keys)


async def live_work(app):
    """One of each kind at work: nothing of it is at fault."""
    await app.topics.create("orders", 1)
    await app.queue("mail").push({"n": 1})
    await app.runs.start("nightly")
    await app.window("w", to=app.queue("mail")).add("k", 1)
    await app.limit("l", "5/min").try_acquire()
    slot = await app.slots("s", 2).take()
    await app.feed("f").publish("a", 1)
    workers = WorkersKeys.of(app.redis.keys)
    about = json.dumps({"host": "h", "pid": 1, "started_ms": 1, "ready": True})
    await scripts_of(app.redis).beat_worker(
        workers=workers.heartbeats,
        worker=workers.info("alive"),
        worker_id="alive",
        about=about.encode(),
        ttl_ms=60_000,
    )
    seconds, _ = await app.redis.call("TIME")
    await app.redis.call("ZADD", workers.heartbeats, int(seconds) * 1000 - 3_600_000, "died today")
    return slot


async def stored(app, kind):
    """The registry as it is."""
    key = registry_key(app, kind)
    command = {"set": ("SMEMBERS",), "zset": ("ZRANGE",), "hash": ("HGETALL",)}
    word = command[REGISTRIES[kind].redis_type][0]
    more = (0, -1, "WITHSCORES") if word == "ZRANGE" else ()
    found = await app.redis.call(word, key, *more)
    return sorted(found) if word == "SMEMBERS" else found


async def put(app, kind, entry, value=b"{", score=b"inf"):
    key = registry_key(app, kind)
    match REGISTRIES[kind].redis_type:
        case "set":
            await app.redis.call("SADD", key, entry)
        case "zset":
            await app.redis.call("ZADD", key, score, entry)
        case "hash":
            await app.redis.call("HSET", key, entry, value)


@pytest.mark.parametrize("kind", REGISTRIES)
async def test_an_entry_of_odd_bytes_is_shown_and_removed_alone(app, kind):
    await live_work(app)
    before = await stored(app, kind)
    assert await app.repairs.entries(kind) == []
    others = [b"\xff", b"\xff\xfe \n\\xff", b"", b"\\xff\\xfe"]
    for entry in (BYTES, *others):
        await put(app, kind, entry)
    found = {unescaped(one.entry): one for one in await app.repairs.entries(kind)}
    assert set(found) == {BYTES, *others}
    assert all(one.entry.isprintable() and one.problem for one in found.values())
    removed = await app.repairs.remove_entry(kind, found[BYTES].entry)
    assert removed == found[BYTES]
    left = {unescaped(one.entry) for one in await app.repairs.entries(kind)}
    assert left == set(others)
    for entry in others:
        await app.repairs.remove_entry(kind, entry)
    assert await stored(app, kind) == before
    with pytest.raises(CoordinationError, match="no entry"):
        await app.repairs.remove_entry(kind, BYTES)


@pytest.mark.parametrize("kind", REGISTRIES)
async def test_an_entry_that_works_is_never_removed(app, kind):
    await live_work(app)
    before = await stored(app, kind)
    names = before if REGISTRIES[kind].redis_type == "set" else before[::2]
    assert names
    for name in names:
        with pytest.raises(CoordinationError, match="in order: it stays"):
            await app.repairs.remove_entry(kind, name)
    assert await stored(app, kind) == before


async def test_a_run_or_worker_without_a_record_is_at_fault_once_it_can_have_none(app):
    keys, now_ms = app.redis.keys, int((await app.redis.call("TIME"))[0]) * 1000
    runs, workers = RunsKeys.of(keys).registry, WorkersKeys.of(keys).heartbeats
    day = 86_400_000
    for name, age_ms in (("new", 1_000), ("old", day), ("ahead", -day)):
        await app.redis.call("ZADD", runs, now_ms - age_ms, name)
    for name, age_ms in (("died", day // 2), ("old", 2 * day), ("ahead", -day)):
        await app.redis.call("ZADD", workers, now_ms - age_ms, name)
    await app.redis.call("ZADD", runs, "-inf", "no time", "inf", "no end")
    assert {one.entry for one in await app.repairs.entries("runs")} == {
        *("old", "ahead", "no time", "no end")
    }
    assert {one.entry for one in await app.repairs.entries("workers")} == {"old", "ahead"}
    await app.repairs.remove_entry("runs", "no end")
    assert await app.redis.call("ZSCORE", runs, "no end") is None


async def test_records_of_another_type_are_shown_as_entries_and_as_keys(app):
    keys = app.redis.keys
    await app.runs.start("good")
    run, worker = RunKeys.of(keys, "r"), WorkersKeys.of(keys).info("w")
    await app.redis.call("ZADD", RunsKeys.of(keys).registry, 5, "r")
    await app.redis.call("SET", run.record, "theirs")
    await app.redis.call("ZADD", WorkersKeys.of(keys).heartbeats, 5, "w")
    await app.redis.call("RPUSH", worker, "theirs")
    [odd_run] = await app.repairs.entries("runs")
    assert (odd_run.entry, odd_run.value) == ("r", "5")
    assert odd_run.problem == f"its record {run.record} is a string, not a hash"
    assert [one.entry for one in await app.repairs.entries("workers")] == ["w"]
    assert [one.key for one in await app.repairs.keys("runs")] == [run.record]
    assert [one.key for one in await app.repairs.keys("workers")] == [worker]
    assert {one.key for one in await app.repairs.keys()} == {run.record, worker}
    aside = f"kept-{run.record}"
    await app.repairs.rename_key(run.record, aside)
    await app.repairs.delete_key(worker)
    await app.repairs.remove_entry("runs", "r")
    assert await app.repairs.keys() == []
    assert await app.redis.call("GETDEL", aside) == b"theirs"
    assert [record.id for record in await app.runs.list()] == ["good"]


async def test_a_key_that_works_or_is_not_ours_is_never_touched(app):
    await live_work(app)
    keys = app.redis.keys
    ours = (
        RunKeys.of(keys, "nightly").record,
        FeedKeys.of(keys, "f").events,
        WindowsKeys.of(keys).registry,
    )
    for key in ours:
        with pytest.raises(CoordinationError, match="in order"):
            await app.repairs.delete_key(key)
        with pytest.raises(CoordinationError, match="in order"):
            await app.repairs.rename_key(key, f"{key}.aside")
        assert await app.redis.call("EXISTS", key)
    with pytest.raises(CoordinationError, match="there is no key"):
        await app.repairs.delete_key(RunKeys.of(keys, "missing").record)
    for key in ("somebody:elses:key", QueueKeys.of(keys, "unknown").waiting):
        await app.redis.call("SET", key, "theirs")
        with pytest.raises(CoordinationError, match="not named like a key of Penstock's"):
            await app.repairs.delete_key(key)
        assert await app.redis.call("GET", key) == b"theirs"
        await app.redis.call("DEL", key)
    await app.redis.call("SET", FeedKeys.of(keys, "g").events, "theirs")
    with pytest.raises(CoordinationError, match="there is a key"):
        await app.repairs.rename_key(FeedKeys.of(keys, "g").events, FeedKeys.of(keys, "g").events)
    assert await app.redis.call("GET", FeedKeys.of(keys, "g").events) == b"theirs"


async def test_keys_of_every_kind_are_found_and_deleted(app):
    await live_work(app)
    keys, foreign = app.redis.keys, {}
    foreign["queues"] = [app.queue("mail").keyring.list_of("low")]
    foreign["topics"] = [TopicKeys.of(keys, "orders").dlq]
    foreign["runs"] = [RunKeys.of(keys, "r").processed, RunKeys.of(keys, "r").events]
    foreign["windows"] = [
        WindowKeys.of(keys, "mail", "w\x1fx").current,
        BatchKeys.of(keys, "mail", "b").items,
    ]
    foreign["limits"] = [LimitKeys.of(keys, "l", "k").state]
    foreign["slots"] = [SlotKeys.of(keys, "t").holders]
    foreign["workers"] = [WorkersKeys.of(keys).info("x")]
    foreign["feeds"] = [FeedKeys.of(keys, "g").events, FeedKeys.of(keys, "g").state]
    foreign["once"] = [DedupeKeys.of(keys, "k").mark]
    foreign["cache"] = [CacheKeys.of(keys, "c", "k").value]
    assert set(foreign) == set(KINDS)
    for key in (key for each in foreign.values() for key in each):
        is_text = classify(key, app.redis.keys.namespace).redis_type == "string"
        await app.redis.call(*(("RPUSH", key, "x") if is_text else ("SET", key, "x")))
    for kind, expected in foreign.items():
        found = [one.key for one in await app.repairs.keys(kind)]
        assert sorted(found) == sorted(expected)
        for key in found:
            await app.repairs.delete_key(key)
    assert await app.repairs.keys() == []


async def test_an_entry_that_changes_meanwhile_is_not_removed(app):
    scripts, keys = scripts_of(app.redis), app.redis.keys
    runs, limits = RunsKeys.of(keys).registry, LimitsKeys.of(keys).registry
    await app.redis.call("ZADD", runs, 5, "r")
    await app.redis.call("HSET", limits, "l", "{")
    assert not await scripts.remove_member(registry=runs, entry=b"r", score=b"6")
    assert not await scripts.remove_field(registry=limits, entry=b"l", value=b"[")
    assert not await scripts.remove_member(registry=runs, entry=b"x", score=b"5")
    await app.runs.start("r")  # between the look and the removal
    assert not await scripts.remove_member(registry=runs, entry=b"r", score=b"5")
    with pytest.raises(CoordinationError, match="in order"):
        await app.repairs.remove_entry("runs", "r")
    assert [record.id for record in await app.runs.list()] == ["r"]


async def test_a_run_that_is_started_beside_a_removal_is_listed(app):
    registry = RunsKeys.of(app.redis.keys).registry
    for number in range(30):
        name = f"run-{number}"
        await app.redis.call("ZADD", registry, 5, name)

        async def remove(name=name):
            with contextlib.suppress(CoordinationError):
                await app.repairs.remove_entry("runs", name)

        await asyncio.gather(app.runs.start(name), remove())
    assert len(await app.runs.list(100)) == 30


async def test_the_only_entry_of_a_window_stays_whatever_it_is_called(app):
    await app.window("w", to=app.queue("q")).add("k", 1)
    registry = WindowsKeys.of(app.redis.keys).registry
    record = await app.redis.call("HGET", registry, "w queue q")
    await app.redis.call("HSET", registry, b"\xff", record)
    assert [one.entry for one in await app.repairs.entries("windows")] == [r"\xff"]
    await app.redis.call("HDEL", registry, "w queue q")
    assert await app.repairs.entries("windows") == []
    with pytest.raises(CoordinationError, match="in order"):
        await app.repairs.remove_entry("windows", b"\xff")
    other = json.loads(record) | {"target": "no queue:has this"}
    await app.redis.call("HSET", registry, b"\xfe", json.dumps(other))
    assert [one.entry for one in await app.repairs.entries("windows")] == [r"\xfe"]


async def test_a_registry_of_another_type_is_a_key_to_repair(app):
    key = registry_key(app, "slots")
    await app.redis.call("SET", key, "theirs")
    assert await app.repairs.entries("slots") == []
    assert [one.key for one in await app.repairs.keys("slots")] == [key]
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await app.repairs.remove_entry("slots", "x")
    await app.repairs.delete_key(key)
    assert await app.repairs.keys("slots") == []


@pytest.mark.parametrize(
    "cases", [CASES, pytest.param(40 * CASES, marks=pytest.mark.torture)], ids=["some", "many"]
)
@pytest.mark.parametrize("kind", REGISTRIES)
async def test_every_odd_entry_can_be_removed_and_the_rest_stays(app, kind, cases):
    await live_work(app)
    before = await stored(app, kind)
    record = b"{}" if REGISTRIES[kind].redis_type != "hash" else before[1]
    for rng in dice(0, cases):
        if (name := odd(rng)) not in before:  # a short one may be that of live work
            await put(app, kind, name, odd(rng, record), odd_score(rng))
    removed = 0
    while found := await app.repairs.entries(kind):
        for one in found:
            await app.repairs.remove_entry(kind, one.entry)
        removed += len(found)
    assert removed > cases / 2
    assert set(before) <= set(await stored(app, kind))


async def test_limits_of_what_is_shown_and_kinds_are_checked(app):
    for number in range(30):
        await put(app, "runs", b"\xff%d" % number)
    assert len(await app.repairs.entries("runs", 7)) == 7
    assert await app.repairs.entries("feeds") == []
    for call in (app.repairs.entries, app.repairs.keys):
        with pytest.raises(InvalidItem, match="expected one of queues"):
            await call("jobs")
    with pytest.raises(InvalidItem, match="expected one of queues"):
        await app.repairs.remove_entry("feeds", "x")
    with pytest.raises(InvalidItem, match="backslash"):
        await app.repairs.remove_entry("runs", "\\q")


def test_a_blocking_program_repairs_too(valkey_server, namespace):
    with sync.Penstock(settings=Settings(url=valkey_server.url, namespace=namespace)) as app:
        keys = KeySpace(namespace)
        registry = RunsKeys.of(keys).registry
        app.redis.call("ZADD", registry, 5, BYTES)
        app.redis.call("SET", FeedKeys.of(keys, "f").events, "theirs")
        [found] = app.repairs.entries("runs")
        assert app.repairs.remove_entry("runs", found.entry) == found
        [key] = app.repairs.keys()
        app.repairs.delete_key(key.key)
        assert app.redis.call("EXISTS", registry, key.key) == 0


async def test_the_command_line_shows_and_removes_what_is_named(app, open_shell, place):
    shell = open_shell(PENSTOCK_URL=place.url)
    await live_work(app)
    assert shell.ok("repair") == "all: every entry and key is in order\n"
    for kind in REGISTRIES:
        await put(app, kind, BYTES)
    key = FeedKeys.of(app.redis.keys, "g").events
    await app.redis.call("SET", key, "theirs")
    shown = shell("repair")
    assert shown.returncode == 1
    for kind in REGISTRIES:
        assert f"entry {escaped(BYTES)} of {kind}: " in shown.stdout
    assert f"key {key} holds a string where a stream is expected" in shown.stdout
    output = json.loads(shell("repair", "--json").stdout)
    assert len(output["entries"]) == len(REGISTRIES)
    assert [one["key"] for one in output["keys"]] == [key]
    assert refused(shell("repair", "--remove", "x", "--yes"), 2, "from which registry?")
    assert refused(shell("repair", "runs", "--remove", escaped(BYTES)), 2, "--yes")
    assert refused(shell("repair", "runs", "--remove", "nightly", "--yes"), 1, "is in order")
    assert refused(shell("repair", "--delete", key, "--rename", key, "x"), 2, "give one of")
    for kind in REGISTRIES:
        done = shell("repair", kind, "--remove", escaped(BYTES), "--yes")
        assert (done.returncode, done.stdout) == (0, f"{kind}: every entry and key is in order\n")
    assert shell("repair", "feeds", "--delete", key, "--yes").returncode == 0
    assert shell.ok("repair") == "all: every entry and key is in order\n"
