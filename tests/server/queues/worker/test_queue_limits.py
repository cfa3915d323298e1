"""How many jobs run at once: in a worker, of a task, of a queue, of a lane; and behind a gate."""

import asyncio
import collections

import pytest
from tests.kit.scripts import scripts_of
from tests.kit.workplace import claim_as, in_hand, stored

from penstock import Fixed, RetryPolicy
from penstock.queues.options import GateDecision
from penstock.queues.storage.keys import lane_name
from penstock.testing.eventually import eventually


class Floor:
    """Counts who is at work, and keeps the most of each kind that were at once."""

    def __init__(self):
        self.now, self.most = collections.Counter(), collections.Counter()
        self.ended = []

    async def work(self, kind="", what=None):
        self.now[kind] += 1
        self.most[kind] = max(self.most[kind], self.now[kind])
        await asyncio.sleep(0.01)
        self.now[kind] -= 1
        self.ended.append(what)


async def test_no_more_jobs_run_in_a_worker_than_it_has_places(workplace):
    app, floor = await workplace.open(), Floor()

    @app.task(queue="mail")
    async def work() -> None:
        await floor.work()

    await work.send_many([()] * 60)
    await workplace.start(app, concurrency=7)
    await eventually(lambda: len(floor.ended) == 60)
    assert floor.most[""] == 7


async def test_no_more_jobs_of_a_task_run_than_it_allows_while_others_fill_the_rest(workplace):
    app, floor = await workplace.open(), Floor()

    @app.task(queue="mail", concurrency=2)
    async def heavy() -> None:
        await floor.work("heavy")

    @app.task(queue="mail")
    async def light() -> None:
        await floor.work("light")

    for _ in range(5):
        await heavy.send_many([()] * 4)
        await light.send_many([()] * 10)
    await workplace.start(app, concurrency=12)
    await eventually(lambda: len(floor.ended) == 70)
    assert floor.most["heavy"] == 2
    assert floor.most["light"] > 2


async def test_a_queue_limit_holds_over_two_workers(workplace):
    floor, apps = Floor(), []
    for _ in range(2):
        app = await workplace.open()
        app.queue("mail", limit=3)

        @app.task(queue="mail", name="work")
        async def work() -> None:
            await floor.work()

        apps.append(app)
        await workplace.start(app, concurrency=8)
    await work.send_many([()] * 90)
    await eventually(lambda: len(floor.ended) == 90)
    assert floor.most[""] == 3


async def test_a_lane_limit_holds_over_two_workers_and_lanes_do_not_wait_for_each_other(workplace):
    floor = Floor()
    for _ in range(2):
        app = await workplace.open()
        app.queue("mail", lane_limit=2)

        @app.task(queue="mail", name="work")
        async def work(group: str) -> None:
            await floor.work(group, group)

        await workplace.start(app, concurrency=8)
    groups = ["a", "b", "tenant 3"]
    for group in groups:
        await work.with_options(group=group).send_many([(group,)] * 20)
    await eventually(lambda: len(floor.ended) == 60)
    assert floor.most == dict.fromkeys(groups, 2)
    queue = work.queue
    await eventually(lambda: _no_one_runs(queue, groups))
    assert await queue.client.call("ZCARD", queue.keyring.parked) == 0
    assert await queue.client.call("LLEN", queue.keyring.ring) == 0


async def _no_one_runs(queue, groups):
    keys = [queue.keyring.runnings + lane_name(group) for group in groups]
    return not any([await queue.client.call("EXISTS", key) for key in keys])


async def test_a_queue_limit_holds_among_very_many_workers(workplace):
    app = await workplace.open()
    queue = app.queue("mail", limit=4)
    keys, call = queue.keyring, queue.client.call
    await queue.push_many([{"n": number} for number in range(20)])
    assert len(await claim_as(queue, "first", 1)) == 1
    (now, _), crowd = await call("TIME"), [f"idle-{number}" for number in range(1_500)]
    await call("ZADD", keys.workers, *(part for name in crowd for part in (int(now) * 1000, name)))
    assert len(await claim_as(queue, "second", 2)) == 2
    await call("ZADD", keys.busy, *(part for name in crowd[:700] for part in (1, name)))
    assert await claim_as(queue, "third", 5) == [], "too many to look at in one call"
    assert len(await claim_as(queue, "third", 5)) == 1
    assert await claim_as(queue, "fourth", 5) == []
    assert sorted(await call("ZRANGE", keys.busy, 0, -1)) == [b"first", b"second", b"third"]
    await call("ZREM", keys.workers, "second")  # given up as dead
    assert len(await claim_as(queue, "fourth", 5)) == 2
    await call("DEL", keys.claimed("first"))
    assert len(await claim_as(queue, "fourth", 5)) == 1
    assert sorted(await call("ZRANGE", keys.busy, 0, -1)) == [b"fourth", b"third"]


async def test_places_of_a_dead_worker_are_free_again(workplace):
    app, floor = await workplace.open(silence_s=0.5), Floor()
    app.queue("mail", limit=4, lane_limit=2)

    @app.task(queue="mail")
    async def work(group: str) -> None:
        await floor.work(group, group)

    await work.with_options(group="a").send_many([("a",)] * 10)
    await work.send_many([("",)] * 10)
    queue = work.queue
    taken = await claim_as(queue, "dead", 10)
    assert len(taken) == 4
    assert await claim_as(queue, "other", 10) == []
    await scripts_of(queue.client).leave_queue(keys=queue.keyring, worker="other")
    await workplace.start(app)
    await eventually(lambda: len(floor.ended) == 20)
    assert floor.most["a"] <= 2
    assert floor.most["a"] + floor.most[""] <= 8
    await eventually(lambda: _idle(queue))
    assert await _no_one_runs(queue, ["a"])
    assert await queue.client.call("ZRANGE", queue.keyring.dead_workers, 0, -1) == []


async def _idle(queue):
    return not await in_hand(queue)


async def test_places_are_free_again_after_retries_and_dead_letters(workplace):
    app, attempts = await workplace.open(), []
    app.queue("mail", limit=2, lane_limit=1)

    @app.task(queue="mail", retry=RetryPolicy(max_attempts=2, backoff=Fixed(0.01)))
    async def fail(group: str) -> None:
        attempts.append(group)
        raise LookupError

    for group in ("a", "b"):
        await fail.with_options(group=group).send_many([(group,)] * 5)
    await workplace.start(app)
    await eventually(lambda: len(attempts) == 20)
    await eventually(lambda: _dead(fail.queue, 10))
    assert await _no_one_runs(fail.queue, ["a", "b"])


async def _dead(queue, count):
    return await queue.client.call("LLEN", queue.keyring.dead_letters) == count


async def test_limits_can_be_changed_while_workers_run(workplace):
    app, floor, hold = await workplace.open(), Floor(), asyncio.Event()
    app.queue("mail", limit=1)
    began = []

    @app.task(queue="mail")
    async def work() -> None:
        began.append(1)
        await hold.wait()

    await work.send_many([()] * 10)
    await workplace.start(app, concurrency=8)
    await eventually(lambda: len(began) == 1)
    await app.queues.set_limits("mail", limit=5)
    await eventually(lambda: len(began) == 5)
    await app.queues.set_limits("mail", limit=0)
    await eventually(lambda: len(began) == 8)
    hold.set()
    await eventually(lambda: len(began) == 10)
    assert floor.ended == []


# ---- gates


class Tickets:
    """A gate that lets through as many as it has tickets."""

    def __init__(self, tickets=0):
        self.tickets, self.asked, self.returned, self.out = tickets, 0, 0, 0

    async def admit(self, queue, wanted):
        assert queue == "limited"
        self.asked += 1
        granted = min(wanted, self.tickets)
        self.tickets -= granted
        self.out += granted
        return GateDecision(granted, 0.0 if granted == wanted else 0.02)

    async def give_back(self, queue, count):
        assert queue == "limited"
        self.tickets += count
        self.returned += count
        self.out -= count


@pytest.fixture
def gate():
    return Tickets()


async def test_nothing_leaves_a_queue_whose_gate_is_closed_and_others_go_on(workplace, gate):
    app, ran = await workplace.open(), []
    app.queue("limited", gate=gate)

    @app.task(queue="limited", name="limited")
    async def limited(number: int) -> None:
        ran.append(("limited", number))

    @app.task(queue="free", name="free")
    async def free(number: int) -> None:
        ran.append(("free", number))

    await workplace.start(app)
    await limited.send_many([(number,) for number in range(10)])
    before = await stored(limited.queue)
    await free.send_many([(number,) for number in range(10)])
    await eventually(lambda: len(ran) == 10)
    await eventually(lambda: gate.asked >= 5)
    assert {queue for queue, _ in ran} == {"free"}
    assert await stored(limited.queue) == before
    assert await in_hand(limited.queue) == 0

    gate.tickets = 4
    await eventually(lambda: len(ran) == 14)
    assert len(await stored(limited.queue)) == 6
    gate.tickets = 100
    await eventually(lambda: len(ran) == 20)
    assert sorted(ran) == [(queue, number) for queue in ("free", "limited") for number in range(10)]


async def test_what_a_gate_granted_and_nobody_used_is_given_back(workplace, gate):
    app, ran = await workplace.open(), []
    gate.tickets = 50
    app.queue("limited", gate=gate)

    @app.task(queue="limited")
    async def work() -> None:
        ran.append(1)

    await workplace.start(app, concurrency=8)
    await work.send_many([()] * 5)
    await eventually(lambda: len(ran) == 5)
    await eventually(lambda: gate.out == 5)
    assert gate.tickets == 45
    assert gate.returned > 0


async def test_a_closed_gate_is_not_stormed(workplace, gate):
    app = await workplace.open(poll_s=0.1)
    app.queue("limited", gate=gate)

    @app.task(queue="limited")
    async def work() -> None: ...

    await work.send_many([()] * 5)
    await workplace.start(app)
    await asyncio.sleep(1)  # nothing is to happen, at a bounded rate
    assert gate.asked < 60


async def test_workers_that_find_nothing_do_not_count_what_all_others_have_in_hand(workplace):
    app = await workplace.open()
    queue = app.queue("mail", limit=2)
    await queue.push_many([{"n": number} for number in range(3)])
    client, keys = app.redis, queue.keyring

    async def counted(worker, first):
        await client.call("CONFIG", "RESETSTAT")
        reply = await scripts_of(client).claim_jobs(
            keys=keys, worker=worker, first=first, most=5, done=()
        )
        stats = await client.call("INFO", "commandstats")
        calls = int(stats.partition(b"cmdstat_hlen:calls=")[2].partition(b",")[0] or 0)
        return [item for items in reply.lanes[1::2] for item in items], calls

    workers = [f"w{number:02d}" for number in range(50)]
    for worker in workers:
        await scripts_of(client).join_queue(keys=keys, worker=worker)
    taken, calls = await counted("w49", 1)
    assert len(taken) == 2
    assert calls > 49
    assert (await counted("w00", 1))[0] == []
    await client.call("DEL", keys.waiting)
    idle, calls = await counted("w00", 6)
    assert idle == []
    assert calls < 5
