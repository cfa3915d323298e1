"""What others have written to the keys of the coordination primitives, or what broke there.

A clear error, nothing is destroyed, and the rest goes on.
"""

from datetime import UTC, datetime

import pytest

from penstock import CommandRefused, Penstock, PenstockError
from penstock.coordination.limits.answer import Usage
from penstock.redis.keys import classify
from penstock.settings import FeedSettings, LimitSettings, Settings, SlotSettings

pytestmark = pytest.mark.usefixtures("leaves_foreign_keys")


@pytest.fixture
async def app(valkey_server, namespace):
    settings = Settings(
        url=valkey_server.url,
        namespace=namespace,
        feeds=FeedSettings(poll_s=0.05),
        slots=SlotSettings(recheck_s=0.05),
        limits=LimitSettings(refresh_s=0.001),
    )
    async with Penstock(settings=settings) as opened:
        yield opened


@pytest.fixture
def stored(valkey_server, namespace):
    """What the server has of this test: each key with all that is in it."""

    def look():
        with valkey_server.connect() as redis:
            keys = sorted(redis.call("KEYS", f"{namespace}:*"))
            return {key: redis.call("DUMP", key) for key in keys if not key.endswith("registry")}

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
    yield limit.acquire(timeout=0)
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
    yield gpu.take(timeout=0.01)
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
    keys = app.redis.keys.run("r")
    return [
        *(keys.pipeline, keys.events, keys.feed, keys.processed, keys.failures, keys.failure_info),
        *(keys.starts, keys.failed(hour()), app.redis.keys.runs().registry),
    ]


def window_keys(app):
    keys, queue = app.redis.keys, app.queue("q").keyring
    index, place = keys.window_index("q", "w"), keys.window("q", "w\x1fk")
    return [
        *(index.due, index.events, index.state, place.current, place.seen),
        *(queue.waiting, queue.state, queue.counters, keys.windows().registry),
    ]


def limit_keys(app):
    keys = app.redis.keys.limit("l", "all")
    return [keys.log, keys.state, keys.waiting, keys.tickets, app.redis.keys.limits().registry]


PLACES = {
    "once": (
        use_once,
        lambda app: [app.redis.keys.dedupe("k").mark, app.redis.keys.dedupe("k").holder],
    ),
    "exact": (lambda app, n: use_limit(app, n, "exact"), limit_keys),
    "compact": (lambda app, n: use_limit(app, n, "compact"), limit_keys),
    "gcra": (lambda app, n: use_limit(app, n, "gcra"), limit_keys),
    "hourly": (use_hourly, lambda app: [app.redis.keys.hourly_limit().count(hour())]),
    "window": (use_window, window_keys),
    "run": (use_run, run_keys),
    "slots": (
        use_slots,
        lambda app: [
            *(getattr(app.redis.keys.slot("s"), of) for of in ("holders", "waiting", "tickets")),
            *(app.redis.keys.slot("s").state, app.redis.keys.slots().registry),
        ],
    ),
    "feed": (
        use_feed,
        lambda app: [app.redis.keys.feed("f").events, app.redis.keys.feed("f").state],
    ),
    "cache": (
        use_cache,
        lambda app: [
            getattr(app.redis.keys.cache("c", "k"), of) for of in ("value", "sorted", "flight")
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
