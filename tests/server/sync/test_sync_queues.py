"""Queues and tasks for programs that do not await."""

import os
import threading

import pytest

from penstock.errors import ConfigError, InvalidJob, JobMissing, QueueFull, SettingError
from penstock.settings import Settings
from penstock.sync import Penstock

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def waiting(app, queue):
    return app.redis.call("LRANGE", f"{app.settings.namespace}::{queue}", 0, -1)


def test_a_blocking_program_pushes_one_job_and_many(app):
    queue = app.queue("jobs", max_size=3)
    assert queue.push({"n": 1}).queue_length == 1
    assert queue.push_many(["a", "b"]).queue_length == 3
    assert waiting(app, "jobs") == [b'{"n":1}', b"a", b"b"]
    with pytest.raises(QueueFull):
        queue.push("c")
    assert not queue.add_safe("c").success
    assert queue.pressure().is_full
    assert not app.add_to_queue_safe("jobs", "c").success
    assert app.get_queue_pressure("jobs").current_length == 3


def test_tasks_are_declared_before_anything_is_open_and_sent_by_threads(valkey_server, namespace):
    app = Penstock(settings=Settings(url=valkey_server.url, namespace=namespace))

    @app.task(queue="mail", name="mail.welcome", status=True)
    def welcome(user_id: int, *, lang: str = "en") -> str:
        return f"{user_id} {lang}"

    assert welcome(1) == "1 en"
    assert welcome.__name__ == "welcome"
    with app:
        threads = [
            threading.Thread(target=lambda: [welcome.send(n, lang="de") for n in range(20)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        jobs = welcome.send_many([(1,), welcome.call(2)])
        assert len(waiting(app, "mail")) == 82
        assert jobs[0].status().status == "queued"
        delayed = welcome.with_options(delay=60).with_options(max_attempts=2).send(1)
        assert (delayed.status().status, delayed.status().max_attempts) == ("submitted", 2)
        assert delayed.cancel()
        assert delayed.wait(timeout_s=60) == "cancelled"
        assert delayed.progress().done is None


def test_a_result_is_waited_for_and_typed(app):
    @app.task(queue="jobs", status=True)
    async def compute(n: int) -> tuple[int, str]:
        return n, "a"

    job = compute.send(1)
    record = app.twin.queue("jobs").keyring.record(job.id)
    with pytest.raises(TimeoutError):
        job.result(timeout_s=0.05)
    app.redis.call("HSET", record, "status", "done", "result", '[1,"a"]')
    assert job.result(timeout_s=60) == (1, "a")
    assert compute.job(job.id).result() == (1, "a")
    assert app.queue("jobs").job(job.id).result() == [1, "a"]


def test_tasks_are_sent_by_name(app):
    job = app.send("other.task", [1], queue="jobs", priority="high")
    assert (job.queue, job.created) == ("jobs", True)
    with pytest.raises(JobMissing):
        job.result(timeout_s=60)


def test_what_cannot_be_is_said_when_it_is_declared(app):
    with pytest.raises(SettingError):
        app.queue("jobs", max_size=-1)
    with pytest.raises(SettingError):
        app.task(timeout_s=-1)(lambda: None)

    @app.task(name="one")
    def one(n: int) -> None: ...

    with pytest.raises(ConfigError):
        app.task(name="one")(lambda: None)
    with pytest.raises(InvalidJob):
        one.send("a", "b")
    with pytest.raises(InvalidJob):
        one.with_options(delay="soon")


def test_a_forked_child_sends_over_connections_of_its_own(app):
    @app.task(queue="jobs")
    def one(n: int) -> None: ...

    one.send(1)
    child = os.fork()
    if child == 0:
        try:
            one.send(2)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    one.send(3)
    assert len(waiting(app, "jobs")) == 3


def test_an_application_that_was_closed_opens_anew(app):
    @app.task(queue="jobs")
    def one(n: int) -> None: ...

    queue = app.queue("raw")
    one.send(1)
    queue.push("a")
    app.close()
    one.send(2)
    queue.push("b")
    assert (len(waiting(app, "jobs")), len(waiting(app, "raw"))) == (2, 2)
