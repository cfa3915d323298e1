"""A process ends right before or right after each of its words to the server."""

from __future__ import annotations

import pytest

from penstock.testing.history import read_history

# After an answer has come, the next words are never said; before it, these are not either.
POINTS = [
    f"{when} {script}"
    for script in ("acquire", "settle", "retry_later", "begin", "bury", "release")
    for when in ("before", "after")
]


async def crash_and_finish(crew, point):
    """Let one worker end at the point, and another one do the rest."""
    (victim,) = await crew.hire(crash=point)
    if point.endswith("release"):
        await crew.drained()
        victim.signal(15)
    assert await victim.ended() == -9, f"{point} was never reached:\n{victim.log[-3000:]}"
    crew.nemesis.write("lose", victim=victim.actor)
    await crew.at_work(*await crew.hire())
    await crew.drained()
    await crew.dismiss()


@pytest.mark.parametrize("ordering", ["partition", pytest.param("key", marks=pytest.mark.torture)])
@pytest.mark.parametrize("point", POINTS)
async def test_a_crash_around_a_script_loses_and_doubles_nothing(
    make_crew, valkey_server, ordering, point
):
    crew = make_crew(
        valkey_server.url,
        partitions=2,
        subscription={"ordering": ordering},
        topics={"lease_ttl_s": 0.3},
        backoff_s=0.02,
    )
    async with crew:
        dead = set()
        for number in range(12):
            key = f"key-{number % 4}"
            await crew.send(key)
            await crew.send(key, fail=True, attempts=1)
            dead.add(await crew.send(key, dead=True))
        await crash_and_finish(crew, point)
        verdict = await crew.verdict()
        assert verdict.ok, str(verdict)
        assert verdict.counts.finished == 24
        letters = (await crew.topic.dead_letters.list()).letters
        assert sorted(letter.message_id for letter in letters) == sorted(dead)


async def test_a_message_that_is_buried_is_not_handled_again(make_crew, valkey_server):
    """The process ends between the dead letter and the acknowledgement."""
    crew = make_crew(valkey_server.url, partitions=1, topics={"lease_ttl_s": 0.3})
    async with crew:
        await crew.send("k", dead=True, attempts=1)  # a second attempt would succeed
        await crash_and_finish(crew, "after bury")
        verdict = await crew.verdict()
        assert verdict.ok, str(verdict)
        assert [letter.attempts for letter in (await crew.topic.dead_letters.list()).letters] == [1]
        assert len([one for one in read_history(crew.folder) if one.op == "start"]) == 1
