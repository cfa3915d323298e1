"""A message that takes its process down goes to the dead letters; the others get through."""

from __future__ import annotations

import asyncio

import pytest
from tests.kit.history import read_history

from penstock.testing.eventually import eventually
from penstock.topics.storage.keys import PartitionKeys


async def lose_leases(crew, times):
    """Take partitions away from owners that live, in the midst of everything."""
    keys, call = crew.app.redis.keys, crew.app.redis.call
    for turn in range(times):
        place = PartitionKeys.of(keys, crew.topic.name, turn % crew.partitions)
        ended = len(crew.events("finish", "ok"))
        await eventually(lambda n=ended: len(crew.events("finish", "ok")) > n)
        await call("HINCRBY", place.epochs, crew.group, 1)
        await call("DEL", place.lease(crew.group))


def starts_of(crew, *, poison):
    """Every start of the poison, or of the others."""
    starts = [one for one in read_history(crew.folder) if one.op == "start"]
    return [one for one in starts if (one.key == "poison") == poison]


def most_charged_to_innocents(crew):
    """Most attempts that one of them had lost when its last one began."""
    return max(one.attempt for one in starts_of(crew, poison=False)) - 1


async def run_to_the_end(crew, *, losses=0):
    """Let two supervised workers go on until all is settled; the dead letters."""
    await crew.hire(2)
    helpers = [
        asyncio.create_task(crew.supervise()),
        asyncio.create_task(lose_leases(crew, losses)),
    ]
    await crew.drained()
    for helper in helpers:
        helper.cancel()
    await crew.dismiss()
    # The recorder knows of no loss when a lease is removed.
    verdict = await crew.verdict(**({"waive": {"I04"}} if losses else {}))
    assert verdict.ok, str(verdict)
    page = await crew.topic.dead_letters.list()
    return verdict, [(letter.message_id, letter.reason, letter.attempts) for letter in page.letters]


def make_poison_crew(make_crew, server, **options):
    return make_crew(
        server.url,
        **{"partitions": 4, "max_attempts": 3, "topics": {"lease_ttl_s": 1.0}, **options},
    )


@pytest.mark.parametrize(
    ("ordering", "how", "handler"),
    [
        ("partition", "segfault", "handle_in_thread"),
        ("partition", "kill", "handle_batch"),
        ("key", "exit", "handle"),
        ("partition", "exit", "handle"),
        ("none", "kill", "handle"),
    ],
)
async def test_poison_is_buried_as_crashed_and_all_others_are_handled(
    make_crew, valkey_server, ordering, how, handler
):
    options = {"batch": 10} if handler == "handle_batch" else {}
    crew = make_poison_crew(
        make_crew,
        valkey_server,
        subscription={"ordering": ordering, **options},
        handler=handler,
        work_s=0.005,
    )
    async with crew:
        for number in range(40):
            await crew.send(f"key-{number % 20}")
        poison = await crew.send("poison", **{how: True})
        for number in range(160):
            await crew.send(f"key-{number % 20}")
        verdict, letters = await run_to_the_end(crew)
        assert letters == [(poison, "crashed", 3)]
        assert verdict.counts.finished == 200
        assert most_charged_to_innocents(crew) <= 1


async def test_innocents_that_run_beside_poison_survive_it(make_crew, valkey_server):
    """They are in the midst of their work at every crash, in other partitions of the process."""
    crew = make_poison_crew(make_crew, valkey_server, subscription={"max_partitions": 4})
    async with crew:
        poison = await crew.send(crew.key_in(0), exit=True)
        for partition in (1, 2, 3):
            await crew.send(crew.key_in(partition), pause=0.1)
        verdict, letters = await run_to_the_end(crew)
        assert letters == [(poison, "crashed", 3)]
        assert verdict.counts.finished == 3


async def test_poison_among_many_keys_loses_no_innocent(make_crew, valkey_server):
    """Thirty-two handlers run at once; each crash interrupts all of them."""
    crew = make_poison_crew(
        make_crew, valkey_server, partitions=1, subscription={"ordering": "key"}
    )
    async with crew:
        for number in range(20):
            await crew.send(f"key-{number}", pause=0.02)
        poison = await crew.send("poison", exit=True)
        for number in range(20, 40):
            await crew.send(f"key-{number}", pause=0.02)
        verdict, letters = await run_to_the_end(crew)
        assert letters == [(poison, "crashed", 3)]
        assert verdict.counts.finished == 40
        assert most_charged_to_innocents(crew) <= 1


@pytest.mark.parametrize("ordering", ["key", "partition", "none"])
async def test_innocents_survive_poison_and_leases_that_are_lost_under_live_owners(
    make_crew, valkey_server, ordering
):
    """With two attempts a message that is charged for both a crash and a loss would be buried."""
    crew = make_poison_crew(
        make_crew,
        valkey_server,
        max_attempts=2,
        subscription={"ordering": ordering},
        work_s=0.02,
    )
    async with crew:
        for number in range(60):
            await crew.send(f"key-{number % 20}")
        poison = await crew.send("poison", exit=True)
        for number in range(60):
            await crew.send(f"key-{number % 20}")
        verdict, letters = await run_to_the_end(crew, losses=8)
        assert letters == [(poison, "crashed", 2)]
        assert verdict.counts.finished == 120
        assert len(starts_of(crew, poison=True)) == 2


async def test_with_a_single_attempt_only_what_had_begun_is_charged(make_crew, valkey_server):
    """Everything else that the process had fetched is handled by the next one."""
    crew = make_poison_crew(make_crew, valkey_server, partitions=1, max_attempts=1)
    async with crew:
        for number in range(30):
            await crew.send(f"key-{number}")
        poison = await crew.send("poison", exit=True)
        for number in range(30):
            await crew.send(f"key-{number}")
        verdict, letters = await run_to_the_end(crew)
        assert letters == [(poison, "crashed", 1)]
        assert verdict.counts.finished == 60
