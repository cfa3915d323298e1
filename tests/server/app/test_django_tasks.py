"""Tasks of Django are queued by Penstock, and its workers run them."""

import asyncio
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from django.db import connection, transaction
from django.test import override_settings
from tests.kit.django_project import BACKEND, configure

from penstock.errors import ConfigError
from penstock.queues.storage.stored_job import read_item
from penstock.testing.queues import clock, enqueued, run_until_idle

configure()

from penstock.delivery.retries import Fixed, RetryPolicy  # noqa: E402
from penstock.interfaces.django import framework, register, worker_app  # noqa: E402

task = framework._tasks.task
READY = framework.TaskResultStatus.READY
SUCCESSFUL, FAILED = framework.TaskResultStatus.SUCCESSFUL, framework.TaskResultStatus.FAILED

ran = []


@task
def add(a, b=0):
    ran.append((a, b))
    return {"sum": a + b}


@task(queue_name="mail", priority=10)
async def greet(name):
    return f"hello {name}"


@task
def fail():
    raise LookupError("nothing there")


@task(takes_context=True)
def tell(context, word):
    return [word, context.attempt, context.task_result.id]


@pytest.fixture
def project(valkey_server, namespace):
    ran.clear()
    options = {"url": valkey_server.url, "namespace": namespace, "queues.poll_s": 0.01}
    tasks = {"BACKEND": BACKEND, "QUEUES": ["default", "mail"], "OPTIONS": options}
    with override_settings(TASKS={"default": tasks}):
        yield framework.task_backends["default"]
        framework.task_backends["default"].close()


@pytest.fixture
async def app(project):
    async with worker_app(retry=RetryPolicy(max_attempts=2, backoff=Fixed(0))) as app:
        yield app


async def queued(app, queue="default"):
    return [(one.task, one.args, one.kwargs) for one in await enqueued(app, queue)]


async def test_a_task_that_fails_is_logged_with_its_path(app, caplog):
    await fail.aenqueue()
    await run_until_idle(app)
    lines = [one for one in caplog.records if one.name == "penstock.failures"]
    assert [one.levelname for one in lines] == ["WARNING", "WARNING", "ERROR"]
    assert all(f"task '{__name__}.fail'" in one.getMessage() for one in lines)


class TestSending:
    async def test_a_task_is_queued_by_the_path_of_its_function(self, app):
        result = await add.aenqueue(1, b=2)
        path = f"{__name__}.add"
        assert await queued(app) == [(path, (1,), {"b": 2})]
        assert (result.status, result.args, result.kwargs) == (READY, [1], {"b": 2})
        assert result.enqueued_at <= datetime.now(UTC)
        raw = await app.redis.call("LINDEX", app.queue("default").keyring.waiting, 0)
        assert read_item(raw, app.codec).id == result.id

    def test_code_that_does_not_await_queues_as_well(self, project, valkey_server, namespace):
        result = add.enqueue(1)
        assert add.get_result(result.id).status == READY
        assert valkey_server.command("LLEN", f"{namespace}::default") == 1

    async def test_arguments_that_are_no_json_are_refused_and_nothing_is_queued(self, app):
        with pytest.raises(TypeError):
            await add.aenqueue(object())
        assert await queued(app) == []

    async def test_priority_and_queue_are_kept(self, app):
        await greet.aenqueue("Ada")
        await greet.using(priority=-1).aenqueue("Bob")
        await greet.using(priority=0, queue_name="default").aenqueue("Cem")
        assert [one.priority for one in await enqueued(app, "mail")] == ["high", "low"]
        assert [one.priority for one in await enqueued(app, "default")] == [None]

    async def test_a_task_waits_for_its_time(self, app):
        later = datetime.now(UTC) + timedelta(hours=1)
        result = await add.using(run_after=later).aenqueue(1)
        (job,) = await enqueued(app, "default")
        assert abs(job.due_ms / 1000 - later.timestamp()) < 1
        await run_until_idle(app)
        assert (await add.aget_result(result.id)).status == READY
        await clock.advance(app, 3600)
        await run_until_idle(app)
        assert (await add.aget_result(result.id)).status == SUCCESSFUL

    async def test_the_signal_of_a_queued_task_is_sent_and_a_receiver_cannot_break_it(self, app):
        heard = []

        def receive(sender, task_result, **_):
            heard.append(task_result.id)
            raise RuntimeError("broken receiver")

        framework.task_enqueued.connect(receive)
        try:
            result = await add.aenqueue(1)
        finally:
            framework.task_enqueued.disconnect(receive)
        assert heard == [result.id]

    def test_on_commit_queues_nothing_for_what_was_rolled_back(
        self, project, valkey_server, namespace
    ):
        try:
            with transaction.atomic():
                transaction.on_commit(lambda: add.enqueue(1))
                transaction.set_rollback(True)
            assert valkey_server.command("LLEN", f"{namespace}::default") == 0
            with transaction.atomic():
                transaction.on_commit(lambda: add.enqueue(1))
                assert valkey_server.command("LLEN", f"{namespace}::default") == 0
            assert valkey_server.command("LLEN", f"{namespace}::default") == 1
        finally:
            connection.close()

    def test_threads_share_one_application(self, project):
        async def in_threads():
            return await asyncio.gather(*(asyncio.to_thread(self.application) for _ in range(4)))

        assert len(set(asyncio.run(in_threads()))) == 1

    @staticmethod
    def application():
        return id(framework.task_backends["default"]._penstock())


class TestResults:
    async def test_what_a_task_returned_can_be_asked_for(self, app):
        result = await add.aenqueue(1, b=2)
        ended = await run_until_idle(app)
        assert ended.done == 1
        await result.arefresh()
        assert (result.status, result.return_value) == (SUCCESSFUL, {"sum": 3})
        assert result.enqueued_at <= result.started_at <= result.finished_at
        assert result.attempts == 1
        found = await add.aget_result(result.id)
        assert (found.args, found.kwargs, found.return_value) == ([1], {"b": 2}, {"sum": 3})
        assert found.task.module_path == add.module_path

    async def test_async_tasks_run_from_any_queue_of_the_backend(self, app):
        first = await greet.aenqueue("Ada")
        second = await greet.using(queue_name="default").aenqueue("Bob")
        await run_until_idle(app)
        values = [(await greet.aget_result(one.id)).return_value for one in (first, second)]
        assert values == ["hello Ada", "hello Bob"]

    async def test_a_task_that_fails_is_tried_again_and_tells_its_error(self, app):
        finished = []

        def receive(sender, task_result, **_):
            finished.append((task_result.status, task_result.attempts))

        framework.task_finished.connect(receive)
        try:
            result = await fail.aenqueue()
            ended = await run_until_idle(app)
        finally:
            framework.task_finished.disconnect(receive)
        assert (ended.retried, ended.dead) == (1, 1)
        found = await fail.aget_result(result.id)
        assert (found.status, found.attempts) == (FAILED, 2)
        assert found.errors[0].exception_class is LookupError
        assert "nothing there" in found.errors[0].traceback
        assert finished == [(FAILED, 2)]
        with pytest.raises(ValueError, match="failed"):
            _ = found.return_value

    async def test_a_task_may_take_its_context(self, app):
        result = await tell.aenqueue("word")
        await run_until_idle(app)
        found = await tell.aget_result(result.id)
        assert found.return_value == ["word", 1, result.id]

    async def test_the_signals_of_a_run_are_sent(self, app):
        heard = []

        def receive(sender, signal, task_result, **_):
            heard.append("started" if signal is framework.task_started else task_result.status)

        for signal in (framework.task_started, framework.task_finished):
            signal.connect(receive)
        try:
            await add.aenqueue(1)
            await run_until_idle(app)
        finally:
            for signal in (framework.task_started, framework.task_finished):
                signal.disconnect(receive)
        assert heard == ["started", SUCCESSFUL]

    @pytest.mark.parametrize("result_id", ["0" * 32, "no such", "x" * 500])
    async def test_a_result_that_nobody_knows_does_not_exist(self, app, result_id):
        with pytest.raises(framework.TaskResultDoesNotExist):
            await add.aget_result(result_id)

    @pytest.mark.parametrize("name", ["task", "missing", ""])
    async def test_the_name_of_a_task_imports_nothing(self, app, tmp_path, monkeypatch, name):
        (tmp_path / "planted.py").write_text("def task(): ...\n")
        monkeypatch.syspath_prepend(tmp_path)
        result = await add.aenqueue(1)
        record = app.queue("default").keyring.record(result.id)
        assert await app.redis.call("HSET", record, "task", f"planted.{name}") == 0
        with pytest.raises(framework.TaskResultDoesNotExist):
            await framework.task_backends["default"].aget_result(result.id)
        assert "planted" not in sys.modules

    def test_the_result_of_a_task_of_an_app_is_found_before_its_module_is_imported(
        self, project, monkeypatch
    ):
        result = add.enqueue(1)
        declared = dict(project.seen)
        monkeypatch.setattr(type(project), "seen", {})
        with pytest.raises(framework.TaskResultDoesNotExist):
            project.get_result(result.id)
        monkeypatch.setattr(
            framework, "autodiscover_modules", lambda _: project.seen.update(declared)
        )
        assert project.get_result(result.id).task.module_path == f"{__name__}.add"

    async def test_a_result_of_another_task_is_a_mismatch(self, app):
        result = await add.aenqueue(1)
        with pytest.raises(Exception, match="does not match"):
            await fail.aget_result(result.id)

    async def test_a_cancelled_task_has_failed(self, app):
        result = await add.aenqueue(1)
        await app.queue("default").job(result.id).cancel()
        found = await add.aget_result(result.id)
        assert found.status == FAILED
        assert "cancelled" in found.errors[0].traceback


class TestSettingUp:
    def test_settings_that_are_none_are_found_by_the_check(self, project):
        tasks = {"BACKEND": BACKEND, "OPTIONS": {"url": "nonsense://", "nonsense": 1}}
        with override_settings(TASKS={"default": tasks}):
            backend = framework.task_backends["default"]
            assert "nonsense" in backend.check()[0].msg
            with pytest.raises(ConfigError):
                _ = backend.settings
        assert project.check() == []

    async def test_only_tasks_of_a_penstock_backend_can_be_registered(self, app):
        immediate = f"{framework.package}.backends.immediate.ImmediateBackend"
        with (
            override_settings(TASKS={"default": {"BACKEND": immediate}}),
            pytest.raises(TypeError, match="not a PenstockBackend"),
        ):
            register(app)

    def test_without_django_the_import_says_what_to_install(self):
        code = (
            "import sys; sys.modules['django'] = sys.modules['django_tasks'] = None\n"
            "import penstock.interfaces.django"
        )
        run = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert "pip install 'penstock[django]'" in run.stderr

    def test_a_job_can_be_read_by_any_program(self, project, valkey_server, namespace):
        add.enqueue(1, b=2)
        stored = msgspec.json.decode(valkey_server.command("LINDEX", f"{namespace}::default", 0))
        assert (stored["task"], stored["args"]) == (f"{__name__}.add", [1])
