"""Handlers that call `sys.exit()` or raise what is no Exception: their failure, nobody's end."""

import asyncio
import importlib
import sys

import pytest
from tests.kit.workplace import letters

from penstock import Fixed, RetryPolicy
from penstock.testing.eventually import eventually

ONCE = RetryPolicy(max_attempts=1)
TWICE = RetryPolicy(max_attempts=2, backoff=Fixed(0))


def fail_with(error):
    """Plain and async functions that raise `error`."""

    def plain() -> None:
        raise error

    async def at_once() -> None:
        raise error

    async def later() -> None:
        await asyncio.sleep(0)
        raise error

    return {"plain": plain, "async": at_once, "async later": later}


KINDS = ["plain", "async", "async later"]


@pytest.mark.parametrize("policy", [ONCE, TWICE], ids=["noted", "quick"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("error", "shown"),
    [(SystemExit(3), b"sys.exit(3)"), (GeneratorExit(), b"GeneratorExit")],
    ids=["sys.exit", "GeneratorExit"],
)
async def test_a_task_that_calls_exit_has_failed_and_its_worker_goes_on(
    workplace, kind, policy, error, shown
):
    app, ran = await workplace.open(), []
    leave = app.task(name="leave", queue="mail", retry=policy)(fail_with(error)[kind])

    @app.task(queue="mail")
    async def note() -> None:
        ran.append(1)

    worker = await workplace.start(app)
    await leave.send()
    await eventually(lambda: letters(leave.queue))
    (letter,) = await letters(leave.queue)
    assert shown in letter
    await note.send()
    await eventually(lambda: ran)
    assert await workplace.stop(worker) == 0


async def test_a_thread_of_a_task_may_raise_a_keyboard_interrupt(workplace):
    app = await workplace.open()
    task = app.task(queue="mail", retry=ONCE)(fail_with(KeyboardInterrupt())["plain"])
    worker = await workplace.start(app)
    await task.send()
    await eventually(lambda: letters(task.queue))
    assert await workplace.stop(worker) == 0


async def test_an_isolated_function_that_exits_ends_its_child_alone(
    workplace, tmp_path, monkeypatch
):
    (tmp_path / "exiting.py").write_text(
        "import sys\ndef leave() -> None: sys.exit(3)\n"
        "def interrupt() -> None: raise KeyboardInterrupt\n"
        "async def leave_async() -> None: sys.exit(3)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    exiting = importlib.import_module("exiting")
    app = await workplace.open()
    declare = app.task(queue="mail", isolate=True, retry=ONCE)
    tasks = [declare(exiting.leave), declare(exiting.interrupt), declare(exiting.leave_async)]
    worker = await workplace.start(app)
    for task in tasks:
        await task.send()

    async def all_dead():
        return len(await letters(tasks[0].queue)) == 3

    await eventually(all_dead)
    assert await workplace.stop(worker) == 0


async def test_a_cancelled_task_that_calls_exit_does_not_end_its_worker(workplace):
    app, began, ran = await workplace.open(), asyncio.Event(), []

    @app.task(queue="mail", status=True)
    async def stubborn() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            sys.exit(1)

    @app.task(queue="mail")
    async def note() -> None:
        ran.append(1)

    worker = await workplace.start(app)
    job = await stubborn.send()
    await began.wait()
    await job.cancel()
    await job.wait(timeout_s=60)
    await note.send()
    await eventually(lambda: ran)
    assert await workplace.stop(worker) == 0


async def test_a_task_that_calls_exit_when_its_worker_stops_leaves_an_orderly_end(workplace):
    app, began = await workplace.open(grace_s=0.1), asyncio.Event()

    @app.task(queue="mail")
    async def stubborn() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            sys.exit(1)

    worker = await workplace.start(app)
    await stubborn.send()
    await began.wait()
    assert await workplace.stop(worker) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("ordering", "batch"),
    [("partition", None), ("partition", 2), ("key", None)],
    ids=["partition", "batch", "key"],
)
async def test_a_topic_handler_that_calls_exit_has_failed_and_others_go_on(
    open_app, valkey_server, consume, kind, ordering, batch
):
    app = await open_app(valkey_server)
    orders = app.topic("orders", type=int, partitions=1)
    function, seen = fail_with(SystemExit("bye"))[kind], []

    def plain(order):
        seen.append(order)
        return function()

    async def awaited(order):
        seen.append(order)
        await function()

    handler = plain if kind == "plain" else awaited
    await orders.send(1)
    consumer = await consume(orders, handler, ordering=ordering, batch=batch, retry=ONCE)
    await eventually(lambda: consumer.counts.dead == 1)
    await orders.send(2)
    await eventually(lambda: consumer.counts.dead == 2)
    assert len(seen) == 2
    (first, _) = (await orders.dead_letters.list()).letters
    assert "sys.exit('bye')" in first.error_message


@pytest.mark.parametrize("status", [False, True], ids=["quick", "tracked"])
@pytest.mark.parametrize("notices", [True, False])
async def test_a_task_that_cancels_its_own_task_takes_no_place_with_it(workplace, notices, status):
    app, ran = await workplace.open(), []

    @app.task(queue="mail", retry=TWICE, status=status)
    async def leave() -> None:
        ran.append("leave")
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        if notices:
            await asyncio.sleep(0)

    @app.task(queue="mail")
    async def note() -> None:
        ran.append("note")

    await leave.send_many([()] * 3)
    worker = await workplace.start(app, concurrency=1)
    await note.send()
    await eventually(lambda: "note" in ran)

    async def all_ended():
        return len(await letters(leave.queue)) == (3 if notices else 0) and ran.count("leave") == (
            6 if notices else 3
        )

    await eventually(all_ended)
    assert await workplace.stop(worker) == 0


@pytest.mark.parametrize(
    ("how", "ordering"),
    [
        ("raises GeneratorExit", "partition"),
        ("raises GeneratorExit", "key"),
        ("raises GeneratorExit", "none"),
        ("cancels itself", "partition"),
        ("cancels itself", "key"),
        ("cancels itself", "none"),
        ("cancels itself and fails", "key"),
    ],
)
async def test_a_topic_handler_that_ends_what_runs_it_has_failed_and_others_go_on(
    open_app, valkey_server, consume, how, ordering
):
    app = await open_app(valkey_server)
    orders, seen = app.topic("orders", type=int, partitions=1), []

    async def handle(order):
        seen.append(order)
        if order == 1:
            if how == "raises GeneratorExit":
                raise GeneratorExit
            asyncio.current_task().cancel()
            if how == "cancels itself and fails":
                raise ValueError
            await asyncio.sleep(0)

    await orders.send(1, key="a")
    consumer = await consume(orders, handle, ordering=ordering, retry=ONCE)
    await eventually(lambda: consumer.counts.dead == 1)
    await orders.send(2, key="a")
    await eventually(lambda: seen == [1, 2])
