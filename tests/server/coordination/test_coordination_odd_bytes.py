"""Odd values among good ones, at every key of coordination: the good ones are found and served.

Each test stores odd bytes by the dozen beside what it uses, and asks everything that reads them.
"""

import contextlib
import json

import pytest
from tests.kit.odd.odd_bytes import odd, odd_pairs, odd_score
from tests.kit.odd.odd_jobs import dice

from penstock import PenstockError
from penstock.coordination.cache.keys import CacheKeys
from penstock.coordination.feeds.keys import FeedKeys
from penstock.coordination.once.keys import DedupeKeys
from penstock.coordination.runs.keys import RunKeys, RunsKeys
from penstock.coordination.slots.keys import SlotKeys
from penstock.coordination.windows.admin import close_all, list_windows
from penstock.coordination.windows.closer import WindowCloser
from penstock.coordination.windows.keys import BatchKeys, WindowIndexKeys, WindowKeys, WindowsKeys
from penstock.inspector.runs import show_run
from penstock.inspector.workers import list_workers
from penstock.runtime.keys import WorkersKeys
from penstock.testing.eventually import eventually

pytestmark = [
    pytest.mark.usefixtures("leaves_foreign_keys"),
    pytest.mark.one_server,
    pytest.mark.settings(
        feeds={"poll_s": 0.05}, slots={"recheck_s": 0.05}, windows={"look_s": 0.05}
    ),
]

CASES = 150
"""Odd values of each kind; the torture run stores many more."""
counts = pytest.mark.parametrize(
    "cases", [CASES, pytest.param(100 * CASES, marks=pytest.mark.torture)], ids=["some", "many"]
)


async def store(app, commands):
    """Store many; what the server refuses (an empty field, say) is left out."""
    commands = list(commands)
    for start in range(0, len(commands), 500):
        await app.redis.pipeline(commands[start : start + 500])


async def failed_items(run, limit):
    """The bytes of all failed items, page by page."""
    seen, cursor = [], None
    while True:
        page = await run.failures(limit, cursor)
        seen += [failure.raw or failure.item.encode() for failure in page.failures]
        cursor = page.cursor
        if cursor is None:
            return seen


@counts
async def test_runs_among_odd_ones_are_listed_and_shown(app, cases):
    fine = await app.runs.start("fine")
    await fine.fail("item", "broken", retry_in_s=0)
    keys = fine.keys
    registry = RunsKeys.of(app.redis.keys).registry
    await store(app, (("ZADD", registry, odd_score(rng), odd(rng)) for rng in dice(0, cases)))
    for number, rng in enumerate(dice(cases, cases // 5)):
        place = RunKeys.of(app.redis.keys, f"odd-{number}").record
        pairs = odd_pairs(rng, ("status", "version", "started_ms", "checkpoint"), b'{"a":1}')
        await store(app, [("ZADD", registry, 2, f"odd-{number}"), ("HSET", place, *pairs)])
    for rng in dice(2 * cases, cases):
        item = odd(rng)
        await store(
            app,
            [
                ("ZADD", keys.failures, odd_score(rng), item),
                ("HSET", keys.failure_info, item, odd(rng, b'{"attempts":1,"first_ms":2}')),
                ("HSET", keys.starts, odd(rng, b'["t",null,1]'), odd(rng)),
            ],
        )
    assert "fine" in {record.id for record in await app.runs.list(1_000)}
    view = await show_run(app, "fine", failures=1_000)
    assert view.failures
    seen = await failed_items(fine, 50)
    assert sorted(seen) == sorted(await app.redis.call("ZRANGE", keys.failures, 0, -1))
    assert b"item" in seen
    for item in seen:
        assert await fine.resolve(item)
    assert await failed_items(fine, 50) == []
    await fine.mark_processed("other")
    await fine.checkpoint({"page": 1})
    await fine.finish()
    assert (await fine.record()).status == "completed"


@counts
async def test_a_feed_goes_on_behind_odd_entries(app, cases):
    feed, keys = app.feed("f"), FeedKeys.of(app.redis.keys, "f")
    await feed.publish("first", 1)
    for number, rng in enumerate(dice(0, cases), 2):
        pairs = odd_pairs(rng, ("type", "data", "ms"), b'{"a":1}') or [b"a", b"b"]
        await app.redis.call("XADD", keys.events, f"{number}-0", *pairs)
    await app.redis.call("HSET", keys.state, "seq", cases + 1)
    beside = app.feed("beside").read(after=0)
    reader = feed.read(after=0)
    told = [(await anext(reader)).number for _ in range(cases + 1)]
    assert told == list(range(1, cases + 2))
    assert await feed.publish("last", "end") == cases + 2
    assert (await anext(reader)).data == "end"
    for rng in dice(cases, 20):
        pairs = odd_pairs(rng, ("seq", "state", "state_seq", "final")) or [b"a", b"b"]
        await app.redis.call("HSET", keys.state, *pairs)
        with contextlib.suppress(PenstockError):
            await feed.snapshot()
    await app.feed("beside").publish("a", 1)
    assert (await anext(beside)).data == 1


@counts
async def test_windows_close_beside_odd_records_indexes_and_batches(app, cases):
    window = app.window("w", to=app.queue("q"), max_age=0.01)
    keys, registry = app.redis.keys, WindowsKeys.of(app.redis.keys).registry
    due = WindowIndexKeys.of(keys, "q", "w").due
    await window.add("fine", 1)
    record = await app.redis.call("HGET", registry, "w queue q")
    for rng in dice(0, cases):
        home = odd(rng, b"w%1Fodd")
        await store(
            app,
            [
                ("HSET", registry, odd(rng), odd(rng, record)),
                ("ZADD", due, odd_score(rng), home),
            ],
        )
    for number, rng in enumerate(dice(cases, cases // 5)):
        place = WindowKeys.of(keys, "q", f"w\x1fodd-{number}")
        batch = BatchKeys.of(keys, "q", f"b{number}")
        await store(
            app,
            [
                ("SET", place.current, f"b{number}"),
                ("RPUSH", batch.items, odd(rng), odd(rng)),
                ("SET", batch.started_at, odd(rng, b"1700000000.123")),
                ("SET", batch.last_activity, odd(rng, b"1700000000.123")),
                ("SET", batch.bytes, odd(rng, b"12")),
                ("ZADD", due, 5, place.home),
            ],
        )
    views = await list_windows(app, 1_000)
    assert "w" in {view.name for view in views}
    assert "fine" in {batch.key for batch in await window.open_batches(10_000)}
    closer = WindowCloser(app.redis, app.codec, [window])

    async def is_closed():
        with contextlib.suppress(PenstockError):
            await closer.look()
        return any(b'"key":"fine"' in job for job in await jobs())

    async def jobs():
        return await app.redis.call("LRANGE", app.queue("q").keyring.waiting, 0, -1)

    await eventually(is_closed)
    await window.add("second", 2)
    keys_closed = [one.key async for one in close_all(app, "w") if one.batch_id]
    assert keys_closed.count("second") == 1
    assert any(json.loads(job)["key"] == "second" for job in await jobs() if b"second" in job)


@counts
async def test_workers_and_slots_among_odd_ones_are_listed(app, cases):
    workers, gpu = WorkersKeys.of(app.redis.keys), app.slots("s", 100_000)
    fine = {"host": "h", "pid": 1, "started_ms": 1, "ready": True}
    await app.redis.call("ZADD", workers.heartbeats, 1, "fine")
    await app.redis.call("HSET", workers.info("fine"), "about", json.dumps(fine))
    for number, rng in enumerate(dice(0, cases)):
        name = odd(rng, b"host-1-abc")
        await store(
            app,
            [
                ("ZADD", workers.heartbeats, odd_score(rng), name),
                ("ZADD", workers.heartbeats, 2, f"odd-{number}"),
                (
                    "HSET",
                    workers.info(f"odd-{number}"),
                    "about",
                    odd(rng, json.dumps(fine).encode()),
                ),
                (
                    "ZADD",
                    SlotKeys.of(app.redis.keys, "s").holders,
                    odd_score(rng),
                    odd(rng, b"5:t:h:1"),
                ),
            ],
        )
    await app.redis.call("RPUSH", workers.info("of-another-type"), "x")
    await app.redis.call("ZADD", workers.heartbeats, 3, "of-another-type")
    found = {view.id: view for view in await list_workers(app.redis)}
    assert found["fine"].about.host == "h"
    assert found["of-another-type"].about is None
    slot = await gpu.take(timeout_s=5)
    assert slot.id in {holder.id for holder in await gpu.holders()}
    await gpu.state()
    assert await slot.release()


@counts
async def test_marks_and_cached_values_among_odd_ones_are_read(app, cases):
    cache = app.cache("c")
    await cache.set("fine", {"a": 1})
    for number, rng in enumerate(dice(0, cases)):
        keys = CacheKeys.of(app.redis.keys, "c", f"k{number}")
        once = DedupeKeys.of(app.redis.keys, f"k{number}")
        await store(
            app,
            [
                ("SET", keys.value, odd(rng, b'{"a":1}')),
                ("SET", once.mark if number % 2 else once.holder, odd(rng), "PX", 60_000),
            ],
        )
        with contextlib.suppress(PenstockError):
            await cache.get(f"k{number}")
        await cache.get_or_set(f"k{number}", lambda: {"a": 2}, type=dict[str, int])
        await app.marks.peek(f"k{number}")
        async with app.once(f"k{number}"):
            pass
        if number % 2:
            assert await app.marks.forget(f"k{number}")
    assert await cache.get("fine") == {"a": 1}


async def test_the_command_line_shows_what_is_well_among_what_is_odd(app, shell):
    await app.runs.start("fine")
    window = app.window("w", to=app.queue("q"))
    await window.add("fine", 1)
    await app.feed("f").publish("a", {"b": 1})
    keys = app.redis.keys
    record = await app.redis.call("HGET", WindowsKeys.of(keys).registry, "w queue q")
    for number, rng in enumerate(dice(0, 40)):
        run = RunKeys.of(keys, f"odd-{number}")
        await store(
            app,
            [
                ("ZADD", RunsKeys.of(keys).registry, number + 1, f"odd-{number}"),
                (
                    "HSET",
                    run.record,
                    "status",
                    odd(rng),
                    "started_ms",
                    odd(rng, b"1"),
                    "v",
                    odd(rng),
                ),
                ("HSET", WindowsKeys.of(keys).registry, odd(rng), odd(rng, record)),
                (
                    "ZADD",
                    WindowIndexKeys.of(keys, "q", "w").due,
                    odd_score(rng),
                    odd(rng, b"w%1Fodd"),
                ),
                ("ZADD", WorkersKeys.of(keys).heartbeats, odd_score(rng), odd(rng)),
                (
                    "XADD",
                    FeedKeys.of(keys, "f").events,
                    f"{number + 2}-0",
                    "data",
                    odd(rng),
                    "ms",
                    odd(rng),
                ),
                ("HSET", FeedKeys.of(keys, "f").state, "seq", number + 2),
            ],
        )
    for command in (
        *(("run", "list"), ("run", "show", "odd-1"), ("run", "show", "fine"), ("window", "list")),
        *(("feed", "tail", "f", "--after", "0", "--no-follow"), ("workers",), ("health",)),
    ):
        for options in ((), ("--json",)):
            done = shell(*command, *options)
            assert done.returncode == 0, (command, done.stderr)
            assert "Traceback" not in done.stderr
    assert shell("window", "close", "w", "--all").returncode in {0, 1, 2}
    assert b'"fine"' in b"".join(
        await app.redis.call("LRANGE", app.queue("q").keyring.waiting, 0, -1)
    )
    assert shell("doctor").returncode in {0, 1}


@pytest.mark.parametrize("page", [500, 7])
async def test_closing_all_batches_goes_past_those_that_cannot_be_closed(app, page):
    window = app.window("w", to=app.queue("q"), max_age=3600, idle=3600)
    keys, due = app.redis.keys, WindowIndexKeys.of(app.redis.keys, "q", "w").due
    broken = {f"broken-{number:060}" for number in range(501)}
    places = [WindowKeys.of(keys, "q", f"w\x1f{name}") for name in broken]
    await store(app, (("ZADD", due, 5, place.home) for place in places))
    await store(app, (("RPUSH", place.current, "foreign") for place in places))
    await store(app, [("ZADD", due, 6, b"w%1F\xff")])
    odd_pointer = WindowKeys.of(keys, "q", "w\x1fx").current.encode().replace(b"%1Fx", b"%1F\xff")
    await store(app, [("RPUSH", odd_pointer, "foreign")])
    for number in range(3):
        await window.add(f"fine-{number}", number)
    told = [one async for one in close_all(app, "w", page=page)]
    assert sorted(one.key for one in told if one.batch_id) == ["fine-0", "fine-1", "fine-2"]
    refused = [one.key for one in told if one.problem]
    assert sorted(refused) == sorted([*broken, "\\xff"])
    assert await app.redis.call("LLEN", app.queue("q").keyring.waiting) == 3


async def test_open_batches_of_odd_names_are_shown_and_closed(app):
    window = app.window("w", to=app.queue("q"), max_age=3600, idle=3600)
    await window.add("fine", 1)
    keys, due = app.redis.keys, WindowIndexKeys.of(app.redis.keys, "q", "w").due
    place = WindowKeys.of(keys, "q", "w\x1fX").current.encode().replace(b"%1FX", b"%1F\xff")
    batch = BatchKeys.of(keys, "q", "X").items.encode().replace(b"X", b"\xfe")
    started = BatchKeys.of(keys, "q", "X").started_at.encode().replace(b"X", b"\xfe")
    await store(
        app,
        [
            ("ZADD", due, 5, b"w%1F\xff"),
            ("SET", place, b"\xfe"),
            ("RPUSH", batch, "1", "2"),
            ("SET", started, "1700000000.123"),
        ],
    )
    [odd_one, fine] = await window.open_batches()
    assert (odd_one.key, odd_one.count, fine.key) == ("\\xff", 2, "fine")
    closed = [one.key async for one in close_all(app, "w")]
    assert closed == ["\\xff", "fine"]
    assert await app.redis.call("EXISTS", place, batch) == 0


async def test_many_batches_that_cannot_be_closed_delay_no_other(app):
    window = app.window("w", to=app.queue("q"), max_age=0.01)
    keys, due = app.redis.keys, WindowIndexKeys.of(app.redis.keys, "q", "w").due
    await window.add("fine", 1)
    places = [WindowKeys.of(keys, "q", f"w\x1fbroken-{number}") for number in range(1_000)]
    await store(app, (("ZADD", due, 5, place.home) for place in places))
    await store(app, (("RPUSH", place.current, "foreign") for place in places))
    await store(app, (("ZADD", due, 4, f"w%1Fgone-{number}") for number in range(1_000)))
    closer = WindowCloser(app.redis, app.codec, [window])
    while (
        await app.redis.call("ZSCORE", due, WindowKeys.of(keys, "q", "w\x1ffine").home) is not None
    ):
        await closer.look()  # it may not be due yet
        assert closer.looks <= 2  # the first that it is due for, however many stand before it
    assert "1000 that others have changed" in closer.trouble()
