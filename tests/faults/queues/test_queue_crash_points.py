"""A process ends right before or right after each of its words to the server."""

from __future__ import annotations

import signal

import pytest

# After an answer has come, the next words are never said; before it, these are not either.
SCRIPTS = ("claim_jobs", "begin_jobs", "finish_jobs", "retry_job", "bury_job", "give_back")
KINDS = {"finish_jobs": "status", "begin_jobs": "status"}
SHORT = {
    *("after claim_jobs", "after begin_jobs", "before finish_jobs", "before retry_job"),
    *("after bury_job", "before give_back", "before reap_claims"),
}
AFTER_A_DEATH = ("reap_claims", "find_dead")
POINTS = [
    pytest.param(
        KINDS.get(script, "plain"),
        point := f"{when} {script}",
        marks=pytest.mark.short if point in SHORT else (),
    )
    for script in (*SCRIPTS, "leave_queue", "join_queue", "reap_claims", "find_dead")
    for when in ("before", "after")
]


async def stopped_amid_claims(crew, victim, point):
    """One that has begun all it claimed has nothing to give back: then the next one is stopped."""
    for done in range(1, 700, 200):
        await crew.handled_some(done)
        victim.signal(signal.SIGTERM)
        if await victim.ended() != 0:
            return victim
        (victim,) = await crew.hire(crash=point)
    return victim


async def crash_and_finish(crew, point):
    """Let one worker end at the point, and another one do the rest."""
    if point.endswith(AFTER_A_DEATH):
        (dead,) = await crew.hire()
        stuck = await crew.send(pause=20, attempts=1)
        await crew.started(stuck)
        await dead.kill()
    (victim,) = await crew.hire(crash=point)
    if point.endswith("leave_queue"):
        await crew.drained()
        victim.signal(signal.SIGTERM)
    if point.endswith("give_back"):
        victim = await stopped_amid_claims(crew, victim, point)
    assert await victim.ended() == -signal.SIGKILL, f"{point} was never reached:\n{victim.log}"
    crew.nemesis.write("lose", victim=victim.actor)
    await crew.hire()
    return await crew.hold()


@pytest.mark.parametrize(("kind", "point"), POINTS)
async def test_a_crash_around_a_script_loses_and_doubles_nothing(
    make_queue_crew, valkey_server, kind, point
):
    options = {}
    if point.endswith("give_back"):  # something that was claimed and not begun has to be there
        options = {"queues": {"silence_s": 0.3, "beat_s": 0.06}, "work_s": 0.0005}
    crew = make_queue_crew(
        valkey_server.url,
        kind=kind,
        backoff_s=0.02,
        **{"queues": {"silence_s": 0.3, "beat_s": 0.06}, **options},
    )
    async with crew:
        dead = set()
        # What takes less time never says that it runs.
        orders = {"pause": 0.1} if point.endswith("begin_jobs") else {}
        for _ in range(400 if point.endswith("give_back") else 12):
            await crew.send(**orders)
            await crew.send(fail=True, attempts=1)
            dead.add(await crew.send(dead=True))
        verdict = await crash_and_finish(crew, point)
        assert verdict.counts.finished == 2 * len(dead) + point.endswith(AFTER_A_DEATH)
        assert sorted(letter.job_id for letter in await crew.letters()) == sorted(dead)


@pytest.mark.parametrize("kind", ["plain", "status"])
async def test_a_job_that_has_one_attempt_is_never_started_twice(
    make_queue_crew, valkey_server, kind
):
    """The process ends between the claim and the note that the attempt begins, and after it."""
    crew = make_queue_crew(
        valkey_server.url,
        kind=kind,
        max_attempts=1,
        queue={"status": kind == "status", "concurrency": 1},
        queues={"silence_s": 0.3, "beat_s": 0.06},
    )
    async with crew:
        await crew.send_many(20, failing=0)
        for point in ("after claim_jobs", "before begin_jobs", "after begin_jobs"):
            (victim,) = await crew.hire(crash=point)
            assert await victim.ended() == -signal.SIGKILL
            crew.nemesis.write("lose", victim=victim.actor)
        await crew.hire()
        verdict = await crew.hold()
        starts = [event.msg for event in crew.events("start")]
        assert len(starts) == len(set(starts))
        # Only what was noted as begun when its process died counts as tried, and nobody can tell
        # whether it was: one job for the one place of the worker that died there.
        assert (verdict.counts.finished, verdict.counts.dead) == (19, 1)
