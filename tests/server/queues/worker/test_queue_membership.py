"""A worker is a member of its queues for as long as it lives, and leaves them in good order."""

import asyncio
import time

import pytest
from tests.kit.scripts import scripts_of
from tests.kit.workplace import in_hand

from penstock import Depends, RetryPolicy, current_job
from penstock.queues.worker.claimed_jobs import WorkerCounts
from penstock.queues.worker.membership import Liveness
from penstock.queues.worker.reaper import Reaper
from penstock.queues.worker.upkeep import QueueUpkeep
from penstock.testing.eventually import eventually


async def members(queue):
    return await queue.client.call("ZRANGE", queue.keyring.workers, 0, -1, "WITHSCORES")


async def test_a_worker_says_that_it_lives_to_every_queue_it_serves(workplace):
    app = await workplace.open()
    queues = [app.queue(name) for name in ("mail", "reports", "images")]

    for queue in queues:

        @queue.handler
        async def handle(job: dict) -> None: ...

    await workplace.start(app)
    for queue in queues:

        async def is_member(queue=queue):
            return await members(queue)

        (worker, joined) = await eventually(is_member)

        async def has_beaten(queue=queue, worker=worker, joined=joined):
            name, beat = await members(queue)
            return name == worker and int(beat) > int(joined)

        await eventually(has_beaten)


async def test_a_worker_that_stops_is_a_member_no_more_and_has_nothing_in_hand(workplace):
    app, ran = await workplace.open(), []

    @app.task(queue="mail")
    async def note(number: int) -> None:
        ran.append(number)

    worker = await workplace.start(app)
    await note.send_many([(number,) for number in range(100)])
    await eventually(lambda: len(ran) == 100)
    await worker.stop()
    assert await members(note.queue) == []
    assert not await in_hand(note.queue)


async def test_a_worker_that_was_given_up_with_jobs_that_it_may_not_start_begins_another_life(
    workplace,
):
    app, ran, hands = await workplace.open(), [], []

    @app.task(queue="mail")
    async def note(number: int) -> None:
        ran.append(number)
        if len(ran) == 1000:
            hands.append(current_job()._job.claims.membership)
            hands[0].liveness.hold()  # as if it had stood still: what it has claimed ahead waits

    await note.send_many([(number,) for number in range(2000)])
    await workplace.start(app)
    await eventually(lambda: hands)
    await asyncio.sleep(0.05)
    assert len(ran) == 1000
    hands[0].lose()
    await eventually(lambda: set(ran) == set(range(2000)))


SILENCE_MS = 10_000
ONCE = RetryPolicy(max_attempts=1)


class Members:
    """Workers of a queue, whose last signs of life are moved instead of waiting."""

    def __init__(self, queue):
        self.client, self.keys = queue.client, queue.keyring
        self.reaper = Reaper(
            queue.client, queue.codec, queue.keyring, lambda _: ONCE, WorkerCounts()
        )

    async def now_ms(self):
        seconds, micros = await self.client.call("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def silent(self, **ago_ms):
        """Let workers have given their last sign so long ago."""
        now = await self.now_ms()
        for name, ms in ago_ms.items():
            await self.client.call("ZADD", self.keys.workers, now - ms, name)

    async def pass_time(self, ms):
        for name, score in await self.signs():
            await self.client.call("ZADD", self.keys.workers, score - ms, name)

    async def signs(self):
        flat = await self.client.call("ZRANGE", self.keys.workers, 0, -1, "WITHSCORES")
        return [(name, float(score)) for name, score in zip(flat[::2], flat[1::2], strict=True)]

    async def beat(self, worker, paused_ms):
        return await scripts_of(self.client).beat_queue(
            keys=self.keys, worker=worker, paused_ms=paused_ms
        )

    async def look(self, worker, paused_ms=0):
        """Look for the dead in the name of a worker; all that are given up."""
        dead = await scripts_of(self.client).find_dead(
            keys=self.keys, silence_ms=SILENCE_MS, worker=worker, paused_ms=paused_ms
        )
        return sorted(name.decode() for name in dead)

    async def living(self):
        return sorted(name.decode() for name, _ in await self.signs())


@pytest.fixture
async def crew(workplace):
    app = await workplace.open(silence_s=SILENCE_MS / 1000, beat_s=1.0)
    return Members(app.queue("mail"))


@pytest.fixture(params=["beat", "look"])
async def late_sign(crew, request):
    """A sign of life of a worker that is late with it: its beat, or its look for the dead."""

    async def give(worker, paused_ms):
        if request.param == "beat":
            assert await crew.beat(worker, paused_ms)
        return await crew.look(worker, paused_ms)

    return give


@pytest.mark.parametrize("paused_ms", [15_000, 0])
async def test_a_late_worker_gives_no_time_to_others_while_one_is_on_time(
    crew, late_sign, paused_ms
):
    await crew.silent(late=15_000, fine=500, dead=11_000)
    assert await late_sign("late", paused_ms) == ["dead"]
    assert await crew.living() == ["fine", "late"]


async def test_a_survivor_that_is_always_late_finds_the_dead_after_twice_the_silence(
    crew, late_sign
):
    await crew.silent(survivor=11_000, dead=11_000)
    assert await late_sign("survivor", 11_000) == [], "it may have been paused with the others"
    await crew.pass_time(11_000)
    assert await late_sign("survivor", 11_000) == ["dead"]
    assert await crew.living() == ["survivor"]


async def test_who_was_silent_for_twice_the_silence_is_dead_to_a_survivor_that_was_paused(
    crew, late_sign
):
    await crew.silent(survivor=20_500, dead=20_500)
    assert await late_sign("survivor", 20_500) == ["dead"]


async def test_an_outage_of_the_server_gives_all_workers_the_time_to_beat_again(crew, late_sign):
    """However long it was: the worker that comes first did run meanwhile."""
    await crew.silent(first=3_600_000, second=3_600_100, third=3_600_200)
    assert await late_sign("first", 500) == []
    await crew.pass_time(9_000)
    for name in ("first", "second"):
        assert await crew.beat(name, 500)
    assert await crew.look("first") == []
    await crew.pass_time(2_000)
    assert await crew.look("second") == ["third"]


async def test_outage_after_outage_gives_a_worker_more_time_once(crew, late_sign):
    await crew.silent(survivor=11_000, dead=11_000)
    assert await late_sign("survivor", 500) == []
    await crew.pass_time(11_000)
    assert await late_sign("survivor", 500) == ["dead"]
    await crew.silent(other=0)
    for _ in range(3):  # one that beats in between gets it again
        await crew.pass_time(11_000)
        assert await late_sign("survivor", 500) == ["dead"]
        assert await crew.beat("other", 500)
    assert await crew.living() == ["other", "survivor"]


@pytest.mark.parametrize(
    ("with_jobs", "others", "is_alone"),
    [
        ({"dead": 3_000}, {}, True),
        ({"dead": 500}, {}, False),
        ({"dead": 3_000}, {"idle": 5_000}, False),
        ({"dead": 3_000, "busy": 500}, {}, False),
        ({"dead": 3_000, "held": 8_000}, {}, True),
        ({}, {"idle": 6_500}, False),
        ({"given_time": 500.5}, {}, True),
    ],
)
async def test_a_worker_waits_for_silent_ones_only_if_no_other_can_notice_their_death(
    crew, with_jobs, others, is_alone
):
    await crew.silent(me=0, **with_jobs, **others)
    for name in with_jobs:
        await crew.client.call("HSET", crew.keys.claimed(name), "1", "job")
    assert await crew.reaper.alone_can_notice("me", await crew.now_ms()) is is_alone


async def test_very_many_silent_workers_are_found_a_number_at_a_time(crew):
    await crew.silent(**{f"w{number}": 11_000 for number in range(150)})
    assert await crew.beat("w7", 500), "the server was away: all have time to beat again"
    for _ in range(2):
        assert await crew.look("w7") == []
    await crew.pass_time(9_000)
    assert await crew.look("w7") == []
    await crew.pass_time(2_000)
    assert await crew.beat("w8", 500)
    counts = []
    for _ in range(3):
        await crew.look("w8")
        counts.append(await crew.client.call("ZCARD", crew.keys.dead_workers))
    assert counts == [99, 148, 148]
    assert await crew.living() == ["w7", "w8"], "w7 has beaten since"


async def test_a_worker_that_was_paused_itself_says_for_how_long(crew):
    liveness = Liveness(silence_s=10, beat_s=0.05)
    told = []

    async def send(paused_ms):
        told.append(paused_ms)
        if len(told) == 1:
            time.sleep(0.3)  # noqa: ASYNC251  as if the process were stopped while the beat is out
        elif len(told) == 2:
            await asyncio.sleep(0.3)  # the server is slow
        return True

    for _ in range(3):
        assert await liveness.give(send)
    assert told[0] < 100
    assert told[1] >= 290, "the pause came after the first sign was sent"
    assert told[2] < 200, "to wait for an answer is no pause"


async def test_nothing_counts_as_alive_past_the_silence_since_a_sign_was_sent():
    liveness = Liveness(silence_s=0.3, beat_s=0.05)

    async def slow(_paused_ms):
        await asyncio.sleep(0.1)
        return True

    sent_at = time.monotonic()
    assert await liveness.give(slow)
    assert sent_at <= liveness.alive_until - 0.3 < sent_at + 0.1
    liveness.confirm(time.monotonic() - 1)
    waits = asyncio.create_task(liveness.until_alive())
    await asyncio.sleep(0)
    assert not waits.done()
    await asyncio.to_thread(liveness.confirm, time.monotonic())
    await waits
    liveness.lose()
    assert time.monotonic() > liveness.alive_until
    liveness.confirm(time.monotonic())  # a beat that was on its way
    assert time.monotonic() > liveness.alive_until


async def test_a_worker_that_was_silent_for_too_long_looks_for_the_dead_before_it_goes_on():
    liveness, looks = Liveness(silence_s=60, beat_s=1), asyncio.Event()
    liveness.when_late = looks.set
    now = time.monotonic()
    for sent_at in (now - 200, now - 190):
        liveness.confirm(sent_at)
        assert liveness.alive_until == sent_at + 60
    assert not looks.is_set()
    await asyncio.to_thread(liveness.confirm, now)
    await looks.wait()
    assert liveness.alive_until < now, "nothing is started yet"
    waits = asyncio.create_task(liveness.until_alive())
    await asyncio.sleep(0)
    liveness.release()  # others that return jobs end their own hold alone
    await asyncio.sleep(0)
    assert liveness.alive_until < now
    liveness.resume()
    await waits
    assert liveness.alive_until == now + 60


async def test_a_worker_that_comes_after_an_outage_gives_the_others_time_to_beat_again(
    workplace, monkeypatch
):
    """It has not seen that the server was away; the jobs of the others still run."""
    app, looks = await workplace.open(beat_s=5.0, silence_s=60.0), 0
    look = QueueUpkeep.return_claims_of_the_dead

    async def counted(upkeep):
        nonlocal looks
        await look(upkeep)
        looks += 1

    monkeypatch.setattr(QueueUpkeep, "return_claims_of_the_dead", counted)

    @app.task(queue="mail")
    async def note(number: int) -> None: ...

    crew = Members(note.queue)
    await crew.silent(busy=3_600_000)
    await workplace.start(app)
    await eventually(lambda: looks > 1)
    assert await crew.beat("busy", 0), "it was not given up"


async def test_nothing_starts_past_the_time_of_a_worker_that_its_providers_used_up(workplace):
    app, held, ran = await workplace.open(), [], []

    async def session():
        liveness = current_job()._job.claims.membership.liveness
        liveness.hold()  # as if it had taken longer than the silence allowed
        held.append(liveness)
        return "session"

    @app.task(queue="mail")
    async def note(number: int, db: str = Depends(session)) -> None:
        ran.append((number, db))

    await workplace.start(app)
    await note.send(1)
    await eventually(lambda: held)
    await note.queue.client.call("PING")
    assert ran == []
    held[0].release()
    await eventually(lambda: ran == [(1, "session")])


async def test_signs_to_many_queues_at_once_do_what_single_ones_do(workplace):
    app = await workplace.open(silence_s=SILENCE_MS / 1000, beat_s=1.0)
    late, later, timely, left = (Members(app.queue(name)) for name in ("a", "b", "c", "d"))

    async def beat(*crews):
        return await scripts_of(app.redis).beat_queues(
            keys=[one.keys for one in crews], signs=[("w", 0)] * len(crews)
        )

    await late.silent(w=15_000, other=12_000)
    await later.silent(w=11_000, other=12_000)
    await timely.silent(w=1_000, other=12_000)
    assert [answer > 0 for answer in await beat(late, later, left, timely)] == [1, 1, 0, 1]
    # Where it was late itself the other gets more time, as it may have been the server.
    assert [await one.look("w") for one in (late, later, timely)] == [[], [], ["other"]]
    for one in (late, later, timely):
        await one.silent(w=5_000)
    assert [answer > 0 for answer in await beat(late, left, later, timely)] == [1, 0, 1, 1]
    now = await late.now_ms()
    for one in (late, later, timely):
        assert now - dict(await one.signs())[b"w"] < 2_000
    assert await left.living() == []
