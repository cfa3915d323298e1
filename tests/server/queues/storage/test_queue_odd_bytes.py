"""Other programs' bytes among the jobs: no worker ends, each lands in one place, good jobs run."""

import asyncio
from collections import Counter
from zlib import crc32

import msgspec
import pytest
from tests.kit.odd.odd_jobs import dice, odd_job, odd_letter
from tests.kit.workplace import claim_as, counters, in_hand, letters, stored
from tests.unit.queues.test_queue_stored_bytes import FOREIGN

from penstock import Fixed, RetryPolicy
from penstock.queues.dead_letters.letter import read_letter
from penstock.queues.storage.json_members import find_member, replace_value
from penstock.queues.storage.keys import QueuesKeys
from penstock.queues.storage.stored_job import read_item
from penstock.testing.eventually import eventually

SOON = RetryPolicy(max_attempts=2, backoff=Fixed(0.001))


def untried(job: bytes, codec) -> bytes:
    """The job without what attempts change in it: the count of a job that counts for itself."""
    if not read_item(job, codec).counts_retries:
        return job
    count = find_member(job, "retry_count")
    assert count is not None
    return replace_value(job, count, b"0")


async def push(queue, jobs):
    for start in range(0, len(jobs), 500):
        await queue.client.call("RPUSH", queue.keyring.waiting, *jobs[start : start + 500])


async def is_idle(queue):
    """Nothing waits or is in hand. Jobs move on, so each place is looked at again."""
    for _ in range(3):
        delayed = await queue.client.call("ZCARD", queue.keyring.delayed)
        if delayed or await stored(queue) or await in_hand(queue):
            return False
    return True


async def test_jobs_that_no_decoder_takes_end_no_worker_and_no_other_queue(workplace):
    app, ran = await workplace.open(), []

    @app.task(queue="mail", retry=SOON)
    async def note(number: int) -> None:
        ran.append(number)

    @app.queue("mail", retry=SOON).handler
    async def refuse(job: bytes) -> None:
        raise LookupError

    @app.task(queue="reports")
    async def report(number: int) -> None:
        ran.append(number)

    queue = note.queue
    await note.send(1)
    await push(queue, FOREIGN)
    await note.send(2)
    await report.send(3)
    worker = await workplace.start(app)
    await eventually(lambda: sorted(ran) == [1, 2, 3])
    await eventually(lambda: is_idle(queue))
    assert worker.readiness().ready
    found = [untried(read_letter(one).job, app.codec) for one in await letters(queue)]
    pushed = [untried(read_item(one, app.codec).body, app.codec) for one in FOREIGN]
    assert sorted(found) == sorted(pushed)
    assert len(await app.queues.peek("mail")) == 0
    assert (await app.queues.dead_letters("mail").replay()).replayed == len(FOREIGN)
    assert await app.queues.purge("mail", delayed=True) <= len(FOREIGN)


async def test_a_dead_workers_odd_claims_are_returned_or_buried_each_on_its_own(workplace):
    app, seen = await workplace.open(silence_s=0.5), []

    @app.queue("mail", retry=RetryPolicy(max_attempts=1)).handler
    async def handle(job: bytes) -> None:
        seen.append(job)

    queue = app.queue("mail")
    await push(queue, FOREIGN)
    assert len(await claim_as(queue, "ghost", 100)) == len(FOREIGN)
    claims = queue.keyring.claimed("ghost")
    odd_names = [b"\xff:\xfe", b"9" * 5_000, b"x:", b":\n"]
    for name in odd_names:
        await app.redis.call("HSET", claims, name, b"of an odd claim")
    await app.redis.call("ZADD", queue.keyring.dead_workers, 1, b"\xff", 1, "x" * 9_000)
    await workplace.start(app)
    await eventually(lambda: seen.count(b"of an odd claim") == len(odd_names))
    await eventually(lambda: is_idle(queue))
    assert await app.redis.call("ZCARD", queue.keyring.dead_workers) == 0
    # Some say that they have had their only attempt.
    buried = [read_letter(one).job for one in await letters(queue)]
    assert len(seen) + len(buried) == len(FOREIGN) + len(odd_names)
    assert buried


async def test_a_fair_lane_of_any_name_is_drained(workplace):
    app, seen = await workplace.open(), []

    @app.queue("mail", retry=SOON).handler
    async def handle(job: bytes) -> None:
        seen.append(job)
        if job == b"bad":
            raise LookupError

    queue, lane = app.queue("mail"), b"\xff\xfe"
    await app.redis.call("HSET", queue.keyring.state, "lanes", 1)
    await app.redis.call("RPUSH", queue.keyring.ring, lane)
    name = queue.keyring.waiting.encode() + b":" + lane
    await app.redis.call("RPUSH", name, b"good", b"bad")
    worker = await workplace.start(app)
    await eventually(lambda: sorted(seen) == [b"bad", b"bad", b"good"])
    await eventually(lambda: is_idle(queue))
    assert worker.readiness().ready
    assert len(await letters(queue)) == 1


async def run_odd_jobs_through_workers(workplace, count: int, first: int = 0) -> None:
    """Push odd jobs among good ones, some in dead hands; account for every one of them."""
    app = await workplace.open(silence_s=0.5)
    finished, good = Counter(), set()

    @app.queue("mail", retry=SOON).handler
    async def handle(job: bytes) -> None:
        if crc32(job) % 3 == 0:
            raise LookupError("not this one")
        finished[untried(job, app.codec)] += 1

    @app.task(queue="mail", name="good", retry=SOON)
    async def note(number: int) -> None:
        good.add(number)

    queue, pushed, with_record = note.queue, Counter(), set()
    jobs = [odd_job(rng) for rng in dice(first, count)]
    for job in jobs:
        item = read_item(job, app.codec)
        pushed[untried(item.body, app.codec)] += 1
        if item.meta.tracked:
            with_record.add(untried(item.body, app.codec))
    await push(queue, jobs[: count // 4])
    for number in range(3):
        await claim_as(queue, f"ghost-{number}", count // 20)
    await push(queue, jobs[count // 4 :])
    await note.send_many([(number,) for number in range(count // 10)])
    workers = [await workplace.start(app) for _ in range(2)]
    await eventually(lambda: len(good) == count // 10, within_s=60 + count / 100)
    await eventually(lambda: is_idle(queue), within_s=60 + count / 100)
    assert all(worker.readiness().ready for worker in workers)

    buried = Counter(untried(read_letter(one).job, app.codec) for one in await letters(queue))
    # A job with a record is passed over if another of the same id has ended.
    missing = pushed - finished - buried
    assert with_record.issuperset(missing)
    assert missing.total() <= (await counters(queue)).get("passed_over", 0)
    assert not (finished + buried) - pushed

    for worker in workers:
        await workplace.stop(worker)
    dead = app.queues.dead_letters("mail")
    assert (await dead.list(limit=100)).letters
    assert (await dead.kinds()).kinds
    back = await dead.replay()
    assert (back.replayed, back.skipped) == (buried.total(), {})
    assert len(await app.queues.peek("mail", limit=1_000)) == min(1_000, back.replayed)
    assert await app.queues.purge("mail") == back.replayed


@pytest.mark.timeout(240)
async def test_odd_jobs_among_good_ones_are_all_accounted_for(workplace):
    await run_odd_jobs_through_workers(workplace, 2_000)


@pytest.mark.torture
@pytest.mark.timeout(7_200)
async def test_a_hundred_thousand_odd_jobs_are_all_accounted_for(workplace):
    for first in range(0, 100_000, 10_000):
        await run_odd_jobs_through_workers(workplace, 10_000, first)


async def test_odd_letters_are_listed_shown_edited_queued_again_and_removed(workplace):
    app = await workplace.open()
    queue, odd = app.queue("mail"), [odd_letter(rng) for rng in dice(0, 500)]
    await app.redis.call("RPUSH", queue.keyring.dead_letters, *odd)
    dead = app.queues.dead_letters("mail")
    page = await dead.list(limit=1_000)
    assert len(page.letters) == len(odd)
    msgspec.json.encode(page)
    shown = await asyncio.gather(*(dead.get(one.id) for one in page.letters[::50]))
    assert [one.id for one in shown] == [one.id for one in page.letters[::50]]
    await dead.edit(page.letters[0].id, b"mended")
    assert await dead.purge([page.letters[1].id]) >= 1
    left = await dead.count()
    done = await dead.replay()
    assert done.matched == left
    assert await dead.count() == left - done.replayed
    assert await dead.purge(everything=True) == left - done.replayed


GARBAGE = [b"\xff", b"", b"nan", b"-inf", b"9" * 400, b"1e999", b"\x00", b"%ED%A0%80", b"{}"]
HASHES = ["state", "counters", "weights", "delayed_bodies"]
SORTED = ["workers", "dead_workers", "parked", "delayed", "schedule", "jobs"]


async def fill_with_garbage(app, queue, name):
    """Put odd members and values where Penstock keeps its own."""
    keys = queue.keyring
    key = keys.jobs("queued") if name == "jobs" else getattr(keys, name, "")
    if name in HASHES:
        known = await app.redis.call("HKEYS", key) if name == "state" else []
        known += [b"added", b"done", b"reaped"] if name == "counters" else []
        for number, field in enumerate([*known, *GARBAGE]):
            if field not in {b"side", b"levels"}:  # garbage there is refused
                await app.redis.call("HSET", key, field, GARBAGE[number % len(GARBAGE)])
    elif name in SORTED:
        for score, member in zip((1, "-inf", "inf", 5, 1e300), GARBAGE, strict=False):
            await app.redis.call("ZADD", key, score, member)
    elif name in {"ring", "dead_letters", "overflow"}:
        await app.redis.call("RPUSH", key, *GARBAGE)
    elif name == "cancelled":
        await app.redis.call("SADD", key, *GARBAGE)
    elif name == "registry":
        await app.redis.call("SADD", QueuesKeys.of(app.redis.keys).registry, *GARBAGE)
    else:
        for value in GARBAGE:
            await app.redis.call("XADD", key, "*", "count", value, value or "x", "x")


@pytest.mark.parametrize(
    "name",
    [*HASHES, *SORTED, "ring", "dead_letters", "overflow", "cancelled", "audit", "registry"],
)
async def test_garbage_among_a_queues_own_entries_hides_nothing_and_stops_nobody(workplace, name):
    app, ran = await workplace.open(silence_s=0.5), []

    @app.task(queue="mail", name="note", status=True)
    async def note(number: int) -> None:
        ran.append(number)

    queue = note.queue
    await note.send(1)
    await note.with_options(delay=0.01).send(2)
    await note.with_options(group="g").send(3)
    await fill_with_garbage(app, queue, name)
    admin = app.queues
    views = [
        *(await admin.list(), await admin.facts("mail"), await admin.workers("mail")),
        *(await admin.peek("mail"), await admin.jobs("mail"), await admin.audit("mail")),
        *(await admin.dead_letters("mail").list(), await admin.dead_letters("mail").kinds()),
        *(await admin.dead_letters("mail", overflow=True).list(), await app.schedules.list()),
        *(await admin.foreign_keys("mail"), await admin.claims("mail", "nobody")),
    ]
    msgspec.json.encode(views)
    worker = workplace.begin(app)
    await eventually(lambda: sorted(set(ran)) == [1, 2, 3])
    assert worker.failures == []
    assert await admin.dead_letters("mail").purge(everything=True) >= 0
    assert await admin.purge("mail", delayed=True) >= 0


async def test_a_job_that_says_it_has_a_record_and_has_no_id_can_run_for_long(workplace):
    app, seen = await workplace.open(), []

    @app.queue("mail").handler
    async def handle(job: bytes) -> None:
        await asyncio.sleep(0.8)  # longer than it takes to look whether it was cancelled
        seen.append(job)

    queue = app.queue("mail")
    await push(queue, [b'{"a":1,"_penstock":{"tracked":true}}'])
    worker = await workplace.start(app)
    await eventually(lambda: seen == [b'{"a":1}'])
    await eventually(lambda: is_idle(queue))
    assert worker.readiness().ready


async def test_a_unique_key_of_another_program_is_an_answer(workplace):
    app = await workplace.open()

    @app.task(queue="mail", name="note")
    async def note() -> None: ...

    await app.redis.call("SET", note.queue.keyring.unique("u"), b"\xff")
    job = await note.with_options(unique="u").send()
    assert not job.created


async def test_fields_of_a_record_are_copied_as_they_are_written(workplace):
    app = await workplace.open()

    @app.queue("mail", status=True, status_fields=("n", "price", "name")).handler
    async def handle(job: bytes) -> None: ...

    queue = app.queue("mail")
    body = b'{"job_id":"j","n":%s,"price":1.10,"name":"x","odd":1e999}' % (b"9" * 40)
    await push(queue, [body])
    await workplace.start(app)
    await eventually(lambda: is_idle(queue))
    record = await app.queues.job("mail", "j")
    assert record.fields == {"n": "9" * 40, "price": "1.10", "name": "x"}


async def test_the_command_line_shows_and_removes_whatever_stands_there(workplace, shell):
    app = await workplace.open()
    queue = app.queue("mail", status=True)
    await queue.push({"n": 1})
    odd = [*FOREIGN, *(odd_job(rng) for rng in dice(0, 150))]
    await push(queue, odd)
    told = shell.json("queue", "peek", "mail", "--limit", "1000")
    assert len(told) == 1 + len(odd)
    assert told[1]["payload"]["text"] == '{"x":1e999}'
    assert told[2]["payload"]["base64"]
    assert len(shell.ok("queue", "peek", "mail", "--limit", "1000").splitlines()) == len(odd) + 2
    keys = queue.keyring
    await app.redis.call("HSET", keys.record("odd"), "status", b"\xff", "result", b"\xff\x1b[31m")
    assert "\x1b" not in shell.ok("job", "show", "mail", "odd")
    assert shell.json("job", "show", "mail", "odd")["result"]
    assert shell.json("queue", "purge", "mail", "--yes")["purged"] == 1 + len(odd)

    letters_there = [odd_letter(rng) for rng in dice(0, 60)]
    await app.redis.call("RPUSH", keys.dead_letters, b"\xff\x1b", *letters_there)
    page = shell.json("dlq", "list", "--queue", "mail")
    assert len(page["letters"]) == 1 + len(letters_there)
    first = page["letters"][0]["id"]
    assert "\\xff" in shell.ok("dlq", "show", "--queue", "mail", first)
    shell.ok("dlq", "list", "--queue", "mail")
    shell.ok("dlq", "groups", "--queue", "mail")
    assert shell.json("dlq", "purge", "--queue", "mail", first, "--yes")["purged"] == 1
    left = shell.json("dlq", "purge", "--queue", "mail", "--all", "--yes")
    assert left["purged"] == len(letters_there)
