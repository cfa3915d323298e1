"""Which jobs a worker takes, which it leaves to others, and how it ends."""

import asyncio
import json

import pytest
from tests.kit.workplace import counters, in_hand, letters, record, stored

from penstock import ConfigError, Fixed, RetryPolicy, current_job
from penstock.queues.options import GateDecision
from penstock.queues.worker.consumer import QueueConsumer
from penstock.testing.eventually import eventually


async def test_a_worker_of_some_queues_leaves_the_others_alone(workplace):
    app, ran = await workplace.open(), []
    for name in ("mail", "reports"):

        @app.task(queue=name, name=f"note.{name}")
        async def note(queue: str) -> None:
            ran.append(queue)

    await app.send("note.reports", ("reports",), queue="reports")
    await app.send("note.mail", ("mail",), queue="mail")
    await workplace.start(app, queues=["mail"])
    await eventually(lambda: ran == ["mail"])
    assert await stored(app.queue("reports"))
    await workplace.start(app, queues=["reports"])
    await eventually(lambda: ran == ["mail", "reports"])


async def test_a_worker_of_a_queue_that_nobody_has_is_a_mistake(workplace):
    app = await workplace.open()

    @app.task(queue="mail")
    async def note() -> None: ...

    with pytest.raises(ConfigError, match="no queue 'mial' in this application; it has mail"):
        app.worker(queues=["mial"])


async def test_a_task_that_no_worker_knows_waits_for_one_that_does(workplace):
    old, new, ran = await workplace.open(), await workplace.open(), []

    @old.task(queue="mail", name="known")
    async def known() -> None:
        ran.append("known")

    await old.send("newer", (1,), queue="mail")
    await known.send()
    worker = await workplace.start(old)
    queue = old.queue("mail")
    await eventually(lambda: ran == ["known"])
    await eventually(_counts(queue, parked=1))
    await workplace.stop(worker)  # else the two would take it by chance, the old one perhaps often

    @new.task(queue="mail", name="newer")
    async def newer(number: int) -> None:
        ran.append(("newer", number, current_job().attempt))

    await workplace.start(new)
    await eventually(lambda: ("newer", 1, 1) in ran)
    assert await letters(queue) == []


async def test_a_task_that_nobody_ever_knows_is_a_dead_letter(workplace):
    app = await workplace.open(unknown_s=0.5)

    @app.task(queue="mail")
    async def known() -> None: ...

    job = await app.send("nobody.knows", (1,), queue="mail", idempotency_key="k")
    await workplace.start(app)
    await eventually(_counts(app.queue("mail"), dead=1))
    said = await record(app.queue("mail"), job.id)
    assert (said["status"], said["reason"], said["error_type"]) == (
        *("failed", "unknown", "LookupError"),
    )
    assert "nobody.knows" in said["error"]


def _counts(queue, **expected):
    async def check():
        counted = await counters(queue)
        return all(counted.get(name) == number for name, number in expected.items())

    return check


async def test_raw_jobs_and_tasks_of_one_queue_each_find_their_function(workplace):
    app, seen = await workplace.open(), []
    queue = app.queue("mail")

    @queue.handler
    async def raw(job: dict) -> None:
        seen.append(("raw", job))

    @app.task(queue="mail")
    async def note(number: int) -> None:
        seen.append(("task", number))

    await workplace.start(app)
    await queue.push({"a": 1})
    await note.send(2)
    await eventually(lambda: sorted(seen) == [("raw", {"a": 1}), ("task", 2)])


async def test_a_worker_that_stops_gives_back_what_it_has_not_begun(workplace):
    app, began, go_on = await workplace.open(), [], asyncio.Event()

    @app.task(queue="mail")
    async def hold(number: int) -> None:
        began.append(number)
        await go_on.wait()

    await hold.send_many([(number,) for number in range(10)])
    worker = await workplace.start(app, concurrency=2)
    await eventually(lambda: len(began) == 2)
    stopping = asyncio.create_task(workplace.stop(worker))
    await eventually(lambda: "stopping" in str(worker.readiness()))
    go_on.set()
    assert await stopping == 0
    assert await in_hand(hold.queue) == 0
    assert len(await stored(hold.queue)) == 8
    assert (await counters(hold.queue))["done"] == 2
    ran = began.copy()
    await workplace.start(app)
    await eventually(lambda: sorted(began) == list(range(10)))
    assert ran == [0, 1]


async def test_what_a_stopping_worker_cuts_runs_elsewhere_and_is_not_charged(workplace):
    app, attempts = await workplace.open(grace_s=0.1), []

    @app.task(queue="mail", status=True)
    async def hang() -> str:
        attempts.append(current_job().attempt)
        if len(attempts) == 1:
            await asyncio.Event().wait()
        return "at last"

    job = await hang.send()
    worker = await workplace.start(app)
    await eventually(lambda: attempts)
    await workplace.stop(worker)
    assert (await job.status()).status == "queued"
    assert await in_hand(hang.queue) == 0
    await workplace.start(app)
    assert await job.result(timeout_s=60) == "at last"
    assert attempts == [1, 1]


class BrokenGate:
    """A gate of the program's own, with a bug."""

    def __init__(self):
        self.is_broken = True

    async def admit(self, queue, wanted):
        if self.is_broken:
            raise ZeroDivisionError("in the gate")
        return GateDecision(wanted)

    async def give_back(self, queue, unused): ...


async def test_a_consumer_that_fails_is_started_again_beside_the_others(workplace):
    app, ran, gate = await workplace.open(), [], BrokenGate()
    app.queue("mail", gate=gate)
    for name in ("mail", "reports"):

        @app.task(queue=name, name=f"note.{name}")
        def note(queue: str) -> None:  # in a thread: the consumer needs new ones later
            ran.append(queue)

    await app.send("note.mail", ("mail",), queue="mail")
    await app.send("note.reports", ("reports",), queue="reports")
    worker = workplace.begin(app)
    await eventually(lambda: ran == ["reports"])
    failure = "queue mail failed: ZeroDivisionError: in the gate"
    await eventually(lambda: failure in worker.readiness().reasons)
    gate.is_broken = False
    await eventually(lambda: ran == ["reports", "mail"])
    await app.send("note.mail", ("again",), queue="mail")
    await eventually(lambda: ran[2:] == ["again"])
    assert worker.failures == []


class Unspeakable(Exception):
    """An error of a user whose own code is broken."""

    @property
    def error_code(self) -> str:
        raise ZeroDivisionError

    @property
    def suggestions(self) -> list[object]:
        return [self]

    def __str__(self) -> str:
        raise ZeroDivisionError


async def test_an_error_whose_own_code_fails_is_a_failure_like_any_other(workplace):
    app, ran = await workplace.open(), []

    @app.task(queue="mail", retry=RetryPolicy(max_attempts=2, backoff=Fixed(0.01)))
    async def fail() -> None:
        ran.append(1)
        raise Unspeakable

    await fail.send()
    worker = await workplace.start(app)
    (letter,) = await eventually(lambda: letters(fail.queue))
    assert json.loads(letter)["reason"] == "exhausted"
    assert (len(ran), worker.readiness().ready) == (2, True)


async def test_a_job_on_which_penstock_itself_fails_is_buried_and_stops_no_other(workplace):
    app, ran = await workplace.open(), []

    @app.task(queue="mail")
    async def note(number: int) -> None:
        ran.append(number)

    @app.task(queue="mail")
    async def poison(number: int) -> None:
        ran.append(number)

    worker = app.worker()
    [consumer] = [one for one in worker._work if isinstance(one, QueueConsumer)]

    class WithBug(dict):
        def get(self, task, default=None):
            if task == poison.name:
                raise ZeroDivisionError("a bug of ours")
            return super().get(task, default)

    consumer._processor.performers = WithBug(consumer._processor.performers)
    await poison.with_options(job_id="poison").send(1)
    await note.send_many([(2,), (3,)])
    running = asyncio.create_task(worker.run())
    await eventually(lambda: ran == [2, 3])
    (letter,) = await eventually(lambda: letters(note.queue))
    said = json.loads(letter)
    assert (said["id"], said["reason"], said["error"]) == ("poison", "fatal", "a bug of ours")
    assert worker.readiness().ready
    await worker.stop()
    assert await running == 0
