"""Keys of a queue vanish under its workers: what is still there is run, and nobody is stuck."""

from __future__ import annotations

import pytest

from penstock.testing.eventually import eventually


@pytest.mark.parametrize("kind", ["plain", "status"])
async def test_jobs_in_hand_survive_that_the_list_of_workers_is_deleted(
    make_queue_crew, valkey_server, kind
):
    """All workers are given up by that; what they had in hand belongs to nobody alive."""
    crew = make_queue_crew(valkey_server.url, kind=kind)
    async with crew:
        hands = await crew.hire(2)
        await crew.at_work(*hands)
        jobs = [await crew.send(pause=0.8, attempts=1) for _ in range(10)]
        for job_id in jobs:
            await crew.started(job_id)
        with crew.nemesis.losing():
            await crew.app.redis.call("DEL", crew.keys.workers)
        await eventually(lambda: len(crew.events("finish", "cancelled")) == 10)
        await crew.handled_some(10)  # until they are returned, nothing counts them
        verdict = await crew.hold()
        assert verdict.counts.finished == 10


async def test_workers_go_on_after_everything_was_deleted(make_queue_crew, start_server):
    server = start_server()
    crew = make_queue_crew(server.url, kind="status")
    async with crew:
        hands = await crew.hire(2)
        await crew.at_work(*hands)
        await crew.send_many(50, failing=0, pause=0.05)
        with crew.nemesis.losing():
            server.command("FLUSHALL")
        crew.nemesis.write("purge", group="work")
        await crew.at_work(*hands)
        again = [await crew.send() for _ in range(20)]
        await crew.drained()
        assert [hand.code for hand in hands] == [None, None]
        done = {event.msg for event in crew.events("finish", "ok")}
        assert done >= set(again)


async def test_a_unique_key_is_free_when_its_job_was_buried_as_crashed(
    make_queue_crew, valkey_server
):
    crew = make_queue_crew(valkey_server.url, kind="status", max_attempts=1)
    async with crew:
        (victim,) = await crew.hire()
        poison = await crew.send(where={"unique": "one"}, exit=True)
        await victim.ended()
        crew.nemesis.write("lose", victim=victim.actor)
        await crew.hire()
        await crew.drained()
        assert [letter.job_id for letter in await crew.letters()] == [poison]
        again = await crew.send(where={"unique": "one"})
        assert again != poison
        verdict = await crew.hold()
        assert verdict.counts.finished == 1
