"""Idle workers: what they cost, whom a job wakes, and who looks after a queue meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import pytest
from tests.kit.patience import patient
from tests.kit.scripts import scripts_of
from tests.kit.workplace import Workplace

from penstock.queues.storage.keys import QueueKeyring
from penstock.settings import QueueSettings
from penstock.testing import eventually as waits
from penstock.testing.eventually import eventually

RARELY = {"poll_s": 10.0, "silence_s": 600.0, "beat_s": 30.0}
"""Nothing is found by looking within the time of a test."""


@pytest.fixture(autouse=True)
def sooner_than_by_looking(monkeypatch):
    """What is found by looking alone comes after `poll_s`, which is 10 s at most."""
    monkeypatch.setattr(waits, "WITHIN_S", 9.0)


@pytest.fixture(params=["one server", "cluster"])
async def anywhere(request, namespace):
    """Where applications run workers, on one server and on a cluster."""
    name = {"one server": "valkey_server", "cluster": "cluster"}[request.param]
    async with Workplace(request.getfixturevalue(name).url, namespace) as place:
        yield place


def with_queues(app, names, ran):
    """A task on each of the queues; what runs is noted as (queue, argument)."""
    tasks = []
    for name in names:

        @app.task(queue=name, name=f"note-{name}")
        async def note(value: object = None, name: str = name) -> None:
            ran.append((name, value))

        tasks.append(note)
    return tasks


@asynccontextmanager
async def scripts_called(*apps):
    """Count the scripts that applications call, and whether keys exist: by application and name."""
    called: Counter[tuple[int, str]] = Counter()
    for number, app in enumerate(apps):
        scripts, client = scripts_of(app.redis), app.redis
        run, call = scripts.run, client.call

        async def counted(name, *rest, run=run, number=number, **more):
            called[number, name] += 1
            return await run(name, *rest, **more)

        async def asked(*command, call=call, number=number, **more):
            if command[0] == "EXISTS":
                called[number, "EXISTS"] += 1
            return await call(*command, **more)

        scripts.run, client.call = counted, asked
    try:
        yield called
    finally:
        for app in apps:
            del scripts_of(app.redis).run, app.redis.call


@asynccontextmanager
async def client_commands(server):
    """Count what clients send to a server, without what scripts call."""
    reader, writer = await asyncio.open_unix_connection(server.socket_path)
    writer.write(b"MONITOR\r\n")
    assert await reader.readline() == b"+OK\r\n"
    seen: Counter[str] = Counter()

    async def read():
        while line := await reader.readline():
            if b" lua] " not in line:
                seen[line.split(b'"')[1].decode().upper()] += 1

    reading = asyncio.create_task(read())
    try:
        yield seen
    finally:
        reading.cancel()
        writer.close()


async def idle(app, *names):
    """Wait until every worker of these queues waits to be woken."""
    for name in names:
        keys = QueueKeyring.of(app.redis.keys, name)

        async def is_tended(keys=keys):
            return await app.redis.call("HGET", keys.state, "tender") is not None

        await eventually(is_tended)


# ---- what idle workers cost


async def test_an_idle_worker_sends_few_commands_however_many_queues_it_has(
    start_server, namespace
):
    server = start_server("valkey")
    names = [f"q{number}" for number in range(20)]
    defaults = QueueSettings()
    async with Workplace(server.url, namespace) as place:
        for _ in range(5):
            app = await place.open(
                poll_s=defaults.poll_s, beat_s=defaults.beat_s, silence_s=defaults.silence_s
            )
            with_queues(app, names, [])
            await place.start(app)
        await idle(app, *names)
        async with client_commands(server) as seen:
            await asyncio.sleep(4)  # the time of the measurement
        # Ten a second are the looks of the only process that tends the queues.
        assert seen.total() < 4 * (10 + 5 * 2.5), seen
        # Most of them only ask whether there are keys.
        assert seen["EVALSHA"] < 4 * (2 + 5 * 1.5), seen


async def test_a_worker_needs_few_connections_however_many_queues_it_has(start_server, namespace):
    server, ran = start_server("valkey"), []
    names = [f"q{number}" for number in range(40)]
    async with Workplace(server.url, namespace) as place:
        app = await place.open(**RARELY)
        tasks = with_queues(app, names, ran)
        await place.start(app)
        await idle(app, *names)
        for task in tasks:
            await task.with_options(priority="high").send(1)
            await task.with_options(group="tenant").send(2)
            await task.send(3)
        await eventually(lambda: len(ran) == 120)
        clients = (await app.redis.call("CLIENT", "LIST")).decode()
        assert clients.count("name=penstock") < 10


# ---- whom a job wakes


async def test_a_job_wakes_one_worker_of_many(workplace):
    apps, ran = [await workplace.open(**RARELY) for _ in range(6)], []
    for app in apps:
        (note,) = with_queues(app, ["mail"], ran)
        await workplace.start(app)
    await idle(apps[0], "mail")
    async with scripts_called(*apps) as called:
        for number in range(1, 11):
            await note.send(number)
            await eventually(lambda number=number: len(ran) == number)
        claims = Counter({who: n for (who, name), n in called.items() if name == "claim_jobs"})
    # Each of the ten jobs: a claim that takes it and one that acknowledges it.
    assert claims.total() <= 30


async def test_many_jobs_wake_many_workers(workplace):
    release = asyncio.Event()
    apps, running = [await workplace.open(**RARELY) for _ in range(6)], []
    for number, app in enumerate(apps):

        @app.task(queue="mail", name="wait")
        async def wait(number: int = number) -> None:
            running.append(number)
            await release.wait()

        await workplace.start(app, concurrency=1)
    await wait.send_many([()] * 6)
    await eventually(lambda: len(running) == 6)
    assert sorted(running) == [0, 1, 2, 3, 4, 5]
    release.set()


async def test_a_busy_worker_leaves_a_wake_up_to_another(workplace):
    release = asyncio.Event()
    first, second = [await workplace.open(**RARELY) for _ in range(2)]
    running = []
    for number, app in enumerate((first, second)):

        @app.task(queue="mail", name="wait")
        async def wait(number: int = number) -> None:
            running.append(number)
            await release.wait()

    await workplace.start(first, concurrency=1)
    await wait.send()
    await eventually(lambda: running == [0])
    await workplace.start(second, concurrency=1)
    await idle(second, "mail")
    await wait.send()
    await eventually(lambda: running == [0, 1])
    release.set()


@pytest.mark.parametrize("options", [{}, {"priority": "low"}, {"group": "tenant"}], ids=str)
async def test_every_lane_of_every_queue_wakes_a_worker_at_once(anywhere, options):
    app, ran = await anywhere.open(**RARELY), []
    names = [f"q{number}" for number in range(8)]
    tasks = with_queues(app, names, ran)
    await anywhere.start(app)
    for number in range(3):
        for task in tasks:
            await task.with_options(**options).send(number)
        await eventually(lambda number=number: len(ran) == 8 * (number + 1))


async def test_jobs_that_come_back_wake_a_worker_at_once(workplace):
    app, ran = await workplace.open(**RARELY), []
    (note,) = with_queues(app, ["mail"], ran)
    keys, scripts = note.queue.keyring, scripts_of(app.redis)
    await scripts.join_queue(keys=keys, worker="w")
    await note.send_many([(1,), (2,)])
    await scripts.claim_jobs(keys=keys, worker="w", first=1, most=2, done=())
    await workplace.start(app)
    await idle(app, "mail")
    await scripts.give_back(keys=keys, worker="w", jobs=("1", "", ""))
    await eventually(lambda: len(ran) == 1)
    await scripts.leave_queue(keys=keys, worker="w")
    await app.queues.pause("mail")
    await note.send(3)
    await app.queues.resume("mail")
    await eventually(lambda: ("mail", 3) in ran)


# ---- who looks after a queue


async def tender_of(app, name):
    keys = QueueKeyring.of(app.redis.keys, name)
    return await app.redis.call("HGET", keys.state, "tender")


async def test_one_process_at_a_time_looks_after_a_queue(workplace):
    apps, ran = [await workplace.open(poll_s=0.02) for _ in range(3)], []
    workers = []
    for app in apps:
        with_queues(app, ["mail"], ran)
        workers.append(await workplace.start(app))
    await idle(apps[0], "mail")
    first = await tender_of(apps[0], "mail")
    async with scripts_called(*apps) as called:
        await eventually(lambda: called.most_common(1)[0][1] >= 20 if called else False)
        looks = Counter({who: n for (who, name), n in called.items() if name == "EXISTS"})
    assert [who for who, count in looks.items() if count >= 10] == [0]
    await workplace.stop(workers[0])  # it leaves the queue to another at once
    await eventually(lambda: _changed(apps[1], first), patient(0.5))


async def _changed(app, old):
    return await tender_of(app, "mail") not in (None, old)


async def test_one_process_takes_over_all_queues_of_one_that_stops(start_server, namespace):
    """Else each would send looks of its own, ever more of them with every deploy."""
    server = start_server("valkey")
    names = [f"q{number}" for number in range(20)]
    async with Workplace(server.url, namespace) as place:
        apps = [await place.open() for _ in range(5)]
        workers = []
        for app in apps:
            with_queues(app, names, [])
            workers.append(await place.start(app))
        for worker in workers[:3]:
            await idle(apps[-1], *names)
            tenders = {await tender_of(apps[-1], name) for name in names}
            assert len(tenders) == 1, tenders
            await place.stop(worker)


async def test_a_tender_that_is_gone_is_replaced_when_its_lease_ends(workplace):
    app = await workplace.open(poll_s=0.02)
    (note,) = with_queues(app, ["mail"], [])
    await app.redis.call(
        "EVAL",
        "local now = redis.call('TIME')[1] * 1000 "
        "redis.call('HSET', KEYS[1], 'tender', 'ghost', 'tended_until', now + 1500)",
        1,
        note.queue.keyring.state,
    )
    await workplace.start(app)
    await eventually(lambda: _changed(app, b"ghost"))


async def test_a_lease_from_before_the_clock_was_set_back_does_not_count(workplace):
    app = await workplace.open(poll_s=0.02)
    (note,) = with_queues(app, ["mail"], [])
    await app.redis.call(
        "HSET", note.queue.keyring.state, "tender", "ghost", "tended_until", 10**14
    )
    await workplace.start(app)
    await eventually(lambda: _changed(app, b"ghost"))


async def test_signs_and_claims_say_that_such_a_lease_does_not_count(workplace):
    """Workers that do not tend the queue look only if these say so."""
    app = await workplace.open()
    keys, scripts = app.queue("mail").keyring, scripts_of(app.redis)
    await scripts.join_queue(keys=keys, worker="w")
    for left_ms, is_tended in ((1_500, True), (-1, False), (7_200_000, False)):
        until = int((await app.redis.call("TIME"))[0]) * 1000 + left_ms
        await app.redis.call("HSET", keys.state, "tender", "ghost", "tended_until", until)
        said = await scripts.beat_queue(keys=keys, worker="w")
        reply = await scripts.claim_jobs(keys=keys, worker="w", first=1, most=1, done=())
        assert (said & 2 == 0, reply[3] & 16 == 0) == (is_tended, is_tended)


@pytest.mark.parametrize("lane", ["", "high"])
async def test_jobs_of_programs_that_wake_nobody_are_found(anywhere, lane):
    app, ran = await anywhere.open(poll_s=0.02), []

    @app.queue("mail").handler
    async def handle(job: dict[str, int]) -> None:
        ran.append(job["n"])

    await anywhere.start(app)
    keys = QueueKeyring.of(app.redis.keys, "mail")
    for number in range(3):
        await app.redis.call("RPUSH", keys.list_of(lane), f'{{"n":{number}}}')
        await eventually(lambda number=number: ran == list(range(number + 1)))


async def test_a_lost_wake_up_costs_no_more_than_a_look(valkey_server, fault_proxy, namespace):
    proxy, ran = fault_proxy(valkey_server), []
    async with Workplace(proxy.url, namespace) as place:
        app = await place.open(poll_s=0.02)
        (note,) = with_queues(app, ["mail"], ran)
        await place.start(app)
        for number in range(1, 4):
            await idle(app, "mail")
            proxy.swallow("BLPOP")
            await note.send(number)
            await eventually(lambda number=number: len(ran) >= number)


async def test_a_foreign_key_in_place_of_the_wake_ups_harms_no_queue(workplace):
    app, ran = await workplace.open(poll_s=0.02), []
    tasks = with_queues(app, ["mail", "video"], ran)
    keys = tasks[0].queue.keyring
    await app.redis.call("SET", keys.wakeup, "foreign")
    await workplace.start(app)
    for task in tasks:
        await task.send(1)
    await eventually(lambda: len(ran) == 2)
    for task in tasks:
        await task.send(2)
    await eventually(lambda: len(ran) == 4)
    assert await app.redis.call("GET", keys.wakeup) == b"foreign"


@pytest.mark.parametrize("key", ["high", "delayed"])
async def test_every_process_reports_a_foreign_key_that_one_has_found(workplace, key):
    apps = [await workplace.open(silence_s=0.5) for _ in range(3)]
    workers = []
    for app in apps:
        (note,) = with_queues(app, ["mail"], [])
        workers.append(await workplace.start(app))
    await idle(apps[0], "mail")
    keys = note.queue.keyring
    name = keys.delayed if key == "delayed" else keys.list_of(key)
    await apps[0].redis.call("SET", name, "foreign")
    for worker in workers:
        await eventually(lambda worker=worker: name in str(worker.readiness().reasons))
    await apps[0].redis.call("DEL", name)
    for worker in workers:
        await eventually(lambda worker=worker: worker.readiness().ready)


async def test_a_paused_queue_wakes_nobody(workplace):
    app, ran = await workplace.open(poll_s=0.01), []
    (note,) = with_queues(app, ["mail"], ran)
    await app.queues.pause("mail")
    await note.send(1)
    await workplace.start(app)
    await idle(app, "mail")
    async with scripts_called(app) as called:
        await eventually(lambda: called[0, "tend_queues"] >= 20)
        assert called[0, "claim_jobs"] <= 3
    assert ran == []
