"""The checker can be trusted: each planted bug is convicted of what it breaks, its cure is not."""

from __future__ import annotations

import pytest

from .planted import bugs
from .planted.miniature import MAX_ATTEMPTS, Janitor, LosesNoGroup, Mover, Producer, Stage, Worker


@pytest.fixture
async def stage(valkey_server, open_client, namespace, tmp_path):
    stage = Stage(await open_client(valkey_server.url), namespace, tmp_path)
    await stage.begin()
    yield stage
    stage.close()


async def crash_in_the_handler(stage, make):
    await stage.send("one", "two")
    await stage.work(make, crash_at="in_handler")
    await stage.work(make)


async def crash_before_the_ack(stage, make):
    await stage.send("one", "two")
    await stage.work(make, crash_at="before_ack")
    await stage.work(make)


async def crash_while_a_retry_is_stored(stage, make):
    await stage.send("one", "two")
    await stage.work(make, fails={"one"}, crash_at="between_ack_and_retry")
    await stage.work(make)


async def crash_while_a_dead_letter_is_written(stage, make):
    await stage.send("one", "two")
    await stage.work(make, fails={"one"}, crash_at="between_ack_and_bury")
    await stage.work(make)


async def crash_on_every_attempt(stage, make):
    await stage.send("poison")
    await stage.work(make, crash_at="in_handler", workers=MAX_ATTEMPTS + 2)


async def owner_stands_still_past_its_lease(stage, make):
    await stage.send("one")
    sleeper, heir = make(stage), make(stage)
    sleeper.lease_ms = 1
    assert await sleeper.acquire()
    message = await sleeper.read()
    sleeper.start(message)
    await sleeper.lease_ran_out()
    assert await heir.acquire()
    again = await heir.read()
    heir.start(again)
    await sleeper.renew()
    sleeper.finish(message)
    await sleeper.ack(message)
    heir.finish(again)
    await heir.ack(again)


async def two_workers_at_once(stage, make):
    await stage.send("one", "two")
    first, second = make(stage), make(stage)
    assert await first.acquire()
    message = await first.read()
    first.start(message)
    if await second.acquire():
        await second.run_one()
    first.finish(message)
    await first.ack(message)
    await first.release()
    await stage.work(make)


async def the_group_vanishes(stage, make):
    await stage.send("one")
    await stage.work(make)
    await stage.send("two")
    await stage.call("XGROUP", "DESTROY", stage.stream, "billing")
    await stage.work(make)


async def trimmed_while_pending(stage, make):
    await stage.send("one", "two")
    await stage.work(Worker, crash_at="in_handler")
    await make(stage).trim()
    await stage.work(Worker)


async def a_consumer_is_removed(stage, make):
    await stage.send("one", "two")
    await stage.work(Worker, crash_at="in_handler")
    await make(stage).remove_idle_consumer("one")
    await stage.work(Worker)


async def a_reply_to_a_send_is_lost(stage, make):
    await make(stage).send("one")
    await stage.work(Worker)


async def two_movers_at_once(stage, make):
    mover = make(stage)
    await mover.delay("one", 0.1)
    await mover.delay("two", 60)
    await mover.let_pass(0.1)
    await mover.move_with_a_rival()
    await stage.work(Worker)


CASES = [
    (crash_in_the_handler, bugs.AcksBeforeWork, Worker, {"I01"}),
    (crash_while_a_retry_is_stored, bugs.AcksThenStoresRetry, Worker, {"I01"}),
    (
        owner_stands_still_past_its_lease,
        bugs.RenewsAnybodysLease,
        Worker,
        {"I06", "I08", "I09", "I16"},
    ),
    (two_workers_at_once, bugs.SharesThePartition, Worker, {"I06", "I08", "I09"}),
    (trimmed_while_pending, bugs.TrimsByLength, Janitor, {"I01"}),
    (a_consumer_is_removed, bugs.ForgetsWhatConsumersHold, Janitor, {"I01"}),
    (crash_on_every_attempt, bugs.CountsExceptionsOnly, Worker, {"I11", "I12"}),
    (the_group_vanishes, bugs.RecreatesGroupAtTheEnd, LosesNoGroup, {"I01"}),
    (crash_while_a_dead_letter_is_written, bugs.BuriesAfterAck, Worker, {"I01", "I15"}),
    (a_reply_to_a_send_is_lost, bugs.RetriesRawAdd, Producer, {"I03"}),
    (a_reply_to_a_send_is_lost, bugs.CallsALostReplyARejection, Producer, {"I26"}),
    (two_movers_at_once, bugs.RangesThenRemoves, Mover, {"I03"}),
    (two_movers_at_once, bugs.TakesSecondsForMilliseconds, Mover, {"I19"}),
]


@pytest.mark.parametrize(
    ("scenario", "bug", "expected"),
    [pytest.param(case[0], case[1], case[3], id=case[1].__name__) for case in CASES],
)
async def test_a_planted_bug_is_convicted(stage, scenario, bug, expected):
    await scenario(stage, bug)
    verdict = await stage.verdict()
    assert verdict.convicted == expected, str(verdict)


@pytest.mark.parametrize(
    ("scenario", "cure"),
    [
        *(pytest.param(case[0], case[2], id=case[1].__name__) for case in CASES),
        pytest.param(crash_before_the_ack, Worker, id="crash_before_the_ack"),
    ],
)
async def test_the_cure_passes_the_same_scenario(stage, scenario, cure):
    await scenario(stage, cure)
    verdict = await stage.verdict()
    assert verdict.ok, str(verdict)
    assert verdict.examined["I01"]
