"""Runs while processes are killed, answers get lost, and the server is full."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext

import pytest

from penstock.coordination.runs.runs import Runs
from penstock.errors import OutcomeUnknown, OutOfMemory, RunConflict, ServerError
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.keys.probe import ProbeKeys
from penstock.settings import Settings, TimeoutSettings
from penstock.testing.eventually import eventually

ITEMS = 200
QUICK = TimeoutSettings(connect_s=0.5, command_s=0.5)

# Goes through all items in an order of its own, as do the others at the same time. Every fourth
# item fails twice. What it hears back is written down, so that it is known what was confirmed. It
# goes no further than it is allowed, or else a quick machine would be done before the kills are.
WORKER = """
import asyncio, random, sys
from penstock.coordination.runs.runs import Runs
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.keys.probe import ProbeKeys
from penstock.settings import Settings

url, namespace, seed, items, log = sys.argv[1:]
out = open(log, "w", buffering=1)

async def attempt(run, item, failed):
    if int(item) % 4 == 0 and failed < 2:
        out.write(f"fail {item} {await run.fail(item, 'no', retry_in_s=0.02)}\\n")
    else:
        out.write(f"mark {item} {await run.mark_processed(item)}\\n")

async def main():
    async with Client(Settings(url=url, namespace=namespace)) as client:
        run = Runs(client, Codec(client.settings.codec)).open("r")
        chance, allowed = random.Random(seed), ProbeKeys.of(client.keys, "allowed").value
        order = chance.sample(range(int(items)), int(items))
        while await run.processed_count() < int(items):
            for failure in await run.claim_due(limit=3, lease_s=0.3):
                out.write(f"claim {failure.item} {failure.attempts}\\n")
                await attempt(run, failure.item, failure.attempts)
            for item in [order.pop() for _ in range(min(3, len(order)))]:
                while await run.processed_count() >= int(await client.call("GET", allowed)):
                    await asyncio.sleep(0.005)
                if not await run.is_processed(item):
                    await attempt(run, str(item), 0)
                await asyncio.sleep(0.004)
            if not order:
                await asyncio.sleep(0.01)

asyncio.run(main())
"""


@asynccontextmanager
async def runs_on(url, namespace):
    async with Client(Settings(url=url, namespace=namespace, timeouts=QUICK)) as client:
        yield Runs(client, Codec(client.settings.codec))


class Staff:
    """Worker processes around one run, each with what it heard back."""

    def __init__(self, url, namespace, folder):
        self.url, self.namespace, self.folder = url, namespace, folder
        self.all, self.logs = [], []

    def hire(self):
        log = self.folder / f"{len(self.logs)}.log"
        log.touch()
        self.logs.append(log)
        arguments = (self.url, self.namespace, str(len(self.logs)), str(ITEMS), str(log))
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, *arguments], stderr=subprocess.PIPE, text=True
        )
        self.all.append(process)

    def living(self):
        return [process for process in self.all if process.poll() is None]

    def at_work(self):
        """Those that live and have done something."""
        each = zip(self.all, self.logs, strict=True)
        return [one for one, log in each if one.poll() is None and log.stat().st_size]

    def heard(self, kind):
        """Item and answer of each confirmed call of one kind."""
        lines = (line.split() for log in self.logs for line in log.read_text().splitlines())
        return [(item, int(answer)) for what, item, answer in lines if what == kind]

    def close(self):
        for process in self.all:
            process.kill()
            process.communicate()


@pytest.fixture
def staff(request, namespace, tmp_path):
    made = []

    def make(url):
        made.append(Staff(url, namespace, tmp_path))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("where", ["valkey_server", "cluster"])
async def test_a_storm_of_kills_loses_no_item_and_counts_none_twice(
    request, staff, namespace, where
):
    server = request.getfixturevalue(where)
    async with runs_on(server.url, namespace) as runs:
        run = await runs.start("r")
        allowed = ProbeKeys.of(run.client.keys, "allowed").value
        await run.client.call("SET", allowed, 0)
        crew = staff(server.url)
        for _ in range(4):
            crew.hire()
        chance = random.Random(7)  # noqa: S311  repeatable, not secret
        for kill in range(1, 7):
            await run.client.call("SET", allowed, kill * 30)

            async def far_enough(most=kill * 30):
                return await run.processed_count() >= most - 15

            await eventually(far_enough)
            await asyncio.sleep(chance.uniform(0, 0.02))  # somewhere within its work
            chance.choice(await eventually(crew.at_work)).kill()
            crew.hire()
        await run.client.call("SET", allowed, ITEMS + 1)
        await eventually(lambda: not crew.living())
        assert [one.returncode for one in crew.all if one.returncode not in {0, -9}] == []
        assert sum(one.returncode == -9 for one in crew.all) == 6

        record = await run.record()
        assert (record.processed, record.failures) == (ITEMS, 0)
        assert {item async for item in run.iter_processed()} == set(map(str, range(ITEMS)))
        await hold_events_together(run, crew)


async def hold_events_together(run, crew):
    """The feed tells the same story as the records and as what the workers heard."""
    events = await run.events(limit=100_000)
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    progress = [event.data for event in events if event.type == "progress"]
    assert [one["processed"] for one in progress] == list(range(1, ITEMS + 1))
    failed = [event.data for event in events if event.type == "failed"]
    attempts: dict[str, list[int]] = {}
    for one in failed:
        attempts.setdefault(one["item"], []).append(one["attempts"])
    assert set(map(int, attempts)) == set(range(0, ITEMS, 4))
    for numbers in attempts.values():
        assert numbers == list(range(1, len(numbers) + 1)), "no attempt is lost or counted twice"
        assert len(numbers) >= 2
    resolved = Counter(event.data["item"] for event in events if event.type == "resolved")
    assert resolved == Counter(attempts.keys())
    new = Counter(item for item, answer in crew.heard("mark") if answer)
    assert max(new.values()) == 1, "each item is new to one worker"
    assert ITEMS - 6 <= len(new) <= ITEMS, "one answer at most died with each that was killed"
    told = Counter((item, answer) for item, answer in crew.heard("fail") if answer)
    assert max(told.values()) == 1, "no two workers heard of the same attempt"
    assert {(item, n) for item, numbers in attempts.items() for n in numbers} >= set(told)


# ---- two finish together


@pytest.mark.parametrize("where", ["valkey_server", "cluster"])
async def test_of_those_that_finish_a_run_at_the_same_moment_exactly_one_wins(
    request, namespace, where
):
    server = request.getfixturevalue(where)
    statuses = ("completed", "failed", "cancelled", "completed")
    async with AsyncExitStack() as opened:
        desks = [await opened.enter_async_context(runs_on(server.url, namespace)) for _ in statuses]
        for number in range(40):
            run = await desks[0].start(f"r{number}")
            await run.mark_processed("1", "2")
            ends = await asyncio.gather(
                *(
                    desk.open(run.id).finish(status)
                    for desk, status in zip(desks, statuses, strict=True)
                ),
                return_exceptions=True,
            )
            winners = [place for place, end in enumerate(ends) if end == 2]
            assert len(winners) == 1
            record = await run.record()
            assert (record.status, record.version) == (statuses[winners[0]], 2)
            losers = [end for end in ends if isinstance(end, RunConflict)]
            assert {(one.status, one.version) for one in losers} == {(record.status, 2)}
            assert len(losers) == 3
            finished = [one.data for one in await run.events() if one.type == "finished"]
            assert finished == [
                {
                    "version": 2,
                    "from": "created",
                    "status": record.status,
                    "processed": 2,
                    "failures": 0,
                }
            ]


# ---- lost answers


async def everything(runs, around):
    """Do each thing once, between `around` and its undoing; return what was answered."""
    answers = []

    async def doing(call):
        with around():
            answers.append(await call())

    made = []

    async def start():
        made.append(await runs.start("r", facts={"a": "b"}))
        return made[0].created

    await doing(start)
    run = made[0]
    await doing(lambda: run.move("running"))
    await doing(lambda: run.note({"c": "d"}, version=2))
    await doing(lambda: run.note_task_start("load"))
    await doing(lambda: run.note_task_start("load", attempt=2))
    await doing(lambda: run.mark_processed("1", "2"))
    await doing(lambda: run.mark_processed("2", "3"))
    await doing(lambda: run.fail("4", "no", retry_in_s=0, api_calls=2))
    await doing(lambda: run.fail("4", "no", retry_in_s=0, api_calls=2))

    async def claim():
        return [(one.item, one.attempts, one.api_calls) for one in await run.claim_due()]

    await doing(claim)
    await doing(claim)
    await doing(lambda: run.resolve("4"))
    await doing(lambda: run.resolve("4"))
    await doing(lambda: run.checkpoint({"page": 1}, watermark=5, version=3))
    await doing(lambda: run.finish(version=4))
    await doing(lambda: run.reopen(version=5))
    record = await run.record()
    events = [(one.number, one.type) for one in await run.events()]
    return answers, record.version, record.processed, record.failures, events


EXPECTED = [
    *(True, 2, 3, True, False, 2, 1, 1, 2, [("4", 2, 4)], [], True, False, 4, 5, 6),
]


class Losing:
    """Loses the next answers, or the next calls, that go through a proxy."""

    def __init__(self, proxy, fault, times):
        self.lose, self.proxy, self.times = getattr(proxy, fault), proxy, times
        self.hits = []

    def __call__(self):
        return self

    def __enter__(self):
        self.rule = self.lose("EVALSHA", times=self.times)

    def __exit__(self, *_):
        self.proxy.remove(self.rule)
        self.hits.append(self.rule.hits)


async def lose_answers(server, fault_proxy, namespace, times):
    async with runs_on(server.url, f"{namespace}-calm") as runs:
        calm = await everything(runs, nullcontext)  # which loads the scripts as well
    assert calm[0] == EXPECTED

    async def losing(fault):
        proxy = fault_proxy(server)
        around = Losing(proxy, fault, times)
        async with runs_on(proxy.url, f"{namespace}-{fault}") as runs:
            assert await everything(runs, around) == calm
        # All but the first, which loses its answer already when it is registered.
        assert around.hits.count(times) >= len(EXPECTED) - 1

    # Side by side: each waits a while before it connects again.
    await asyncio.gather(losing("swallow"), losing("cut_before"))


async def test_a_lost_answer_is_asked_for_again_and_nothing_is_done_twice(
    valkey_server, fault_proxy, namespace
):
    await lose_answers(valkey_server, fault_proxy, namespace, 1)


async def test_answers_that_get_lost_twice_are_asked_for_again(any_server, fault_proxy, namespace):
    await lose_answers(any_server, fault_proxy, namespace, 2)


@pytest.fixture
async def two_ways(valkey_server, fault_proxy, namespace):
    """A proxy, a run as one knows it who goes through it, and as another does who need not."""
    proxy = fault_proxy(valkey_server)
    async with (
        runs_on(proxy.url, namespace) as shaky,
        runs_on(valkey_server.url, namespace) as steady,
    ):
        yield proxy, await shaky.start("r"), steady.open("r")


async def test_one_who_repeats_itself_still_wins_and_keeps_others_out(two_ways):
    proxy, run, other = two_ways
    await run.move("running")
    proxy.swallow("EVALSHA")
    finishing = asyncio.create_task(run.finish("failed"))

    async def is_over():
        return (await other.record()).is_final

    await eventually(is_over)
    with pytest.raises(RunConflict):
        await other.finish()
    assert await finishing == 3
    record = await other.record()
    assert (record.status, record.version) == ("failed", 3)


async def test_a_late_repeat_does_not_overwrite_what_came_meanwhile(two_ways):
    proxy, run, other = two_ways
    await run.checkpoint(0)
    proxy.swallow("EVALSHA")
    proxy.refuse()
    saving = asyncio.create_task(run.checkpoint("early"))

    async def is_saved():
        return (await other.record()).checkpoint == "early"

    await eventually(is_saved)
    await other.checkpoint("later")
    proxy.heal()
    assert await saving == 3
    assert (await other.record()).checkpoint == "later"


async def test_a_refusal_after_a_lost_answer_does_not_claim_that_nothing_was_done(
    valkey_server, fault_proxy, namespace
):
    proxy = fault_proxy(valkey_server)
    async with runs_on(proxy.url, namespace) as runs:
        run = await runs.start("r")
        await run.mark_processed("0")
        proxy.swallow("EVALSHA")
        proxy.answer("EVALSHA", "-NOPERM no", times=None)
        with pytest.raises(OutcomeUnknown):
            await run.mark_processed("1")
        proxy.heal()
        assert await run.is_processed("1")


async def test_a_server_that_cannot_be_reached_is_told_as_such(start_server, namespace):
    server = start_server()
    async with runs_on(server.url, namespace) as runs:
        run = await runs.start("r")
        server.kill()
        for call in (run.record, lambda: run.mark_processed("1"), runs.list, run.failures):
            with pytest.raises(ServerError):
                await call()


# ---- a full server


@pytest.mark.parametrize("binary", ["valkey", "redis62"])
async def test_a_full_server_takes_no_new_run_but_lets_those_there_go_on_and_end(
    start_server, namespace, binary
):
    server = start_server(binary)
    async with runs_on(server.url, namespace) as runs:
        run = await runs.start("r")
        await run.fail("1", "no", retry_in_s=0)
        await run.fail("2", "no", retry_in_s=0)
        server.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(OutOfMemory):
            await runs.start("other")
        await run.move("running")
        assert len(await run.claim_due()) == 2
        assert await run.mark_processed("1") == 1
        assert await run.fail("2", "no") == 2
        await run.checkpoint({"page": 1})
        assert await run.resolve("2")
        await run.finish()
        record = await run.record()
        assert (record.status, record.processed, record.failures) == ("completed", 1, 0)
