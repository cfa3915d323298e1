"""What others push past our producers, and ids of every kind: workers live on, nothing is lost."""

import asyncio
import base64
import json
import pickle
import unicodedata

import msgspec
import pytest
import zstandard
from tests.kit.workplace import QUICK, counters, in_hand, letters, record, stored

from penstock import Fixed, RetryPolicy, current_job
from penstock.errors import InvalidJob
from penstock.queues.dead_letters.letter import read_letter
from penstock.testing.eventually import eventually

pytestmark = [
    pytest.mark.one_server,
    pytest.mark.settings(queues=QUICK, worker={"grace_s": 1.0, "poll_s": 0.2}),
]

SOON = RetryPolicy(max_attempts=2, backoff=Fixed(0.01))


def packed(frame):
    return b"Z:" + base64.b64encode(frame)


def skippable():
    return b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"abcd"


def claiming(size):
    """A frame whose header says so many bytes, with nothing in it."""
    return (
        b"\x28\xb5\x2f\xfd" + bytes([0b11_1_00000]) + size.to_bytes(8, "little") + b"\x01\x00\x00"
    )


GOOD = b'{"task":"note","args":[1]}'
BOMB = zstandard.ZstdCompressor().compress(b"\0" * (256 << 20))
RUNS = {
    "without an id": GOOD,
    "X061 with more fields": b'{"task":"note","args":[1],"extra":{"a":[]},"v":2}',
    "X064 with a version": b'{"v":999,"task":"note","args":[1]}',
    "X064 with memories of somebody else": b'{"task":"note","args":[1],"_penstock":"abc"}',
    "X064 with odd memories": b'{"task":"note","args":[1],"_penstock":{"attempts":"x"}}',
    "X070 with a negative count": b'{"task":"note","args":[1],"_penstock":{"attempts":-1}}',
    "X070 with a count beyond belief": b'{"task":"note","args":[1],"retry_count":99999999999}',
    "X070 with a count that is text": b'{"task":"note","args":[1],"retry_count":"3"}',
    "X070 with retries below zero": b'{"task":"note","args":[1],"max_retries":-5}',
    "X072 with an id of a megabyte": b'{"task":"note","args":[1],"id":"%s"}' % (b"k" * (1 << 20)),
    "X073 with many headers": b'{"task":"note","args":[1],"_penstock":{"headers":{%s}}}'
    % b",".join(b'"h%d":"v"' % number for number in range(20_000)),
    "X074 from the future": b'{"task":"note","args":[1],"_penstock":{"parked_ms":99999999999999}}',
    "X075 in an odd order": b'{"_penstock":{"attempts":0},"args":[1],"task":"note"}',
    "X061 with blanks": b'\n { "args" : [ 1 ] , "task" : "note" } \n',
}
# Arguments that are too many or too few (X060) wait for another version: test_queue_versions.py.
DIES = {
    "X075 with a name twice": b'{"task":"other","task":"note","args":[1]}',
    "X075 with a name twice, spelled apart": b'{"task":"other","args":[1],"t\\u0061sk":"note"}',
    "X075 with arguments twice": b'{"task":"note","args":[0],"args":[1]}',
    "X075 with a named argument twice": b'{"task":"note","kwargs":{"number":0,"number":1}}',
    "X075 a call with a named argument twice": b'{"id":"7","task":"note","args":[],'
    b'"kwargs":{"number":0,"number":1}}',
    "X075 with a memory twice": b'{"task":"note","_penstock":{"unique":"a","unique":"b"}}',
    "X062 not UTF-8": b'{"task":"note","args":["\xff"]}',
    "X063 arguments in an object": b'{"task":"note","args":{}}',
    "X063 arguments in a text": b'{"task":"note","args":"1"}',
    "X063 names in a list": b'{"task":"note","args":[1],"kwargs":[]}',
    "X063 an argument of another type": b'{"task":"note","args":["one"]}',
    "X063 a task that is a number": b'{"task":5,"args":[1]}',
    "X063 null": b"null",
    "X063 a list": b"[1]",
    "X063 a number": b"5",
    "no bytes at all": b"",
    "X020 NaN": b'{"task":"note","args":[NaN]}',
    "X021 nested without end": b'{"task":"note","args":%s}' % (b"[" * 100_000 + b"]" * 100_000),
    "X022 a number of many digits": b'{"task":"note","args":[%s]}' % (b"9" * 100_000),
    "X065 no base64": b"Z:!!!!",
    "X065 base64 of no frame": b"Z:" + base64.b64encode(b"not a frame"),
    "X066 a bomb": packed(BOMB),
    "X067 a frame that claims 2**60 bytes": packed(claiming(1 << 60)),
    "X067 of two frames": packed(
        zstandard.compress(b'{"task":"note",') + zstandard.compress(b'"args":[1]}')
    ),
    "X067 behind a skippable frame": packed(skippable() + zstandard.compress(GOOD)),
    "X067 with trailing garbage": packed(zstandard.compress(GOOD) + b"garbage"),
    "X067 cut": packed(zstandard.compress(GOOD)[:-3]),
    "X068 a pickle": pickle.dumps({"task": "note"}),
    "a NUL": b"\x00",
}


@pytest.fixture
def ran():
    return []


@pytest.fixture
def note(app, ran):
    @app.task(queue="mail", name="note", retry=SOON)
    async def note(number: int) -> None:
        ran.append(number)

    return note


@pytest.fixture
def raw(app):
    """A handler that takes what is no call of a task, and finds that it is no detection."""

    class Detection(msgspec.Struct):
        camera_id: str

    @app.queue("mail").handler
    async def detect(job: Detection) -> None: ...


async def push(queue, data):
    await queue.client.call("RPUSH", queue.keyring.waiting, data)


@pytest.mark.parametrize("data", RUNS.values(), ids=RUNS)
async def test_odd_jobs_that_run(workplace, app, note, raw, ran, data):
    await push(note.queue, data)
    await workplace.start(app)
    await eventually(lambda: ran == [1])
    await eventually(lambda: _nothing_left(note.queue))
    assert await letters(note.queue) == []


async def _nothing_left(queue):
    return not await stored(queue) and not await in_hand(queue)


@pytest.mark.parametrize("data", DIES.values(), ids=DIES)
async def test_jobs_that_cannot_be_read_are_dead_letters_with_all_their_bytes(
    workplace, app, note, raw, ran, data
):
    await push(note.queue, data)
    await push(note.queue, b'{"task":"note","args":[7]}')
    await workplace.start(app)
    await eventually(lambda: ran == [7])
    (letter,) = await eventually(lambda: letters(note.queue))
    said = json.loads(letter)
    assert (said["reason"], said["attempt_count"]) == ("undecodable", 1)
    assert said["error"]
    assert read_letter(letter).job == data
    await eventually(lambda: _nothing_left(note.queue))
    assert (await counters(note.queue)).get("retried", 0) == 0


async def test_jobs_that_cannot_be_read_come_back_as_they_were(workplace, app, note, raw, ran):
    for data in DIES.values():
        await push(note.queue, data)
    worker = await workplace.start(app)
    await eventually(lambda: _buried(note.queue, len(DIES)))
    await workplace.stop(worker)
    assert await app.queues.dead_letters("mail").count() == len(DIES)
    await app.queues.dead_letters("mail").replay()
    again = await stored(note.queue)
    assert len(again) == len(DIES)
    await workplace.start(app)
    await eventually(lambda: _buried(note.queue, len(DIES)))
    assert {read_letter(one).job for one in await letters(note.queue)} == set(DIES.values())


async def _buried(queue, count):
    return await queue.client.call("LLEN", queue.keyring.dead_letters) == count


# ---- ids

IDS = {
    "X002": "   ",
    "X003": "i" * 256,
    "X004": "a:b:c",
    "X005": "{a}b}",
    "X005 empty": "{}",
    "X006": "a\nb\r\x00\t",
    "X007": "*?[a]\\",
    "X008": "../../etc",
    "X008 dash": "-rf",
    "X009 NFC": unicodedata.normalize("NFC", "é"),
    "X009 NFD": unicodedata.normalize("NFD", "é"),
    "X009 emoji": "\U0001f600\u200b\u202e",
    "X011": "case",
    "X011 twin": "CASE",
    "X012": "__proto__",
    "X012 too": "dlq",
    "X013": "%2e%2e%2f%00",
    "X014": "i" * 255 + "a",
    "X014 twin": "i" * 255 + "b",
    "X016": "9223372036854775808",
    "X016 too": "1e309",
    "X016 arabic": "\u0661\u0662",
}


async def test_ids_of_every_kind_are_jobs_of_their_own_from_push_to_end(workplace, app):
    queue, ran = app.queue("mail", status=True), []

    @queue.handler
    async def handle(job: dict) -> None:
        await current_job().progress(1, seen=len(job["job_id"]))
        ran.append(job["job_id"])

    for job_id in IDS.values():
        assert (await queue.push({"job_id": job_id}, unique=job_id)).created
        assert not (await queue.push({"job_id": job_id})).created
    await workplace.start(app)
    await eventually(lambda: sorted(ran) == sorted(IDS.values()))
    for job_id in IDS.values():
        job = queue.job(job_id)
        await job.wait(timeout_s=60)
        said = await record(queue, job_id)
        assert (said["job_id"], said["status"]) == (job_id, "done")
        assert said["seen"] == str(len(job_id))
        assert await app.redis.call("EXISTS", queue.keyring.unique(job_id)) == 0
    assert await app.redis.call("ZCARD", queue.keyring.jobs("done")) == len(IDS)


async def test_ids_of_every_kind_wait_fail_and_come_back(workplace, app):
    broken, ran = [True], []

    @app.task(queue="mail", retry=RetryPolicy(max_attempts=2, backoff=Fixed(0.05)))
    async def work() -> None:
        if broken:
            raise LookupError
        ran.append(current_job().id)

    jobs = [
        await work.with_options(idempotency_key=job_id, group=job_id, delay=0.01).send()
        for job_id in IDS.values()
    ]
    worker = await workplace.start(app)
    for job in jobs:
        await job.wait(timeout_s=60)
        assert (await job.status()).status == "failed"
    await workplace.stop(worker)
    broken.clear()
    for job in jobs:
        await app.queues.replay("mail", job.id)
    await workplace.start(app)
    await eventually(lambda: sorted(ran) == sorted(IDS.values()))


async def test_foreign_jobs_have_their_own_ids_in_their_records(workplace, app):
    queue = app.queue("mail", status=True)

    @queue.handler
    async def handle(job: dict) -> None: ...

    for job_id in IDS.values():
        await push(queue, json.dumps({"job_id": job_id}))
    await workplace.start(app)
    for job_id in IDS.values():
        await eventually(lambda job_id=job_id: record(queue, job_id))
        await queue.job(job_id).wait(timeout_s=60)
        assert (await record(queue, job_id))["job_id"] == job_id


@pytest.mark.parametrize("word", ["job_id", "group", "unique", "idempotency_key"])
@pytest.mark.parametrize("text", ["", "i" * 257, "\ud800", b"bytes", 7, None], ids=repr)
async def test_ids_that_nobody_can_have(note, word, text):
    if text is None:
        return
    with pytest.raises(InvalidJob):
        await note.with_options(**{word: text}).send(1)
    assert await stored(note.queue) == []


async def test_foreign_ids_that_nobody_can_have_are_passed_over(workplace, app):
    queue, ran = app.queue("mail", status=True), []

    @queue.handler
    async def handle(job: dict) -> None:
        ran.append(current_job().id)

    for job_id in ("", "i" * 257, 7, None, ["a"], 1.5):
        await push(queue, json.dumps({"job_id": job_id}))
    await workplace.start(app)
    await eventually(lambda: len(ran) == 6)
    assert len(set(ran)) == 6
    assert all(len(name) == 32 for name in ran)


# ---- keys of ours, spoilt by others


@pytest.mark.parametrize(
    "broken", ["waiting", "state", "workers", "delayed", "delayed_bodies", "ring"]
)
async def test_a_key_of_a_wrong_type_costs_no_job(workplace, app, note, ran, broken):
    queue, keys = note.queue, note.queue.keyring
    for number in range(3):
        await note.send(number)
    await note.with_options(delay=0.01, job_id="due").send(3)
    await note.with_options(delay=0.01, job_id="due too", group="g").send(4)
    worker = await workplace.start(app, concurrency=1)
    await eventually(lambda: len(ran) == 5)
    await workplace.stop(worker)
    ran.clear()

    await note.with_options(delay=0.01, job_id="due").send(3)
    await note.with_options(delay=0.01, job_id="due too", group="g").send(4)
    name = getattr(keys, broken)
    if await app.redis.call("EXISTS", name):
        await app.redis.call("RENAME", name, f"{name}:kept")
    await app.redis.call("SET", name, "spoilt")
    failing = workplace.begin(app)
    await eventually(lambda: any("WRONGTYPE" in why for why in failing.readiness().reasons))
    assert ran == []
    await app.redis.call("DEL", name)
    if await app.redis.call("EXISTS", f"{name}:kept"):
        await app.redis.call("RENAME", f"{name}:kept", name)
    # The same worker goes on by itself.
    await eventually(lambda: set(ran) == {3, 4})
    await eventually(lambda: _nothing_left(queue))


async def test_counters_of_a_wrong_type_hold_no_work_up(workplace, app, note, ran):
    await note.send(1)
    await app.redis.call("DEL", note.queue.keyring.counters)
    await app.redis.call("SET", note.queue.keyring.counters, "spoilt")
    await workplace.start(app)
    await eventually(lambda: ran == [1])
    await eventually(lambda: _nothing_left(note.queue))


@pytest.mark.parametrize("lane", ["low", "normal", "high"])
async def test_a_foreign_key_under_the_name_of_a_lane_holds_no_other_job_up(
    workplace, app, note, ran, lane
):
    """Neither are jobs taken that nobody is told of, nor do they lose an attempt."""
    await note.with_options(priority="high" if lane != "high" else "low").send(0)
    await note.send_many([(1,), (2,)])
    await app.redis.call("SET", note.queue.keyring.list_of(lane), "foreign")
    workplace.begin(app)  # it is not ready: it says what is in the way
    await eventually(lambda: sorted(ran) == [0, 1, 2])
    await eventually(lambda: _nothing_left(note.queue))
    assert await app.redis.call("GET", note.queue.keyring.list_of(lane)) == b"foreign"


async def test_an_id_without_a_body_and_a_body_without_an_id_hold_nobody_up(
    workplace, app, note, ran
):
    keys = note.queue.keyring
    await app.redis.call("ZADD", keys.delayed, 1, "no body")
    await app.redis.call("HSET", keys.delayed_bodies, "no id", b'b\n{"task":"note","args":[9]}')
    await app.redis.call("ZADD", keys.delayed, 2, "odd body")
    await app.redis.call("HSET", keys.delayed_bodies, "odd body", "neither lane nor job")
    await workplace.start(app)
    await note.with_options(delay=0.01).send(1)
    await eventually(lambda: ran == [1])
    assert await app.redis.call("ZSCORE", keys.delayed, "no body") is None


async def test_keys_have_no_ttl_but_those_that_must(workplace, app):
    @app.task(queue="mail", status=True, retry=SOON)
    async def work(fail: bool) -> None:
        if fail:
            raise LookupError

    await workplace.start(app)
    jobs = [await work.with_options(unique=str(fail)).send(fail) for fail in (True, False)]
    waits = await work.with_options(unique="w", delay=60).send(False)
    for job in jobs:
        await job.wait(timeout_s=60)
    keys = work.queue.keyring
    names = [keys.counters, keys.dead_letters, keys.delayed, keys.delayed_bodies]
    names += [keys.workers, keys.jobs("done"), keys.jobs("failed"), keys.record(waits.id)]
    names.append(keys.unique("w"))
    for name in names:
        assert await app.redis.call("TTL", name) == -1, name
    for job in jobs:
        assert await app.redis.call("TTL", keys.record(job.id)) > 600_000


@pytest.mark.parametrize("name", ["limit", "lane_limit", "levels", "bytes", "credit", "side"])
async def test_a_state_that_others_have_spoilt_costs_no_job(workplace, app, note, ran, name):
    keys = note.queue.keyring
    for group in ("a", "b"):
        await note.with_options(group=group).send_many([(1,), (2,)])
    await note.with_options(priority="high").send(3)
    await note.send(4)
    kept = await app.redis.call("HGET", keys.state, name)
    await app.redis.call("HSET", keys.state, name, "spoilt")
    workplace.begin(app)
    await asyncio.sleep(0.3)  # whether it claims, refuses or fails
    await app.redis.call("HDEL", keys.state, name)
    if kept is not None:
        await app.redis.call("HSET", keys.state, name, kept)
    await eventually(lambda: sorted(set(ran)) == [1, 2, 3, 4] and len(ran) >= 6)
    await eventually(lambda: _nothing_left(note.queue))


async def test_jobs_in_the_hands_of_a_stranger_are_returned(workplace, app, note, ran):
    keys = note.queue.keyring
    await app.redis.call("ZADD", keys.workers, 1, "stranger")
    for claim in ("x", "7:high", "", "-1", "8:"):
        await app.redis.call("HSET", keys.claimed("stranger"), claim, GOOD)
    await workplace.start(app)
    await eventually(lambda: ran == [1] * 5)
    await eventually(lambda: _nothing_left(note.queue))
    assert await app.redis.call("ZCARD", keys.dead_workers) == 0
