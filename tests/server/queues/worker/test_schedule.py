"""Schedules: each tick is queued once, by whichever worker comes first."""

import asyncio
import gc
import json
import logging
from contextlib import AsyncExitStack

import pytest
from tests.kit.lifecycle import check_lifecycle
from tests.kit.scripts import scripts_of

from penstock.delivery.audit import read_acts
from penstock.errors import ConfigError, QueueError
from penstock.queues.schedules import scheduler as scheduling
from penstock.queues.schedules.cron import Cron, Every
from penstock.queues.schedules.schedule import Schedule
from penstock.queues.schedules.scheduler import Scheduler
from penstock.queues.schedules.schedules import Schedules
from penstock.queues.schedules.timetable import PAGE
from penstock.queues.storage.keys import QueueKeyring, QueuesKeys
from penstock.redis.client import Client
from penstock.settings import QueueSettings, Settings
from penstock.testing.eventually import eventually

DAY_MS = 86_400_000
DAILY = Cron("0 0 * * *")
SOON = Every(0.05)


@pytest.fixture
def keys(client):
    return QueueKeyring.of(client.keys, "work")


@pytest.fixture
async def start(client):
    """`await start(schedule, …)` runs a scheduler of its own until the test ends."""
    async with AsyncExitStack() as running:

        async def start_one(*schedules):
            return await running.enter_async_context(Scheduler(client, schedules))

        yield start_one


def make(job_id, tick_ms):
    return json.dumps({"id": job_id, "tick": tick_ms}).encode()


def schedule(when=DAILY, name="tick", **options):
    return Schedule(**{"name": name, "when": when, "queue": "work", "make": make, **options})


async def server_ms(client):
    seconds, micros = map(int, await client.call("TIME"))
    return seconds * 1000 + micros // 1000


async def ticks(client, keys, lane=""):
    """Ticks of the jobs in the list."""
    jobs = await client.call("LRANGE", keys.list_of(lane), 0, -1)
    return [json.loads(job)["tick"] for job in jobs]


async def next_tick(client, keys, name="tick"):
    score = await client.call("ZSCORE", keys.schedule, name)
    return score if score is None else float(score)


async def stood_at(client, keys, tick_ms, when, name="tick"):
    """Let the server remember that no worker was there since `tick_ms`."""
    await scripts_of(client).declare_schedule(
        keys=keys, name=name, found="", text=when.text, tick=tick_ms
    )


async def moved_past(client, keys, tick_ms, name="tick"):
    async def has():
        stands = await next_tick(client, keys, name)
        return stands is not None and stands > tick_ms

    await eventually(has)


async def test_the_scheduler_keeps_the_contract_of_services(client):
    await check_lifecycle(lambda: Scheduler(client, [schedule()]))
    await check_lifecycle(lambda: Scheduler(client, []))


async def test_a_scheduler_that_is_cancelled_before_it_looks_leaves_nothing_unawaited(client):
    """What is left so is told by the garbage collector, as a warning, which is an error here."""
    scheduler = Scheduler(client, [schedule()])
    looking = asyncio.create_task(scheduler._look_everywhere())
    await asyncio.sleep(0)  # its parts are tasks now, and none has begun
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking
    gc.collect()


async def test_a_new_schedule_waits_for_its_first_tick(client, keys, start):
    before = await server_ms(client)
    await start(schedule())
    await eventually(lambda: next_tick(client, keys))
    assert await next_tick(client, keys) == DAILY.next_after(before)
    assert await ticks(client, keys) == []


async def test_ticks_come_one_after_the_other(client, keys, start):
    await start(schedule(SOON))

    async def some():
        found = await ticks(client, keys)
        return len(found) >= 5 and found

    found = await eventually(some)
    assert found == list(range(found[0], found[-1] + 1, SOON.period_ms))
    assert await client.call("HGET", keys.counters, "added") is not None


async def test_many_schedulers_queue_each_tick_once(client, keys, start):
    for _ in range(5):
        await start(schedule(SOON, missed="all"))

    async def some():
        found = await ticks(client, keys)
        return len(found) >= 20 and found

    found = await eventually(some)
    assert found == list(range(found[0], found[-1] + 1, SOON.period_ms))


async def test_a_restart_goes_on_with_the_stored_tick(client, keys, start):
    now = await server_ms(client)
    tick = DAILY.next_after(now - DAY_MS)
    await stood_at(client, keys, tick, DAILY)
    await start(schedule(missed="once"))
    await moved_past(client, keys, now)
    assert await ticks(client, keys) == [tick]
    jobs = await client.call("LRANGE", keys.waiting, 0, -1)
    assert json.loads(jobs[0])["id"] == f"cron:tick:{tick}"


async def test_missed_ticks_are_skipped(client, keys, start):
    when, now = Every(3600), await server_ms(client)
    # Unless an hour has just begun: then the latest tick is only late.
    await stood_at(client, keys, when.next_after(now - 5 * 3_600_000), when)
    expected, _ = schedule(when).due_ticks(when.next_after(now - 5 * 3_600_000), now)
    await start(schedule(when, missed="skip"))
    await moved_past(client, keys, now)
    assert await ticks(client, keys) == expected


async def test_missed_ticks_are_made_up_once(client, keys, start):
    when, now = Every(3600), await server_ms(client)
    await stood_at(client, keys, when.next_after(now - 5 * 3_600_000), when)
    await start(schedule(when, missed="once"))
    await moved_past(client, keys, now)
    assert await ticks(client, keys) == when.between(0, now, 1)


async def test_missed_ticks_are_all_made_up(client, keys, start):
    when, now = Every(60), await server_ms(client)
    first = when.next_after(now - 250 * 60_000)
    await stood_at(client, keys, first, when)
    await start(schedule(when, missed="all"))
    await moved_past(client, keys, now)
    found = await ticks(client, keys)
    assert found[:249] == list(range(first, first + 249 * 60_000, 60_000))


async def test_more_missed_ticks_than_the_limit_are_given_up_with_a_word(
    client, keys, start, caplog
):
    when, now = Every(60), await server_ms(client)
    await stood_at(client, keys, when.next_after(now - 5_000 * 60_000), when)
    with caplog.at_level(logging.WARNING):
        await start(schedule(when, missed="all", name="tick"))
        await moved_past(client, keys, now)
    found = await ticks(client, keys)
    assert len(found) in {1_000, 1_001}
    assert found[-1] >= when.between(0, now, 1)[0]
    assert "missed ticks are skipped" in caplog.text


async def test_a_changed_expression_gets_a_new_tick_with_the_next_start(client, keys, start):
    now = await server_ms(client)
    await stood_at(client, keys, now + 10 * DAY_MS, Every(30 * 86_400))
    await start(schedule(DAILY))
    await eventually(lambda: _equals(next_tick(client, keys), DAILY.next_after(now)))
    assert await client.call("HGET", keys.state, "cron:tick") == DAILY.text.encode()


async def _equals(asked, expected):
    return await asked == expected


async def test_an_older_worker_leaves_a_changed_schedule_to_the_newer(client, keys, start):
    older = await start(schedule(SOON))
    await eventually(lambda: older.fired > 0)
    await start(schedule(DAILY))

    async def taken():
        return await client.call("HGET", keys.state, "cron:tick") == DAILY.text.encode()

    await eventually(taken)
    fired = older.fired
    # It looks at least twice in this time.
    await asyncio.sleep(2 * scheduling.LONGEST_LOOK_S)
    assert older.fired - fired <= 1, "at most the one under way"
    assert await taken()


async def test_a_schedule_is_taken_over_from_workers_that_have_gone(
    client, keys, start, monkeypatch
):
    monkeypatch.setattr(scheduling, "TAKE_OVER_AFTER_S", 0.3)
    left = await start(schedule(SOON))
    await eventually(lambda: left.fired > 0)
    # Somebody of another version starts, and dies before its first tick.
    other, now = Every(0.5), await server_ms(client)
    await scripts_of(client).declare_schedule(
        keys=keys, name="tick", found=SOON.text, text=other.text, tick=other.next_after(now)
    )
    fired = left.fired
    await eventually(lambda: left.fired > fired)
    assert await client.call("HGET", keys.state, "cron:tick") == SOON.text.encode()


async def test_a_tick_far_too_late_is_brought_back_after_the_clock_was_wrong(client, keys, start):
    now = await server_ms(client)
    await stood_at(client, keys, DAILY.next_after(now + 3_650 * DAY_MS), DAILY)
    await start(schedule())
    await eventually(lambda: _equals(next_tick(client, keys), DAILY.next_after(now)))


async def test_a_next_tick_that_is_no_time_is_set_right_and_holds_up_no_other(client, keys, start):
    now = await server_ms(client)
    running = await start(schedule(), schedule(SOON, name="soon"))
    await eventually(lambda: _equals(next_tick(client, keys), DAILY.next_after(now)))
    await client.call("ZADD", keys.schedule, "-inf", "tick")
    fired = running.fired
    await eventually(lambda: _equals(next_tick(client, keys), DAILY.next_after(now)))
    await eventually(lambda: running.fired > fired + 10)
    assert not running.trouble()


async def test_jitter_delays_the_job_and_not_the_tick(client, keys, start):
    now = await server_ms(client)
    spread = schedule(Every(3600), jitter_s=0.5, missed="once")
    tick = now + 100
    while spread.delay_ms(tick) < 200:
        tick += 1
    await stood_at(client, keys, tick, spread.when)
    await start(spread)
    await moved_past(client, keys, tick)
    assert await server_ms(client) >= tick + spread.delay_ms(tick)
    assert await ticks(client, keys) == [tick]


async def test_jobs_go_to_the_end_that_the_queue_uses_and_to_their_lane(client, keys, start):
    await client.call("HSET", keys.state, "side", "left")
    await client.call("LPUSH", keys.waiting, make("old", 1))
    tick = await server_ms(client)
    await stood_at(client, keys, tick, DAILY)
    await stood_at(client, keys, tick, DAILY, name="first")
    await start(schedule(), schedule(name="first", lane="high"))
    await moved_past(client, keys, tick)
    await moved_past(client, keys, tick, "first")
    assert await ticks(client, keys) == [tick, 1]
    assert await ticks(client, keys, "high") == [tick]
    assert await client.call("HGET", keys.state, "lanes") == b"1"


async def test_a_tick_comes_with_its_record(client, keys, start):
    tick = await server_ms(client)
    await stood_at(client, keys, tick, DAILY)
    await start(schedule(fields=("task", "report", "max_retries", 3)))
    await moved_past(client, keys, tick)
    facts = await client.call("HGETALL", keys.record(f"cron:tick:{tick}"))
    record = dict(zip(facts[::2], facts[1::2], strict=True))
    assert record[b"job_id"] == f"cron:tick:{tick}".encode()
    assert (record[b"status"], record[b"task"], record[b"max_retries"]) == (
        *(b"queued", b"report", b"3"),
    )
    index = await client.call("ZRANGE", keys.jobs("queued"), 0, -1)
    assert index == [keys.record_name(f"cron:tick:{tick}").encode()]


async def test_a_tick_whose_record_is_there_is_not_queued_again(client, keys, start):
    tick = await server_ms(client)
    await client.call("HSET", keys.record(f"cron:tick:{tick}"), "status", "done")
    await stood_at(client, keys, tick, DAILY)
    await start(schedule(fields=()))
    await moved_past(client, keys, tick)
    assert await ticks(client, keys) == []


async def test_a_full_queue_keeps_the_tick_due(client, keys, start):
    await client.call("RPUSH", keys.waiting, make("old", 1))
    tick = await server_ms(client)
    await stood_at(client, keys, tick, DAILY)
    running = await start(schedule(max_size=1))
    await eventually(lambda: running._failures)
    assert await next_tick(client, keys) == tick
    assert await ticks(client, keys) == [1]
    await client.call("LPOP", keys.waiting)
    await moved_past(client, keys, tick)
    assert await ticks(client, keys) == [tick]


async def test_a_full_queue_gets_as_many_missed_ticks_as_fit(client, keys, start):
    when, now = Every(3600), await server_ms(client)
    first = when.next_after(now - 5 * 3_600_000)
    await stood_at(client, keys, first, when)
    running = await start(schedule(when, missed="all", max_size=3))
    await eventually(lambda: running._failures)
    assert await ticks(client, keys) == [first, first + 3_600_000, first + 7_200_000]
    assert await next_tick(client, keys) == first + 3 * 3_600_000


async def test_a_full_queue_may_lose_its_oldest_job_and_its_record_says_so(client, keys, start):
    await client.call("RPUSH", keys.waiting, make("cron:old:1", 1))
    record = keys.record("cron:old:1")
    await client.call("HSET", record, "status", "queued")
    tick = await server_ms(client)
    await stood_at(client, keys, tick, DAILY)
    await start(schedule(max_size=1, overflow="drop_oldest"))
    await moved_past(client, keys, tick)
    assert await ticks(client, keys) == [tick]
    assert await client.call("HGET", record, "status") == b"failed"


async def test_a_job_that_cannot_be_made_stops_no_other_schedule(client, keys, start, caplog):
    def broken(job_id, tick_ms):
        raise RuntimeError("no such template")

    tick = await server_ms(client)
    for name in ("broken", "sound"):
        await stood_at(client, keys, tick, DAILY, name)
    running = await start(schedule(name="broken", make=broken), schedule(name="sound"))
    await moved_past(client, keys, tick, "sound")
    assert await next_tick(client, keys, "broken") == tick
    await eventually(lambda: running._failures.get("schedule broken", 0) >= 3)
    assert "schedule broken" in (running.trouble() or "")
    assert "no such template" in caplog.text


async def test_schedules_are_listed_by_their_next_tick(client, keys, start):
    schedules = Schedules(client)
    schedules.add(schedule(name="daily"))
    schedules.add(schedule(Every(30 * 86_400), name="monthly", queue="other"))
    await start(*schedules.declared)
    tick = (await server_ms(client)) + 1_000_000
    await stood_at(client, keys, tick, DAILY, "left-over")
    await client.call("HDEL", keys.state, "cron_seen:left-over")

    async def listed():
        found = await Schedules(client).list()
        return len(found) == 3 and found

    found = await eventually(listed)
    assert found == sorted(found, key=lambda view: view.next_ms)
    by_name = {view.name: view for view in found}
    assert {name: view.orphan for name, view in by_name.items()} == {
        "daily": False,
        "monthly": False,
        "left-over": True,
    }
    assert by_name["monthly"].queue == "other"
    assert by_name["left-over"].next_ms == tick
    assert by_name["daily"].when == "cron UTC 0 0 * * *"


async def test_a_paused_schedule_passes_its_ticks_over(client, keys, start):
    schedules = Schedules(client)
    schedules.add(schedule(SOON, missed="all"))
    running = await start(*schedules.declared)
    await eventually(lambda: running.fired > 0)
    assert await schedules.pause("tick")
    assert not await schedules.pause("tick")
    view = await schedules.get("tick")
    assert (view.paused, view.next_ms) == (True, None)
    paused_at, count = await server_ms(client), len(await ticks(client, keys))
    await asyncio.sleep(0.2)
    assert len(await ticks(client, keys)) == count
    resumed_at = await server_ms(client)
    assert await schedules.resume("tick")
    assert not await schedules.resume("tick")

    async def again():
        return len(await ticks(client, keys)) > count

    await eventually(again)
    found = await ticks(client, keys)
    assert [tick for tick in found if paused_at < tick <= resumed_at] == []
    acts = await read_acts(client, keys.audit)
    assert [act.what for act in acts] == ["resume schedule", "pause schedule"]


async def test_a_new_start_does_not_wake_a_paused_schedule(client, keys, start):
    schedules = Schedules(client)
    schedules.add(schedule(SOON))
    await stood_at(client, keys, await server_ms(client), Every(7))
    assert await schedules.pause("tick")
    running = await start(*schedules.declared)
    await eventually(lambda: running._tables[0].declared)
    view = await schedules.get("tick")
    assert (view.paused, view.when) == (True, SOON.text)


async def test_a_schedule_can_be_triggered_now(client, keys):
    schedules = Schedules(client)
    schedules.add(schedule())
    before = await server_ms(client)
    job_id = await schedules.trigger("tick")
    assert await schedules.trigger("tick") != job_id
    found = await ticks(client, keys)
    assert before <= found[0] <= found[1]
    jobs = await client.call("LRANGE", keys.waiting, 0, -1)
    assert json.loads(jobs[0])["id"] == job_id
    assert await next_tick(client, keys) is None
    with pytest.raises(ConfigError, match="not declared"):
        await schedules.trigger("other")


async def test_a_full_queue_refuses_what_is_triggered(client, keys):
    schedules = Schedules(client)
    schedules.add(schedule(max_size=1))
    await schedules.trigger("tick")
    with pytest.raises(QueueError, match="full"):
        await schedules.trigger("tick")


async def test_a_removed_schedule_comes_back_with_the_next_start_only(client, keys, start):
    schedules = Schedules(client)
    running = await start(schedule(SOON))
    await eventually(lambda: running.fired > 0)
    assert await schedules.remove("tick")
    assert not await schedules.remove("tick")
    assert await schedules.list() == []
    await asyncio.sleep(1.5 * scheduling.LONGEST_LOOK_S)
    assert await next_tick(client, keys) is None
    fired = running.fired
    await start(schedule(SOON))
    await eventually(lambda: running.fired > fired)


async def test_nothing_is_left_of_a_removed_orphan(client, keys):
    await stood_at(client, keys, 1, DAILY)
    await client.call("HSET", keys.state, "cron_seen:tick", 1)
    await client.call("SADD", QueuesKeys.of(client.keys).registry, "work")
    assert await Schedules(client).remove("tick")
    assert await client.call("EXISTS", keys.state) == 0
    assert await client.call("EXISTS", keys.schedule) == 0


async def test_a_server_that_has_lost_everything_gets_its_schedules_again(client, keys, start):
    await start(schedule())
    await eventually(lambda: next_tick(client, keys))
    for key in (keys.state, keys.schedule):
        await client.call("DEL", key)
    await eventually(lambda: next_tick(client, keys))


MANY = 3 * PAGE
"""More than are read at a time."""


@pytest.fixture
async def many(client, keys):
    """Schedules for the day after tomorrow, known to the server."""
    tick = (await server_ms(client)) // DAY_MS * DAY_MS + 2 * DAY_MS
    when = Every(3 * 86_400)
    tick = when.next_after(tick)
    found = [schedule(when, name=f"s{number}") for number in range(MANY)]
    await client.pipeline([("ZADD", keys.schedule, tick, one.name) for one in found])
    declared = [("HSET", keys.state, f"cron:{one.name}", when.text) for one in found]
    await client.pipeline(declared)
    return found


def is_loaded(running):
    (table,) = running._tables
    return not table._doubtful


async def test_a_tick_does_not_read_all_the_others(client, keys, start, many, monkeypatch):
    running = await start(*many, schedule(SOON))
    await eventually(lambda: is_loaded(running))
    read, watch = [], scripts_of(client).watch_schedule

    async def count(**words):
        read.append(len(words["names"]))
        return await watch(**words)

    monkeypatch.setattr(scripts_of(client), "watch_schedule", count)
    fired = running.fired
    await eventually(lambda: running.fired >= fired + 20 and read)
    # A page and one more each second, in at least a second; a tick reads none.
    assert sum(read) < 20 * PAGE
    assert max(read) <= PAGE


async def test_one_of_many_schedules_goes_on_soon_after_it_was_resumed(
    client, keys, start, many, monkeypatch
):
    schedules = Schedules(client)
    for one in (*many, schedule(SOON)):
        schedules.add(one)
    running = await start(*schedules.declared)
    await eventually(lambda: running.fired)
    await schedules.pause("tick")
    assert len(await schedules.list()) == MANY + 1
    with monkeypatch.context() as patch:
        patch.setattr(
            scripts_of(client), "list_schedules", None
        )  # one does not cost as much as all
        assert (await schedules.get("tick")).paused
        assert await schedules.remove("s7")
    before = running.fired
    await schedules.resume("tick")
    await eventually(lambda: running.fired > before)


async def test_many_schedules_that_are_due_together_are_queued_once(client, keys, start):
    now, when = await server_ms(client), Every(3600)
    due = [schedule(when, name=f"s{number}", missed="once") for number in range(300)]
    for one in due:
        await stood_at(client, keys, when.next_after(now - 3_600_000), when, one.name)
    for _ in range(3):
        await start(*due)

    async def all_of_them():
        return await client.call("LLEN", keys.waiting) >= 300

    await eventually(all_of_them)
    jobs = await client.call("LRANGE", keys.waiting, 0, -1)
    assert len({json.loads(job)["id"] for job in jobs}) == len(jobs) == 300


async def test_one_name_is_declared_once(client):
    schedules = Schedules(client)
    schedules.add(schedule())
    with pytest.raises(ConfigError, match="twice"):
        schedules.add(schedule(DAILY, queue="other"))
    with pytest.raises(QueueError, match="no schedule"):
        await schedules.get("tick")


async def test_every_server_knows_the_scripts(any_server, namespace):
    settings = Settings(url=any_server.url, namespace=namespace, queues=QueueSettings())
    async with Client(settings) as client:
        keys = QueueKeyring.of(client.keys, "work")
        async with Scheduler(client, [schedule(SOON)]) as running:
            await eventually(lambda: running.fired >= 3)
            schedules = Schedules(client)
            assert await schedules.pause("tick")
            assert await schedules.resume("tick")
            assert [view.name for view in await schedules.list()] == ["tick"]
            assert await schedules.remove("tick")
        found = await ticks(client, keys)
        assert len(found) == len(set(found))
