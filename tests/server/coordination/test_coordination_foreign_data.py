"""What others have written to the keys of the coordination primitives, or what broke there.

A clear error, nothing is destroyed, and the rest goes on.
"""

from contextlib import suppress
from datetime import UTC, datetime

import msgspec
import pytest
from tests.kit.keyspace import dumped

from penstock import DecodeError, PenstockError, SlotsTaken
from penstock.coordination.cache.keys import CacheKeys
from penstock.coordination.feeds.keys import FeedKeys
from penstock.coordination.limits.keys import HourlyLimitKeys, LimitKeys, LimitsKeys
from penstock.coordination.limits.result import Usage
from penstock.coordination.once.keys import DedupeKeys
from penstock.coordination.runs.keys import RunKeys, RunsKeys
from penstock.coordination.slots.keys import SlotKeys, SlotsKeys
from penstock.coordination.windows.closer import WindowCloser
from penstock.coordination.windows.keys import BatchKeys, WindowIndexKeys, WindowKeys, WindowsKeys
from penstock.errors import CommandRefused, ScriptFailed
from penstock.inspector.key_contract import classify
from penstock.testing.eventually import eventually

pytestmark = [
    pytest.mark.usefixtures("leaves_foreign_keys"),
    pytest.mark.one_server,
    pytest.mark.settings(
        feeds={"poll_s": 0.05}, slots={"recheck_s": 0.05}, limits={"refresh_s": 0.001}
    ),
]


@pytest.fixture
def stored(valkey_server, namespace):
    """What the server has of this test, but for the lists of names."""

    def look():
        found = dumped(valkey_server, namespace)
        return {key: value for key, value in found.items() if not key.endswith("registry")}

    return look


# ---- keys of another type


def hour():
    return f"{datetime.now(UTC):%Y-%m-%d_%H}"


async def use_once(app, n):
    yield app.seen(f"new-{n}")
    yield app.seen("k")
    yield app.marks.peek("k")

    async def reserve():
        async with app.once("k"):
            pass

    yield reserve()
    yield app.marks.enqueue("k", app.queue("q"), 1)


async def use_limit(app, n, algorithm):
    limit = app.limit("l", "5/min", algorithm=algorithm)
    yield limit.try_acquire()
    yield limit.acquire(timeout_s=0)
    yield limit.peek()
    yield limit.penalise(1)
    yield limit.reconcile([Usage(5, 60, used=1)])
    yield limit.reserve(1)


async def use_hourly(app, n):
    yield app.hourly_limit.increment()
    yield app.hourly_limit.status()


async def use_window(app, n):
    window = app.window("w", to=app.queue("q"), max_items=50)
    yield window.add("k", 1)
    yield window.add("k", 2, id=f"id-{n}")
    yield window.batch("k")
    yield window.add("k", 3, fast=True)
    yield window.close("k")


async def use_run(app, n):
    run = app.runs.open("r")
    yield run.record()
    yield run.move("running", expect="created")
    yield run.note({"a": str(n)})
    yield run.note_task_start("t", attempt=n + 1)
    yield run.mark_processed(f"a-{n}")
    yield run.fail(f"b-{n}", "no", retry_in_s=0)
    yield run.failures()
    yield run.claim_due()
    yield run.checkpoint(n)
    yield run.resolve(f"b-{n}")
    yield run.task_starts()
    yield run.events()
    yield run.finish()
    yield run.reopen()


async def use_slots(app, n):
    gpu = app.slots("s", 4)
    yield gpu.take()
    yield gpu.take(timeout_s=0.01)
    yield gpu.state()
    yield gpu.holders()

    async def hold():
        async with gpu.hold(0):
            pass

    yield hold()


async def use_feed(app, n):
    feed = app.feed("f")
    yield feed.publish("t", n, state=n)
    yield feed.snapshot()

    async def read():
        return await anext(feed.read(after=0))

    yield read()


async def use_cache(app, n):
    cache = app.cache("c")
    yield cache.get("k")
    yield cache.get_many(["k"])
    yield cache.get_or_set("k", lambda: n)
    yield cache.zadd("k", {"a": 1})
    yield cache.zadd("k", {"a": 1}, ttl=60)
    yield cache.zcard("k")
    yield cache.zrangebyscore("k", "-inf", "+inf")
    yield cache.zpopmax("k")


def run_keys(app):
    keys = RunKeys.of(app.redis.keys, "r")
    return [
        *(keys.record, keys.events, keys.feed, keys.processed, keys.failures, keys.failure_info),
        *(keys.starts, keys.failed(hour()), RunsKeys.of(app.redis.keys).registry),
    ]


def window_keys(app):
    keys, queue = app.redis.keys, app.queue("q").keyring
    index, place = WindowIndexKeys.of(keys, "q", "w"), WindowKeys.of(keys, "q", "w\x1fk")
    return [
        *(index.due, index.events, index.state, place.current, place.seen),
        *(queue.waiting, queue.state, queue.counters, WindowsKeys.of(keys).registry),
    ]


def limit_keys(app):
    keys = LimitKeys.of(app.redis.keys, "l", "all")
    return [
        keys.log,
        keys.state,
        keys.waiting,
        keys.tickets,
        LimitsKeys.of(app.redis.keys).registry,
    ]


PLACES = {
    "once": (
        use_once,
        lambda app: [
            DedupeKeys.of(app.redis.keys, "k").mark,
            DedupeKeys.of(app.redis.keys, "k").holder,
        ],
    ),
    "exact": (lambda app, n: use_limit(app, n, "exact"), limit_keys),
    "compact": (lambda app, n: use_limit(app, n, "compact"), limit_keys),
    "gcra": (lambda app, n: use_limit(app, n, "gcra"), limit_keys),
    "hourly": (use_hourly, lambda app: [HourlyLimitKeys.of(app.redis.keys).count(hour())]),
    "window": (use_window, window_keys),
    "run": (use_run, run_keys),
    "slots": (
        use_slots,
        lambda app: [
            *(
                getattr(SlotKeys.of(app.redis.keys, "s"), of)
                for of in ("holders", "waiting", "tickets")
            ),
            *(SlotKeys.of(app.redis.keys, "s").state, SlotsKeys.of(app.redis.keys).registry),
        ],
    ),
    "feed": (
        use_feed,
        lambda app: [
            FeedKeys.of(app.redis.keys, "f").events,
            FeedKeys.of(app.redis.keys, "f").state,
        ],
    ),
    "cache": (
        use_cache,
        lambda app: [
            getattr(CacheKeys.of(app.redis.keys, "c", "k"), of)
            for of in ("value", "sorted", "flight")
        ],
    ),
}


async def refused(call):
    """The error of a call that is refused, or None."""
    try:
        await call
    except CommandRefused as error:
        return error
    except PenstockError:
        return None
    return None


async def plant(app, key):
    """Store something of a type that the key never has, and return what there was."""
    spared = await app.redis.call("DUMP", key)
    await app.redis.call("DEL", key)
    is_list = classify(key, app.settings.namespace).redis_type == "list"
    await app.redis.call("SADD" if is_list else "RPUSH", key, "foreign")
    return spared


@pytest.mark.parametrize("name", PLACES)
async def test_a_key_of_another_type_is_left_alone_and_nothing_is_half_done(app, stored, name):
    use, keys_of = PLACES[name]
    await app.runs.start("r")
    await app.runs.open("r").move("running")
    wrong = []
    for n, key in enumerate(keys_of(app)):
        spared = await plant(app, key)
        foreign = await app.redis.call("DUMP", key)
        async for call in use(app, n):
            where, before = f"{call.__qualname__} {key}", stored()
            error = await refused(call)
            changed = {k for k, value in stored().items() if before.get(k) != value}
            if error is not None and changed:
                wrong.append(f"half done: {where}: {error} {changed}")
            if await app.redis.call("DUMP", key) != foreign:
                wrong.append(f"destroyed: {where}")
        await app.redis.call("DEL", key)
        if spared is not None:
            await app.redis.call("RESTORE", key, 0, spared)
        again = [await refused(call) async for call in use(app, n + 100)]
        wrong += [f"not well again: {key}: {error}" for error in again if error is not None]
    assert not wrong, "\n".join(wrong)


# ---- runs


async def test_one_run_that_cannot_be_read_hides_no_other(app):
    keys, registry = app.redis.keys, RunsKeys.of(app.redis.keys).registry
    await app.runs.start("fine")
    for member in (b"\xff\xfe", "x" * 600, "", "gone"):
        await app.redis.call("ZADD", registry, 5, member)
    await app.redis.call("ZADD", registry, 2**53, "broken")
    await app.redis.call("RPUSH", RunKeys.of(keys, "broken").record, "foreign")
    assert [record.id for record in await app.runs.list()] == ["fine"]
    assert (await app.runs.start("another")).created
    assert {record.id for record in await app.runs.list()} == {"fine", "another"}
    assert [record.id for record in await app.runs.list(1)] == ["another"]
    with pytest.raises(CommandRefused):
        await app.runs.get("broken")
    assert await app.redis.call("LRANGE", RunKeys.of(keys, "broken").record, 0, -1) == [b"foreign"]


async def test_a_run_goes_on_with_fields_that_cannot_be_read(app):
    run = await app.runs.start("r")
    keys = run.keys
    await app.redis.call("HSET", keys.record, "version", "x", "started_ms", "x", "ends_ms", "soon")
    await app.redis.call("HSET", keys.record, "checkpoint", "[" * 5_000, b"\xff", b"\xff")
    await app.redis.call("HSET", keys.feed, "seq", "x", "calls", "x", "first_call", "x")
    await app.redis.call("HSET", keys.feed, "called:1", "x", "called:2", "x", "state", "{")
    await app.redis.call("HSET", keys.starts, '["t",null,1]', "x", "garbage", "x")
    await app.redis.call("HSET", keys.failure_info, "a", "\x81", "b", "[[", "c", '{"attempts":{}}')
    for item, due in (("a", "-inf"), ("b", 1.5), ("c", "inf"), (b"\xff", 2e300)):
        await app.redis.call("ZADD", keys.failures, due, item)
    record = await run.record()
    assert (record.version, record.started_ms, record.checkpoint) == (0, None, None)
    assert await run.move("running") == 1
    assert await run.note_task_start("t", attempt=2)
    assert [start.attempt for start in await run.task_starts()] == [1, 2]
    first = await run.failures(2)
    assert [failure.item for failure in first.failures] == ["a", "b"]
    rest = await run.failures(10, first.cursor)
    assert [failure.item for failure in rest.failures] == ["\\xff", "c"]
    assert {failure.item for failure in await run.claim_due()} == {"a", "b"}
    for item in ("a", "b", "c"):
        assert await run.fail(item, "again") == 1
        assert await run.resolve(item)
    assert await run.mark_processed("d") == 1
    await run.checkpoint({"page": 1}, watermark=3)
    await run.finish()
    events = await run.events()
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert (await run.record()).status == "completed"


# ---- windows


def window_of(app, **options):
    return app.window("w", to=app.queue("q"), **options)


async def test_one_broken_batch_keeps_no_other_open(app, caplog):
    window = window_of(app, max_age=0.01)
    keys = app.redis.keys
    due = WindowIndexKeys.of(keys, "q", "w").due
    for key in ("odd", "fine"):
        await window.add(key, key)
    for number in range(50):  # more than one call of the script closes
        place = WindowKeys.of(keys, "q", f"w\x1fbroken-{number}")
        await app.redis.call("ZADD", due, 5 + number, place.home)
        await app.redis.call("RPUSH", place.current, "foreign")
    for member, score in (("%FF", 1), (b"\xff", 2), ("w%1Fgone", "-inf"), ("other", 3)):
        await app.redis.call("ZADD", due, score, member)
    odd = BatchKeys.of(keys, "q", (await window.batch("odd")).batch_id)
    for key in (odd.started_at, odd.last_activity, odd.bytes):
        await app.redis.call("SET", key, "x")
    assert {batch.key for batch in await window.open_batches()} >= {"fine"}
    closer = WindowCloser(app.redis, app.codec, [window])

    async def both_are_closed():
        await closer.look()
        return closer.closed == 2

    await eventually(both_are_closed)
    jobs = await app.redis.call("LRANGE", app.queue("q").keyring.waiting, 0, -1)
    assert sorted(msgspec.json.decode(job)["key"] for job in jobs) == ["fine", "odd"]
    assert "cannot be closed" in caplog.text
    assert "batches cannot be closed: " in closer.trouble()  # the worker is not ready
    assert await app.redis.call("LLEN", WindowKeys.of(keys, "q", "w\x1fbroken-0").current) == 1
    with pytest.raises(CommandRefused):
        await window.close("broken-0")
    with pytest.raises(CommandRefused):
        await window.add("broken-0", 1)
    assert await window.open_batches() == []


async def test_a_batch_whose_times_cannot_be_read_is_shown_and_closed(app):
    window = window_of(app)
    await window.add("a", 1)
    await window.add("b", 1)
    batch = BatchKeys.of(app.redis.keys, "q", (await window.batch("a")).batch_id)
    for times in ("", "x", "-5", "9" * 400, "1e400", "nan"):
        for key in (batch.started_at, batch.last_activity, batch.bytes):
            await app.redis.call("SET", key, times)
        shown = {one.key: one.count for one in await window.open_batches()}
        assert shown["b"] == 1
        assert shown.get("a", 1) == 1
        await window.batch("a")
    assert await window.close("a")
    job = msgspec.json.decode(await app.redis.call("LPOP", app.queue("q").keyring.waiting))
    assert job["items"] == [1]


async def test_records_of_windows_that_cannot_be_read_keep_no_other_open(app):
    registry = WindowsKeys.of(app.redis.keys).registry
    window = window_of(app, max_age=0.01)
    await window.add("k", 1)
    fine = await app.redis.call("HGET", registry, "w queue q")
    entries = {
        b"\xff": b"\xff",
        b"deep": b"[" * 100_000,
        b"empty": b"",
        b"a list": b"[]",
        b"of a later version": fine.replace(b'"kind":"queue"', b'"kind":"satellite"'),
        b"for ever": fine.replace(b'"max_age_ms":10', b'"max_age_ms":-5'),
        b"into nothing": fine.replace(b'"target":"q"', b'"target":"a:b*"'),
        b"with more": fine.replace(b'"name":"w"', b'"name":"w2","later":{"a":1}'),
    }
    for field, text in entries.items():
        await app.redis.call("HSET", registry, field, text)
    closer = WindowCloser(app.redis, app.codec)

    async def is_closed():
        return await closer.look() == 1

    await eventually(is_closed)
    stored = await app.redis.call("HGETALL", registry)
    assert dict(zip(stored[::2], stored[1::2], strict=True)).items() >= entries.items()


async def test_a_registry_that_is_none_keeps_no_declared_window_open(app):
    window = window_of(app, max_age=0.01)
    await window.add("k", 1)
    await plant(app, WindowsKeys.of(app.redis.keys).registry)
    closer = WindowCloser(app.redis, app.codec, [window])

    async def is_closed():
        with suppress(CommandRefused):
            await closer.look()
        return closer.closed == 1

    await eventually(is_closed)


@pytest.mark.parametrize(
    "job",
    [
        {"fast_path": True},
        {"fast_path": True, "batch_id": "x", "key": "k"},
        {"fast_path": True, "batch_id": "x", "key": 5, "items": [1]},
        {"fast_path": True, "batch_id": "x", "key": "k", "items": "abc"},
        {"fast_path": True, "batch_id": "x", "key": "k", "items": None},
        {"fast_path": "true", "batch_id": "x", "key": "k", "items": [1]},
        [],
        None,
    ],
)
async def test_a_job_that_is_no_fast_one_of_ours_fails_with_its_own_error(app, job):
    window = window_of(app)
    with pytest.raises(ZeroDivisionError):
        async with window.falling_back(job):
            raise ZeroDivisionError
    assert await window.open_batches() == []


async def test_ids_of_batches_that_are_no_text_are_shown_as_well_as_can_be(app):
    window, keys = window_of(app), app.redis.keys
    batch = BatchKeys.of(keys, "q", "x")
    home = batch.items.removesuffix("x:detections").encode() + b"\xff"
    await app.redis.call("SET", WindowKeys.of(keys, "q", "w\x1fk").current, b"\xff")
    await app.redis.call("RPUSH", home + b":detections", "1")
    await app.redis.call("SET", home + b":started_at", "1")
    added = await window.add("k", 2)
    assert (added.closed, added.size) == ("\ufffd", 1)
    assert (await window.batch("k")).count == 1
    assert await window.close("k") == added.batch_id


# ---- limits


async def test_one_limit_that_cannot_be_read_hides_no_other(app):
    registry = LimitsKeys.of(app.redis.keys).registry
    entries = {
        b"\xff": b"{}",
        b"deep": b"[" * 100_000,
        b"empty": b"",
        b"later": b'{"windows":["5/min"],"algorithm":"quantum","edited":true}',
        b"odd": b'{"windows":["1__0/min"],"edited":true}',
        b"text": b'{"windows":["\xff/min"],"edited":true}',
        b"more": b'{"windows":["7/min"],"later":{"a":1},"edited":true}',
    }
    for name, text in entries.items():
        await app.redis.call("HSET", registry, name, text)
    await app.limit("fine", "5/min").try_acquire()
    assert list(await app.limits.all()) == ["fine", "more"]
    assert (await app.limit("more", "5/min").peek()).windows[0].limit == 7
    for name in ("later", "odd", "text"):
        with pytest.raises(DecodeError):
            await app.limit(name, "5/min").try_acquire()
    for name in ("deep", "empty"):
        assert await app.limit(name, "5/min").try_acquire()  # nobody has edited it
    for name in (b"later", b"odd", b"text"):
        assert await app.redis.call("HGET", registry, name) == entries[name]


@pytest.mark.parametrize("algorithm", ["exact", "compact", "gcra"])
@pytest.mark.parametrize(
    "garbage", [b"", b"garbage", b"\xff" * 50, b"\x80", b"\x90", b"\xc0", b"\x91\xa1x", b"[1,2]"]
)
async def test_a_state_that_cannot_be_read_is_told_or_begun_anew(app, algorithm, garbage):
    limit = app.limit("l", "3/min", algorithm=algorithm, burst=3 if algorithm == "gcra" else None)
    await limit.try_acquire()
    await app.redis.call("SET", limit.keys("all").state, garbage)
    granted = 0
    for _ in range(6):
        with suppress(CommandRefused, ScriptFailed):
            granted += (await limit.try_acquire()).granted
    assert granted <= 3
    assert await limit.try_acquire(key="another")
    await limit.reset()
    assert await limit.try_acquire()


@pytest.mark.parametrize("count", ["x", "", "1.5", "0x10", "nan", "inf", " 7", "9" * 30])
async def test_a_count_that_is_no_number_is_told_and_left_alone(app, count):
    key = HourlyLimitKeys.of(app.redis.keys).count(hour())
    await app.redis.call("SET", key, count)
    with suppress(CommandRefused):
        assert not (await app.hourly_limit.increment()).allowed
    assert await app.redis.call("GET", key) == count.encode()
    await app.redis.call("DEL", key)
    assert (await app.hourly_limit.increment()).allowed


# ---- slots, feeds, marks, values


async def test_what_is_no_holder_takes_a_slot_and_stops_nobody_else(app):
    gpu, keys = app.slots("s", 4), SlotKeys.of(app.redis.keys, "s")
    for member, until in ((b"\xff", "inf"), ("garbage", 2e15)):
        await app.redis.call("ZADD", keys.holders, until, member)
    await app.redis.call("HSET", keys.state, "fence", "x", "number", "x")
    await app.redis.call("HSET", keys.tickets, "a", "x")
    await app.redis.call("ZADD", keys.waiting, 1, "a", 2, "b")
    await app.redis.call("HSET", SlotsKeys.of(app.redis.keys).registry, "s", "{")
    first, second = await gpu.take(), await gpu.take(timeout_s=5)
    assert second.fence > first.fence
    with pytest.raises(SlotsTaken):
        await gpu.take(timeout_s=0.05)
    assert {holder.id for holder in await gpu.holders()} == {first.id, second.id}
    await first.check()
    assert await first.release()
    assert await second.release()


async def test_a_broken_feed_stops_no_other(app, caplog):
    fine, broken = app.feed("fine"), app.feed("broken")
    readers = [feed.read() for feed in (broken, fine)]
    for feed, reader in zip((broken, fine), readers, strict=True):
        await feed.publish("a", 1)
        assert (await anext(reader)).data == 1
    keys = FeedKeys.of(app.redis.keys, "broken")
    await app.redis.call(
        "HSET", keys.state, "seq", "x", "state", "{", "state_seq", "x", "final", ""
    )
    for number in range(2, 5):
        assert await fine.publish("b", number) == number
        assert (await anext(readers[1])).data == number
    assert "failed" not in caplog.text
    assert await broken.publish("b", 2) == 2
    assert (await anext(readers[0])).data == 2
    assert (await broken.snapshot()).number == 2


async def test_entries_of_others_in_a_feed_are_handed_out_as_they_are(app):
    feed, keys = app.feed("f"), FeedKeys.of(app.redis.keys, "f")
    await feed.publish("a", 1)
    await app.redis.call("XADD", keys.events, "2-0", "x", "y")
    await app.redis.call("XADD", keys.events, "3-0", b"\xff", b"\xff", "data", "{", "ms", "x")
    await app.redis.call("XADD", keys.events, "4-0", "type", b"\xff", "data", "[" * 5_000)
    await app.redis.call("HSET", keys.state, "seq", 4)
    reader = feed.read(after=0)
    told = [await anext(reader) for _ in range(4)]
    assert [event.number for event in told] == [1, 2, 3, 4]
    assert [event.data for event in told[:3]] == [1, None, b"{"]
    assert await feed.publish("b", 5) == 5
    assert (await anext(reader)).data == 5


async def test_marks_of_others_are_marks(app):
    keys = DedupeKeys.of(app.redis.keys, "k")
    await app.redis.call("SET", keys.mark, b"/path/\xff")
    async with app.once("k") as mark:
        assert not mark.first
        assert mark.value == "/path/\udcff"
    assert await app.seen("k")
    assert await app.marks.forget("k")
    await app.redis.call("SET", keys.holder, b"\xff", "PX", 60_000)
    async with app.once("k") as mark:
        assert not mark.first  # somebody is at it
    await app.redis.call("SET", keys.holder, b"!\xff", "PX", 60_000)
    async with app.once("k") as mark:
        assert mark.first


@pytest.mark.parametrize(
    "garbage", [b"", b"{", b"\xff", b"[" * 100_000, b"(\xb5/\xfd", b"(\xb5/\xfdgarbage", b"NaN"]
)
async def test_a_value_that_cannot_be_read_is_told_and_made_anew(app, garbage):
    cache = app.cache("c")
    key = CacheKeys.of(app.redis.keys, "c", "k").value
    await app.redis.call("SET", key, garbage)
    with pytest.raises(DecodeError):
        await cache.get("k")
    assert await app.redis.call("GET", key) == garbage
    assert await cache.get_or_set("k", lambda: 5) == 5
    assert await cache.get("k") == 5
