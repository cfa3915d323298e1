"""What coordinates work, for programs that do not await."""

import gc
import os
import queue
import threading
import time

import pytest

from penstock.coordination import LimitSetting, Rate, Usage
from penstock.coordination.runs.keys import RunKeys
from penstock.errors import (
    InvalidItem,
    LimitReached,
    NotOpen,
    QueueFull,
    RunConflict,
    RunMissing,
    SettingError,
    SlotLost,
    SlotsTaken,
)
from penstock.redis.keys.space import KeySpace
from penstock.settings import FeedSettings, OnceSettings, Settings, SlotSettings
from penstock.sync import Penstock
from penstock.testing.servers import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


@pytest.fixture
def open_app(namespace):
    opened = []

    def open_one(server):
        settings = Settings(
            url=server.url,
            namespace=namespace,
            once=OnceSettings(hold_s=1.0),
            slots=SlotSettings(lease_s=1.0),
            feeds=FeedSettings(poll_s=0.1),
        )
        app = Penstock(settings=settings)
        opened.append(app)
        return app

    yield open_one
    for app in opened:
        app.close()


@pytest.fixture
def app(open_app, valkey_server):
    return open_app(valkey_server)


def in_threads(work, count=4):
    """Run `work(number)` in threads, and return what each returned."""
    results = queue.SimpleQueue()
    threads = [
        threading.Thread(target=lambda number=number: results.put(work(number)))
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [results.get(timeout=1) for _ in threads]


def in_child(work):
    """Run `work()` in a forked process; whether it returned True within some seconds."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


# Each of them


@pytest.mark.parametrize("where", ["valkey_server", "cluster"])
def test_every_primitive_works(request, where, open_app):
    app = open_app(request.getfixturevalue(where))
    with app.once("a", value="first") as mark:
        assert mark.first
    assert app.seen("a")
    assert app.marks.peek("a") == "first"
    limit = app.limit("api", "2/hour")
    assert limit.try_acquire()
    assert list(app.limits.all()) == ["api"]
    assert app.hourly_limit.increment().allowed
    with app.slots("gpu", 1).hold() as slot:
        assert slot.fence > 0
    cache = app.cache("camera")
    assert cache.set("front_door", {"on": True})
    assert cache.get("front_door") == {"on": True}
    assert app.runs.start("run-1").record().status == "created"
    feed = app.feed("news")
    assert feed.publish("said", {"n": 1}, final=True) == 1
    assert [event.number for event in feed.read(after=0)] == [1]
    batches = app.window("batch", to=app.queue("analysis_queue"), max_items=1)
    added = batches.add("front_door", 17)
    assert added.closed == added.batch_id


def test_of_all_threads_one_is_first(app):
    def work(number):
        with app.once("a", value=str(number)) as mark:
            return mark.first

    assert sorted(in_threads(work)) == [False, False, False, True]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, StopIteration])
def test_a_block_that_fails_leaves_no_mark(app, error):
    with pytest.raises(error), app.once("a"):
        raise error
    with app.once("a") as mark:
        assert mark.first
    with app.once("a") as mark:
        assert not mark.first
    with app.once("a", replay=True) as mark:
        assert mark.first


def test_a_reservation_is_renewed_while_its_thread_is_busy(app):
    with app.once("a") as mark:
        began = time.monotonic()
        while time.monotonic() < began + 1.5:  # longer than `once.hold_s`, and nothing is awaited
            sum(range(1000))
        assert not mark.lost
        assert app.marks.peek("a") == ""
    assert app.marks.forget("a")


def test_marking_and_queueing_is_one_step(app):
    jobs = app.queue("jobs", max_size=1)
    assert app.marks.enqueue("a", jobs, {"n": 1}, value="first")
    again = app.marks.enqueue("a", jobs, {"n": 1}, value="second")
    assert (again.first, again.value) == (False, "first")
    with pytest.raises(QueueFull):
        app.marks.enqueue("b", jobs, {"n": 2})
    assert app.marks.peek("b") is None
    assert app.marks.forget("a", queue=jobs)
    assert not app.marks.seen("a", "seen")


def test_limits_are_asked_waited_for_and_told(app):
    limit = app.limit("api", ["4/hour"])
    assert limit.acquire(timeout_s=1).remaining == 3
    with pytest.raises(LimitReached):
        limit.acquire(5, timeout_s=1)
    reservation = limit.reserve(2)
    assert (reservation.cost, limit.peek().remaining) == (2, 1)
    assert reservation.settle(1) == 1
    assert limit.peek().remaining == 2
    assert limit.reserve(1).refund() == 1
    with pytest.raises(ValueError, match="0 left"), limit.reserved(2):
        raise ValueError(f"{limit.peek().remaining} left")
    assert limit.peek().remaining == 2
    assert limit.penalise(60) > 59
    assert limit.try_acquire().reason == "penalty"
    limit.reset()
    limit.reconcile([Usage(limit=4, period_s=3600, used=3, reset_s=60)])
    assert limit.peek().remaining == 1
    limit.edit(LimitSetting((Rate(9, 60_000),)))
    limit.reset()
    assert limit.peek().remaining == 9
    assert app.limits.find("api").edited
    assert limit.setting.edited
    with pytest.raises(SettingError):
        app.limit("api", "often")


def test_permits_in_advance_serve_all_threads_and_none_too_many(app):
    limit = app.limit("api", "40/hour", lease=10)
    granted = in_threads(lambda _: sum(bool(limit.try_acquire()) for _ in range(15)))
    app.close()  # gives back what was not used
    assert sum(granted) <= 40
    assert limit.peek().remaining == 40 - sum(granted)


def test_no_more_threads_hold_slots_than_there_are(app):
    slots, most, inside = app.slots("gpu", 2), 0, 0
    lock = threading.Lock()

    def work(_):
        nonlocal most, inside
        with slots.hold(timeout_s=20) as slot:
            with lock:
                inside += 1
                most = max(most, inside)
            slot.check()
            with lock:
                inside -= 1
        return slot.lost

    assert in_threads(work, 6) == [True] * 6
    assert most <= 2
    assert slots.state().taken == 0


def test_slots_are_taken_and_given_back_by_hand(app):
    slots = app.slots("gpu", 1)
    slot = slots.take()
    [holder] = slots.holders()
    assert (holder.id, holder.fence) == (slot.id, slot.fence)
    with pytest.raises(SlotsTaken):
        slots.take(timeout_s=0.05)
    slots.set_limit(2)
    assert slots.limit() == 2
    assert slots.take().release()
    slots.reset_limit()
    assert slot.release()
    assert not slot.release()
    with pytest.raises(SlotLost):
        slot.check()


def test_a_cached_value_is_made_by_one_thread_in_that_thread(app):
    cache, makers = app.cache("camera"), []

    def make():
        makers.append(threading.current_thread())
        assert app.redis.call("PING") == b"PONG"  # it may use Penstock itself
        time.sleep(0.1)
        return {"made": 1}

    def work(_):
        value = cache.get_or_set("front_door", make)
        return value, threading.current_thread()

    results = in_threads(work)
    assert [value for value, _ in results] == [{"made": 1}] * 4
    [maker] = makers
    assert maker in [thread for _, thread in results]
    assert cache.get_or_set("front_door", make, type=dict) == {"made": 1}
    assert len(makers) == 1


def test_many_cached_values_are_made_once_each_in_the_thread_that_asks(app):
    cache, made = app.cache("camera"), []

    def make_many(missing):
        made.extend((key, threading.current_thread()) for key in missing)
        assert app.redis.call("PING") == b"PONG"  # it may use Penstock itself
        time.sleep(0.1)
        return {key: key.upper() for key in missing}

    def work(number):
        keys = iter(["a", "b", "c", "d"][number % 2 :])
        return cache.get_or_set_many(keys, make_many, ttl=60), threading.current_thread()

    results = in_threads(work)
    assert all(value["d"] == "D" for value, _ in results)
    assert sorted(key for key, _ in made) == ["a", "b", "c", "d"]
    assert {thread for _, thread in made} <= {thread for _, thread in results}
    with pytest.raises(ZeroDivisionError):
        cache.get_or_set_many(["e"], lambda keys: dict.fromkeys(keys, 1 / 0))
    assert cache.get_or_set_many(["e"], lambda keys: dict.fromkeys(keys, 1), type=int) == {"e": 1}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, StopIteration])
def test_a_value_that_cannot_be_made_is_made_by_the_next(app, error):
    cache = app.cache("camera")

    def fail():
        raise error

    with pytest.raises(RuntimeError if error is StopIteration else error):
        cache.get_or_set("front_door", fail)
    assert cache.get_or_set("front_door", lambda: 1) == 1


def test_failures_are_paged_whatever_the_bytes_of_their_items(app, namespace):
    run = app.runs.start("run")
    items = [b"\xff%d" % number for number in range(7)]
    for item in items:
        app.redis.call("ZADD", RunKeys.of(KeySpace(namespace), "run").failures, 5, item)
    seen, page = [], run.failures(2)
    while page.cursor is not None:
        seen += page.failures
        page = run.failures(2, page.cursor)
    seen += page.failures
    assert [failure.raw for failure in seen] == items
    assert all(run.resolve(failure.raw) for failure in seen)


def test_the_rest_of_the_cache(app):
    async def make():
        return [1]

    cache = app.cache("camera", ttl=60)
    assert cache.get_or_set("a", make) == [1]
    assert cache.get_many(["a", "b"]) == {"a": [1]}
    assert cache.expire("a", 30)
    assert 29 < cache.ttl("a") <= 30
    assert cache.exists("a")
    assert cache.delete("a", "b") == 1
    assert cache.get("a", "none") == "none"
    assert cache.zadd("scores", {"x": 1, "y": 2}) == 2
    assert cache.zrangebyscore("scores", 1, "+inf") == ["x", "y"]
    assert cache.zpopmax("scores") == [("y", 2.0)]
    assert cache.zcard("scores") == 1
    assert cache.zremrangebyscore("scores", 0, 5) == 1
    assert cache.zpopmin("scores") == []


def test_a_run_from_its_start_to_its_end(app):
    run = app.runs.start("nightly", facts={"by": "ann"})
    assert run.created
    assert not app.runs.start("nightly").created
    run.move("running")
    assert run.note_task_start("fetch")
    assert run.mark_processed(*range(1200)) == 1200
    assert set(run.iter_processed()) == {str(number) for number in range(1200)}
    assert run.fail("x", ValueError("no"), retry_in_s=0) == 1
    assert [failure.item for failure in run.claim_due()] == ["x"]
    assert run.resolve("x")
    version = run.checkpoint({"page": 7}, watermark=3)
    with pytest.raises(RunConflict):
        run.checkpoint({"page": 8}, version=version - 1)
    run.finish()
    assert app.runs.get("nightly").checkpoint == {"page": 7}
    assert [record.id for record in app.runs.list(status="completed")] == ["nightly"]
    assert app.runs.open("nightly").last_events(1)[0].number == run.record().events
    assert [event.number for event in run.feed.read(after=0)][-1] == run.record().events
    with pytest.raises(RunMissing):
        app.runs.open("other").record()


def test_a_feed_is_read_as_it_is_written(app):
    feed = app.feed("upload-abc")
    feed.publish("progress", {"percent": 10}, state={"at": 10})
    reader = feed.read()
    first = next(reader)
    assert (first.is_snapshot, first.data) == (True, {"at": 10})
    with pytest.raises(TimeoutError):
        reader.next(timeout=0.05)
    thread = threading.Thread(
        target=lambda: (
            [feed.publish("progress", number) for number in range(300)]
            + [feed.publish("done", final=True)]
        )
    )
    thread.start()
    events = list(reader)
    thread.join()
    assert [event.number for event in events] == list(range(2, 303))
    assert (reader.last, events[-1].final) == (302, True)
    assert feed.snapshot().final
    with pytest.raises(InvalidItem):
        feed.publish("more")


def test_a_reader_that_nobody_holds_any_more_reads_no_more(app):
    feed = app.feed("news")
    feed.publish("said", 1)
    with feed.read() as reader:
        next(reader)
    another = feed.read()
    next(another)
    hub = app.reach()[1].hub
    wait_until(lambda: sum(tail.holds for tail in hub._tails.values()) == 1, what="one reader")
    del another
    gc.collect()
    wait_until(lambda: not hub._tails, what="nobody to read")
    with pytest.raises(StopIteration):
        reader.next()


def test_windows_gather_for_queues_and_topics(app):
    analysis = app.queue("analysis_queue")
    batches = app.window("batch", to=analysis, max_age=90, idle=30)
    added = batches.add("front_door", 17, id="d-17")
    assert not batches.add("front_door", 17, id="d-17").is_new
    assert batches.batch("front_door").count == 1
    assert [batch.key for batch in batches.open_batches()] == ["front_door"]
    assert batches.close("front_door") == added.batch_id
    assert analysis.pressure().current_length == 1
    assert next(batches.feed().read(after=0)).type == "open"
    hourly = app.window("hourly", to=app.topic("batches", partitions=2), max_items=2)
    hourly.register()
    hourly.add("a", 1)
    assert hourly.add("a", 2).closed
    with pytest.raises(SettingError):
        app.window("other", to=analysis, max_items=0)
    # A worker of the same application closes what is due.
    assert list(app.twin._windows) == ["batch", "hourly"]


def test_what_a_fast_job_brought_falls_back_into_the_batch(app):
    batches = app.window("batch", to=app.queue("analysis_queue"))
    job = {"batch_id": "fast_path_1", "camera_id": "a", "detection_ids": [1], "fast_path": True}
    with batches.falling_back(job):
        raise ValueError
    assert batches.batch("a").count == 1
    with pytest.raises(ValueError, match="no"), batches.falling_back({**job, "fast_path": False}):
        raise ValueError("no")


# Ends and beginnings


def test_everything_works_again_after_the_application_was_closed(app):
    limit, slots, cache = app.limit("api", "9/hour"), app.slots("gpu", 1), app.cache("camera")
    run, feed = app.runs.start("nightly"), app.feed("news")
    batches = app.window("batch", to=app.queue("analysis_queue"))
    slot, reservation, reader = slots.take(), limit.reserve(1), feed.read()
    app.close()
    for end in (slot.check, reservation.refund, lambda: reader.next(timeout=1)):
        with pytest.raises((NotOpen, SlotLost)):
            end()
    assert limit.try_acquire().remaining == 7
    assert cache.set("a", 1)
    assert run.record().status == "created"
    assert feed.publish("said", final=True) == 1
    assert [event.number for event in feed.read()] == [1]
    assert batches.add("a", 1).size == 1
    with slots.hold(timeout_s=5):  # the lease of the one that was not released ends
        pass


def test_closing_inside_a_block_ends_it_with_an_error(app, caplog):
    with pytest.raises(NotOpen), app.once("a"):
        app.close()
    with pytest.raises(NotOpen), app.slots("gpu", 1).hold():
        app.close()
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


def test_what_went_wrong_in_a_block_matters_more_than_that_it_was_closed(app):
    def work():
        with app.slots("gpu", 1).hold():
            app.close()
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        work()


def test_a_forked_child_leaves_what_is_held_to_its_parent(app):
    slots, limit = app.slots("gpu", 1), app.limit("api", "9/hour")
    reservation = limit.reserve(1)

    def in_the_child():
        with pytest.raises(NotOpen):
            slot.check()
        with pytest.raises(NotOpen):
            reservation.refund()
        assert limit.try_acquire()  # over connections of its own
        return slots.state().taken == 1

    with slots.hold() as slot:
        assert in_child(in_the_child)
        child = os.fork()
    if child == 0:
        os._exit(0)  # it came through the end of the block without waiting for ever
    assert os.waitpid(child, 0)[1] == 0
    assert slots.state().taken == 0
    assert reservation.refund() == 1
