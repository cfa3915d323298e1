"""A job that takes its process down goes to the dead letters; the others get through."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

PLACES = 32
ONE_AT_A_TIME = {"concurrency": 1}


async def run_to_the_end(crew, **rules):
    """Let two supervised workers go on until nothing is left; the dead letters."""
    await crew.hire(2)
    supervisor = asyncio.create_task(crew.supervise())
    await crew.drained()
    supervisor.cancel()
    verdict = await crew.hold(**rules)
    letters = await crew.letters()
    return verdict, [(letter.job_id, letter.reason, letter.attempts) for letter in letters]


def make_poison_crew(make_queue_crew, server, **options):
    return make_queue_crew(
        server.url,
        **{"max_attempts": 3, "queues": {"silence_s": 0.3, "beat_s": 0.06}, **options},
    )


@pytest.mark.parametrize(
    ("kind", "how", "handler", "work_s"),
    [
        ("plain", "exit", "handle", 0.0),
        ("status", "segfault", "handle_in_thread", 0.005),
        ("status", "kill", "handle", 0.02),
        ("lanes", "exit", "handle", 0.005),
        ("status", "exit", "handle_in_thread", 0.0),
        ("lanes", "segfault", "handle_in_thread", 0.02),
    ],
)
async def test_poison_is_buried_as_crashed_and_all_others_are_done(
    make_queue_crew, valkey_server, kind, how, handler, work_s
):
    crew = make_poison_crew(
        make_queue_crew, valkey_server, kind=kind, handler=handler, work_s=work_s
    )
    async with crew:
        for _ in range(50):
            await crew.send()
        poison = await crew.send(**{how: True})
        for _ in range(100):
            await crew.send()
        verdict, letters = await run_to_the_end(crew)
        assert letters == [(poison, "crashed", 3)]
        assert [event.attempt for event in crew.starts_of(poison)] == [1, 2, 3]
        assert verdict.counts.finished == 150


async def test_innocents_with_one_attempt_never_run_twice(make_queue_crew, valkey_server):
    """Only what was noted as begun when the process died has used its single attempt up.

    That is at most one job for each place of the worker; all that was merely claimed goes back.
    """
    crew = make_poison_crew(make_queue_crew, valkey_server, max_attempts=1, work_s=0.002)
    async with crew:
        await crew.send_many(300, failing=0)
        poison = [await crew.send(exit=True) for _ in range(3)]
        await crew.send_many(300, failing=0)
        verdict, letters = await run_to_the_end(crew, attempt_gaps=False)
        dead = {job_id for job_id, reason, attempts in letters}
        assert {(reason, attempts) for _, reason, attempts in letters} == {("crashed", 1)}
        assert dead >= set(poison)
        starts = Counter(event.msg for event in crew.events("start"))
        assert set(starts.values()) == {1}
        done = {event.msg for event in crew.events("finish", "ok")}
        assert done.isdisjoint(poison)
        # Whoever is dead was to run beside poison, or had done its work and could not tell.
        assert len(done | dead) == 603
        assert len(dead) <= 3 * PLACES
        assert verdict.counts.started >= 603 - 3 * PLACES


async def test_long_innocents_beside_poison_survive_it(make_queue_crew, valkey_server):
    """They are in the midst of their work at every crash."""
    crew = make_poison_crew(make_queue_crew, valkey_server)
    async with crew:
        innocents = [await crew.send(pause=0.3) for _ in range(6)]
        poison = await crew.send(exit=True, pause=0)
        verdict, letters = await run_to_the_end(crew)
        assert letters == [(poison, "crashed", 3)]
        assert verdict.counts.finished == len(innocents)


async def test_jobs_claimed_ahead_of_poison_are_charged_once(make_queue_crew, valkey_server):
    """Quick jobs are claimed hundreds at a time; most of them never begin before a crash."""
    crew = make_poison_crew(make_queue_crew, valkey_server, max_attempts=2, queue=ONE_AT_A_TIME)
    async with crew:
        await crew.send_many(300, failing=0)
        poison = [await crew.send(exit=True)]
        await crew.send_many(300, failing=0)
        poison += [await crew.send(exit=True)]
        verdict, letters = await run_to_the_end(crew)
        assert sorted(letters) == sorted((one, "crashed", 2) for one in poison)
        assert verdict.counts.finished == 600


async def test_many_poisons_bury_no_innocent(make_queue_crew, valkey_server):
    """Twelve crashes, each with dozens of neighbours: the last chance of each is made alone."""
    crew = make_poison_crew(make_queue_crew, valkey_server)
    async with crew:
        poison = []
        for _ in range(4):
            await crew.send_many(100, failing=0)
            poison.append(await crew.send(exit=True))
        verdict, letters = await run_to_the_end(crew)
        assert sorted(letters) == sorted((one, "crashed", 3) for one in poison)
        assert verdict.counts.finished == 400


@pytest.mark.parametrize(
    "places",
    [("worker.claimed_jobs", "worker.reaper"), ("worker.claimed_jobs",)],
    ids=["all", "claims"],
)
async def test_a_job_that_kills_who_reads_it_is_buried_alone(
    make_queue_crew, valkey_server, places
):
    """Whoever claims it dies before anything of its claim has begun, or whoever returns it, too."""
    crew = make_poison_crew(
        make_queue_crew, valkey_server, max_attempts=2, deadly=("KEEP OUT", *places)
    )
    async with crew:
        await crew.send_many(20, failing=0)
        poison = await crew.send(text="KEEP OUT")
        await crew.send_many(20, failing=0)
        verdict, letters = await run_to_the_end(crew)
        assert [one[:2] for one in letters] == [(poison, "crashed")]
        assert verdict.counts.finished == 40
        assert not crew.starts_of(poison)
        marks = await crew.app.redis.call("HKEYS", crew.keys.suspects)
        assert not [one for one in marks if one[:1] in b"~?!"], "nothing is suspected any more"


async def test_the_last_chance_of_one_does_not_stop_the_others_for_long(
    make_queue_crew, valkey_server
):
    """A long job that was there when its worker died twice runs beside others in the end."""
    crew = make_poison_crew(make_queue_crew, valkey_server, max_attempts=2)
    async with crew:
        (victim,) = await crew.hire()
        suspect = await crew.send(pause=9.0)
        await crew.started(suspect)
        await victim.kill()
        (hand,) = await crew.hire()
        await crew.started(suspect, 2)
        others = [await crew.send() for _ in range(20)]
        await crew.handled_some(20)
        assert len(crew.events("finish", "ok")) == len(others), "the long one is still running"
        await hand.kill()
