"""What the test kit offers to those who test code that queues work."""

import asyncio
import dataclasses
import textwrap
from datetime import timedelta

import pytest
from tests.kit.workplace import QUICK

from penstock import Penstock
from penstock.delivery.retries import Fixed, RetryPolicy
from penstock.settings import QueueSettings, Settings
from penstock.testing.queue_contents import standing_of
from penstock.testing.queues import (
    Ran,
    assert_enqueued,
    clock,
    enqueued,
    kill_worker,
    lose_ack,
    run_until_idle,
)

pytestmark = [pytest.mark.one_server, pytest.mark.settings(queues=QUICK)]


def made(url, namespace, **queues):
    quick = QueueSettings(**{**QUICK, **queues})
    return Penstock(settings=Settings(url=url, namespace=namespace, queues=quick))


class TestRunUntilIdle:
    async def test_everything_that_waits_is_done_when_it_returns(self, app):
        done = []

        @app.task(queue="mail")
        async def note(number: int) -> None:
            done.append(number)

        await note.send_many([(number,) for number in range(20)])
        assert await run_until_idle(app) == Ran(done=20)
        assert sorted(done) == list(range(20))
        assert await enqueued(app, "mail") == []

    async def test_it_returns_at_once_where_nothing_waits(self, app):
        @app.task
        async def nothing() -> None: ...

        assert await run_until_idle(app) == Ran()

    async def test_jobs_that_jobs_send_to_other_queues_are_done_as_well(self, app):
        done = []

        @app.task(queue="a")
        async def first(depth: int) -> None:
            await second.send(depth)

        @app.task(queue="b")
        async def second(depth: int) -> None:
            done.append(depth)
            if depth:
                await first.send(depth - 1)

        await first.send(5)
        ran = await run_until_idle(app)
        assert done == [5, 4, 3, 2, 1, 0]
        assert ran.done == 12

    async def test_raw_jobs_of_foreign_producers_are_done(self, app, valkey_server, namespace):
        seen = []

        @app.queue("detections").handler
        async def detect(job: dict) -> None:
            seen.append(job["camera"])

        valkey_server.command("RPUSH", f"{namespace}::detections", '{"camera":"door"}')
        await run_until_idle(app)
        assert seen == ["door"]

    async def test_a_retry_that_is_due_later_is_left_unless_it_is_waited_for(self, app):
        tried = []

        @app.task(retry=RetryPolicy(max_attempts=2, backoff=Fixed(0.3)))
        async def fail() -> None:
            tried.append(1)
            raise LookupError

        await fail.send()
        assert await run_until_idle(app) == Ran(retried=1)
        assert len(tried) == 1
        assert await run_until_idle(app, window_s=1) == Ran(dead=1)
        assert len(tried) == 2

    async def test_what_does_not_end_is_named(self, app):
        @app.task(queue="slow")
        async def hang() -> None:
            await asyncio.Event().wait()

        await hang.send()
        with pytest.raises(AssertionError, match=r"not idle within 0\.3 s: queue 'slow': .*1 runn"):
            # The worker's grace period would be waited for.
            await run_until_idle(with_short_grace(app), 0.3)


def with_short_grace(app):
    worker = dataclasses.replace(app.settings.worker, grace_s=0)
    app.settings = dataclasses.replace(app.settings, worker=worker)
    return app


class TestWhatIsEnqueued:
    async def test_jobs_of_a_task_are_listed_with_their_arguments(self, app):
        @app.task(queue="mail")
        async def welcome(user: int, *, lang: str = "en") -> None: ...

        @app.task(queue="mail")
        async def other() -> None: ...

        job = await welcome.send(42, lang="de")
        await other.send()
        (one,) = await enqueued(app, welcome)
        assert (one.id, one.queue, one.task) == (job.id, "mail", welcome.name)
        assert (one.args, one.kwargs) == ((42,), {"lang": "de"})
        assert len(await enqueued(app, "mail")) == len(await enqueued(app, app.queue("mail"))) == 2

    async def test_lanes_times_and_headers_are_told(self, app):
        @app.task(queue="mail")
        async def welcome(user: int) -> None: ...

        await welcome.with_options(priority="high", headers={"trace": "7"}).send(1)
        await welcome.with_options(group="tenant 7").send(2)
        await welcome.with_options(delay=60).send(3)
        by_user = {one.args[0]: one for one in await enqueued(app, welcome)}
        assert (by_user[1].priority, by_user[1].headers) == ("high", {"trace": "7"})
        assert (by_user[2].group, by_user[2].priority, by_user[2].due_ms) == (
            "tenant 7",
            None,
            None,
        )
        assert by_user[3].due_ms is not None

    async def test_raw_jobs_are_listed_with_their_payload(self, app, valkey_server, namespace):
        queue = app.queue("raw")
        await queue.push({"camera": "door"})
        await queue.push("text")
        assert [one.payload for one in await enqueued(app, queue)] == [{"camera": "door"}, "text"]

    async def test_the_first_to_run_comes_first_whichever_side_is_pushed_to(self, app):
        queue = app.queue("left", push="left")
        for number in range(3):
            await queue.push({"n": number})
        assert [one.payload["n"] for one in await enqueued(app, queue)] == [0, 1, 2]

    async def test_asserting_does_not_mind_how_arguments_were_passed(self, app):
        @app.task
        async def welcome(user: int, lang: str = "en") -> None: ...

        await welcome.send(42, lang="de")
        await assert_enqueued(app, welcome)
        await assert_enqueued(app, welcome, args=(42, "de"), count=1)
        await assert_enqueued(app, welcome, kwargs={"lang": "de", "user": 42})
        await assert_enqueued(app, welcome, args=(41, "de"), count=0)

    async def test_what_is_there_instead_is_shown(self, app):
        @app.task
        async def welcome(user: int) -> None: ...

        with pytest.raises(AssertionError, match=r"no such job, expected at least one.*nothing"):
            await assert_enqueued(app, welcome)
        await welcome.send(42)
        with pytest.raises(AssertionError, match=r"expected 2; there is:\s+Enqueued\(.*args=\(42"):
            await assert_enqueued(app, welcome, count=2)


class TestClock:
    async def test_a_delayed_job_runs_when_its_time_has_been_let_pass(self, app):
        done = []

        @app.task
        async def remind(number: int) -> None:
            done.append(number)

        await remind.with_options(delay=timedelta(hours=1)).send(1)
        await run_until_idle(app)
        await clock.advance(app, 3599)
        await run_until_idle(app)
        assert done == []
        await clock.advance(app, 1)
        await run_until_idle(app)
        assert done == [1]

    async def test_a_unique_key_ends_and_a_younger_one_does_not(self, app):
        @app.task
        async def sync() -> None: ...

        hourly = sync.with_options(unique="hourly", unique_for=3600)
        daily = sync.with_options(unique="daily", unique_for=86400)
        assert (await hourly.send()).created
        assert (await daily.send()).created
        await clock.advance(app, 3600)
        assert (await hourly.send()).created
        assert not (await daily.send()).created

    async def test_a_job_expires(self, app):
        done = []

        @app.task
        async def offer() -> None:
            done.append(1)

        await offer.with_options(expires=60).send()
        await offer.with_options(expires=60, delay=10).send()
        await offer.with_options(expires=600).send()
        await clock.advance(app, 100)
        await run_until_idle(app)
        assert done == [1]

    async def test_a_schedule_is_due_now_and_not_missed_and_a_paused_one_stays(self, app):
        keys = app.queue("reports").keyring
        now_ms = await app.queue("reports").server_ms()
        for name, tick in (("hourly", now_ms + 3_600_000), ("daily", now_ms + 86_400_000)):
            await app.redis.call("ZADD", keys.schedule, tick, name)
        await app.redis.call("ZADD", keys.schedule, "inf", "paused")
        await clock.advance(app, 7200)
        reply = await app.redis.call("ZRANGE", keys.schedule, 0, -1, "WITHSCORES")
        ticks = dict(zip(reply[::2], map(float, reply[1::2]), strict=True))
        assert 0 <= ticks[b"hourly"] - now_ms < 5_000
        assert ticks[b"daily"] == now_ms + 86_400_000 - 7_200_000
        assert ticks[b"paused"] == float("inf")

    async def test_a_parked_lane_is_let_go_and_a_paused_one_is_not(self, app):
        keys = app.queue("mail").keyring
        now_ms = await app.queue("mail").server_ms()
        await app.redis.call("ZADD", keys.parked, now_ms + 60_000, "a", "9000000000000001", "b")
        await clock.advance(app, 60)
        reply = await app.redis.call("ZRANGE", keys.parked, 0, -1, "WITHSCORES")
        assert int(float(reply[1])) <= await app.queue("mail").server_ms()
        assert int(float(reply[3])) == 9_000_000_000_000_001

    async def test_it_cannot_go_back(self, app):
        with pytest.raises(ValueError, match="cannot be moved"):
            await clock.advance(app, -1)


SHOP = """
import os
from pathlib import Path

from penstock import Penstock

app = Penstock()
ledger = Path(os.environ["LEDGER"])


def write(line):
    with ledger.open("a") as book:
        book.write(f"{line}\\n")


@app.task(queue="payments")
async def charge(order: int) -> None:
    write(order)


@app.task(queue="payments", name="blocking")
def charge_blocking(order: int) -> None:
    write(order)


@app.queue("raw").handler
async def handle(job: dict) -> None:
    write(job["order"])
"""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A program of a user, and the lines that its effects write."""
    monkeypatch.setenv("LEDGER", str(tmp_path / "ledger"))
    (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP))
    (tmp_path / "ledger").touch()
    return tmp_path


def effects(shop):
    return [int(line) for line in (shop / "ledger").read_text().splitlines()]


class TestKillWorker:
    @pytest.mark.parametrize("name", ["shop.charge", "blocking"])
    async def test_a_worker_dies_after_the_effect_and_another_repeats_the_job(
        self, app, shop, name
    ):
        attempts = []

        @app.task(queue="payments", name=name)
        async def charge(order: int) -> None:
            attempts.append(order)

        await charge.send(7)
        await kill_worker(app, f"{shop / 'shop.py'}:app", charge)
        assert effects(shop) == [7]
        assert await held_by_the_dead(app) == 1
        await clock.advance(app, app.settings.queues.silence_s)
        await run_until_idle(app)
        assert attempts == [7]

    async def test_a_worker_can_die_before_anything_was_done(self, app, shop):
        await app.queue("raw").push({"order": 3})
        await kill_worker(app, f"{shop / 'shop.py'}:app", "raw", when="begun")
        assert effects(shop) == []
        await clock.advance(app, app.settings.queues.silence_s)

    async def test_a_job_that_does_not_come_is_told(self, app, shop):
        with pytest.raises(AssertionError, match=r"no job of 'shop\.charge' has returned"):
            await kill_worker(app, f"{shop / 'shop.py'}:app", "shop.charge", timeout_s=2)

    async def test_a_program_that_cannot_run_is_told_with_its_words(self, app, shop):
        with pytest.raises(AssertionError, match=r"ended with 1(.|\n)*No module named 'nowhere'"):
            await kill_worker(app, "nowhere:app", "task")


async def held_by_the_dead(app):
    """The jobs that a dead worker holds before anybody has noticed its death."""
    return (await standing_of(app, "payments")).running


class TestLoseAck:
    @pytest.mark.parametrize("lost", ["reply", "request"])
    @pytest.mark.parametrize("status", [False, True], ids=["plain", "with a record"])
    async def test_a_job_whose_ack_is_lost_is_done_once(
        self, valkey_server, namespace, fault_proxy, lost, status
    ):
        done = []
        proxy = fault_proxy(valkey_server)
        async with made(proxy.url, namespace) as app:

            @app.task(queue="mail", status=status)
            async def note(number: int) -> None:
                done.append(number)

            await note.send(1)
            with lose_ack(proxy, lost=lost) as rule:
                ran = await run_until_idle(app)
            assert rule.hits == 1
            assert done == [1]
            assert ran.done == 1
            await note.send(2)
            await run_until_idle(app)
            assert rule.hits == 1


class TestEverywhere:
    async def test_the_kit_works_on_a_cluster(self, cluster, namespace):
        done = []
        async with made(cluster.url, namespace) as app:

            @app.task(queue="mail")
            async def note(number: int) -> None:
                done.append(number)

            await note.with_options(delay=60).send(1)
            await note.with_options(unique="x", unique_for=60).send(2)
            await assert_enqueued(app, note, count=2)
            await clock.advance(app, 60)
            assert (await note.with_options(unique="x", unique_for=60).send(3)).created
            assert await run_until_idle(app) == Ran(done=3)
        assert sorted(done) == [1, 2, 3]
