"""A process ends right before or right after each of its words to the server."""

from __future__ import annotations

import pytest
from tests.kit.history import read_history

from penstock.testing.eventually import eventually
from penstock.topics.consumer.growth_barrier import read_markers
from penstock.topics.storage.keys import TopicKeys

# After an answer has come, the next words are never said; before it, these are not either.
SHORT = {
    "after acquire_partition",
    "before ack_messages",
    "after ack_messages",
    "before retry_later",
    "after bury_message",
}
POINTS = [
    pytest.param(point := f"{when} {script}", marks=pytest.mark.short if point in SHORT else ())
    for script in (
        "acquire_partition",
        "ack_messages",
        "retry_later",
        "begin_messages",
        "bury_message",
        "release_partition",
    )
    for when in ("before", "after")
]


async def crash_and_finish(crew, point):
    """Let one worker end at the point, and another one do the rest."""
    (victim,) = await crew.hire(crash=point)
    if point.endswith("release_partition"):
        await crew.drained()
        victim.signal(15)
    assert await victim.ended() == -9, f"{point} was never reached:\n{victim.log[-3000:]}"
    crew.nemesis.write("lose", victim=victim.actor)
    await crew.at_work(*await crew.hire())
    await crew.drained()
    await crew.dismiss()


@pytest.mark.parametrize("ordering", ["partition", "key"])
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


async def has_grown(crew):
    return (await crew.topic.metadata()).partitions == 4  # waits as producers do


GROWTH = ["begin_growth", "open_partition", "register_group", "mark_barrier", "finish_growth"]


@pytest.mark.parametrize(
    "point", [f"{when} {name}" for name in GROWTH for when in ("before", "after")]
)
async def test_producers_go_on_when_a_process_dies_that_grows_their_topic(
    make_crew, valkey_server, point
):
    crew = make_crew(
        valkey_server.url,
        partitions=2,
        subscription={"ordering": "key"},
        topics={"refresh_s": 0.1},
    )
    async with crew:
        if point.endswith("register_group"):
            await crew.at_work(*await crew.hire())  # else there is no group to be registered
        for number in range(20):
            await crew.send(f"key-{number % 5}")
        (victim,) = await crew.hire(crash=point, grow=4)
        assert await victim.ended() == -9, f"{point} was never reached:\n{victim.log[-3000:]}"
        crew.nemesis.write("lose", victim=victim.actor)
        if point != "before begin_growth":
            await eventually(lambda: has_grown(crew))
            crew.partitions = 4
        for number in range(20):
            await crew.send(f"key-{number % 5}")
        await crew.at_work(*await crew.hire())
        await crew.drained()
        await crew.dismiss()
        verdict = await crew.verdict()
        meta = await crew.app.redis.call(
            "HGETALL", TopicKeys.of(crew.app.redis.keys, "orders").meta
        )
        markers = [id_ for ids in read_markers(meta).values() for id_ in ids.values()]
        assert len(markers) == (0 if point == "before begin_growth" else 2)
        # Markers are acknowledged, and no producer sent them.
        acks = tuple(f"ack of {id_.decode()} " for id_ in markers)
        wrong = [one for one in verdict.violations if not one.text.startswith(acks)]
        assert not wrong, str(verdict)
        assert verdict.counts.finished == 40


async def test_a_message_that_is_buried_is_not_handled_again(make_crew, valkey_server):
    """The process ends between the dead letter and the acknowledgement."""
    crew = make_crew(valkey_server.url, partitions=1, topics={"lease_ttl_s": 0.3})
    async with crew:
        await crew.send("k", dead=True, attempts=1)  # a second attempt would succeed
        await crash_and_finish(crew, "after bury_message")
        verdict = await crew.verdict()
        assert verdict.ok, str(verdict)
        assert [letter.attempts for letter in (await crew.topic.dead_letters.list()).letters] == [1]
        assert len([one for one in read_history(crew.folder) if one.op == "start"]) == 1
