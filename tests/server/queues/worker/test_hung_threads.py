"""Plain functions that outlive their time-out: what they cost, and what they do not."""

import asyncio
import threading

import pytest
from tests.kit.workplace import counters, in_hand, letters, stored

from penstock import Depends, Message, RetryPolicy, current_job
from penstock.queues.worker.consumer import QueueConsumer
from penstock.testing.eventually import eventually

ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
def release():
    """Set at the end, so that no thread outlives the test."""
    release = threading.Event()
    yield release
    release.set()


def counts(queue, **expected):
    async def check():
        counted = await counters(queue)
        return all(counted.get(name, 0) == number for name, number in expected.items())

    return check


# ---- queues


async def test_jobs_behind_hung_threads_are_neither_begun_nor_charged(workplace, release):
    app, began, ran = await workplace.open(), [], []

    @app.task(queue="mail", timeout_s=0.1, retry=ONCE)
    def hang(number: int) -> None:
        began.append(number)
        release.wait(30)

    @app.task(queue="mail", timeout_s=0.1, retry=ONCE)
    def quick(number: int) -> None:
        ran.append((number, current_job().attempt))

    queue = hang.queue
    await hang.send_many([(number,) for number in range(3)])
    worker = await workplace.start(app, concurrency=3)
    await eventually(counts(queue, dead=3))
    assert sorted(began) == [0, 1, 2]
    await quick.send_many([(number,) for number in range(20)])
    reason = "queue mail: 3 of 3 places are held by functions that timed out or were cancelled"
    await eventually(lambda: reason in str(worker.readiness()))
    assert hang.name in str(worker.readiness())
    # What it cannot begin it leaves to others: it has nothing in hand.
    await eventually(lambda: _has(in_hand, queue, 0))
    assert ran == []
    assert len(await stored(queue)) == 20
    release.set()
    await eventually(lambda: len(ran) == 20)
    assert sorted(ran) == [(number, 1) for number in range(20)]
    await eventually(lambda: worker.readiness().ready)
    assert len(await letters(queue)) == 3


async def _has(count, queue, number):
    return await count(queue) == number


async def test_one_hung_thread_costs_one_place_and_the_others_go_on(workplace, release):
    app, at_once, most = await workplace.open(), [], []

    @app.task(queue="mail", timeout_s=0.1, retry=ONCE)
    def hang() -> None:
        release.wait(30)

    @app.task(queue="mail")
    async def note() -> None:
        at_once.append(1)
        most.append(len(at_once))
        await asyncio.sleep(0.002)
        at_once.pop()

    await hang.send()
    worker = await workplace.start(app, concurrency=3)
    await eventually(counts(hang.queue, dead=1))
    await note.send_many([()] * 60)
    await eventually(lambda: len(most) == 60)
    assert max(most) == 2
    assert "1 of 3 places" in str(worker.readiness())


async def test_claimed_jobs_go_back_when_the_last_place_is_lost(workplace, release):
    """Quick jobs are claimed ahead: those in the buffer must not wait for a hung thread."""
    app, ran = await workplace.open(), []

    @app.task(queue="mail")
    async def note(number: int) -> None:
        ran.append(number)

    @app.task(queue="mail", timeout_s=0.2, retry=ONCE)
    def hang() -> None:
        release.wait(30)

    await note.send_many([(number,) for number in range(500)])  # so that it learns they are quick
    worker = await workplace.start(app, concurrency=1)
    await eventually(lambda: len(ran) == 500)
    await hang.send()
    await note.send_many([(number,) for number in range(100)])
    await eventually(lambda: "1 of 1 places" in str(worker.readiness()))
    await eventually(lambda: _has(in_hand, note.queue, 0))
    assert len(await stored(note.queue)) == 100
    assert len(ran) == 500
    release.set()
    await eventually(lambda: len(ran) == 600)


async def test_the_clock_of_a_thread_starts_with_its_function(workplace, release):
    """Providers in threads had to wait for others that hung, and that was charged to the job."""
    app, ran = await workplace.open(), []

    def hangs() -> int:
        release.wait(30)
        return 1

    def soon() -> int:
        return 2

    @app.task(queue="mail", timeout_s=0.2, retry=ONCE)
    def stuck(value: int = Depends(hangs)) -> None: ...

    @app.task(queue="mail", timeout_s=0.2, retry=ONCE)
    def quick(value: int = Depends(soon)) -> None:
        ran.append(value)

    await stuck.send_many([()] * 40)  # more than the event loop's own executor has threads
    worker = await workplace.start(app, concurrency=50)
    await quick.send_many([()] * 5)
    await eventually(lambda: ran == [2] * 5)
    assert await letters(quick.queue) == []
    await eventually(lambda: "hangs (40)" in str(worker.readiness()))
    release.set()
    await eventually(lambda: worker.readiness().ready)


async def test_a_worker_that_was_given_up_counts_the_threads_of_its_life_before(workplace, release):
    app, ran = await workplace.open(), []

    @app.task(queue="mail")
    def hang() -> None:
        if current_job().attempt == 1:
            release.wait(30)

    @app.task(queue="mail", timeout_s=0.2, retry=ONCE)
    def quick(number: int) -> None:
        ran.append(number)

    await hang.send()
    worker = await workplace.start(app, concurrency=2)
    (consumer,) = [one for one in worker._work if isinstance(one, QueueConsumer)]
    await eventually(lambda: consumer.jobs)
    consumer.jobs[0].claims.membership.lose()
    await eventually(lambda: "1 of 2 places" in str(worker.readiness()))
    await quick.send_many([(number,) for number in range(10)])
    await eventually(lambda: sorted(ran) == list(range(10)))
    assert await letters(quick.queue) == []


# ---- topics


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
async def test_messages_behind_hung_handlers_are_neither_begun_nor_charged(
    app, consume, release, ordering
):
    orders = app.topic("orders", partitions=4, type=int)
    hung, seen = [], []

    def handle(message: Message) -> None:
        if message.payload < 0:
            hung.append(message.payload)
            release.wait(30)
        else:
            seen.append((message.payload, message.attempt))

    consumer = await consume(
        orders, handle, ordering=ordering, concurrency=2, timeout_s=0.2, retry=ONCE
    )
    for number, partition in ((-1, 0), (-2, 1)):
        headers = {"x-force-partition-id": str(partition)}
        await orders.send(number, key=str(number), headers=headers)
    await eventually(lambda: consumer.counts.dead == 2)
    await eventually(lambda: "2 of 2 places are held" in (consumer.trouble() or ""))
    sent = range(40)
    for number in sent:
        await orders.send(number, key=str(number))
    # They have come as far as they can, and none has begun.
    await eventually(lambda: all(held.budget.buffered for held in consumer._serving))
    assert seen == []
    assert consumer.counts.dead == 2
    release.set()
    await eventually(lambda: len(seen) == 40)
    assert sorted(seen) == [(number, 1) for number in sent]
    assert consumer.trouble() is None
    assert (await app.topics.describe("orders")).dead_letters == 2


@pytest.mark.parametrize("ordering", ["partition", "key"])
async def test_a_consumer_whose_threads_hang_hands_its_partitions_over(
    app, consume, release, ordering
):
    """What it had fetched and could not begin is not charged."""
    orders = app.topic("orders", partitions=2, type=int)
    hung, seen = [], []

    def hang(message: Message) -> None:
        hung.append(message.payload)
        release.wait(30)

    def handle(message: Message) -> None:
        seen.append((message.payload, message.attempt))

    first = await consume(orders, hang, ordering=ordering, concurrency=1, timeout_s=0.2, retry=ONCE)
    await orders.send(-1, key="x")
    await eventually(lambda: first.counts.dead == 1)
    for number in range(20):
        await orders.send(number, key=str(number))
    await eventually(lambda: all(held.budget.buffered for held in first._serving))
    async with asyncio.timeout(60):
        await first.stop()
    await consume(orders, handle, ordering=ordering, retry=ONCE)
    await eventually(lambda: len(seen) == 20)
    assert sorted(seen) == [(number, 1) for number in range(20)]
    assert hung == [-1]


async def test_more_partitions_than_threads_take_turns(app, consume):
    """A wait for a thread does not count as time of the handler."""
    orders = app.topic("orders", partitions=8, type=int)
    seen = []

    def handle(number: int) -> None:
        threading.Event().wait(0.05)
        seen.append(number)

    consumer = await consume(orders, handle, concurrency=1, timeout_s=0.4, retry=ONCE)
    for number in range(24):
        await orders.send(number, headers={"x-force-partition-id": str(number % 8)})
    await eventually(lambda: len(seen) == 24)
    assert consumer.counts.dead == 0


async def test_a_batch_of_a_plain_function_waits_for_a_thread_before_it_counts(
    app, consume, release
):
    orders = app.topic("orders", partitions=2, type=int)
    hung, seen = [], []

    def handle(batch: list[Message]) -> None:
        if batch[0].payload < 0:
            hung.append(1)
            release.wait(30)
        seen.extend((one.payload, one.attempt) for one in batch if one.payload >= 0)

    consumer = await consume(orders, handle, batch=5, concurrency=1, timeout_s=0.2, retry=ONCE)
    await orders.send(-1, headers={"x-force-partition-id": "0"})
    await eventually(lambda: consumer.counts.dead == 1)
    for number in range(10):
        await orders.send(number, headers={"x-force-partition-id": "1"})
    await eventually(lambda: any(held.budget.buffered for held in consumer._serving))
    release.set()
    await eventually(lambda: len(seen) == 10)
    assert sorted(seen) == [(number, 1) for number in range(10)]
