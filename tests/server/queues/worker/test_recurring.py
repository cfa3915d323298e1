"""Tasks that recur: the jobs of their ticks are those that a call of the task would send."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from tests.kit.scripts import scripts_of

from penstock import Penstock
from penstock.delivery.retries import RetryPolicy
from penstock.errors import ConfigError, InvalidJob, InvalidName, QueueError
from penstock.queues.options import QueueOptions
from penstock.queues.registry import QueueRegistry
from penstock.queues.schedules.cron import Cron, Every
from penstock.queues.schedules.recurring import recurring_decorator, schedule_task
from penstock.queues.schedules.scheduler import Scheduler
from penstock.queues.schedules.schedules import Schedules
from penstock.queues.storage.keys import QueueKeyring
from penstock.queues.storage.stored_job import read_item
from penstock.queues.worker.job_context import current_job
from penstock.redis.codec import Codec
from penstock.settings import Settings
from penstock.testing.eventually import eventually

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


async def server_ms(client):
    seconds, micros = map(int, await client.call("TIME"))
    return seconds * 1000 + micros // 1000


async def moved_past(client, keys, tick_ms, name):
    async def has():
        stands = await client.call("ZSCORE", keys.schedule, name)
        return stands is not None and float(stands) > tick_ms

    await eventually(has)


@pytest.fixture
def registry(client):
    return QueueRegistry(client, Codec(client.settings.codec))


async def fire(client, keys, start, schedules, name):
    """Let the one tick of a daily schedule come now; the tick."""
    tick = await server_ms(client)
    await scripts_of(client).declare_schedule(
        keys=keys, name=name, found="", text=DAILY.text, tick=tick
    )
    await start(*schedules.declared)
    await moved_past(client, keys, tick, name)
    return tick


async def test_a_task_recurs_with_its_arguments_and_knows_its_tick(client, keys, registry, start):
    schedules = Schedules(client)

    def report(kind: str, *, copies: int = 1) -> None: ...

    task = registry.task(report, "work", name="report", priority="low", expires=60)
    schedule_task(schedules, task, DAILY, name="daily", args=("sales",), kwargs={"copies": 2})
    tick = await fire(client, keys, start, schedules, "daily")
    (stored,) = await client.call("LRANGE", keys.list_of("low"), 0, -1)
    item = read_item(stored, Codec(client.settings.codec))
    assert (item.id, item.task) == (f"cron:daily:{tick}", "report")
    assert task.signature.decode(item.args, item.kwargs) == (("sales",), {"copies": 2})
    assert item.meta.headers == {"scheduled_ms": str(tick)}
    assert (item.meta.expires_ms, item.meta.tracked) == (tick + 60_000, False)


async def test_a_decorated_function_is_a_task_that_recurs(client, keys, registry, start):
    schedules = Schedules(client)
    words = {"queue": "work", "name": "tidy", "missed": "once", "status": True}
    decorate = recurring_decorator(registry, schedules, DAILY, words)

    @decorate
    def tidy() -> str:
        return "tidy"

    assert tidy() == "tidy"
    assert registry.tasks["tidy"] is tidy
    # Said after the schedule, and in force all the same.
    registry.queue("work", QueueOptions(retry=RetryPolicy(max_attempts=7)))
    tick = await fire(client, keys, start, schedules, "tidy")
    record = await tidy.job(f"cron:tidy:{tick}").status()
    assert (record.job_id, record.status) == (f"cron:tidy:{tick}", "queued")
    assert (record.task, record.max_attempts) == ("tidy", 7)


async def test_a_tick_is_passed_over_while_the_last_job_holds_its_key(
    client, keys, registry, start
):
    schedules = Schedules(client)
    task = registry.task(lambda: None, "work", name="slow", unique=True)
    schedule_task(schedules, task, SOON, missed="all")
    before = await schedules.trigger("slow")
    with pytest.raises(QueueError, match="has not ended"):
        await schedules.trigger("slow")
    running = await start(*schedules.declared)
    await moved_past(client, keys, await server_ms(client), "slow")
    assert running.fired == 0
    (stored,) = await client.call("LRANGE", keys.waiting, 0, -1)
    item = read_item(stored, Codec(client.settings.codec))
    assert item.id == before
    await client.call("DEL", keys.unique(item.meta.unique))
    await eventually(lambda: running.fired == 1)
    assert await client.call("LLEN", keys.waiting) == 2


async def test_what_cannot_recur_is_refused_where_it_is_declared(client, registry):
    def report(kind: str) -> None: ...

    task = registry.task(report, "work", name="report")
    with pytest.raises(InvalidJob, match="kind"):
        schedule_task(Schedules(client), task, DAILY)
    with pytest.raises(InvalidName):
        schedule_task(Schedules(client), task, DAILY, name="a b", args=("x",))


async def test_a_task_may_have_many_schedules(client, registry):
    schedules = Schedules(client)

    def export(kind: str) -> None: ...

    task = registry.task(export, "work", name="export")
    for kind in ("sales", "stock"):
        words = {"name": f"export-{kind}", "args": (kind,)}
        decorate = recurring_decorator(registry, schedules, DAILY, words)
        assert decorate(task) is task
    declared = {one.name: one.queue for one in schedules.declared}
    assert declared == {"export-sales": "work", "export-stock": "work"}
    decorate = recurring_decorator(registry, schedules, DAILY, {"status": True})
    with pytest.raises(ConfigError, match="status"):
        decorate(task)


async def test_an_app_lets_functions_recur_while_its_worker_runs(client, namespace):
    url = client.settings.url
    async with Penstock(settings=Settings(url=url, namespace=namespace)) as app:
        ran = []

        @app.every(0.05, queue="work", name="often", missed="all")
        async def often() -> None:
            ran.append(current_job().headers["scheduled_ms"])

        @app.cron("0 6 * * MON", tz="Europe/Berlin", queue="work", name="weekly", missed="once")
        async def weekly(kind: str = "all") -> None:
            ran.append(kind)

        app.cron("0 2 * * *", args=("sales",), name="weekly-sales")(weekly)
        with pytest.raises(ConfigError, match="bad minute"):
            app.cron("61 * * * *")
        worker = app.worker()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(worker.run())

            async def listed():
                return {view.name: view.when for view in await app.schedules.list()}

            await eventually(lambda: _has(listed, 3))
            assert (await listed())["weekly"] == "cron Europe/Berlin 0 6 * * MON"
            assert await app.schedules.trigger("weekly-sales")
            await eventually(lambda: "sales" in ran and len(ran) >= 4)
            await worker.stop()
        assert running.result() == 0
    ticks = [int(tick) for tick in ran if tick != "sales"]
    assert ticks == list(range(ticks[0], ticks[-1] + 1, 50))


async def _has(asked, count):
    return len(await asked()) == count


async def test_a_job_dropped_by_a_tick_lets_its_unique_key_go(client, keys, registry, start):
    schedules = Schedules(client)
    registry.queue("work", QueueOptions(max_size=1, overflow="drop_oldest"))
    task = registry.task(lambda: None, "work", name="slow", unique="one at a time")
    schedule_task(schedules, task, DAILY)
    other = registry.task(lambda: None, "work", name="other")
    schedule_task(schedules, other, DAILY)
    await schedules.trigger("slow")
    assert await client.call("EXISTS", keys.unique("one at a time")) == 1
    await schedules.trigger("other")
    assert await client.call("EXISTS", keys.unique("one at a time")) == 0
    await schedules.trigger("slow")
