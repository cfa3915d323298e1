"""Programs of two versions, and two versions of Penstock, beside each other on one queue.

What another version of Penstock writes is written here byte by byte, so that the contract stays
when its code is gone.
"""

import json
import logging

import pytest
from tests.kit.workplace import claim_as, counters, letters, record, stored

from penstock import Fixed, RetryPolicy, current_job
from penstock.queues.storage.stored_job import (
    NO_META,
    Item,
    Meta,
    encode_meta,
    read_item,
    write_item,
)
from penstock.redis.codec import Codec
from penstock.settings import CodecSettings
from penstock.testing.eventually import eventually
from penstock.testing.queues import clock

LATER = {"trace": {"id": "4bf9", "hops": [1, 2]}, "shard": 7}
"""Members of `_penstock` that a later version has added."""


def counts(queue, **expected):
    async def check():
        counted = await counters(queue)
        return all(counted.get(name, 0) == number for name, number in expected.items())

    return check


# ---- programs: arguments that one version has and the other has not


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((1,), {"currency": "USD"}, "unexpected keyword argument 'currency'"),
        ((1, "USD"), {}, "too many positional arguments"),
        ((), {}, "missing a required argument: 'number'"),
    ],
    ids=["a name", "one more", "one less"],
)
async def test_arguments_that_do_not_fit_wait_for_a_worker_that_takes_them(
    workplace, caplog, args, kwargs, says
):
    old, new, ran = await workplace.open(), await workplace.open(), []
    queue = f"mail{len(args)}{len(kwargs)}"  # what is logged is limited for each

    @old.task(queue=queue, name="charge", status=True, retry=RetryPolicy(max_attempts=1))
    async def charge(number: int) -> None:
        ran.append("old")

    job = await new.send("charge", args, kwargs, queue=queue, idempotency_key="k")
    with caplog.at_level(logging.WARNING):
        worker = await workplace.start(old)
        await eventually(counts(old.queue(queue), parked=2))
    told = [one.getMessage() for one in caplog.records if says in one.getMessage()]
    assert len(told) == 1, "it is said once, however often it is met"
    said = await record(old.queue(queue), job.id)
    assert says in said["error"]
    await workplace.stop(worker)

    @new.task(queue=queue, name="charge", status=True, retry=RetryPolicy(max_attempts=1))
    async def charge_in(number: int = 0, currency: str = "EUR") -> None:
        ran.append((number, currency, current_job().attempt))

    await clock.advance(new, 60)
    await workplace.start(new)
    await job.wait(timeout_s=60)
    (call,) = ran
    assert call[2] == 1, "waiting is not charged"
    assert await letters(old.queue(queue)) == []


async def test_arguments_that_never_fit_are_a_dead_letter_in_the_end(workplace):
    app, ran = await workplace.open(unknown_s=0.3), []

    @app.task(queue="mail", name="charge")
    async def charge(number: int) -> None:
        ran.append(number)

    job = '{"id":"j","task":"charge","args":[1],"kwargs":{"currency":"USD"}}'
    await app.redis.call("RPUSH", charge.queue.keyring.waiting, job)
    await workplace.start(app)
    (letter,) = map(json.loads, await eventually(lambda: letters(charge.queue)))
    assert (letter["reason"], letter["attempt_count"]) == ("undecodable", 0)
    assert "'currency'" in letter["error"] or "name that it does not take" in letter["error"]
    assert ran == []


async def test_values_of_another_type_are_a_dead_letter_at_once(workplace):
    """No version of the program would be expected to take them: its sender made a mistake."""
    app = await workplace.open()

    @app.task(queue="mail", name="charge")
    async def charge(number: int) -> None: ...

    await app.send("charge", ("one",), queue="mail")
    await workplace.start(app)
    (letter,) = map(json.loads, await eventually(lambda: letters(charge.queue)))
    assert (letter["reason"], letter["attempt_count"]) == ("undecodable", 1)


async def test_a_job_that_was_understood_in_between_gets_its_whole_time_again(workplace):
    """Parked long ago, tried by a worker that knew it, and then met by an old one once more."""
    app = await workplace.open(unknown_s=60)

    @app.task(queue="mail", name="charge", retry=RetryPolicy(max_attempts=3, backoff=Fixed(0)))
    async def charge(number: int) -> None:
        raise LookupError

    queue = charge.queue
    await app.redis.call(
        "RPUSH",
        queue.keyring.waiting,
        '{"id":"j","task":"charge","args":[1],"kwargs":{},"_penstock":{"parked_ms":1}}',
    )
    await workplace.start(app)
    (letter,) = map(json.loads, await eventually(lambda: letters(queue)))
    assert letter["reason"] == "exhausted"
    assert "parked_ms" not in letter["_penstock"]


# ---- Penstock: members that a later version has added


def later_job(number=1, *, task="charge", **meta):
    job = {"id": f"j{number}", "task": task, "args": [number], "kwargs": {}}
    return json.dumps({**job, "_penstock": {**meta, **LATER}}).encode()


def of(data):
    """The later members that a job or letter still has."""
    meta = json.loads(data)["_penstock"]
    return {name: meta[name] for name in LATER if name in meta}


async def delayed_body(queue, job_id="j1"):
    body = await queue.client.call("HGET", queue.keyring.delayed_bodies, job_id)
    return body and body.partition(b"\n")[2]


async def test_a_retry_keeps_what_a_later_version_wrote(workplace):
    app = await workplace.open()

    @app.task(queue="mail", name="charge", retry=RetryPolicy(max_attempts=3, backoff=Fixed(600)))
    async def charge(number: int) -> None:
        raise LookupError

    queue = charge.queue
    await app.redis.call("RPUSH", queue.keyring.waiting, later_job(attempts=1))
    await workplace.start(app)
    body = await eventually(lambda: delayed_body(queue))
    assert of(body) == LATER
    assert json.loads(body)["_penstock"]["attempts"] == 2


async def test_parking_keeps_what_a_later_version_wrote(workplace):
    app = await workplace.open()

    @app.task(queue="mail", name="known")
    async def known() -> None: ...

    await app.redis.call("RPUSH", known.queue.keyring.waiting, later_job())
    await workplace.start(app)
    assert of(await eventually(lambda: delayed_body(known.queue))) == LATER


async def test_a_crash_and_a_noted_start_keep_what_a_later_version_wrote(workplace):
    app, seen = await workplace.open(silence_s=0.4), []

    @app.task(queue="mail", name="charge", retry=RetryPolicy(max_attempts=3, backoff=Fixed(600)))
    async def charge(number: int) -> None:
        job = current_job()
        (claim,) = await app.redis.call("HVALS", queue.keyring.claimed(job.worker))
        seen.append(claim)

    queue = charge.queue
    await app.redis.call("RPUSH", queue.keyring.waiting, later_job())
    await claim_as(queue, "dead", 1)
    await workplace.start(app)
    await eventually(lambda: seen)
    assert of(seen[0]) == LATER
    meta = json.loads(seen[0])["_penstock"]
    assert (meta["crashes"], meta["begun"]) == (1, True)


async def test_letters_edited_and_queued_again_keep_what_a_later_version_wrote(workplace):
    app, seen = await workplace.open(), []

    @app.task(queue="mail", name="charge", retry=RetryPolicy(max_attempts=1))
    async def charge(number: int) -> None:
        job = current_job()
        seen.append(job.item.data)
        if number == 1:
            raise LookupError

    queue = charge.queue
    await app.redis.call("RPUSH", queue.keyring.waiting, later_job())
    worker = await workplace.start(app)
    (letter,) = await eventually(lambda: letters(queue))
    assert of(letter) == LATER
    await workplace.stop(worker)
    dead = app.queues.dead_letters("mail")
    (found,) = (await dead.list()).letters
    edited = {"id": "j1", "task": "charge", "args": [2], "kwargs": {}}
    await dead.edit(found.id, edited)
    (letter,) = await letters(queue)
    assert of(letter) == LATER
    await dead.replay()
    (item,) = await stored(queue)
    assert of(item) == LATER


@pytest.mark.parametrize("body", [b'{"a":1}', b"{}", b"no object", b""])
def test_jobs_of_any_kind_keep_later_members_through_a_rewrite(body):
    codec = Codec(CodecSettings())
    item = Item(body, body=body, later=b',"shard":7')
    data = write_item(item, Meta(attempts=1), codec)
    again = read_item(data, codec)
    assert (again.body, again.later, again.meta.attempts) == (body, b',"shard":7', 1)
    assert write_item(again, again.meta, codec) == data
    assert encode_meta(Meta(), b',"shard":7') == b'{"shard":7}'


def test_metadata_of_another_program_is_left_alone():
    codec = Codec(CodecSettings())
    data = b'{"a":1,"_penstock":{"attempts":"two","shard":7}}'
    item = read_item(data, codec)
    assert (item.meta, item.later, item.body) == (NO_META, b"", data)
