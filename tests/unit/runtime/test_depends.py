"""What a handler depends on is made for it, once, and cleaned up whatever happens."""

import asyncio
import contextlib
import functools
import logging
import threading
from typing import Annotated

import pytest

from penstock.delivery.depends import (
    INJECTED,
    Depends,
    Overrides,
    Resolver,
    injected_parameters,
    needs_injection,
)
from penstock.errors import ConfigError


async def resolved(function, overrides=None):
    async with Resolver(overrides) as resolver, resolver.resolve(function) as injected:
        return injected


class TestWhatIsInjected:
    def test_a_mark_in_the_annotation_or_as_default_is_found(self):
        def task(number: int, a: Annotated[str, Depends(str)] = INJECTED, b: str = Depends(str)):
            pass

        assert injected_parameters(task) == {"a", "b"}
        assert needs_injection(task)

    def test_a_function_without_marks_needs_nothing(self):
        def task(number: int, *args: str, name: str = "x", **rest: str):
            pass

        assert injected_parameters(task) == frozenset()
        assert not needs_injection(task)

    def test_annotations_given_as_text_are_read(self):
        def task(a: "Annotated[str, Depends(str)]" = INJECTED, b: "Unknown" = None):  # noqa: F821
            pass

        assert injected_parameters(task) == {"a"}

    def test_partials_methods_and_callable_objects_are_read(self):
        class Mailer:
            def send(self, to: str, db: str = Depends(str)):
                pass

            def __call__(self, to: str, db: str = Depends(str)):
                pass

        assert injected_parameters(Mailer().send) == {"db"}
        assert injected_parameters(Mailer()) == {"db"}
        assert injected_parameters(functools.partial(Mailer().send, "me")) == {"db"}

    @pytest.mark.parametrize("provider", [None, 3, "get_db"])
    def test_a_provider_is_a_function(self, provider):
        with pytest.raises(ConfigError, match="expected a function"):
            Depends(provider)

    def test_an_unknown_scope_is_refused(self):
        with pytest.raises(ConfigError, match="scope 'process' is not one of job, worker"):
            Depends(str, scope="process")

    def test_injected_without_a_mark_is_refused(self):
        def task(db: str = INJECTED):
            pass

        with pytest.raises(ConfigError, match=r"'db' is INJECTED.*no Depends"):
            injected_parameters(task)

    def test_two_marks_are_refused(self):
        def task(db: Annotated[str, Depends(str)] = Depends(int)):
            pass

        with pytest.raises(ConfigError, match="has 2 Depends"):
            injected_parameters(task)

    def test_a_parameter_that_cannot_be_named_is_refused(self):
        def task(db: str = Depends(str), /):
            pass

        with pytest.raises(ConfigError, match="given by name"):
            injected_parameters(task)

    def test_a_circle_is_refused_when_the_function_is_looked_at(self):
        def first(x: "Annotated[str, Depends(second)]" = INJECTED):
            pass

        def second(x: str = Depends(first)):
            pass

        first.__annotations__["x"] = Annotated[str, Depends(second)]

        def task(x: str = Depends(first)):
            pass

        with pytest.raises(ConfigError, match=r"circle: .*first → .*second → .*first"):
            injected_parameters(task)

    def test_what_lives_with_the_worker_cannot_depend_on_what_lives_with_a_job(self):
        def pool(session: str = Depends(str)):
            pass

        def task(pool: str = Depends(pool, scope="worker")):
            pass

        with pytest.raises(ConfigError, match="kept for the worker"):
            injected_parameters(task)

    def test_a_provider_whose_arguments_nobody_gives_is_refused(self):
        def get_db(url: str):
            pass

        def task(db: str = Depends(get_db)):
            pass

        with pytest.raises(ConfigError, match="no value for 'url'"):
            injected_parameters(task)


class TestProviders:
    async def test_every_kind_of_provider_gives_its_value(self):
        async def asynchronous():
            return "async"

        async def async_generator():
            yield "async generator"

        def generator():
            yield "generator"

        class Made:
            pass

        def task(
            a=Depends(asynchronous),
            b=Depends(async_generator),
            c=Depends(generator),
            d=Depends(lambda: "function"),
            e=Depends(lambda: asyncio.sleep(0, "awaited")),
            f=Depends(Made),
        ):
            pass

        values = await resolved(task)
        assert isinstance(values.pop("f"), Made)
        assert values == {
            "a": "async",
            "b": "async generator",
            "c": "generator",
            "d": "function",
            "e": "awaited",
        }

    async def test_a_plain_function_may_block_for_it_runs_in_a_thread(self):
        def task(thread=Depends(threading.get_ident)):
            pass

        assert (await resolved(task))["thread"] != threading.get_ident()

    async def test_a_provider_is_asked_once_for_a_job_however_often_it_is_named(self):
        asked = []

        async def connection():
            asked.append(1)
            return object()

        async def users(db=Depends(connection)):
            return db

        async def orders(db=Depends(connection)):
            return db

        def task(users=Depends(users), orders=Depends(orders), db=Depends(connection)):
            pass

        async with Resolver() as resolver:
            async with resolver.resolve(task) as first:
                assert first["users"] is first["orders"] is first["db"]
            async with resolver.resolve(task) as second:
                assert second["db"] is not first["db"]
        assert len(asked) == 2

    async def test_the_jobs_of_a_worker_share_what_lives_with_it(self):
        made, closed = [], []

        async def pool():
            made.append(object())
            await asyncio.sleep(0)
            yield made[-1]
            closed.append(1)

        def task(pool=Depends(pool, scope="worker")):
            pass

        async def job(resolver):
            async with resolver.resolve(task) as injected:
                return injected["pool"]

        async with Resolver() as resolver:
            values = await asyncio.gather(*(job(resolver) for _ in range(10)))
            assert set(values) == set(made)
            assert (len(made), closed) == (1, [])
        assert closed == [1]

    async def test_a_worker_wide_value_that_could_not_be_made_is_tried_again(self):
        tries = []

        async def pool():
            tries.append(1)
            if len(tries) == 1:
                raise ConnectionError
            return "pool"

        def task(pool=Depends(pool, scope="worker")):
            pass

        async with Resolver() as resolver:
            with pytest.raises(ConnectionError):
                async with resolver.resolve(task):
                    pass
            async with resolver.resolve(task) as injected:
                assert injected == {"pool": "pool"}


class TestCleaningUp:
    @staticmethod
    def nested(told):
        def outer():
            try:
                yield "outer"
            except BaseException as error:
                told.append(("outer", type(error)))
                raise
            told.append(("outer", None))

        async def inner(outer=Depends(outer)):
            try:
                yield "inner"
            except BaseException as error:
                told.append(("inner", type(error)))
                raise
            told.append(("inner", None))

        def task(inner=Depends(inner)):
            pass

        return task

    async def test_the_last_made_is_cleaned_up_first(self):
        told = []
        async with Resolver() as resolver, resolver.resolve(self.nested(told)):
            assert told == []
        assert told == [("inner", None), ("outer", None)]

    async def test_providers_learn_of_the_jobs_error_so_that_they_can_roll_back(self):
        told = []
        async with Resolver() as resolver:
            with pytest.raises(ValueError, match="the job's"):
                async with resolver.resolve(self.nested(told)):
                    raise ValueError("the job's")
        assert told == [("inner", ValueError), ("outer", ValueError)]

    async def test_a_cancelled_job_is_cleaned_up(self):
        told, begun = [], asyncio.Event()

        async def job():
            async with Resolver() as resolver, resolver.resolve(self.nested(told)):
                begun.set()
                await asyncio.Event().wait()

        running = asyncio.create_task(job())
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert told == [("inner", asyncio.CancelledError), ("outer", asyncio.CancelledError)]

    async def test_a_cancelled_job_whose_provider_hangs_waits_for_it_visibly(self):
        begun, returns = threading.Event(), threading.Event()

        def stubborn():
            begun.set()
            returns.wait(10)

        def task(x=Depends(stubborn)):
            pass

        async with Resolver() as resolver:

            async def job():
                async with resolver.resolve(task):
                    pass

            running = asyncio.create_task(job())
            await asyncio.to_thread(begun.wait, 10)
            assert resolver.trouble() is None
            running.cancel()
            await asyncio.wait([running], timeout=0.02)
            assert not running.done()
            told = resolver.trouble()
            assert told is not None
            assert "stubborn (1)" in told
            returns.set()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert resolver.trouble() is None

    async def test_a_provider_that_raises_stop_iteration_in_its_thread_has_failed(self):
        def exhausted():
            return next(iter(()))

        def task(x=Depends(exhausted)):
            pass

        async with Resolver() as resolver:
            with pytest.raises(RuntimeError, match="exhausted raised StopIteration"):
                async with asyncio.timeout(60), resolver.resolve(task):
                    pass

    async def test_a_provider_cannot_hide_the_jobs_error(self):
        def swallowing():
            with contextlib.suppress(ValueError):
                yield

        def task(x=Depends(swallowing)):
            pass

        async with Resolver() as resolver:
            with pytest.raises(ValueError, match="the job's"):
                async with resolver.resolve(task):
                    raise ValueError("the job's")

    async def test_a_failed_commit_fails_the_job_and_the_rest_is_cleaned_up(self, caplog):
        told = []

        async def outer():
            try:
                yield
            except OSError:
                told.append("rolled back")
                raise

        async def session(outer=Depends(outer)):
            yield
            raise OSError("commit failed")

        def task(session=Depends(session)):
            pass

        async with Resolver() as resolver:
            with pytest.raises(OSError, match="commit failed"):
                async with resolver.resolve(task):
                    pass
        assert told == ["rolled back"]
        assert "cleaning up after" in caplog.text
        assert "commit failed" in caplog.text

    async def test_a_clean_up_that_fails_after_a_failed_job_is_logged_and_the_jobs_error_stands(
        self, caplog
    ):
        async def session():
            try:
                yield
            finally:
                raise OSError("connection lost")

        def task(session=Depends(session)):
            pass

        async with Resolver() as resolver:
            with pytest.raises(ValueError, match="the job's"):
                async with resolver.resolve(task):
                    raise ValueError("the job's")
        assert "connection lost" in caplog.text

    async def test_a_failed_clean_up_at_the_workers_end_is_logged(self, caplog):
        async def pool():
            yield
            raise OSError("connection lost")

        def task(pool=Depends(pool, scope="worker")):
            pass

        async with Resolver() as resolver, resolver.resolve(task):
            pass
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        assert "connection lost" in caplog.text

    async def test_what_was_made_before_a_provider_failed_is_cleaned_up(self):
        told = []

        def first():
            try:
                yield
            finally:
                told.append("clean")

        def broken():
            raise OSError("no server")

        def task(a=Depends(first), b=Depends(broken)):
            pass

        async with Resolver() as resolver:
            with pytest.raises(OSError, match="no server"):
                async with resolver.resolve(task):
                    pass
        assert told == ["clean"]

    async def test_a_cancellation_waits_for_a_blocking_provider_and_cleans_up_after_it(self):
        entered, go_on, told = threading.Event(), threading.Event(), []

        def connection():
            entered.set()
            go_on.wait(5)
            try:
                yield
            finally:
                told.append("closed")

        def task(db=Depends(connection)):
            pass

        async def job():
            async with Resolver() as resolver, resolver.resolve(task):
                pytest.fail("the job was cancelled before it began")

        running = asyncio.create_task(job())
        await asyncio.to_thread(entered.wait, 5)
        running.cancel()
        await asyncio.sleep(0)
        assert not running.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert told == ["closed"]


def get_url():
    return "real"


def get_db(url=Depends(get_url)):
    return f"db at {url}"


def store(db: Annotated[str, Depends(get_db)] = INJECTED):
    pass


class TestOverrides:
    async def test_a_replacement_is_asked_within_the_block_only(self):
        overrides = Overrides()
        with overrides.override(get_db, lambda: "fake"):
            assert await resolved(store, overrides) == {"db": "fake"}
            with overrides.override(get_db, lambda: "other"):
                assert await resolved(store, overrides) == {"db": "other"}
            assert await resolved(store, overrides) == {"db": "fake"}
        assert await resolved(store, overrides) == {"db": "db at real"}

    async def test_nested_providers_can_be_replaced_and_replacements_may_depend_and_yield(self):
        overrides, told = Overrides(), []

        async def fake_url(word=Depends(lambda: "fake")):
            yield word
            told.append("clean")

        with overrides.override(get_url, fake_url):
            assert await resolved(store, overrides) == {"db": "db at fake"}
        assert told == ["clean"]

    async def test_a_worker_that_runs_already_takes_the_replacement(self):
        overrides = Overrides()

        def get_pool(url=Depends(get_url, scope="worker")):
            return url

        def task(db=Depends(get_pool, scope="worker")):
            pass

        async with Resolver(overrides) as resolver:
            async with resolver.resolve(task) as injected:
                assert injected == {"db": "real"}
            with overrides.override(get_pool, lambda: "fake"):
                async with resolver.resolve(task) as injected:
                    assert injected == {"db": "fake"}
            async with resolver.resolve(task) as injected:
                assert injected == {"db": "real"}

    def test_a_value_is_no_replacement(self):
        with (
            pytest.raises(ConfigError, match="expected a function"),
            Overrides().override(get_db, "fake"),
        ):
            pass

    def test_a_replacement_cannot_depend_on_what_it_replaces(self):
        def wrapped(db=Depends(get_db)):
            return db

        with (
            pytest.raises(ConfigError, match="depends on it itself"),
            Overrides().override(get_url, wrapped),
        ):
            pass
