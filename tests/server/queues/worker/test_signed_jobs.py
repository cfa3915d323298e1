"""Queues that require signatures: what is sent by every way runs, what strangers push does not."""

import json
import logging

import msgspec
import pytest
from tests.kit.scripts import scripts_of
from tests.kit.signing import NEW, OLD, signing
from tests.kit.workplace import QUICK, letters, record, stored

from penstock import Fixed, Penstock, QueueFull, RetryPolicy, current_job
from penstock.errors import SettingError
from penstock.queues.dead_letters.letter import read_letter
from penstock.queues.storage.stored_job import read_item
from penstock.settings import QueueSettings, Settings, SigningSettings, WorkerSettings
from penstock.testing.eventually import eventually

pytestmark = [
    pytest.mark.one_server,
    pytest.mark.settings(
        queues=QUICK, worker={"grace_s": 1.0, "poll_s": 0.2}, signing=signing(require="all")
    ),
]

SOON = RetryPolicy(max_attempts=3, backoff=Fixed(0.01))


@pytest.fixture
def ran():
    return []


@pytest.fixture
def note(app, ran):
    return note_in(app, ran)


def note_in(app, ran):
    @app.task(queue="mail", name="note", retry=SOON)
    async def note(number: int) -> None:
        ran.append(number)

    return note


@pytest.fixture
async def open_app(place, namespace, opened):
    """`await open_app(sign_with="new", …)` is a program with keys of its own."""

    async def open_one(namespace=namespace, **keys):
        settings = Settings(
            url=place.url,
            namespace=namespace,
            queues=QueueSettings(**QUICK),
            worker=WorkerSettings(grace_s=1.0, poll_s=0.2),
            signing=SigningSettings(**keys),
        )
        return await opened.enter_async_context(Penstock(settings=settings))

    return open_one


async def letters_of(queue):
    return [read_letter(data) for data in await letters(queue)]


async def refused(queue, count=1):
    async def are_there():
        return len(await letters(queue)) == count

    await eventually(are_there)
    return await letters_of(queue)


async def push(queue, *jobs):
    await queue.client.call("RPUSH", queue.keyring.waiting, *jobs)


# ---- what is sent by our own producers


async def test_jobs_of_every_way_of_sending_run(workplace, app, note, ran):
    slow = note.with_options(delay=0.05, headers={"who": "me"}, unique="u", max_attempts=2)
    await note.send(1)
    await note.send_many([(2,), {"number": 3}, note.call(4)])
    await slow.send(5)
    await note.with_options(group="g", expires=60).send(6)
    await note.with_options(idempotency_key="once").send(7)
    await note.with_options(priority="high").send_many([(8,)])
    await app.send("note", [9], queue="mail")
    await workplace.start(app)
    await eventually(lambda: sorted(ran) == list(range(1, 10)))
    assert await letters(note.queue) == []


@pytest.mark.settings(codec={"compress_above": 64})
async def test_raw_jobs_of_every_kind_run(workplace, app):
    seen, raw = [], app.queue("raw")

    @raw.handler
    async def take(payload: bytes) -> None:
        seen.append(payload)

    jobs = [b"text", b"", b"\xff\x00", b'{"a": 1.10}', b' {"b":2}\n', b"[1]", b"x" * 500]
    for job in jobs:
        await raw.push(job)
    await raw.push_many([{"job_id": "7"}, "many"], group="g")
    await raw.push(b"delayed", delay=0.05, unique="u", job_id="own")
    assert (await app.marks.enqueue("key", raw, b"marked")).first
    await workplace.start(app)
    expected = [b"text", b"", b"\xff\x00", b'{"a": 1.10}', b'{"b":2}', b"[1]", b"x" * 500]
    expected += [b'{"job_id":"7"}', b"many", b"delayed", b"marked"]
    await eventually(lambda: sorted(seen) == sorted(expected))
    assert await letters(raw) == []


@pytest.mark.parametrize("isolate", [False, True], ids=["here", "isolated"])
async def test_failed_jobs_are_tried_again_and_buried_with_their_signature(workplace, app, isolate):
    fail = app.task(queue="mail", name="fail", retry=SOON, status=True, isolate=isolate)(failing)
    job = await fail.send("pay")
    worker = await workplace.start(app)
    (letter,) = await refused(fail.queue)
    assert (letter.reason, letter.attempts, letter.error) == ("exhausted", 3, "cannot pay")
    assert (await record(fail.queue, job.id))["status"] == "failed"
    await workplace.stop(worker)
    # The letter is replayed as it is, by a program without keys.
    assert (await app.queues.dead_letters("mail").replay()).replayed == 1
    item = read_item((await stored(fail.queue))[0], app.codec)
    assert fail.queue.signatures.refusal(item) is None


def failing(what: str) -> None:
    raise ValueError(f"cannot {what}")


async def test_raw_jobs_with_counters_of_their_own_are_tried_again(workplace, app):
    attempts, raw = [], app.queue("raw", retry=SOON)

    @raw.handler
    async def take(job: dict) -> None:
        attempts.append((current_job().attempt, job["retry_count"]))
        if len(attempts) < 3:
            raise ValueError("again")

    await raw.push({"retry_count": 0, "max_retries": 5, "a": [1]})
    await workplace.start(app)
    await eventually(lambda: attempts == [(1, 0), (2, 1), (3, 2)])
    assert await letters(raw) == []


async def test_jobs_of_a_dead_worker_run_elsewhere(workplace, app, note, ran, open_app):
    await note.send(1)
    await app.queue("raw").push("text")
    for queue in (note.queue, app.queue("raw")):
        await scripts_of(app.redis).join_queue(keys=queue.keyring, worker="lost")
        await scripts_of(app.redis).claim_jobs(
            keys=queue.keyring, worker="lost", first=1, most=5, done=[]
        )
    seen = []

    @app.queue("raw").handler
    async def take(payload: str) -> None:
        seen.append((payload, current_job().attempt))

    await workplace.start(app)
    await eventually(lambda: (ran, seen) == ([1], [("text", 2)]))


async def test_ticks_of_schedules_are_signed(workplace, app, ran):
    @app.every(0.05, queue="mail", name="tick", status=True)
    async def tick() -> None:
        ran.append(current_job().headers["scheduled_ms"])

    await workplace.start(app)
    await eventually(lambda: len(ran) >= 2)
    assert await letters(app.queue("mail")) == []


async def test_jobs_pushed_aside_from_a_full_queue_are_replayed(workplace, app, ran):
    queue, note = app.queue("mail", max_size=1, overflow="dlq"), note_in(app, ran)
    await note.send(1)
    await queue.push(b' {"raw": 1} ')
    await note.send(2)
    aside = app.queues.dead_letters("mail", overflow=True)
    assert (await aside.replay()).replayed == 2
    seen = []

    @queue.handler
    async def take(job: dict) -> None:
        seen.append(job)

    await workplace.start(app)
    await eventually(lambda: (sorted(ran), seen) == ([1, 2], [{"raw": 1}]))
    assert await letters(queue) == []


# ---- what strangers push


async def test_unsigned_and_altered_jobs_are_dead_letters_and_never_run(
    workplace, app, note, ran, caplog
):
    await note.send(1)
    (good,) = await stored(note.queue)
    seen = []

    @note.queue.handler
    async def take(payload: bytes) -> None:
        seen.append(payload)

    evil = [
        b'{"id":"a","task":"note","args":[666],"kwargs":{}}',
        good.replace(b"[1]", b"[6]"),
        b"text",
        b'{"task":"nobody knows it","args":[]}',
        good.replace(b'"signature":"1:old:', b'"signature":"1:gone:'),
        b'{"task":"note","args":[666],"_penstock":{"expires_ms":1}}',
        b'{"task":"note","args":[666],"_penstock":{"attempts":50}}',
        b"\x00\xff",
    ]
    await push(note.queue, *evil)
    with caplog.at_level(logging.WARNING, "penstock.failures"):
        await workplace.start(app)
        found = await refused(note.queue, len(evil))
    assert ran == [1]
    assert seen == []
    assert {letter.reason for letter in found} == {"refused"}
    assert {letter.error_type for letter in found} == {"penstock.errors.BadSignature"}
    codes = [letter.error_code for letter in found]
    assert codes == [
        *("unsigned", "altered", "unsigned", "unsigned", "unknown_key"),
        *("unsigned", "unsigned", "unsigned"),
    ]
    assert found[0].job == evil[0]
    assert "BadSignature" in caplog.text
    assert "666" not in caplog.text


async def test_a_signed_job_of_another_queue_or_namespace_is_refused(
    workplace, app, note, ran, open_app
):
    there = await open_app(namespace=f"{app.settings.namespace}2", **signing())
    elsewhere = (await open_app(**signing())).task(queue="other", name="note")(failing)
    for other in (elsewhere, note_in(there, ran)):
        await other.send(5)
        (job,) = await stored(other.queue)
        await push(note.queue, job)
    await workplace.start(app)
    found = await refused(note.queue, 2)
    assert [letter.error_code for letter in found] == ["altered", "altered"]
    assert ran == []


async def test_a_replay_does_not_bless_what_was_refused(workplace, app, note, ran):
    await push(note.queue, b'{"id":"x","task":"note","args":[666]}')
    await workplace.start(app)
    await refused(note.queue)
    assert (await app.queues.dead_letters("mail").replay()).replayed == 1
    await eventually(lambda: _has_replays(note.queue, 1))
    assert ran == []


async def _has_replays(queue, count):
    return [letter.replays for letter in await letters_of(queue)] == [count]


async def test_an_edit_signs_the_job_and_nothing_of_a_stranger(workplace, app, note, ran):
    meta = b'{"headers":{"evil":"yes"},"max_attempts":77}'
    await push(note.queue, b'{"id":"x","task":"note","args":[666],"_penstock":%b}' % meta)
    worker = await workplace.start(app)
    await refused(note.queue)
    await workplace.stop(worker)
    dead = app.queues.dead_letters("mail")
    assert await dead.edit("x", ' {"id":"x","task":"note","args":[3]} ') == "x"
    await dead.replay()
    item = read_item((await stored(note.queue))[0], app.codec)
    assert (item.meta.headers, item.meta.max_attempts) == ({}, 0)
    await workplace.start(app)
    await eventually(lambda: ran == [3])


async def test_an_edit_keeps_what_the_sender_of_a_signed_job_chose(workplace, app):
    seen = []

    @app.task(queue="mail", name="fail", retry=RetryPolicy(max_attempts=1))
    async def fail(what: str) -> None:
        if what != "mended":
            raise ValueError(what)
        seen.append(current_job().headers)

    job = await fail.with_options(headers={"who": "me"}).send("broken")
    await workplace.start(app)
    await refused(fail.queue)
    dead = app.queues.dead_letters("mail")
    await dead.edit(job.id, {"id": job.id, "task": "fail", "args": ["mended"]})
    await dead.replay()
    await eventually(lambda: seen == [{"who": "me"}])


async def test_a_job_that_expires_is_replayed_where_the_keys_are(workplace, app, open_app):
    seen = []

    @app.task(queue="mail", name="fail", retry=RetryPolicy(max_attempts=1))
    async def fail(what: str) -> None:
        seen.append(what)
        if len(seen) == 1:
            raise ValueError(what)

    job = await fail.with_options(expires=3600).send("x")
    await workplace.start(app)
    await refused(fail.queue)
    without = await open_app()
    replayed = await without.queues.dead_letters("mail").replay()
    assert (replayed.replayed, list(replayed.skipped)) == (0, [job.id])
    assert "keys" in replayed.skipped[job.id]
    assert (await app.queues.dead_letters("mail").replay()).replayed == 1
    await eventually(lambda: seen == ["x", "x"])


async def test_a_replay_signs_no_altered_job_that_expires(workplace, app, note, ran):
    await note.with_options(expires=3600).send(1)
    (good,) = await stored(note.queue)
    await push(note.queue, good.replace(b"[1]", b"[6]"))
    await workplace.start(app)
    await refused(note.queue)
    replayed = await app.queues.dead_letters("mail").replay()
    assert (replayed.replayed, len(replayed.skipped)) == (0, 1)
    assert ran == [1]


async def test_moved_jobs_are_signed_for_their_new_queue_if_they_were_signed(
    workplace, app, note, ran, open_app
):
    await note.send(1)
    await app.queue("mail").push(b"text")
    await push(note.queue, b'{"id":"x","task":"note","args":[666]}')
    there, seen = await open_app(**signing()), []
    other = there.queue("other")
    there.task(queue=other, name="note")(note.function)

    @other.handler
    async def take(payload: bytes) -> None:
        seen.append(payload)

    await app.queues.move("mail", "other")
    await workplace.start(there)
    (letter,) = await refused(other)
    assert (letter.id, letter.error_code) == ("x", "unsigned")
    await eventually(lambda: (ran, seen) == ([1], [b"text"]))


# ---- rotation, and programs that know nothing of it


async def test_keys_are_rotated_without_a_job_refused(workplace, open_app, ran):
    stages = [
        signing(keys=OLD),
        signing(keys=f"{OLD},{NEW}"),
        signing(keys=f"{OLD},{NEW}", sign_with="new"),
        signing(keys=NEW, sign_with="new"),
    ]
    programs = [await open_app(**stage) for stage in stages]
    tasks = [note_in(app, ran) for app in programs]
    for stage in range(3):
        sender, worker = tasks[stage], await workplace.start(programs[stage + 1])
        await sender.send(stage)
        await eventually(lambda: ran == [*range(stage + 1)])  # noqa: B023
        await workplace.stop(worker)
    assert await letters(tasks[0].queue) == []


async def test_signed_jobs_run_in_a_worker_without_keys(workplace, app, note, ran, open_app):
    await note.send(1)
    await app.queue("mail").push({"a": 1})
    other = await open_app()
    note_in(other, ran)

    @other.queue("mail").handler
    async def take(job: dict) -> None:
        ran.append(job)

    await workplace.start(other)
    await eventually(lambda: sorted(ran, key=str) == [1, {"a": 1}])


async def test_an_older_version_keeps_the_signature_when_a_job_is_tried_again(app, note):
    """To it the signature is a member that a later version has added."""
    await note.send(1)
    item = read_item((await stored(note.queue))[0], app.codec)
    as_later = b',"signature":%b' % msgspec.json.encode(item.meta.signature)
    rewritten = b'%b,"_penstock":{"id":"%b","attempts":1%b}}' % (
        *(item.body[:-1], item.id.encode(), as_later),
    )
    assert note.queue.signatures.refusal(read_item(rewritten, app.codec)) is None


async def test_only_the_named_queues_are_signed(open_app):
    app = await open_app(**signing(sign="mail", require="orders"))
    for name, is_signed in (("mail", True), ("orders", True), ("other", False)):
        await app.queue(name).push(b"text")
        (job,) = await stored(app.queue(name))
        assert (job != b"text") == is_signed


async def test_a_window_cannot_close_into_a_queue_or_topic_that_requires_signatures(app, open_app):
    for target in (app.queue("mail"), app.topic("orders")):
        with pytest.raises(SettingError, match=r"outside signing\.require"):
            app.window("alerts", to=target, max_items=2)
    free = await open_app(**signing(require="payments"))
    free.window("alerts", to=free.queue("mail"), max_items=2)


async def test_a_larger_signed_job_meets_the_same_limit(app):
    queue = app.queue("raw", max_size=1)
    await queue.push("x")
    with pytest.raises(QueueFull):
        await queue.push("y")
    assert json.loads((await stored(queue))[0])["_penstock"]["signature"].startswith("1:old:")
