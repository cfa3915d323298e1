"""A blocking application is complete: it can be worked on, subscribed to, scheduled and managed."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from penstock import JobContext, Message, RetryPolicy
from penstock.errors import ConfigError, NotOpen
from penstock.testing.queues import clock, kill_worker, run_until_idle
from penstock.testing.servers import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
AT_ONCE = RetryPolicy(max_attempts=1)


@contextmanager
def working(app, **options):
    worker = app.worker(**options)
    ended = []
    thread = threading.Thread(target=lambda: ended.append(worker.run()))
    thread.start()
    try:
        wait_until(worker.readiness, what="a worker that is ready")
        yield worker
    finally:
        worker.stop()
        thread.join()
    assert ended == [0]


def test_a_worker_runs_tasks_and_raw_jobs_in_this_process(app):
    @app.task(queue="mail", status=True)
    def welcome(user_id: int, context: JobContext) -> str:
        context.report(done=1, total=1)
        return f"{user_id} by {threading.current_thread().name != 'penstock'}"

    seen = []
    images = app.queue("images")

    @images.handler(concurrency=2)
    def detect(job: dict) -> None:
        seen.append(job)
        welcome.send(job["n"])  # blocking calls are allowed in handlers

    with working(app):
        job = welcome.send(7)
        assert job.result(timeout_s=60) == "7 by True"
        assert job.progress().done == 1
        images.push({"n": 8})
        wait_until(lambda: len(app.queues.jobs("mail", state="done").jobs) == 2, what="both")
    assert seen == [{"n": 8}]


def test_a_task_may_be_asynchronous_and_is_sent_by_its_name(app):
    @app.task(name="add", queue=app.queue("sums", status=True))
    async def add(a: int, b: int) -> int:
        return a + b

    with working(app):
        assert app.send("add", [1, 2]).result(timeout_s=60) == 3
        assert add.with_options(priority="high").send(2, 3).result(timeout_s=60) == 5


def test_plain_functions_subscribe_to_topics(app):
    orders, billed, shipped = app.topic("orders", partitions=2), [], []

    @orders.subscribe(group="billing", ordering="key")
    def bill(order: dict, message: Message) -> None:
        billed.append((order["n"], message.key))

    @app.subscribe("orders", "shipping")
    def ship(order: dict) -> None:
        shipped.append(order["n"])

    with working(app):
        orders.send_batch([{"n": 1}, {"n": 2}], key=lambda order: f"k{order['n']}")
        wait_until(lambda: len(billed) + len(shipped) == 4, what="both groups")
        assert {group.name for group in app.topics.groups("orders")} == {"billing", "shipping"}
    assert sorted(billed) == [(1, "k1"), (2, "k2")]
    assert sorted(shipped) == [1, 2]


def test_dead_letters_of_topics_are_listed_shown_and_replayed(app):
    payments, ready, taken = app.topic("payments"), threading.Event(), threading.Event()

    @payments.subscribe(group="billing", retry=AT_ONCE)
    def bill(_: dict) -> None:
        if not ready.is_set():
            raise ValueError("no")
        taken.set()

    with working(app):
        payments.send({"n": 1})
        letters = payments.dead_letters
        wait_until(lambda: letters.count() == 1, what="the dead letter")
        (letter,) = letters.list().letters
        shown = app.topics.dead_letters("payments").show(letter.id)
        assert shown.error_class.endswith("ValueError")
        ready.set()
        assert letters.replay([letter.id]).replayed == 1
        assert taken.wait(10)


def test_dead_letters_of_queues_are_listed_shown_and_requeued(app):
    ready = threading.Event()

    @app.task(queue="mail", status=True, retry=AT_ONCE)
    def welcome() -> str:
        if not ready.is_set():
            raise ValueError("no")
        return "sent"

    with working(app):
        job = welcome.send()
        assert job.wait(timeout_s=60) == "failed"
        letters = app.queues.dead_letters("mail")
        (letter,) = letters.list().letters
        assert letters.get(letter.id).job_id == job.id
        ready.set()
        assert letters.replay([letter.id]).replayed == 1
        wait_until(lambda: job.status().status == "done", what="the job's end")


def test_queues_are_paused_and_resumed(app):
    @app.task(queue="mail", status=True)
    def welcome() -> None: ...

    with working(app):
        assert app.queues.pause("mail")
        job = welcome.send()
        assert app.queues.facts("mail").paused
        assert app.queues.resume("mail")
        assert job.wait(timeout_s=60) == "done"
    assert [line.name for line in app.queues.list()] == ["mail"]


def test_tasks_recur(app):
    ticked = threading.Event()

    @app.every(1, name="tick")
    def tick() -> None:
        ticked.set()

    @app.cron("0 7 * * *", tz="Europe/Berlin", queue=app.queue("reports"), args=("all",))
    def report(which: str) -> str:
        return which

    @app.task(queue="mail", name="mail")
    def send_mail() -> None: ...

    app.every(3600, name="hourly-mail")(send_mail)
    assert report("one") == "one"
    with working(app):
        assert ticked.wait(10)
        names = {schedule.name for schedule in app.schedules.list()}
        assert names == {"tick", report.name, "hourly-mail"}
        app.schedules.pause("tick")
        assert app.schedules.get("tick").paused
        job_id = app.schedules.trigger("hourly-mail")
        assert job_id.startswith("cron:hourly-mail:")
    with pytest.raises(ConfigError):
        app.every(1, name="tick")(lambda: None)


def test_messages_are_followed(app):
    orders = app.topic("orders")
    orders.send({"n": 1})
    pages = app.topics.follow("orders", start="0")
    assert [message.payload.text for message in next(pages)] == ['{"n":1}']
    orders.send({"n": 2})
    assert [message.payload.text for message in next(pages)] == ['{"n":2}']
    pages.close()
    assert app.redis.call("PING") == b"PONG"


def test_workers_of_an_application_follow_one_another(app):
    @app.task(queue="jobs", status=True)
    def one(n: int) -> int:
        return n

    for n in range(3):
        with working(app) as worker:
            assert one.send(n).result(timeout_s=60) == n
            with pytest.raises(NotOpen, match="running in this process already"):
                app.worker().run()
        assert not worker.readiness()
        worker.stop()


def test_a_worker_that_is_cut_gives_its_job_back(app):
    begun = threading.Event()

    @app.task(queue="jobs", status=True)
    async def wait() -> None:
        begun.set()
        await asyncio.sleep(60)

    worker = app.worker()
    worker.cut()  # not running yet
    thread = threading.Thread(target=worker.run)
    thread.start()
    wait.send()
    assert begun.wait(10)
    worker.cut()
    thread.join(10)
    assert not thread.is_alive()
    assert app.get_queue_pressure("jobs").current_length == 1
    worker.cut()


def test_a_worker_that_was_stopped_before_does_nothing(app):
    worker = app.worker()
    worker.stop()
    assert worker.run() == 0


def test_a_forked_child_has_workers_of_its_own(app):
    @app.task(queue="jobs", status=True)
    def pid() -> int:
        return os.getpid()

    with working(app):
        assert pid.send().result(timeout_s=60) == os.getpid()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with working(app):
                    code = 0 if pid.send().result(timeout_s=60) else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0


PROGRAM = """
import os
from penstock.sync import Penstock

app = Penstock()
orders = app.topic("orders")

@app.task(queue="mail", status=True)
def welcome(user_id: int) -> int:
    orders.send({"user": user_id})
    return os.getpid()

@app.task(queue="mail", status=True, isolate=True)
def apart() -> int:
    return os.getpid()

@orders.subscribe(group="billing")
def bill(order: dict) -> None:
    print("billed", order["user"], flush=True)

@app.every(3600)
def report() -> None: ...

if __name__ == "__main__":
    print(welcome.send(7).result(timeout_s=20) == apart.send().result(timeout_s=20))
    app.schedules.trigger("s1.report")
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "s1.py").write_text(PROGRAM)
    return tmp_path


def test_the_command_runs_a_blocking_application(folder, valkey_server, namespace):
    environ = os.environ | {"PENSTOCK_URL": valkey_server.url, "PENSTOCK_NAMESPACE": namespace}
    command = [sys.executable, "-m", "penstock", "worker", "s1:app"]
    with subprocess.Popen(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, text=True
    ) as worker:
        try:
            sent = subprocess.run(
                [sys.executable, "s1.py"],
                cwd=folder,
                env=environ,
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
            assert sent.stdout == "False\n", "the isolated task ran in another process"
            assert worker.stdout.readline() == "billed 7\n"
        finally:
            worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0


async def test_the_test_kit_takes_the_application_that_a_worker_runs(folder, app):
    @app.task(queue="mail", name="s1.welcome")
    def welcome(user_id: int) -> int:
        return user_id

    async with app.twin as twin:
        await asyncio.to_thread(welcome.send, 1)
        await kill_worker(twin, f"{folder / 's1.py'}:app", "s1.welcome", when="begun")
        await clock.advance(twin, twin.settings.queues.silence_s)
        assert (await run_until_idle(twin)).done == 1
