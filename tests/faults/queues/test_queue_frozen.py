"""A claim loop that hangs is noticed and restarted, and no job is lost or disturbed."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from types import SimpleNamespace

import pytest
from tests.kit.history import Recorder, read_history
from tests.kit.patience import patient
from tests.kit.programs.queue_worker import Diary
from tests.kit.scripts import scripts_of
from tests.kit.slow_link import slow_link
from tests.kit.workplace import Workplace, counters, in_hand

from penstock.delivery.retries import Fixed, RetryPolicy
from penstock.errors import CommandRefused, OutcomeUnknown
from penstock.queues.storage.scripts import QueueScripts
from penstock.queues.worker.claimed_jobs import ClaimedJobs
from penstock.testing.eventually import eventually

POLL_S = 0.2


class Freezer:
    """Once `armed`, lets one claim never return: before it is sent, or after it got jobs."""

    def __init__(self, monkeypatch, *, reply_lost: bool) -> None:
        self.armed, self.frozen_at = False, 0.0
        claim = QueueScripts.claim_jobs

        async def claim_jobs(scripts, **options):
            if not (self.armed and options["most"]):
                return await claim(scripts, **options)
            if reply_lost:
                reply = await claim(scripts, **options)
                if not reply.lanes:
                    return reply
            self.armed, self.frozen_at = False, time.monotonic()
            return await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(QueueScripts, "claim_jobs", claim_jobs)


@pytest.fixture
async def workplace(valkey_server, namespace):
    async with Workplace(valkey_server.url, namespace) as place:
        yield place


@pytest.mark.parametrize("reply_lost", [False, True], ids=["call lost", "reply lost"])
async def test_a_frozen_claim_loop_is_restarted_and_loses_nothing(
    workplace, monkeypatch, reply_lost
):
    freezer = Freezer(monkeypatch, reply_lost=reply_lost)
    app, ran, release = await workplace.open(worker_poll_s=POLL_S), [], asyncio.Event()

    @app.task(queue="mail")
    async def note(number: int) -> None:
        ran.append(number)

    @app.task(queue="mail")
    async def slow() -> None:
        ran.append("slow begins")
        await release.wait()
        ran.append("slow ends")

    worker = await workplace.start(app, concurrency=2)
    await slow.send()
    await eventually(lambda: ran)
    freezer.armed = True
    await note.send_many([(number,) for number in range(10)])
    await eventually(lambda: not worker.readiness().ready)
    assert time.monotonic() - freezer.frozen_at < patient(2 * POLL_S + 0.5)
    assert "loop claims of queue mail silent" in str(worker.readiness())
    await eventually(lambda: set(range(10)) <= set(ran))
    assert await eventually(lambda: worker.readiness().ready)
    release.set()
    await eventually(lambda: "slow ends" in ran)
    assert sorted(ran, key=str) == sorted(["slow begins", "slow ends", *range(10)], key=str)
    await workplace.stop(worker)
    assert (await counters(note.queue))["done"] == 11
    assert not await in_hand(note.queue)


@pytest.fixture
def record_claims(monkeypatch, tmp_path):
    """Records what workers in this process do, as those of fault tests do."""
    for name in ("__init__", "claim", "_stop_all"):  # restores what the diary replaces
        monkeypatch.setattr(ClaimedJobs, name, getattr(ClaimedJobs, name))
    with Recorder(tmp_path, "worker") as recorder:
        diary = Diary(recorder)
        diary.watch()
        yield diary.record


@pytest.mark.parametrize("reply_lost", [False, True], ids=["call lost", "reply lost"])
async def test_claimed_jobs_whose_acceptance_hangs_run_once_and_count_as_one_claim(
    workplace, monkeypatch, record_claims, tmp_path, reply_lost
):
    """The record of a second attempt is noted before it is begun: here that call hangs."""
    app, ran, hung = await workplace.open(worker_poll_s=POLL_S), [], []
    scripts = scripts_of(app.redis)
    begin = scripts.begin_jobs

    async def begin_jobs(**options):
        claim, _, attempt, *_ = options["jobs"]
        if hung or attempt == 1:
            return await begin(**options)
        if reply_lost:
            await begin(**options)
        hung.append(claim)
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(scripts, "begin_jobs", begin_jobs)
    record_claims(scripts)
    queue = app.queue("mail", status=True, retry=RetryPolicy(backoff=Fixed(0)))

    @app.task(queue=queue)
    async def note() -> None:
        ran.append(len(ran))
        if len(ran) == 1:
            raise RuntimeError("the first attempt fails")

    worker = await workplace.start(app)
    await note.send()
    await eventually(lambda: hung)
    await eventually(lambda: len(ran) == 2)
    await workplace.stop(worker)
    assert len(ran) == 2
    assert (await counters(queue))["done"] == 1
    granted = [
        event.fence
        for event in read_history(tmp_path)
        if (event.op, event.phase) == ("claim", "ok")
    ]
    assert len(granted) == len(set(granted)) == 2


async def test_a_claim_that_arrives_slowly_is_not_taken_for_a_frozen_one(
    start_server, namespace, caplog
):
    server, ran = start_server(), []
    large = secrets.token_hex(200_000)
    async with (
        slow_link(server.port, bytes_per_s=200_000) as url,
        Workplace(server.url, namespace) as near,
        Workplace(url, namespace) as far,
    ):
        app = await far.open(worker_poll_s=POLL_S, silence_s=10.0)
        queue = app.queue("mail")

        @queue.handler
        async def note(job: str) -> None:
            ran.append(len(job))

        worker = await far.start(app)
        await (await near.open()).queue("mail").push(large)
        await eventually(lambda: ran)
        await far.stop(worker)
    assert len(ran) == 1
    assert "restarting it" not in caplog.text


async def test_a_gate_may_take_any_time(workplace, caplog):
    opened, asked, ran = asyncio.Event(), [], []

    class Gate:
        async def admit(self, queue, wanted):
            asked.append(wanted)
            await opened.wait()
            return SimpleNamespace(granted=wanted, retry_after_s=0.0)

        async def give_back(self, queue, unused):
            pass

    app = await workplace.open(worker_poll_s=0.05)
    queue = app.queue("mail", gate=Gate())

    @queue.handler
    async def note(job: str) -> None:
        ran.append(job)

    worker = await workplace.start(app)
    await queue.push("a")
    await eventually(lambda: asked)
    watchdog, checks = worker.watchdog, []
    look = watchdog.check
    watchdog.check = lambda: checks.append(look())
    await eventually(lambda: len(checks) >= 20)  # five polls
    assert worker.readiness().ready
    opened.set()
    await eventually(lambda: ran == ["a"])
    assert "restarting it" not in caplog.text


async def test_jobs_whose_acceptance_is_refused_after_a_lost_reply_run_again(
    workplace, monkeypatch
):
    app, ran, failures = await workplace.open(worker_poll_s=20.0), [], []
    scripts = scripts_of(app.redis)
    begin = scripts.begin_jobs

    async def begin_jobs(**options):
        attempt = options["jobs"][2]
        if attempt > 1 and len(failures) < 2:
            lost = OutcomeUnknown("the reply was lost")
            failures.append(CommandRefused("WRONGTYPE") if failures else lost)
            raise failures[-1]
        return await begin(**options)

    monkeypatch.setattr(scripts, "begin_jobs", begin_jobs)
    queue = app.queue("mail", status=True, retry=RetryPolicy(backoff=Fixed(0)))

    @app.task(queue=queue)
    async def note() -> None:
        ran.append(len(ran))
        if len(ran) == 1:
            raise RuntimeError("the first attempt fails")

    worker = await workplace.start(app)
    await note.send()
    await eventually(lambda: len(ran) == 2)
    assert len(failures) == 2
    await workplace.stop(worker)
    assert (await counters(queue))["done"] == 1
    assert not await in_hand(queue)


async def test_jobs_that_are_given_back_without_a_reply_do_not_run_here_too(workplace, monkeypatch):
    """All places are lost to hung threads, so that claimed jobs are given back, again and again."""
    app, ran, lost, release = await workplace.open(worker_poll_s=0.05), [], [], threading.Event()
    scripts, answers = scripts_of(app.redis), asyncio.Event()
    give_back = scripts.give_back

    async def give_back_in_vain(**options):
        reply = await give_back(**options)
        if options["jobs"] and not answers.is_set():
            lost.append(reply)
            raise OutcomeUnknown("the reply was lost")
        return reply

    monkeypatch.setattr(scripts, "give_back", give_back_in_vain)
    queue = app.queue("mail")

    @queue.handler(timeout_s=0.1)
    def note(job: str) -> None:
        if job == "quick":
            return
        ran.append(job)
        if job == "hangs" and len(ran) == 1:
            release.wait(20)

    for job in (
        *["quick"] * 300,
        "hangs",
        *map(str, range(5)),
    ):  # after quick ones many are claimed
        await queue.push(job)
    worker = workplace.begin(app, concurrency=1)
    await eventually(lambda: len(lost) > 3)  # for longer than a silent loop is left alone
    release.set()
    other = await workplace.open()
    elsewhere: list[str] = []

    @other.queue("mail").handler
    async def note_elsewhere(job: str) -> None:
        elsewhere.append(job)

    await workplace.start(other)
    await eventually(lambda: len(set(elsewhere) & set("01234")) == 5)
    answers.set()
    await workplace.stop(worker)
    assert sorted({*ran, *elsewhere} - {"hangs"}) == list("01234")
    assert not set(ran) & set("01234")
