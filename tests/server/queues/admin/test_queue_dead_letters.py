"""Dead letters of queues: listed, grouped, edited, thrown away, and queued again exactly once."""

import asyncio
import json
import time

import pytest
from tests.kit.scripts import scripts_of

from penstock.delivery.failures import Failure
from penstock.delivery.retries import DeathReason
from penstock.errors import CommandRefused, InvalidJob, InvalidName, OutcomeUnknown, QueueError
from penstock.queues.dead_letters.dead_letters import QueueDeadLetters
from penstock.queues.dead_letters.letter import build_letter
from penstock.queues.dead_letters.replay import LETTERS_PER_CALL
from penstock.queues.storage.keys import QueueKeyring, lane_name
from penstock.queues.storage.stored_job import Meta, read_item, task_item
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.settings import CodecSettings, Settings

CODEC = Codec(CodecSettings())
NOW = 1_770_000_000_000


@pytest.fixture
def keys(client):
    return QueueKeyring.of(client.keys, "mail")


@pytest.fixture
def letters(client):
    return QueueDeadLetters(client, CODEC, "mail")


def letter(number, *, error="boom", lane="", meta=None, task="mail.send", reason=None, data=None):
    if data is None:
        data = task_item(
            CODEC, id=f"job-{number}", task=task, args=b"[%d]" % number, kwargs=b"{}", meta=meta
        )
    failure = Failure(
        error_class="ValueError",
        message=error,
        stack="Traceback …",
        fingerprint=f"fp-{error}",
        at_ms=NOW + number,
        attempt=3,
    )
    return build_letter(
        read_item(data, CODEC),
        queue="mail",
        lane=lane,
        reason=reason or DeathReason.EXHAUSTED,
        attempts=3,
        max_attempts=3,
        failures=[failure],
        now_ms=NOW + number,
    )


async def bury(client, keys, *records):
    await client.call("RPUSH", keys.dead_letters, *records)


async def waiting(client, key):
    return [read_item(data, CODEC) for data in await client.call("LRANGE", key, 0, -1)]


async def test_letters_are_listed_from_any_place_in_both_directions(client, keys, letters):
    await bury(client, keys, *(letter(number) for number in range(250)))
    assert await letters.count() == 250
    page = await letters.list(0, 3)
    assert [one.id for one in page.letters] == ["job-0", "job-1", "job-2"]
    assert (page.next, page.total) == (3, 250)
    assert [one.id for one in (await letters.list(248, 10)).letters] == ["job-248", "job-249"]
    assert (await letters.list(248, 10)).next is None
    assert (await letters.list(250, 10)).letters == []
    newest = await letters.list(0, 2, reverse=True)
    assert [one.id for one in newest.letters] == ["job-249", "job-248"]
    assert len((await letters.list(0, 1_000)).letters) == 250


async def test_letters_are_filtered_by_what_they_tell(client, keys, letters):
    await bury(
        client,
        keys,
        letter(1, error="disk full"),
        letter(2, task="pdf.make"),
        letter(3, meta=Meta(group="acme"), lane="acme"),
        letter(4, reason=DeathReason.FATAL),
    )

    async def ids(**filters):
        return [one.id for one in (await letters.list(**filters)).letters]

    assert await ids(error="DISK") == ["job-1"]
    assert await ids(error="valueerror", task="pdf.make") == ["job-2"]
    assert await ids(group="acme") == ["job-3"]
    assert await ids(reason="fatal") == ["job-4"]
    assert await ids(fingerprint="fp-disk full") == ["job-1"]
    assert await ids(before_ms=NOW + 2) == ["job-1"]
    assert await ids(task="none") == []


async def test_a_search_goes_on_where_the_last_one_ended(client, keys, letters):
    await bury(client, keys, *(letter(number, error=f"e{number % 7}") for number in range(300)))
    found, start = [], 0
    while start is not None:
        page = await letters.list(start, 10, error="e3")
        found += [one.id for one in page.letters]
        start = page.next
    assert found == [f"job-{number}" for number in range(300) if number % 7 == 3]


async def test_letters_are_counted_by_cause(client, keys, letters):
    await bury(client, keys, letter(1), letter(2, error="other"), letter(3, task="b"))
    kinds = await letters.kinds()
    assert [(kind.fingerprint, kind.count) for kind in kinds.kinds] == [
        ("fp-boom", 2),
        ("fp-other", 1),
    ]
    assert kinds.kinds[0].sample.id == "job-3"
    assert kinds.kinds[0].tasks == ["b", "mail.send"]
    assert (kinds.kinds[0].first_ms, kinds.kinds[0].last_ms) == (NOW + 1, NOW + 3)
    assert (kinds.examined, kinds.complete) == (3, True)
    assert not (await letters.kinds(limit=2)).complete


async def test_one_letter_is_shown_with_its_job(client, keys, letters):
    await bury(client, keys, letter(7))
    shown = await letters.get("job-7")
    assert json.loads(shown.job.text)["args"] == [7]
    with pytest.raises(QueueError, match="no dead letter 'job-8'"):
        await letters.get("job-8")


async def test_all_letters_are_queued_again_in_their_order_with_their_history(
    client, keys, letters
):
    await bury(client, keys, *(letter(number) for number in range(230)))
    done = await letters.replay(who="anna")
    assert (done.matched, done.replayed, done.missing, done.complete) == (230, 230, 0, True)
    assert await letters.count() == 0
    jobs = await waiting(client, keys.waiting)
    assert [job.id for job in jobs] == [f"job-{number}" for number in range(230)]
    assert {(job.meta.attempts, job.meta.replays, len(job.meta.history)) for job in jobs} == {
        (0, 1, 1)
    }
    acts = await letters.audit()
    assert {(act.who, act.what) for act in acts} == {("anna", "requeue")}
    assert sum(act.count for act in acts) == 230
    assert await client.call("HGET", keys.counters, "requeued") == b"230"


async def test_a_job_that_dies_again_counts_its_replays(client, keys, letters):
    await bury(client, keys, letter(1))
    await letters.replay()
    [data] = await client.call("LRANGE", keys.waiting, 0, -1)
    await bury(client, keys, letter(2, data=data, error="again"))
    assert (await letters.get("job-1")).replays == 1
    await letters.replay()
    job = (await waiting(client, keys.waiting))[-1]
    assert job.meta.replays == 2
    assert [trouble.message for trouble in job.meta.history] == ["boom", "again"]


async def test_letters_go_back_to_their_lanes(client, keys, letters):
    lane = lane_name("acme & sons")
    await bury(
        client,
        keys,
        letter(1, lane="high"),
        letter(2, lane=lane, meta=Meta(group="acme & sons")),
        letter(3, lane=lane, meta=Meta(group="acme & sons")),
        letter(4, lane="../evil"),
        letter(5, lane="beta"),
    )
    assert (await letters.replay()).replayed == 5
    assert [job.id for job in await waiting(client, keys.list_of("high"))] == ["job-1"]
    assert [job.id for job in await waiting(client, keys.list_of(lane))] == ["job-2", "job-3"]
    assert [job.id for job in await waiting(client, keys.waiting)] == ["job-4"]
    assert await client.call("LRANGE", keys.ring, 0, -1) == [lane.encode(), b"beta"]
    assert await client.call("HGET", keys.state, "lanes") == b"1"


async def test_a_parked_lane_gets_its_letters_but_no_turn(client, keys, letters):
    await client.call("ZADD", keys.parked, 9e15, "beta")
    await bury(client, keys, letter(1, lane="beta"))
    await letters.replay()
    assert await client.call("LLEN", keys.list_of("beta")) == 1
    assert await client.call("LLEN", keys.ring) == 0


async def test_a_queue_that_is_pushed_from_the_left_gets_letters_at_its_back(client, keys, letters):
    await client.call("HSET", keys.state, "side", "left")
    first = task_item(CODEC, id="first", task="t", args=b"[]", kwargs=b"{}")
    await client.call("LPUSH", keys.waiting, first)
    await bury(client, keys, letter(1), letter(2))
    await letters.replay()
    jobs = await waiting(client, keys.waiting)
    assert [job.id for job in jobs] == ["job-2", "job-1", "first"]


async def test_the_record_of_a_requeued_job_begins_anew(client, keys, letters):
    meta = Meta(tracked=True, unique="u-1")
    record = keys.record("job-1")
    await client.call(
        *("HSET", record, "job_id", "job-1", "status", "failed", "error", "boom", "rag_id", "r"),
        *("submitted_at", "2026-01-01T00:00:00.000Z", "failed_at", "then", "attempt", 3),
        *("retry_count", 2),
    )
    await client.call("PEXPIRE", record, 100_000)
    await client.call("ZADD", keys.jobs("failed"), 1, "job-1")
    await bury(client, keys, letter(1, meta=meta))
    await letters.replay()
    stored = await client.call("HGETALL", record)
    fields = dict(zip(stored[::2], stored[1::2], strict=True))
    assert fields == {
        b"job_id": b"job-1",
        b"status": b"queued",
        b"rag_id": b"r",
        b"retry_count": b"0",
        b"submitted_at": b"2026-01-01T00:00:00.000Z",
    }
    assert await client.call("PTTL", record) == -1
    assert await client.call("ZSCORE", keys.jobs("failed"), "job-1") is None
    assert await client.call("ZSCORE", keys.jobs("queued"), "job-1") is not None
    assert await client.call("GET", keys.unique("u-1")) == b"job-1"
    assert await client.call("PTTL", keys.unique("u-1")) == -1


async def test_a_record_that_has_expired_is_made_again_and_only_for_jobs_that_had_one(
    client, keys, letters
):
    await bury(client, keys, letter(1, meta=Meta(tracked=True)), letter(2))
    await letters.replay()
    assert await client.call("HMGET", keys.record("job-1"), "status", "task", "job_id") == [
        b"queued",
        b"mail.send",
        b"job-1",
    ]
    assert await client.call("EXISTS", keys.record("job-2")) == 0
    assert await client.call("ZCARD", keys.jobs("queued")) == 1


async def test_a_unique_key_that_another_job_holds_stays_with_it(client, keys, letters):
    await client.call("SET", keys.unique("u"), "other")
    await bury(client, keys, letter(1, meta=Meta(unique="u")))
    assert (await letters.replay()).replayed == 1
    assert await client.call("GET", keys.unique("u")) == b"other"


async def test_the_record_of_a_job_that_runs_again_already_is_left_alone(client, keys, letters):
    await client.call("HSET", keys.record("job-1"), "status", "processing", "worker", "w")
    await bury(client, keys, letter(1, meta=Meta(tracked=True)))
    await letters.replay()
    assert await client.call("HMGET", keys.record("job-1"), "status", "worker") == [
        b"processing",
        b"w",
    ]


async def test_letters_are_queued_again_by_id_and_by_filter(client, keys, letters):
    records = [letter(number, error=f"e{number % 3}") for number in range(9)]
    await bury(client, keys, *records)
    done = await letters.replay(["job-8", "job-1", "job-99", "job-1"])
    assert (done.matched, done.replayed, done.missing) == (2, 2, 1)
    done = await letters.replay(error="e0")
    assert done.replayed == 3
    jobs = await waiting(client, keys.waiting)
    assert [job.id for job in jobs] == ["job-1", "job-8", "job-0", "job-3", "job-6"]
    left = [one.id for one in (await letters.list()).letters]
    assert left == ["job-2", "job-4", "job-5", "job-7"]


async def test_letters_that_shift_while_they_are_chosen_are_found(client, keys, letters):
    records = [letter(number, error=f"e{number % 3}") for number in range(900)]
    await bury(client, keys, *records)
    ends = await asyncio.gather(
        letters.replay(error="e0"), letters.replay(error="e1"), letters.purge(error="e2")
    )
    done = ends[0].replayed + ends[1].replayed + ends[2]
    assert done == 900
    left = [one.id for one in (await letters.list(0, 1_000)).letters]
    jobs = [job.id for job in await waiting(client, keys.waiting)]
    assert len(left) + done == 900
    assert len(set(jobs)) == len(jobs) == ends[0].replayed + ends[1].replayed
    assert not set(left) & set(jobs)


async def test_a_dry_run_counts_and_changes_nothing(client, keys, letters):
    await bury(client, keys, *(letter(number) for number in range(150)), b"junk")
    done = await letters.replay(dry_run=True)
    assert (done.matched, done.replayed, len(done.skipped)) == (151, 0, 1)
    assert await letters.count() == 151
    assert await client.call("EXISTS", keys.waiting, keys.audit) == 0


async def test_most_is_a_cap_and_the_next_call_goes_on(client, keys, letters):
    await bury(client, keys, *(letter(number) for number in range(25)))
    done = await letters.replay(limit=10)
    assert (done.replayed, done.complete) == (10, False)
    done = await letters.replay(limit=15)
    assert (done.replayed, done.complete) == (15, True)
    jobs = await waiting(client, keys.waiting)
    assert [job.id for job in jobs] == [f"job-{number}" for number in range(25)]


async def test_what_holds_no_job_stays_and_holds_nothing_up(client, keys, letters):
    await bury(client, keys, b"junk", letter(1), b"{}", b"\xff\xfe", letter(2))
    done = await letters.replay()
    assert (done.replayed, len(done.skipped)) == (2, 3)
    assert await client.call("LRANGE", keys.dead_letters, 0, -1) == [b"junk", b"{}", b"\xff\xfe"]


async def test_equal_letters_are_each_queued_once(client, keys, letters):
    same = letter(1)
    await bury(client, keys, same, same, same)
    assert (await letters.replay()).replayed == 3
    assert await client.call("LLEN", keys.waiting) == 3


async def test_many_who_requeue_at_once_queue_each_letter_once(client, keys, letters):
    await bury(client, keys, *(letter(number) for number in range(300)))
    ends = await asyncio.gather(*(letters.replay() for _ in range(5)))
    assert sum(end.replayed for end in ends) == 300
    jobs = await waiting(client, keys.waiting)
    assert sorted(job.id for job in jobs) == sorted(f"job-{number}" for number in range(300))
    assert await letters.count() == 0


@pytest.mark.parametrize(
    ("fault", "moved"), [("swallow", 50 + LETTERS_PER_CALL), ("cut_before", 50)]
)
async def test_a_requeue_that_is_cut_off_loses_and_doubles_nothing(
    valkey_server, namespace, fault_proxy, fault, moved
):
    async with Client(Settings(url=valkey_server.url, namespace=namespace)) as client:
        keys = QueueKeyring.of(client.keys, "mail")
        letters = QueueDeadLetters(client, CODEC, "mail")
        await bury(client, keys, *(letter(number) for number in range(300)))
        assert (await letters.replay(limit=50)).replayed == 50
        proxy = fault_proxy(valkey_server)
        async with Client(Settings(url=proxy.url, namespace=namespace)) as weak:
            getattr(proxy, fault)("EVALSHA")
            with pytest.raises(OutcomeUnknown):
                await QueueDeadLetters(weak, CODEC, "mail").replay()
        assert await client.call("LLEN", keys.waiting) == moved
        assert await client.call("LLEN", keys.dead_letters) == 300 - moved
        assert (await letters.replay()).replayed == 300 - moved
        jobs = await waiting(client, keys.waiting)
        assert [job.id for job in jobs] == [f"job-{number}" for number in range(300)]


async def test_a_rate_is_kept(client, keys, letters):
    await bury(client, keys, *(letter(number) for number in range(30)))
    began = time.monotonic()
    assert (await letters.replay(rate=100)).replayed == 30
    assert time.monotonic() - began >= 0.19


async def test_a_raw_job_moved_aside_keeps_its_id_when_it_is_replayed(app, client, keys):
    mail = app.queue("mail", max_size=1, overflow="dlq")
    for number in range(2):
        await mail.push({"number": number}, job_id=f"own-{number}")
    await QueueDeadLetters(client, CODEC, "mail", overflow=True).replay()
    assert [item.id for item in await waiting(client, keys.waiting)] == ["own-1", "own-0"]


async def test_jobs_that_were_moved_aside_come_back_the_same_way(client, keys):
    items = [
        task_item(CODEC, id=f"job-{number}", task="t", args=b"[]", kwargs=b"{}")
        for number in range(4)
    ]
    await scripts_of(client).push_jobs(
        keys=keys, lane="", side="right", policy="reject",
        max_size=0, max_bytes=0, max_overflow=100, max_lanes=0, items=items[:2],
    )  # fmt: skip
    await scripts_of(client).push_jobs(
        keys=keys, lane="", side="right", policy="dlq",
        max_size=2, max_bytes=0, max_overflow=100, max_lanes=0, items=items[2:],
    )  # fmt: skip
    aside = QueueDeadLetters(client, CODEC, "mail", overflow=True)
    assert [one.id for one in (await aside.list()).letters] == ["job-0", "job-1"]
    [kind] = (await aside.kinds()).kinds
    assert (kind.count, kind.sample.reason) == (2, "overflow")
    assert (await aside.replay()).replayed == 2
    jobs = await waiting(client, keys.waiting)
    assert [job.id for job in jobs] == ["job-2", "job-3", "job-0", "job-1"]


@pytest.mark.parametrize(
    "odd",
    [
        b'{"a":NaN}',
        b'{"a":0x1F,"b":-Infinity}',
        b'\xff\xfe \\ " / \x00\x7f',
        b'{"a":"\xff"}',
        b"[1, 2]",
        b'"text"',
        b"Z:KLUv/broken",
        b"",
    ],
)
@pytest.mark.parametrize("lane", ["", "low", "g"])
async def test_whatever_was_moved_aside_comes_back_byte_by_byte(client, keys, odd, lane):
    for items in ([odd], [b"next"]):
        await scripts_of(client).push_jobs(
            keys=keys, lane=lane, side="right", policy="dlq", max_size=1,
            max_bytes=0, max_overflow=100, max_lanes=0, items=items,
        )  # fmt: skip
    aside = QueueDeadLetters(client, CODEC, "mail", overflow=True)
    [shown] = (await aside.list()).letters
    assert (shown.reason, shown.lane, shown.fault) == ("overflow", lane, "")
    assert (await aside.replay()).replayed == 1
    first, second = await waiting(client, keys.list_of(lane))
    assert first.body == b"next"
    assert second.body == odd


async def test_an_edited_letter_runs_with_another_job(client, keys, letters):
    await bury(client, keys, letter(0), letter(1), letter(2))
    job = {"id": "job-1", "task": "mail.send", "args": [42], "kwargs": {}}
    await letters.edit("job-1", job, who="bo")
    shown = await letters.list()
    assert [one.id for one in shown.letters] == ["job-0", "job-1", "job-2"]
    assert json.loads(shown.letters[1].job.text) == job
    assert [(act.who, act.what, act.detail) for act in await letters.audit()] == [
        ("bo", "edit", "job-1")
    ]
    await letters.replay(["job-1"])
    [again] = await waiting(client, keys.waiting)
    assert bytes(again.args) == b"[42]"
    assert again.meta.history
    with pytest.raises(QueueError):
        await letters.edit("job-1", job)
    with pytest.raises(InvalidJob, match="max_job_bytes"):
        await letters.edit("job-0", "x" * 600_000)


async def test_letters_are_thrown_away_by_id_by_filter_or_all(client, keys, letters):
    await bury(client, keys, *(letter(number, error=f"e{number % 2}") for number in range(1_250)))
    assert await letters.purge(["job-5", "job-nobody"], who="cy") == 1
    assert await letters.purge(error="e1", dry_run=True) == 624
    assert await letters.purge(error="e1") == 624
    assert await letters.count() == 625
    assert await letters.purge(everything=True, dry_run=True) == 625
    assert await letters.purge(everything=True) == 625
    assert await letters.count() == 0
    assert sum(act.count for act in await letters.audit()) == 1_250


@pytest.mark.parametrize("arguments", [{}, {"ids": [], "everything": True}, {"ids": "job-1"}])
async def test_a_purge_must_be_told_what_to_throw_away(client, keys, letters, arguments):
    await bury(client, keys, letter(1))
    with pytest.raises(InvalidJob):
        await letters.purge(**arguments)
    assert await letters.count() == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"start": -1},
        {"start": True},
        {"start": "0"},
        {"limit": 0},
        {"limit": 1_001},
        {"limit": 1.5},
        {"error": 5},
        {"before_ms": -1},
    ],
)
async def test_a_page_that_cannot_be_is_refused(letters, arguments):
    with pytest.raises(InvalidJob):
        await letters.list(**arguments)


@pytest.mark.parametrize("id_", ["", None, 5, "x" * 513, b"job"])
async def test_an_id_that_no_job_can_have_is_refused(letters, id_):
    with pytest.raises(InvalidJob):
        await letters.get(id_)
    with pytest.raises(InvalidJob):
        await letters.replay([id_])


@pytest.mark.parametrize("id_", ["{a}b}", "* ? [x]", "..", "a\nb", "naïve ☃", "%2e%2e"])
async def test_any_other_id_is_found_and_queued(client, keys, letters, id_):
    data = task_item(
        CODEC, id=id_, task="t", args=b"[]", kwargs=b"{}", meta=Meta(tracked=True, unique=id_)
    )
    await bury(client, keys, letter(1, data=data))
    assert (await letters.get(id_)).job_id == id_
    assert (await letters.replay([id_])).replayed == 1
    assert await client.call("HGET", keys.record(id_), "job_id") == id_.encode()


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
async def test_a_rate_that_is_none_is_refused(letters, rate):
    with pytest.raises(ValueError, match="rate"):
        await letters.replay(rate=rate)


@pytest.mark.parametrize("name", ["", "a b", "{x}", "a:b", "dlq", "x" * 129, "é"])
async def test_a_name_that_no_queue_can_have_is_refused(client, name):
    with pytest.raises(InvalidName):
        QueueDeadLetters(client, CODEC, name)


@pytest.mark.parametrize("part", ["waiting", "ring", "parked", "state", "counters", "audit"])
async def test_a_key_of_a_wrong_type_stops_a_requeue_before_it_writes(client, keys, letters, part):
    await client.call("SET", getattr(keys, part), "x")
    await bury(client, keys, letter(1))
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await letters.replay()
    assert await letters.count() == 1
    others = [keys.waiting, keys.ring, keys.parked, keys.state, keys.counters, keys.audit]
    others.remove(getattr(keys, part))
    assert await client.call("EXISTS", *others) == 0


async def test_a_foreign_key_under_the_name_of_a_record_holds_no_requeue_up(client, keys, letters):
    await client.call("SET", keys.record("job-1"), "x")
    await bury(client, keys, letter(0), letter(1))
    await letters.replay()
    assert await letters.count() == 0
    assert await client.call("LLEN", keys.waiting) == 2
    assert await client.call("GET", keys.record("job-1")) == b"x"


async def test_counts_that_are_no_numbers_stop_a_requeue_before_it_writes(client, keys, letters):
    await bury(client, keys, letter(1))
    for place, name in ((keys.counters, "requeued"), (keys.state, "bytes")):
        await client.call("HSET", place, name, "many")
        with pytest.raises(CommandRefused, match="not a number"):
            await letters.replay()
        await client.call("DEL", place)
    assert await letters.count() == 1
    assert await client.call("EXISTS", keys.waiting, keys.audit) == 0


async def test_letters_of_a_wrong_type_are_an_error_and_not_nothing(client, keys, letters):
    await client.call("SET", keys.dead_letters, "x")
    for look in (letters.count(), letters.list(), letters.kinds(), letters.replay()):
        with pytest.raises(CommandRefused, match="WRONGTYPE"):
            await look


async def test_nothing_there_is_an_empty_answer(letters):
    assert await letters.count() == 0
    assert (await letters.list()).letters == []
    assert (await letters.kinds()).kinds == []
    assert (await letters.replay()).matched == 0
    assert await letters.purge(everything=True) == 0
    assert await letters.audit() == []


# ---- one among very many


@pytest.mark.parametrize("odd", ["", "ä", "a/b", "packed"])
async def test_the_letter_of_a_job_is_found_without_sending_the_others(client, keys, odd):
    kept = QueueDeadLetters(client, CODEC, "mail", overflow=odd == "packed")
    where = keys.overflow if odd == "packed" else keys.dead_letters
    wanted = f"wanted{odd}"
    if odd == "packed":
        job = task_item(CODEC, id=wanted, task="t", args=b'["%s"]' % (b"x" * 3_000), kwargs=b"{}")
        special = (
            b'{"original_job":"%s","error":"the queue was full","reason":"overflow"}'
            % job.replace(b"/", b"\\/")
        )
    else:
        item = task_item(CODEC, id=wanted, task="t", args=b"[]", kwargs=b"{}")
        special = letter(1, data=item)
    others = [letter(number) for number in range(2_000)]
    await client.call("RPUSH", where, special, *others[:1_000])
    await client.call("RPUSH", where, *others[1_000:])
    sent = await sent_bytes(client, where)
    assert (await kept.get(wanted)).id == wanted
    sent = await sent_bytes(client, where) - sent
    if odd in ("", "packed"):
        assert sent < sum(map(len, others)) / 20
    with pytest.raises(QueueError):
        await kept.get("missing")


async def test_the_newest_letter_of_a_job_is_found_and_edited(client, keys, letters):
    same = [letter(7, error=f"error {number}") for number in range(3)]
    await client.call("RPUSH", keys.dead_letters, *same, *(letter(n) for n in range(50, 200)))
    assert (await letters.get("job-7")).error == "error 2"
    assert await letters.edit("job-7", {"id": "job-7", "x": 1}) == "job-7"
    stored = await client.call("LRANGE", keys.dead_letters, 0, 2)
    assert stored[:2] == same[:2]
    assert stored[2] != same[2]


async def sent_bytes(client, key):
    """What the server has sent so far; of a cluster the node that has the key."""
    told = await client.call("EVAL", "return redis.call('INFO', 'stats')", 1, key)
    return int(told.split(b"total_net_output_bytes:")[1].split()[0])
