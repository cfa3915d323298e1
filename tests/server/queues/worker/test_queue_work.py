"""Workers run what is queued: functions of every kind, with what they ask for."""

import asyncio
import importlib
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

import pytest
from tests.kit.patience import patient
from tests.kit.workplace import counters, in_hand, letters, stored

from penstock import (
    INJECTED,
    Depends,
    Fixed,
    JobContext,
    JobFailed,
    NotOpen,
    RetryPolicy,
    current_job,
)
from penstock.testing.eventually import eventually

ONCE = RetryPolicy(max_attempts=1)
CRASHING = """
import os

def die() -> None:
    os._exit(9)

def add(one: int, other: int) -> int:
    return one + other
"""
ISOLATED = """
import asyncio
import threading

from penstock import JobContext, NotOpen, current_job
from penstock.errors import InvalidJob

def facts(job: JobContext) -> list[object]:
    return [job.id, job.queue, job.task, job.attempt, job.max_attempts, job.lane, job.cancelled]

def plain() -> list[object]:
    return facts(current_job())

async def awaits() -> list[object]:
    await asyncio.sleep(0)
    return facts(current_job())

def asks(job: JobContext) -> list[object]:
    assert repr(job) == repr(current_job())
    return facts(job)

def counts(pages: int) -> str:
    job = current_job()
    for page in range(1, pages + 1):
        job.report(page, total=pages, chunks=7 * page)
    asyncio.run(job.progress(note="nearly there"))
    other = threading.Thread(target=lambda: current_job().report(bytes=12))
    other.start()
    other.join()
    try:
        job.report(status="done")
    except InvalidJob as error:
        return str(error)

def tells_nobody() -> None:
    current_job().report(1, total=2)
"""
SOON = RetryPolicy(max_attempts=3, backoff=Fixed(0.02))


async def test_every_job_is_run_and_nothing_is_left_behind(workplace):
    app, ran = await workplace.open(), []

    @app.task(queue="mail")
    async def note(number: int) -> None:
        ran.append(number)

    await workplace.start(app)
    await note.send_many([(number,) for number in range(1_000)])
    await eventually(lambda: len(ran) == 1_000)
    await eventually(_nothing_left(note.queue))
    assert sorted(ran) == list(range(1_000))
    assert await counters(note.queue) == {"added": 1_000, "done": 1_000}


def _nothing_left(queue):
    async def check():
        return not await stored(queue) and not await in_hand(queue)

    return check


async def test_jobs_begin_in_the_order_in_which_they_were_queued(workplace):
    app, ran = await workplace.open(), []

    @app.task(queue="mail")
    async def note(number: int) -> None:
        ran.append(number)

    await note.send_many([(number,) for number in range(700)])
    await workplace.start(app, concurrency=1)
    await eventually(lambda: len(ran) == 700)
    assert ran == list(range(700))


async def test_a_left_queue_is_worked_off_from_the_right(workplace):
    app, ran = await workplace.open(), []
    queue = app.queue("rag:ingest:queue", push="left")

    @queue.handler
    async def ingest(job: dict) -> None:
        ran.append(job["n"])

    await queue.push_many([{"n": number} for number in range(20)])
    await workplace.start(app, concurrency=1)
    await eventually(lambda: len(ran) == 20)
    assert ran == list(range(20))


async def test_two_workers_share_the_jobs_and_run_each_once(workplace):
    ran, apps = [], [await workplace.open(), await workplace.open()]
    for number, app in enumerate(apps):

        @app.task(queue="mail", name="note")
        async def note(job: int, who: int = number) -> None:
            ran.append((job, who))
            await asyncio.sleep(0.001)

        await workplace.start(app, concurrency=4)
    await note.send_many([(number,) for number in range(500)])
    await eventually(lambda: len(ran) == 500)
    assert sorted(job for job, _ in ran) == list(range(500))
    assert {who for _, who in ran} == {0, 1}


async def test_a_lone_job_begins_at_once_though_workers_look_rarely(workplace):
    app, began = await workplace.open(poll_s=10), []

    @app.task(queue="mail")
    async def note() -> None:
        began.append(time.monotonic())

    await workplace.start(app)
    sent = []
    for number in range(1, 21):
        await eventually(_nothing_left(note.queue))
        sent.append(time.monotonic())
        await note.send()
        await eventually(lambda number=number: len(began) == number)
    waits = sorted(start - send for send, start in zip(sent, began, strict=True))
    assert waits[len(waits) // 2] < patient(0.05)


# ---- functions of every kind


async def test_a_plain_function_runs_in_a_thread_and_knows_its_job(workplace):
    app = await workplace.open()

    @app.task(queue="mail", status=True)
    def where(number: int) -> list[str]:
        job = current_job()
        return [threading.current_thread().name, job.id, job.task, str(job.attempt)]

    await workplace.start(app)
    job = await where.send(1)
    thread, job_id, task, attempt = await job.result(timeout_s=60)
    assert thread != threading.main_thread().name
    assert (job_id, task, attempt) == (job.id, where.name, "1")


async def test_plain_functions_run_beside_each_other(workplace):
    app, together = await workplace.open(), threading.Barrier(4, timeout=5)

    @app.task(queue="mail", status=True)
    def meet() -> bool:
        together.wait()
        return True

    await workplace.start(app, concurrency=4)
    jobs = await meet.send_many([()] * 4)
    assert await asyncio.gather(*(job.result(timeout_s=60) for job in jobs)) == [True] * 4


async def test_jobs_that_run_beside_each_other_each_see_their_own_context(workplace):
    app, all_there = await workplace.open(), asyncio.Barrier(5)

    @app.task(queue="mail", status=True)
    async def me() -> list[str]:
        before = current_job().id
        await all_there.wait()
        return [before, current_job().id]

    await workplace.start(app, concurrency=5)
    jobs = await me.send_many([()] * 5)
    for job in jobs:
        assert await job.result(timeout_s=60) == [job.id, job.id]


async def test_there_is_no_current_job_outside_of_one():
    with pytest.raises(NotOpen):
        current_job()


async def test_the_context_comes_as_a_parameter_too(workplace):
    app = await workplace.open()

    @app.task(queue="mail", status=True)
    async def told(number: int, job: JobContext) -> dict:
        return {"id": job.id, "queue": job.queue, "headers": dict(job.headers), "of": number}

    await workplace.start(app)
    job = await told.with_options(headers={"trace": "7"}).send(3)
    assert await job.result(timeout_s=60) == {
        "id": job.id,
        "queue": "mail",
        "headers": {"trace": "7"},
        "of": 3,
    }


@dataclass
class Order:
    number: int
    items: list[str]


async def test_arguments_arrive_as_the_types_that_are_declared(workplace):
    app, seen = await workplace.open(), []

    @app.task(queue="mail")
    async def take(order: Order, /, *more: int, rush: bool = False, **notes: str) -> None:
        seen.append((order, more, rush, notes))

    await workplace.start(app)
    await take.send(Order(7, ["a"]), 1, 2, rush=True, why="now")
    await eventually(lambda: seen)
    assert seen == [(Order(7, ["a"]), (1, 2), True, {"why": "now"})]


async def test_what_a_function_depends_on_is_made_for_each_job_and_cleaned_up(workplace):
    app, open_now, seen = await workplace.open(), set(), []

    async def get_db() -> AsyncIterator[str]:
        name = f"db of {current_job().id}"
        open_now.add(name)
        yield name
        open_now.discard(name)

    @app.task(queue="mail", retry=SOON)
    async def save(number: int, db: Annotated[str, Depends(get_db)] = INJECTED) -> None:
        assert db in open_now
        seen.append(number)
        if len(seen) == 1:
            raise LookupError

    await workplace.start(app)
    await save.send(1)
    await eventually(lambda: seen == [1, 1])
    await eventually(lambda: not open_now)


async def test_a_test_puts_something_else_in_the_place_of_a_dependency(workplace):
    app, seen = await workplace.open(), []

    def get_mailer() -> str:
        raise AssertionError("the real one")

    @app.task(queue="mail")
    def send(mailer: Annotated[str, Depends(get_mailer)] = INJECTED) -> None:
        seen.append(mailer)

    with app.dependencies.override(get_mailer, lambda: "fake"):
        await workplace.start(app)
        await send.send()
        await eventually(lambda: seen == ["fake"])


async def test_a_function_may_send_other_jobs(workplace):
    app, ran = await workplace.open(), []

    @app.task(queue="a")
    async def first() -> None:
        await second.send()

    @app.task(queue="b")
    def second() -> None:
        ran.append(current_job().queue)

    await workplace.start(app)
    await first.send()
    await eventually(lambda: ran == ["b"])


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_function_that_takes_too_long_is_cut_and_tried_again(workplace, kind):
    app, began, told = await workplace.open(), [], threading.Event()

    if kind == "coroutine":

        @app.task(queue="mail", timeout_s=0.1, retry=SOON, name="slow")
        async def slow() -> str:
            began.append(1)
            if len(began) == 1:
                await asyncio.Event().wait()
            return "in time"
    else:

        @app.task(queue="mail", timeout_s=0.1, retry=SOON, name="slow")
        def slow() -> str:
            began.append(1)
            if len(began) == 1:
                job = current_job()
                while not job.cancelled:
                    time.sleep(0.005)
                told.set()
            return "in time"

    await workplace.start(app)
    job = await slow.with_options(idempotency_key="one").send()
    assert await job.result(timeout_s=60) == "in time"
    assert (await job.status()).attempt == 2
    if kind == "thread":
        await eventually(told.is_set)


async def test_a_timeout_is_told_as_the_error_of_the_job(workplace):
    app = await workplace.open()

    @app.task(queue="mail", timeout_s=0.05, retry=ONCE, status=True)
    async def hang() -> None:
        await asyncio.Event().wait()

    await workplace.start(app)
    job = await hang.send()
    with pytest.raises(JobFailed):
        await job.result(timeout_s=60)
    assert (await job.status()).error_type == "TimeoutError"


async def test_a_function_in_a_process_of_its_own_cannot_take_the_worker_along(
    workplace, tmp_path, monkeypatch
):
    app = await workplace.open()
    (tmp_path / "crashing.py").write_text(CRASHING)
    monkeypatch.syspath_prepend(tmp_path)
    crashing = importlib.import_module("crashing")
    die = app.task(queue="mail", isolate=True, status=True, retry=ONCE)(crashing.die)
    add = app.task(queue="mail", isolate=True, status=True)(crashing.add)
    await workplace.start(app, concurrency=2)
    dead, fine = await die.send(), await add.send(1, 2)
    assert await fine.result(timeout_s=60) == 3
    with pytest.raises(JobFailed):
        await dead.result(timeout_s=60)
    assert len(await letters(die.queue)) == 1


async def test_a_function_in_a_process_of_its_own_knows_its_job_and_reports_progress(
    workplace, tmp_path, monkeypatch
):
    app = await workplace.open()
    (tmp_path / "isolated.py").write_text(ISOLATED)
    monkeypatch.syspath_prepend(tmp_path)
    isolated = importlib.import_module("isolated")
    options = {"queue": "mail", "isolate": True, "retry": SOON}
    tasks = [
        app.task(status=True, **options)(getattr(isolated, name))
        for name in ("plain", "awaits", "asks")
    ]
    counts = app.task(status=True, **options)(isolated.counts)
    tells_nobody = app.task(**options)(isolated.tells_nobody)
    await workplace.start(app, concurrency=1)
    for task in tasks:
        job = await task.with_options(priority="high").send()
        facts = await job.result(timeout_s=60)
        assert facts == [job.id, "mail", task.name, 1, 3, "high", False]
    job = await counts.send(5)
    assert "'status' is a field that Penstock writes" in await job.result(timeout_s=60)
    progress = (await job.status()).progress
    assert (progress.done, progress.total, progress.note) == (5, 5, "nearly there")
    assert progress.counts == {"chunks": 35, "bytes": 12}
    await tells_nobody.send()
    await eventually(lambda: _has_done(app.queue("mail"), 5))


async def _has_done(queue, count):
    return (await counters(queue)).get("done") == count
