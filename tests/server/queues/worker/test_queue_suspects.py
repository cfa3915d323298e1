"""Jobs in the hands of worker after worker that died, unbegun: each is claimed alone."""

import json

import pytest
from tests.kit.scripts import scripts_of
from tests.kit.workplace import counters, letters, record, stored

from penstock import Fixed, RetryPolicy
from penstock.queues.dead_letters.letter import read_letter
from penstock.queues.storage.stored_job import read_item
from penstock.queues.worker.claimed_jobs import WorkerCounts
from penstock.queues.worker.reaper import Reaper


class Shop:
    """A queue whose workers are calls of its scripts."""

    def __init__(self, app, queue, policy):
        self.queue, self.keys, self.scripts = queue, queue.keyring, scripts_of(app.redis)
        self.codec, self.call = app.codec, app.redis.call
        self.reaper = Reaper(app.redis, app.codec, queue.keyring, lambda _: policy, WorkerCounts())
        self.reaper._grace_s = 0.0  # the dead are dead
        self.claims = 0

    async def claim(self, worker, most=10):
        """Take jobs; from claim to job."""
        if await self.call("ZSCORE", self.keys.workers, worker) is None:
            await self.scripts.join_queue(keys=self.keys, worker=worker)
        first, self.claims = self.claims + 1, self.claims + most
        reply = await self.scripts.claim_jobs(
            keys=self.keys, worker=worker, first=first, most=most, done=()
        )
        taken, number = {}, first
        for lane, items in zip(reply.lanes[::2], reply.lanes[1::2], strict=True):
            for data in items:
                claim = f"{number}:{lane.decode()}" if lane else str(number)
                taken[claim] = read_item(data, self.codec)
                number += 1
        return taken

    async def begin(self, worker, claim, item):
        begun = json.loads(item.data)
        begun["_penstock"] = {**begun["_penstock"], "begun": True}
        told = (claim, "", 1, "", json.dumps(begun))
        assert await self.scripts.begin_jobs(keys=self.keys, worker=worker, jobs=told) == [1]

    async def finish(self, worker, claim):
        await self.scripts.claim_jobs(
            keys=self.keys, worker=worker, first=self.claims + 1, most=0, done=[claim]
        )

    async def die(self, worker):
        """End without a word; what it had is returned."""
        await self.scripts.leave_queue(keys=self.keys, worker=worker)
        await self.reaper.reap(1_000_000)

    async def suspect_all(self):
        """Let workers die with all jobs in hand, until each is to be claimed alone."""
        for number in range(4):
            assert await self.claim(f"victim-{number}")
            await self.die(f"victim-{number}")

    async def metas(self, lane=""):
        return [read_item(data, self.codec).meta for data in await stored(self.queue, lane)]


@pytest.fixture
async def open_shop(workplace):
    async def open_(**options):
        app = await workplace.open()
        queue = app.queue("mail", **options)
        policy = RetryPolicy(max_attempts=3, backoff=Fixed(0))

        @app.task(queue=queue, name="note", retry=policy)
        async def note(number: int) -> None: ...

        await queue.declared()
        return Shop(app, queue, policy), note

    return open_


def args_of(taken):
    return [json.loads(bytes(item.args))[0] for item in taken.values()]


@pytest.mark.parametrize("push", ["right", "left"])
async def test_jobs_that_workers_died_with_before_they_began_are_claimed_alone(open_shop, push):
    shop, note = await open_shop(push=push)
    await note.send_many([(number,) for number in range(4)])
    await shop.suspect_all()
    assert {(one.attempts, one.unbegun) for one in await shop.metas()} == {(1, 3)}, "charged once"
    await note.send_many([(4,), (5,)])

    ((claim, item),) = (await shop.claim("one")).items()
    assert args_of({claim: item}) == [0]
    assert await shop.claim("one") == {}, "its trial is not over"
    assert args_of(await shop.claim("two")) == [1], "another worker takes the next one"
    await shop.begin("one", claim, item)
    ((claim, item),) = (await shop.claim("one")).items()
    assert args_of({claim: item}) == [2], "it has begun, so a death would be charged"
    await shop.finish("one", claim)
    ((claim, item),) = (await shop.claim("one")).items()
    assert args_of({claim: item}) == [3]
    await shop.begin("one", claim, item)
    assert args_of(await shop.claim("one")) == [4, 5], "nothing more is known of the others"


async def test_a_suspect_is_charged_when_its_worker_dies_before_it_begins_and_no_other_job_is(
    open_shop,
):
    shop, note = await open_shop()
    await note.send_many([(0,), (1,)])
    await shop.suspect_all()
    (begun,) = (await shop.claim("w")).items()
    await shop.begin("w", *begun)
    assert args_of(await shop.claim("w")) == [1]
    await note.send_many([(2,)])
    assert args_of(await shop.claim("w")) == [2]
    await shop.die("w")
    # The first had begun, the second was on trial; the third is new: any of its attempts may count.
    assert [one.attempts for one in await shop.metas()] == [2, 2, 1]
    assert [one.unbegun for one in await shop.metas()] == [0, 3, 0]

    assert args_of(await shop.claim("x", 1)) == [0]
    assert args_of(await shop.claim("x")) == [1], "it is a suspect still"
    await shop.die("x")
    assert [one.attempts for one in await shop.metas()] == [2, 1]
    (letter,) = map(json.loads, await letters(shop.queue))
    assert (letter["reason"], letter["attempt_count"]) == ("crashed", 3)
    assert letter["original_job"]["args"] == [1]


async def test_what_stands_in_front_of_a_suspect_is_claimed_without_it(open_shop):
    shop, note = await open_shop()
    await note.send_many([(0,), (1,)])
    await shop.suspect_all()
    await shop.claim("one")
    fresh = b'{"id":"a","task":"note","args":[7],"kwargs":{}}'
    await shop.call("LPUSH", shop.keys.waiting, fresh, fresh.replace(b'"a"', b'"b"'))
    assert args_of(await shop.claim("two")) == [7, 7]
    assert args_of(await shop.claim("two")) == [1]


async def test_suspects_in_fair_lanes_keep_the_turns_of_their_lanes(open_shop):
    shop, note = await open_shop(lane_limit=2)
    for number in range(6):
        await note.with_options(group=f"g{number % 2}").send(number)
    for victim in range(4):
        while await shop.claim(f"victim-{victim}"):
            pass
        await shop.die(f"victim-{victim}")
    done = []
    for _ in range(20):
        for claim, item in (await shop.claim("w")).items():
            done += args_of({claim: item})
            await shop.finish("w", claim)
    assert sorted(done) == list(range(6))
    assert await shop.call("EXISTS", shop.keys.ring, shop.keys.parked) == 0


async def test_a_job_of_which_readers_died_is_read_alone_and_then_buried_unread(open_shop):
    shop, note = await open_shop(status=True)
    jobs = [await note.with_options(unique=f"a/{number}").send(number) for number in range(3)]
    claims = await shop.claim("victim")
    await shop.scripts.leave_queue(keys=shop.keys, worker="victim")
    poison = min(claims)
    data = claims[poison].data

    async def die_reading(reader, claim):
        await shop.call("ZADD", shop.keys.workers, 1, reader)
        reply = await shop.scripts.open_claims(
            keys=shop.keys, reader=reader, worker="victim", claim=claim
        )
        await shop.scripts.find_dead(keys=shop.keys, silence_ms=1000)
        return reply

    assert (await die_reading("first", ""))[0] == 0
    for deaths in range(3):
        assert await die_reading(f"reader-{deaths}", poison) == (deaths, b"", b"0", ())
    await shop.reaper.reap(1_000_000)
    left = [json.loads(data)["args"] for data in await stored(shop.queue)]
    assert left == [[1], [2]], "the others are back"
    (letter,) = map(read_letter, await letters(shop.queue))
    assert (letter.id, letter.reason, letter.fault) == (jobs[0].id, "crashed", "")
    assert letter.job == data, "byte for byte"
    assert (await counters(shop.queue))["dead"] == 1
    assert await shop.call("EXISTS", shop.keys.suspects) == 0
    said = await record(shop.queue, jobs[0].id)
    assert (said["status"], said["reason"]) == ("failed", "crashed")
    assert "read it to return it" in said["error"]
    again = [await note.with_options(unique=f"a/{number}").send(9) for number in range(2)]
    assert [job.created for job in again] == [True, False], "it holds its unique key no more"


async def test_nothing_is_left_of_a_reader_that_survived(open_shop):
    """What is left there makes every claim of the queue look at each job first."""
    shop, note = await open_shop()
    await note.send_many([(0,), (1,)])
    await shop.claim("victim")
    await shop.scripts.leave_queue(keys=shop.keys, worker="victim")
    assert await shop.reaper.reap(1_000_000, "reader") == 2
    assert await shop.call("EXISTS", shop.keys.suspects) == 0
