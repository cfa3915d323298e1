"""A worker that was given up and lives charges nothing that would bury its jobs."""

from __future__ import annotations

import pytest

from penstock.testing.eventually import eventually


def runner_of(crew, job_id, after):
    """The worker that began the job last, once it was begun more than `after` times."""
    starts = crew.starts_of(job_id)
    return starts[-1].actor if len(starts) > after else None


@pytest.mark.parametrize(
    ("kind", "handler"),
    [
        ("plain", "handle"),
        ("status", "handle"),
    ],
)
async def test_workers_that_are_paused_again_and_again_bury_no_job(
    make_queue_crew, valkey_server, kind, handler
):
    """Four times its worker is frozen until it is given up; two attempts are allowed."""
    crew = make_queue_crew(
        valkey_server.url,
        kind=kind,
        handler=handler,
        max_attempts=2,
        queues={"silence_s": 1.0, "beat_s": 0.1},
    )
    async with crew:
        hands = {hand.actor: hand for hand in await crew.hire(2)}
        await crew.at_work(*hands.values())
        job_id = await crew.send(pause=0.5)
        for pauses in range(4):
            actor = await eventually(lambda n=pauses: runner_of(crew, job_id, n))
            victim = hands[actor]
            crew.nemesis.write("lose", victim=actor)
            victim.freeze()

            async def given_up():
                call, keys = crew.app.redis.call, crew.keys
                live = await call("ZCARD", keys.workers)
                return live == 1

            await eventually(given_up)
            victim.thaw()
            await crew.at_work(*hands.values())
        await crew.drained()
        assert not await crew.letters()
        assert len(crew.starts_of(job_id)) == 5
