"""Queues on a cluster: each on one node, with all that belongs to it, and all of them at work."""

import asyncio
import json

import pytest
from tests.kit.workplace import Workplace, claim_as, counters, in_hand, letters, stored

from penstock import Fixed, RetryPolicy, current_job
from penstock.queues.storage.keys import lane_name
from penstock.redis.keys.hash_slot import key_slot
from penstock.testing.eventually import eventually
from penstock.testing.queues import clock


@pytest.fixture
async def workplace(cluster, namespace):
    async with Workplace(cluster.url, namespace) as place:
        yield place


@pytest.fixture
async def app(workplace):
    return await workplace.open(silence_s=0.6)


def two_on_different_nodes(cluster, app):
    """Names of two queues that are not on the same node."""
    homes = {}
    for number in range(100):
        name = f"queue{number}"
        node = cluster.primary_of(cluster.slot_of(app.queue(name).keyring.waiting))
        homes.setdefault(node.address, name)
        if len(homes) == 2:
            return list(homes.values())
    raise AssertionError("all queues are on one node")


async def test_all_keys_of_a_queue_share_a_slot(app):
    keys = app.queue("rag:ingest:queue").keyring
    names = [keys.waiting, keys.state, keys.counters, keys.overflow, keys.dead_letters, keys.ring]
    names += [keys.parked, keys.weights, keys.delayed, keys.delayed_bodies, keys.workers]
    names += [keys.dead_workers, keys.schedule, keys.audit, keys.claimed("w"), keys.record("j")]
    names += [keys.unique("u"), keys.jobs("done"), keys.runnings + "g", keys.list_of("high")]
    names += [keys.list_of(lane_name("{x}"))]
    assert len({key_slot(name) for name in names}) == 1


async def test_two_queues_on_different_nodes_are_worked_off_by_one_worker(workplace, app, cluster):
    first, second = two_on_different_nodes(cluster, app)
    ran = []
    for name in (first, second):

        @app.task(queue=name, name=f"note.{name}", status=True)
        async def note(number: int) -> str:
            ran.append((current_job().queue, number))
            return current_job().queue

    await workplace.start(app)
    jobs = [
        await app.send(f"note.{name}", (number,), queue=name)
        for number in range(20)
        for name in (first, second)
    ]
    results = await asyncio.gather(*(job.result(timeout_s=60) for job in jobs))
    assert results == [first, second] * 20
    for name in (first, second):
        assert sorted(number for queue, number in ran if queue == name) == list(range(20))
        keys = app.queue(name).keyring
        here = cluster.primary_of(cluster.slot_of(keys.waiting))
        assert here.command("HGET", keys.counters, "done") == "20"


async def test_what_any_program_pushes_on_a_cluster_is_handled(workplace, app, cluster, namespace):
    seen = []

    @app.queue("detection_queue").handler
    async def detect(job: dict) -> None:
        seen.append(job)

    key = f"{namespace}::{{detection_queue}}"
    assert app.queue("detection_queue").keyring.waiting == key
    await workplace.start(app)
    cluster.primary_of(cluster.slot_of(key)).command("RPUSH", key, '{"camera_id":"front_door"}')
    await eventually(lambda: seen == [{"camera_id": "front_door"}])


async def test_retries_records_and_dead_letters(workplace, app):
    attempts = []

    @app.task(queue="mail", status=True, retry=RetryPolicy(max_attempts=3, backoff=Fixed(0.02)))
    async def fail() -> None:
        attempts.append(current_job().attempt)
        raise LookupError("no")

    await workplace.start(app)
    job = await fail.with_options(unique="u").send()
    await job.wait(timeout_s=60)
    said = await job.status()
    assert (said.status, said.reason, attempts) == ("failed", "exhausted", [1, 2, 3])
    (letter,) = map(json.loads, await letters(fail.queue))
    assert (letter["id"], letter["attempt_count"]) == (job.id, 3)
    assert (await fail.with_options(unique="u", delay=60).send()).created


async def test_delays_lanes_groups_and_limits(workplace, app):
    ran, now, most = [], 0, 0
    app.queue("mail", limit=3, lane_limit=2)

    @app.task(queue="mail")
    async def note(what: str) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.005)
        now -= 1
        ran.append(what)

    await workplace.start(app)
    await note.with_options(delay=0.2).send("delayed")
    await note.with_options(priority="high").send_many([("high",)] * 5)
    for group in ("a", "b"):
        await note.with_options(group=group).send_many([(group,)] * 10)
    await note.send_many([("plain",)] * 10)
    await eventually(lambda: len(ran) == 36)
    assert most <= 3
    assert ran.count("delayed") == 1


async def test_a_dead_workers_jobs_come_back(workplace, app):
    ran = []

    @app.task(queue="mail")
    async def note(number: int) -> None:
        ran.append((number, current_job().attempt))

    await note.send_many([(number,) for number in range(5)])
    assert len(await claim_as(note.queue, "dead", 3)) == 3
    await workplace.start(app)
    await eventually(lambda: len(ran) == 5)
    assert sorted(ran) == [(0, 2), (1, 2), (2, 2), (3, 1), (4, 1)]
    assert await in_hand(note.queue) == 0
    assert (await counters(note.queue))["reaped"] == 3


async def test_cancel_progress_pause_and_one_run_for_one_key(workplace, app):
    began, go_on, runs = asyncio.Event(), asyncio.Event(), []

    @app.task(queue="mail", status=True)
    async def hang() -> None:
        await current_job().progress(1, total=4)
        began.set()
        await asyncio.Event().wait()

    @app.task(queue="other", status=True)
    async def once() -> int:
        runs.append(1)
        await go_on.wait()
        return 7

    await workplace.start(app)
    job = await hang.send()
    await began.wait()
    assert (await job.progress()).ratio == 0.25
    await job.cancel()
    await job.wait(timeout_s=60)
    assert (await job.status()).status == "cancelled"

    await app.queues.pause("other")
    sender = once.with_options(idempotency_key="k")
    jobs = await asyncio.gather(*(sender.send() for _ in range(50)))
    assert len(await stored(once.queue)) == 1
    await app.queues.resume("other")
    go_on.set()
    assert await asyncio.gather(*(job.result(timeout_s=60) for job in jobs)) == [7] * 50
    assert runs == [1]


async def test_letters_of_a_cluster_come_back(workplace, app):
    broken, ran = [True], []

    @app.task(queue="mail", retry=RetryPolicy(max_attempts=1))
    async def work(number: int) -> None:
        if broken:
            raise LookupError
        ran.append(number)

    await workplace.start(app)
    await work.send_many([(number,) for number in range(5)])
    await eventually(lambda: _dead(work.queue, 5))
    broken.clear()
    await app.queues.dead_letters("mail").replay()
    await eventually(lambda: sorted(ran) == list(range(5)))
    assert await letters(work.queue) == []


async def _dead(queue, count):
    return len(await letters(queue)) == count


async def test_far_times_come(workplace, app):
    ran = []

    @app.task(queue="mail")
    async def note() -> None:
        ran.append(1)

    await note.with_options(delay=3600).send()
    await workplace.start(app)
    await clock.advance(app, 3600)
    await eventually(lambda: ran == [1])


async def test_workers_go_on_while_the_slot_of_their_queue_moves(app, workplace, cluster):
    ran = []

    @app.task(queue="mail")
    async def note(number: int) -> None:
        ran.append(number)
        await asyncio.sleep(0.001)

    await workplace.start(app, concurrency=2)
    slot = cluster.slot_of(note.queue.keyring.waiting)
    home = cluster.primary_of(slot)
    other = next(node for node in cluster.living if node is not home)

    async def send():
        for number in range(100):
            await note.send(number)

    sending = asyncio.create_task(send())
    await eventually(lambda: len(ran) > 10)
    await asyncio.to_thread(cluster.move_slot, slot, other)
    await sending
    await eventually(lambda: set(ran) == set(range(100)))
    await asyncio.to_thread(cluster.move_slot, slot, home)
