"""Failed attempts and dead letters in the log: one line each, and none for what goes well."""

import asyncio
import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.kit.workplace import claim_as

from penstock import DeadLetter, Fixed, Retry, RetryPolicy
from penstock.runtime.logs import configure
from penstock.settings import LogSettings
from penstock.testing.eventually import eventually

SECRET = "4929-1234"  # stands for arguments and payloads, which are never logged
TWICE = RetryPolicy(max_attempts=2, backoff=Fixed(0))
ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
def lines(caplog):
    """The lines of failures so far, warnings and errors."""
    caplog.set_level(logging.DEBUG)
    return lambda level=None: [
        record
        for record in caplog.records
        if record.name == "penstock.failures" and level in {None, record.levelname}
    ]


def shown(record):
    return logging.Formatter().format(record)


def any_has(records, words):
    return any(words in shown(record) for record in records)


def pasted(command):
    """Run a command of a log line in a shell that knows nothing of the program's settings."""
    environ = {name: value for name, value in os.environ.items() if "PENSTOCK" not in name}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command], env=environ, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def command_in(record):
    return record.getMessage().rpartition("to see it: ")[2]


async def test_each_failed_attempt_is_a_warning_and_the_dead_letter_an_error(workplace, lines):
    app = await workplace.open()

    @app.task(name="resize", queue="images", retry=TWICE)
    async def resize(number: str) -> None:
        raise ValueError("bad image")

    job = await resize.send(SECRET)
    await workplace.start(app)
    await eventually(lambda: len(lines()) == 3)
    first, second, dead = lines()
    assert [record.levelname for record in lines()] == ["WARNING", "WARNING", "ERROR"]
    assert f"task 'resize' of queue 'images': job {job.id} failed (attempt 1 of 2), next" in (
        first.getMessage()
    )
    assert "(attempt 2 of 2), no further attempt: ValueError: bad image" in second.getMessage()
    assert f"job {job.id} is now a dead letter (exhausted, attempt 2 of 2)" in dead.getMessage()
    assert "line" in shown(first)
    assert 'raise ValueError("bad image")' in shown(first)
    assert "penstock/queues" not in shown(first)  # the frames that led to the function are ours
    assert SECRET not in "".join(map(shown, lines()))
    code, output = await asyncio.to_thread(pasted, command_in(dead))
    assert code == 0, output
    assert "bad image" in output


async def test_the_facts_of_a_line_stand_beside_it_for_logs_in_json(workplace, lines):
    app = await workplace.open()

    @app.task(name="resize", queue="images", retry=TWICE)
    async def resize() -> None:
        raise ValueError("bad image")

    job = await resize.send()
    await workplace.start(app)
    await eventually(lambda: len(lines()) == 3)
    first, _, dead = lines()
    assert first.failure == {
        "queue": "images",
        "job": job.id,
        "attempt": 1,
        "max_attempts": 2,
        "task": "resize",
        "error": "ValueError",
        "fingerprint": first.failure["fingerprint"],
        "next_s": 0.0,
    }
    assert (dead.failure["reason"], dead.failure["letter"]) == ("exhausted", job.id)
    stream, root = io.StringIO(), logging.getLogger()
    before = (root.level, [(one, list(one.filters)) for one in root.handlers])
    handler = configure(LogSettings(format="json"), stream)
    try:
        handler.handle(logging.makeLogRecord(vars(first)))
    finally:
        root.removeHandler(handler)
        root.setLevel(before[0])
        for one, filters in before[1]:
            one.filters = filters
    line = json.loads(stream.getvalue())
    assert line["failure"]["task"] == "resize"
    assert "bad image" in line["exception"]


async def test_a_plain_function_a_time_out_and_a_request_for_a_dead_letter_are_logged(
    workplace, lines
):
    app = await workplace.open()

    @app.task(queue="work", retry=ONCE)
    def block() -> None:
        raise OSError("disk full")

    @app.task(queue="work", retry=ONCE, timeout_s=0.05)
    async def hang() -> None:
        await asyncio.sleep(60)

    @app.task(queue="work")
    async def refuse() -> None:
        raise DeadLetter("not for us")

    await workplace.start(app)
    for task, words in ((block, "OSError: disk full"), (hang, "TimeoutError")):
        await task.send()
        await eventually(lambda name=task.name: any_has(lines("ERROR"), f"task {name!r}"))
        assert any_has(lines("WARNING"), words)
    assert any_has(lines("WARNING"), "await asyncio.sleep(60)")
    await refuse.send()
    await eventually(lambda: any_has(lines("ERROR"), "(requested, attempt 1 of 5)"))


async def test_a_wish_to_be_called_again_is_no_warning_until_no_attempt_is_left(workplace, lines):
    app = await workplace.open()

    @app.task(queue="work", retry=TWICE)
    async def poll() -> None:
        raise Retry(after=0)

    await poll.send()
    await workplace.start(app)
    await eventually(lambda: len(lines()) == 3)
    assert [record.levelname for record in lines()] == ["INFO", "WARNING", "ERROR"]


async def test_raw_jobs_and_jobs_that_cannot_be_read_are_logged(workplace, lines):
    app = await workplace.open()
    queue = app.queue("raw", retry=ONCE)

    @queue.handler
    async def take(job: dict[str, int]) -> None:
        raise KeyError("camera")

    @app.task(name="count", queue="typed", retry=TWICE)
    async def count(number: int) -> None: ...

    await queue.push({"a": 1})
    await app.redis.call(
        "RPUSH", count.queue.keyring.list_of(""), json.dumps({"task": "count", "args": [SECRET]})
    )
    await workplace.start(app)
    await eventually(lambda: len(lines("ERROR")) == 2)
    texts = [one.getMessage() for one in lines()]
    assert any("handler of raw jobs of queue 'raw'" in text for text in texts)
    assert any("undecodable" in text and "task 'count'" in text for text in texts)
    for one in lines("ERROR"):
        code, output = await asyncio.to_thread(pasted, command_in(one))
        assert code == 0, output


async def test_a_function_whose_child_process_dies_is_logged(
    workplace, lines, tmp_path, monkeypatch
):
    (tmp_path / "crashing_child.py").write_text("import os\ndef die() -> None: os._exit(9)\n")
    monkeypatch.syspath_prepend(tmp_path)
    import crashing_child  # noqa: PLC0415

    app = await workplace.open()
    die = app.task(queue="children", isolate=True, retry=ONCE)(crashing_child.die)
    await workplace.start(app)
    await die.send()
    await eventually(lambda: len(lines()) == 2)
    assert any_has(lines("WARNING"), "the child process exited with code 9")


async def test_jobs_of_a_worker_that_died_are_logged_by_the_one_that_returns_them(workplace, lines):
    app = await workplace.open(silence_s=0.3)

    @app.task(name="once", queue="mail", retry=ONCE)
    async def once() -> None: ...

    @app.task(queue="mail", retry=TWICE)
    async def twice() -> None: ...

    await app.queue("mail").declared()
    single, double = await once.send(), await twice.send()
    await claim_as(once.queue, "dead-1", 2)
    # A single attempt counts only once it is noted as begun.
    key = once.queue.keyring.claimed("dead-1")
    name = (await app.redis.call("HKEYS", key))[0]
    begun = {"task": "once", "id": single.id, "args": [], "_penstock": {"begun": True}}
    await app.redis.call("HSET", key, name, json.dumps(begun))
    await workplace.start(app)
    await eventually(lambda: len(lines()) == 3)
    assert any_has(lines("WARNING"), f"job {double.id} failed (attempt 1 of 2), next attempt at")
    assert any_has(lines("ERROR"), f"job {single.id} is now a dead letter (crashed")
    assert any_has(lines("WARNING"), "worker dead-1 died")


async def test_failures_of_topic_handlers_are_logged_with_group_and_message(
    open_app, valkey_server, consume, lines
):
    app = await open_app(valkey_server)
    orders = app.topic("orders", type=int)
    await orders.send(1)

    async def take(order: int) -> None:
        raise ValueError(f"odd order {order}")

    await consume(orders, take, group="billing", retry=TWICE)
    await eventually(lambda: len(lines()) == 3)
    first, second, dead = lines()
    assert [record.levelname for record in lines()] == ["WARNING", "WARNING", "ERROR"]
    subject = "take' of group 'billing' of topic 'orders': message "
    assert all(subject in record.getMessage() for record in lines())
    assert "(attempt 1 of 2), next attempt" in first.getMessage()
    assert "(attempt 2 of 2), no further attempt" in second.getMessage()
    assert 'raise ValueError(f"odd order {order}")' in shown(second)
    code, output = await asyncio.to_thread(pasted, command_in(dead))
    assert code == 0, output
    assert "odd order 1" in output


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
async def test_payloads_that_cannot_be_read_are_logged_in_every_order(
    open_app, valkey_server, consume, lines, ordering
):
    app = await open_app(valkey_server)
    await app.topic("orders").send({"not": SECRET})
    orders = app.topic("orders", type=int)

    async def take(order: int) -> None: ...

    await consume(orders, take, ordering=ordering)
    await eventually(lambda: len(lines()) == 2)
    assert any_has(lines("WARNING"), "DecodeError")
    assert any_has(lines("ERROR"), "(undecodable, attempt 1 of 5)")
    assert SECRET not in "".join(map(shown, lines()))


@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "thread"])
async def test_every_message_of_a_failed_batch_has_its_line_and_the_traceback(
    open_app, valkey_server, consume, lines, in_thread
):
    app = await open_app(valkey_server)
    orders = app.topic("orders", type=int, partitions=1)
    await orders.send_batch([1, 2])

    def take(batch: list[int]) -> None:
        raise ValueError("all of them")

    async def take_async(batch: list[int]) -> None:
        take(batch)

    await consume(orders, take if in_thread else take_async, batch=2, retry=ONCE)
    await eventually(lambda: len(lines()) == 4)
    warnings = lines("WARNING")
    assert len({record.failure["message"] for record in warnings}) == 2
    assert all('raise ValueError("all of them")' in shown(record) for record in warnings)
    assert len({record.failure["fingerprint"] for record in lines()}) == 1


async def test_repeats_of_one_bug_are_counted_instead_of_written(workplace, lines):
    app = await workplace.open()

    @app.task(name="resize", queue="images", retry=ONCE)
    async def resize(number: int) -> None:
        raise ValueError(f"bad image {number}")

    await resize.send_many([(number,) for number in range(40)])
    worker = await workplace.start(app)
    await eventually(lambda: letters_of(app, resize.queue, 40))
    assert len(lines("WARNING")) == len(lines("ERROR")) == 3
    await workplace.stop(worker)
    warning, dead = lines("WARNING")[3], lines("ERROR")[3]
    assert "task 'resize' of queue 'images': 37 more failed attempts" in warning.getMessage()
    assert warning.failure["more"] == 37
    command = dead.getMessage().rpartition("to see them: ")[2]
    code, output = await asyncio.to_thread(pasted, command)
    assert code == 0, output
    assert output.count("bad image") == 40


async def letters_of(app, queue, count):
    return await app.redis.call("LLEN", queue.keyring.dead_letters) == count


async def test_nothing_is_logged_of_what_goes_well(
    workplace, lines, open_app, valkey_server, consume
):
    app, ran = await workplace.open(), []

    @app.task(queue="mail")
    async def note(number: int) -> None:
        ran.append(number)

    topic = (await open_app(valkey_server)).topic("news", type=int)
    await topic.send(1)
    await note.send(1)
    await workplace.start(app)

    async def take(number: int) -> None:
        ran.append(number)

    await consume(topic, take)
    await eventually(lambda: len(ran) == 2)
    assert lines() == []


PROGRAM = """
import asyncio, os, sys
from penstock import Penstock, RetryPolicy
from penstock.settings import Settings

app = Penstock(settings=Settings(url=os.environ["SERVER"], namespace=os.environ["SPACE"]))

@app.task(name="resize", queue="images", retry=RetryPolicy(max_attempts=1))
async def resize(path: str) -> None:
    raise ValueError("bad image")

async def main():
    async with app:
        await resize.send("cat.png")
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        while not await app.redis.call("LLEN", resize.queue.keyring.dead_letters):
            await asyncio.sleep(0.02)
        await worker.stop()
        await running

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_a_program_that_sets_up_no_logging_shows_failures_on_standard_error(
    valkey_server, namespace, tmp_path
):
    (tmp_path / "shop.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "shop.py"],
        cwd=tmp_path,
        env=os.environ | {"SERVER": valkey_server.url, "SPACE": namespace},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = done.stderr.splitlines()
    assert lines[0].startswith("task 'resize' of queue 'images': job ")
    assert 'raise ValueError("bad image")' in done.stderr
    assert "is now a dead letter (exhausted, attempt 1 of 1)" in lines[-1]
    assert "cat.png" not in done.stderr
