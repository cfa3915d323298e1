"""Tasks with `concurrency=`: jobs over the limit hold no place, and hold up nothing else."""

import asyncio
import collections
import threading

import pytest
from tests.kit.patience import patient
from tests.kit.scripts import scripts_of
from tests.kit.workplace import counters, in_hand, letters, record, stored

from penstock import Fixed, QueueFull, RetryPolicy, current_job
from penstock.queues.options import GateDecision
from penstock.queues.storage.stored_job import read_item
from penstock.redis.codec import Codec
from penstock.settings import CodecSettings
from penstock.testing.eventually import eventually
from penstock.testing.queues import run_until_idle


class Hall:
    """Jobs that stay until they are let out, and how many there were at once."""

    def __init__(self):
        self.inside, self.most, self.ended = 0, 0, []
        self.doors = asyncio.Event()

    async def visit(self, number):
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self.doors.wait()
        self.inside -= 1
        self.ended.append((number, current_job().attempt))


def hall_task(app, hall, limit=1, **options):
    @app.task(queue="mail", name="heavy", concurrency=limit, **options)
    async def heavy(number: int) -> None:
        await hall.visit(number)

    return heavy


def quick_task(app, ran):
    @app.task(queue="mail", name="quick")
    async def quick(number: int) -> None:
        ran.append(number)

    return quick


async def few_in_hand(queue, most):
    return await in_hand(queue) <= most


@pytest.mark.parametrize("many", [100, 10_000])
async def test_quick_jobs_behind_many_of_a_limited_task_run_at_once(workplace, many):
    app, hall, ran = await workplace.open(max_size=0), Hall(), []
    heavy, quick = hall_task(app, hall), quick_task(app, ran)
    await heavy.send_many([(number,) for number in range(many)])
    await quick.send_many([(number,) for number in range(20)])
    await workplace.start(app, concurrency=8)
    await eventually(lambda: len(ran) == 20)
    assert (hall.inside, hall.most) == (1, 1)
    await eventually(lambda: few_in_hand(heavy.queue, 1))
    # They come back bit by bit; what that costs does not grow with their number.
    before = (await counters(heavy.queue))["set_aside"]
    await asyncio.sleep(1)
    after = (await counters(heavy.queue))["set_aside"]
    assert after - before <= 750
    assert hall.most == 1
    assert await letters(heavy.queue) == []


async def test_all_jobs_of_a_limited_task_run_once_and_uncharged(workplace):
    apps = [await workplace.open(), await workplace.open()]
    halls, ran = [Hall(), Hall()], []
    heavy, _ = [hall_task(app, hall, 2) for app, hall in zip(apps, halls, strict=True)]
    for app in apps:
        quick_task(app, ran)
    await heavy.send_many([(number,) for number in range(60)])
    for app in apps:
        await workplace.start(app, concurrency=6)
    await eventually(lambda: [hall.inside for hall in halls] == [2, 2])
    await apps[0].send("quick", (1,), queue="mail")
    await eventually(lambda: ran == [1])
    for hall in halls:
        hall.doors.set()
    await eventually(lambda: sum(len(hall.ended) for hall in halls) == 60)
    assert sorted(halls[0].ended + halls[1].ended) == [(number, 1) for number in range(60)]
    assert max(hall.most for hall in halls) == 2
    await eventually(lambda: few_in_hand(heavy.queue, 0))


async def test_jobs_of_a_queues_only_task_stay_on_the_list_while_it_is_at_its_limit(workplace):
    """There are no others to find behind them, so nothing is set aside but what was claimed."""
    app, hall = await workplace.open(max_size=0), Hall()
    heavy = hall_task(app, hall)
    await heavy.send_many([(number,) for number in range(500)])
    await workplace.start(app, concurrency=8)
    await eventually(lambda: hall.inside == 1)
    await eventually(lambda: few_in_hand(heavy.queue, 1))
    assert (await counters(heavy.queue))["set_aside"] <= 8
    assert len(await stored(heavy.queue)) >= 500 - 8
    hall.doors.set()
    await eventually(lambda: len(hall.ended) == 500)
    assert sorted(hall.ended) == [(number, 1) for number in range(500)]


async def test_quick_jobs_of_a_limited_task_are_claimed_once(workplace):
    app, ran = await workplace.open(max_size=0), []

    @app.task(queue="mail", concurrency=4)
    async def brief(number: int) -> None:
        await asyncio.sleep(0)
        ran.append(number)

    await brief.send_many([(number,) for number in range(3_000)])
    await workplace.start(app)
    await eventually(lambda: len(ran) == 3_000)
    assert (await counters(brief.queue)).get("set_aside", 0) <= 300
    assert sorted(ran) == list(range(3_000))


async def test_jobs_kept_for_a_quick_task_are_let_go_when_it_hangs(workplace):
    apps, hall, ran = [await workplace.open(), await workplace.open()], Hall(), []

    def brief_task(app, hangs):
        @app.task(queue="mail", name="brief", concurrency=1)
        async def brief(number: int) -> None:
            if number < 0 and hangs:
                await hall.visit(number)
            else:
                await asyncio.sleep(0.001)
            ran.append(number)

        return brief

    brief, _ = brief_task(apps[0], True), brief_task(apps[1], False)
    await workplace.start(apps[0], concurrency=8)
    await brief.send_many([(number,) for number in range(20)])
    await eventually(lambda: len(ran) == 20)
    await brief.send_many([(-1,), *((number,) for number in range(20, 60))])
    await eventually(lambda: hall.inside == 1)
    await workplace.start(apps[1], concurrency=8)
    await eventually(lambda: len(ran) == 60)
    assert (hall.inside, sorted(ran)) == (1, list(range(60)))
    hall.doors.set()


async def test_jobs_come_back_in_their_order_and_to_their_lanes(workplace):
    app, hall = await workplace.open(), Hall()
    heavy, _ = hall_task(app, hall), quick_task(app, [])
    worker = await workplace.start(app, concurrency=4)
    hall.doors.set()
    await heavy.send(-1)
    await eventually(lambda: hall.ended)  # a quick task, so what comes back is kept
    hall.doors.clear()
    hall.ended.clear()
    await heavy.send(0)
    await eventually(lambda: hall.inside == 1)
    for number in range(1, 9):
        await heavy.with_options(group="ann").send(number)
    bodies = heavy.queue.keyring.delayed_bodies

    async def all_aside():
        return await app.redis.call("HLEN", bodies) == 8

    await eventually(all_aside)
    heads = {body.partition(b"\n")[0] for body in await app.redis.call("HVALS", bodies)}
    assert heads == {b"fann"}
    hall.doors.set()
    await eventually(lambda: len(hall.ended) == 9)
    assert [number for number, _ in hall.ended] == list(range(9))
    assert worker.readiness().ready


async def test_jobs_that_were_set_aside_are_recalled_in_their_order(workplace):
    app = await workplace.open()
    heavy = hall_task(app, Hall())
    jobs = await heavy.send_many([(number,) for number in range(5)])
    keys, scripts = heavy.queue.keyring, scripts_of(app.redis)
    await scripts.join_queue(keys=keys, worker="w")
    await scripts.claim_jobs(keys=keys, worker="w", first=1, most=5, done=())
    told = [part for claim, job in enumerate(jobs, 1) for part in (claim, job.id, "")]
    await scripts.set_aside(keys=keys, worker="w", wait_ms=60_000, step_ms=1_000, jobs=told)
    # One has come back by itself meanwhile, has failed, and waits for its next attempt.
    await app.redis.call("ZADD", keys.delayed, 9e12, jobs[1].id)
    assert await scripts.recall_jobs(keys=keys, most=3) == 2
    claimed = await scripts.claim_jobs(keys=keys, worker="w", first=9, most=9, done=())
    _, taken = claimed.lanes
    assert [read_item(item, Codec(CodecSettings())).id for item in taken] == [
        jobs[0].id,
        jobs[2].id,
    ]
    assert await scripts.recall_jobs(keys=keys, most=9) == 2
    assert await scripts.recall_jobs(keys=keys, most=9) == 0


async def test_places_of_a_limited_task_stay_busy_whatever_was_set_aside(workplace):
    """What was set aside for a minute comes back as soon as there is a place."""
    app, hall = await workplace.open(max_size=0), Hall()
    heavy, _ = hall_task(app, hall, 2), quick_task(app, [])
    await heavy.send_many([(number,) for number in range(3_000)])
    await workplace.start(app, concurrency=8)
    await eventually(lambda: hall.inside == 2)
    await eventually(lambda: few_in_hand(heavy.queue, 2))
    hall.doors.set()
    await eventually(lambda: len(hall.ended) == 3_000, patient(8))  # 12 s at 250 a second


async def test_a_job_that_was_set_aside_can_be_cancelled(workplace):
    app, hall = await workplace.open(), Hall()
    heavy = hall_task(app, hall, status=True)
    await heavy.send(0)
    await workplace.start(app, concurrency=4)
    await eventually(lambda: hall.inside == 1)
    jobs = [await heavy.send(number) for number in (1, 2, 3)]
    await eventually(lambda: few_in_hand(heavy.queue, 1))
    said = await record(heavy.queue, jobs[0].id)
    assert said["status"] == "queued"
    assert await jobs[0].cancel()
    hall.doors.set()
    for job in jobs[1:]:
        await job.wait(timeout_s=60)
    assert (await jobs[0].status()).status == "cancelled"
    assert sorted(number for number, _ in hall.ended) == [0, 2, 3]


async def test_a_worker_that_stops_leaves_no_job_of_a_limited_task_behind(workplace):
    app, hall = await workplace.open(), Hall()
    heavy = hall_task(app, hall, 2)
    await heavy.send_many([(number,) for number in range(30)])
    worker = await workplace.start(app, concurrency=8)
    await eventually(lambda: hall.inside == 2)
    stopping = asyncio.create_task(workplace.stop(worker))
    await eventually(lambda: "stopping" in str(worker.readiness()))
    hall.doors.set()
    assert await stopping == 0
    assert await in_hand(heavy.queue) == 0
    kept = len(await stored(heavy.queue)) + await app.redis.call(
        "ZCARD", heavy.queue.keyring.delayed
    )
    assert kept + len(hall.ended) == 30


async def test_an_abandoned_thread_counts_against_the_limit_of_its_task(workplace):
    app, release, now, most = await workplace.open(), threading.Event(), [], []
    quick_task(app, [])

    @app.task(queue="mail", concurrency=1, timeout_s=0.1, retry=RetryPolicy(2, Fixed(0.01)))
    def heavy() -> None:
        now.append(1)
        most.append(len(now))
        release.wait(30)
        now.pop()

    await heavy.send()
    worker = await workplace.start(app, concurrency=4)
    await eventually(lambda: "1 of 4 places" in str(worker.readiness()))
    await heavy.send()

    async def set_aside():
        return (await counters(heavy.queue)).get("set_aside", 0) > 2

    await eventually(set_aside)
    release.set()
    await eventually(lambda: len(most) >= 3)
    assert max(most) == 1


async def test_a_full_queue_is_noticed_although_jobs_are_set_aside(workplace):
    """What is set aside is bounded by the size of the queue; what is beyond fills the queue."""
    app, hall = await workplace.open(max_size=50), Hall()
    heavy, _ = hall_task(app, hall), quick_task(app, [])
    await heavy.send(0)
    await workplace.start(app, concurrency=4)
    await eventually(lambda: hall.inside == 1)
    sent = 1
    for _ in range(400):
        result = await app.add_to_queue_safe(
            "mail", {"task": "heavy", "args": [sent], "id": f"j{sent}"}
        )
        if not result.success:
            break
        sent += 1
    assert not result.success
    assert sent < 200
    hall.doors.set()
    await eventually(lambda: len(hall.ended) == sent)


async def test_jobs_that_are_set_aside_leave_the_queue_its_room_for_delayed_ones(workplace):
    app, hall = await workplace.open(max_size=20), Hall()
    heavy, quick = hall_task(app, hall), quick_task(app, [])
    await workplace.start(app, concurrency=4)
    await heavy.send(0)
    await eventually(lambda: hall.inside == 1)
    await heavy.send_many([(number,) for number in range(1, 20)])
    delayed = heavy.queue.keyring.delayed

    async def are_aside():
        return await app.redis.call("ZCARD", delayed) >= 15

    await eventually(are_aside)
    later = quick.with_options(delay=60)
    for number in range(20):
        await later.send(number)
    with pytest.raises(QueueFull):
        await later.send(20)
    hall.doors.set()
    await eventually(lambda: len(hall.ended) == 20)


class Gate:
    """Lets everything through, and counts."""

    def __init__(self):
        self.granted = 0

    async def admit(self, queue, wanted):
        self.granted += wanted
        return GateDecision(wanted)

    async def give_back(self, queue, count):
        self.granted -= count


async def test_permits_of_a_gate_are_not_used_by_jobs_that_are_set_aside(workplace):
    app, hall, gate = await workplace.open(), Hall(), Gate()
    app.queue("mail", gate=gate)
    heavy = hall_task(app, hall)
    await heavy.send_many([(number,) for number in range(20)])
    worker = await workplace.start(app, concurrency=4)
    await eventually(lambda: few_in_hand(heavy.queue, 1))
    hall.doors.set()
    await eventually(lambda: len(hall.ended) == 20)
    await workplace.stop(worker)
    assert gate.granted == 20


async def test_a_run_until_idle_waits_for_what_was_set_aside(workplace):
    app, ran = await workplace.open(), collections.Counter()

    @app.task(queue="mail", concurrency=1)
    async def heavy(number: int) -> None:
        await asyncio.sleep(0.005)
        ran[number] += 1

    await heavy.send_many([(number,) for number in range(30)])
    told = await run_until_idle(app)
    assert told.done == 30
    assert ran == collections.Counter(range(30))


@pytest.mark.parametrize("limit", [1, 3])
async def test_a_raw_handler_with_a_limit_keeps_it(workplace, limit):
    app, hall = await workplace.open(), Hall()

    @app.queue("mail").handler(concurrency=limit)
    async def handle(job: dict) -> None:
        await hall.visit(job["number"])

    for number in range(12):
        await app.queue("mail").push({"number": number})
    await workplace.start(app, concurrency=6)
    await eventually(lambda: hall.inside == limit)
    hall.doors.set()
    await eventually(lambda: len(hall.ended) == 12)
    assert hall.most == limit
