"""A worker that stands still for too long: it is replaced, and what it says later is refused."""

from __future__ import annotations

import signal
import time

import pytest
from tests.kit.crews.queue_crew import QUEUE

from penstock.testing.eventually import eventually


async def stopped_in_its_function(crew, **orders):
    """Send a job whose first run freezes its process; that worker, once it is frozen."""
    (sleeper,) = await crew.hire()
    job_id = await crew.send(stop=True, attempts=1, **orders)
    await crew.started(job_id)
    crew.nemesis.write("lose", victim=sleeper.actor)
    return sleeper, job_id


ENDINGS = [
    ({}, "handle"),
    ({"dead": True}, "handle"),
    ({"fail": True}, "handle"),
    ({}, "handle_in_thread"),
    ({"pause": 5}, "handle"),
]


@pytest.mark.parametrize("kind", ["plain", "status"])
@pytest.mark.parametrize(("ending", "handler"), ENDINGS)
async def test_whatever_a_late_worker_says_is_refused_and_counted(
    make_queue_crew, valkey_server, kind, ending, handler
):
    """It wakes up with the outcome in its hands, before it can learn that the job is another's."""
    crew = make_queue_crew(
        valkey_server.url, kind=kind, handler=handler, queues={"silence_s": 0.3, "beat_s": 0.06}
    )
    async with crew:
        sleeper, job_id = await stopped_in_its_function(crew, **{"pause": 0, **ending})
        (heir,) = await crew.hire()
        await crew.drained()
        await eventually(lambda: crew.events("ack", "accepted", heir.actor))
        sleeper.thaw()
        if ending.get("pause"):  # its function is told to stop
            await eventually(lambda: crew.events("finish", "cancelled", sleeper.actor))
        else:
            await eventually(lambda: crew.events("lose", actor=sleeper.actor))
        await crew.at_work(sleeper, heir)  # under another name
        after = await crew.send()
        verdict = await crew.hold()
        counters = await crew.counters()
        assert counters["done"] == 2, "what was refused does not count as done"
        refused = sum(len(crew.events(op, "refused")) for op in ("ack", "retry", "dead"))
        # It may be told to stop while it waits for the answer, and never hear of the refusal.
        assert refused <= counters.get("stale", 0) <= 1
        assert verdict.examined["I09"] >= refused
        assert not await crew.letters()
        assert [(one.actor, one.attempt) for one in crew.starts_of(job_id)] == [
            (sleeper.actor, 1), (heir.actor, 2)
        ]  # fmt: skip
        if kind == "status":
            record = await crew.app.queues.job(QUEUE, job_id)
            assert (record.status, record.attempt, record.result) == ("done", 2, b"1")
        assert len(crew.starts_of(after)) == 1


async def test_late_words_are_refused_though_nobody_has_told_the_worker(
    make_queue_crew, valkey_server
):
    """A worker in whose name nobody beats any more says all of its words: each is refused."""
    crew = make_queue_crew(valkey_server.url, queue={"concurrency": 4}, handler="handle_in_thread")
    async with crew:
        (sleeper,) = await crew.hire()
        jobs = [
            await crew.send(stop=True, attempts=1),
            await crew.send(pause=0.05, fail=True, attempts=1),
            await crew.send(pause=0.05, dead=True, attempts=1),
            await crew.send(pause=0.05, attempts=1),
        ]
        await crew.started(jobs[0])
        crew.nemesis.write("lose", victim=sleeper.actor)
        await crew.hire()
        await crew.drained()
        sleeper.thaw()
        await eventually(lambda: crew.events("lose", actor=sleeper.actor) or None)
        verdict = await crew.hold()
        assert verdict.counts.finished == 4
        assert (await crew.counters())["done"] == 4


@pytest.mark.parametrize("kind", ["plain", "status"])
async def test_a_worker_that_was_paused_starts_nothing_that_it_had_claimed_ahead(
    make_queue_crew, valkey_server, kind
):
    """Others have run those jobs by the time it wakes up."""
    crew = make_queue_crew(valkey_server.url, kind=kind, queues={"silence_s": 0.5, "beat_s": 0.1})
    async with crew:
        (sleeper,) = await crew.hire()
        await crew.at_work(sleeper)
        await crew.send_many(200, failing=0)
        await crew.handled_some(200)  # it has learned that they are quick
        await crew.app.queues.pause(QUEUE)
        stop = await crew.send(stop=True, attempts=1)
        await crew.send_many(200, failing=0)
        await crew.app.queues.resume(QUEUE)
        await crew.started(stop)
        crew.nemesis.write("lose", victim=sleeper.actor)
        assert (await crew.app.queues.facts(QUEUE)).claimed > 100
        (heir,) = await crew.hire()
        await crew.drained()
        woken_at = time.monotonic()
        sleeper.thaw()
        await crew.at_work(sleeper, heir)  # under another name
        starts = crew.events("start", actor=sleeper.actor)
        assert [one.msg for one in starts if one.t_mono > woken_at] == []
        await crew.hold()
        assert (await crew.counters())["done"] == 401


async def test_pauses_shorter_than_the_silence_cost_nothing(make_queue_crew, valkey_server):
    crew = make_queue_crew(
        valkey_server.url, queues={"silence_s": 2.0, "beat_s": 0.2}, work_s=0.001
    )
    async with crew:
        hands = await crew.hire(2)
        await crew.at_work(*hands)
        for round_number in range(2):
            for hand in hands:
                hand.signal(signal.SIGSTOP)
                await crew.send_many(100, seed=round_number, failing=0)
                hand.signal(signal.SIGCONT)
        verdict = await crew.hold(attempt_gaps=False)
        assert verdict.counts.started == 400
        assert (crew.counted["stale"], crew.counted["reaped"]) == (0, 0)


@pytest.mark.torture
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["plain", "status", "lanes"])
async def test_a_hundred_zombies_say_nothing_that_counts(
    make_queue_crew, valkey_server, kind, figure
):
    crew = make_queue_crew(valkey_server.url, kind=kind, work_s=0.002, max_attempts=20)
    async with crew:
        hands = await crew.hire(3)
        began = time.monotonic()
        for round_number in range(100):
            victim = hands[round_number % 3]
            await crew.at_work(*hands)
            await crew.send_many(200, seed=round_number)
            victim.freeze()

            async def given_up(victim=victim):
                return victim not in await crew.members()

            await eventually(given_up)
            victim.thaw()
        took_s = time.monotonic() - began
        verdict = await crew.hold()
        suite, name = "queue faults", f"100 zombies, {kind} queue"
        figure(suite, f"{name}: stale words accepted", verdict.totals["I08"], "", "<=", 0)
        figure(suite, f"{name}: lost", verdict.counts.lost, "jobs", "<=", 0)
        figure(suite, f"{name}: seconds", took_s, "s", "<=", 600)
