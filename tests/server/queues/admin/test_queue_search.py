"""Jobs with a record: found, shown, cancelled, tried again."""

from datetime import UTC, datetime

import pytest
from tests.kit.queue_scripts import CODEC, ids, job, submit

from penstock.errors import InvalidJob, JobMissing
from penstock.queues.admin.queue_admin import Cancelled
from penstock.queues.dead_letters.letter import build_letter
from penstock.queues.storage.stored_job import Meta, read_item


async def test_the_record_of_a_job_is_shown_or_missing(client, keys, admin):
    await submit(client, keys, "a/b c", rag_id="r")
    record = await admin.job("mail", "a/b c")
    assert (record.status, record.task, record.fields) == ("queued", "mail.send", {"rag_id": "r"})
    with pytest.raises(JobMissing):
        await admin.job("mail", "other")
    with pytest.raises(InvalidJob):
        await admin.job("mail", "")


async def test_jobs_are_searched_by_state_name_error_and_time(client, keys, admin):
    for number in range(250):
        name, error = f"task{number % 5}", f"boom {number % 2}"
        await client.call(
            *("HSET", keys.record(f"j{number}"), "job_id", f"j{number}", "status", "failed"),
            *("task", name, "error", error, "error_type", "ValueError"),
        )
        await client.call("ZADD", keys.jobs("failed"), 1_000_000 + number * 1_000, f"j{number}")
    await submit(client, keys, "q")

    async def found(**filters):
        jobs, cursor = [], None
        while True:
            page = await admin.jobs("mail", cursor=cursor, **filters)
            jobs += [one.job_id for one in page.jobs]
            cursor = page.cursor
            if cursor is None:
                return jobs

    newest_first = [f"j{number}" for number in reversed(range(250))]
    assert await found(state="failed", limit=7) == newest_first
    assert await found(limit=33) == ["q", *newest_first]
    assert await found(state="queued") == ["q"]
    assert await found(state="done") == []
    assert await found(name="TASK3", limit=10) == newest_first[1::5]
    assert await found(error="boom 1") == newest_first[0::2]
    assert await found(state="failed", error="valueerror", name="task0") == newest_first[4::5]
    assert await found(state="failed", since=1_000, until=1_002) == ["j2", "j1", "j0"]
    moment = datetime.fromtimestamp(1_248, UTC)
    assert await found(state="failed", since=moment) == ["j249", "j248"]


async def test_a_cursor_stays_good_while_jobs_come_go_and_share_a_moment(client, keys, admin):
    names = sorted(f"j{number:03}" for number in range(350))
    for name in names:
        await client.call("HSET", keys.record(name), "job_id", name, "status", "queued")
    await client.call("ZADD", keys.jobs("queued"), *(part for name in names for part in (5, name)))
    seen, cursor = [], None
    while True:
        page = await admin.jobs("mail", state="queued", limit=40, cursor=cursor)
        seen += [one.job_id for one in page.jobs]
        if page.cursor is None:
            break
        cursor = page.cursor
        await client.call("ZREM", keys.jobs("queued"), seen[-1], seen[0])
        await client.call("ZADD", keys.jobs("queued"), 9, f"new-{len(seen)}")
    assert seen == names[::-1]


@pytest.mark.usefixtures("leaves_foreign_keys")
async def test_pages_show_each_job_once_whatever_its_name_and_time(client, keys, admin):
    names = [b"\xff%d" % number for number in range(5)]
    names += [b"[a", b"]a", b"\\a", b"\xc3\xa9", b"\xc3", b"a/b", b" ", b""]
    scores = (5, 5.25, 5.5, "inf", "-inf", -7)
    for number, name in enumerate(names):
        score = scores[number % len(scores)]
        await client.call("HSET", keys.records.encode() + name, "status", "queued", "task", name)
        await client.call("ZADD", keys.jobs("queued"), score, name, score, b"\xffx" + name)
    for count in (1, 2, 5):
        seen, cursor = 0, None
        for _ in range(len(names) + 1):
            page = await admin.jobs("mail", state="queued", limit=count, cursor=cursor)
            seen += len(page.jobs)
            cursor = page.cursor
            if cursor is None:
                break
        assert (seen, cursor) == (len(names), None)


async def test_index_entries_without_a_record_are_passed_over(client, keys, admin):
    await client.call("ZADD", keys.jobs("done"), 1, "gone", 2, "other")
    await client.call("HSET", keys.record("other"), "status", "queued")
    page = await admin.jobs("mail", state="done")
    assert (page.jobs, page.cursor) == ([], None)


@pytest.mark.parametrize(
    "arguments",
    [
        {"state": "dead"},
        {"limit": 0},
        {"limit": 1_001},
        {"name": 5},
        {"error": b"x"},
        {"cursor": "junk"},
        {"cursor": "queued/x/y"},
        {"cursor": "queued/5"},
        {"cursor": "queued/nan/x"},
        {"cursor": "queued/1.2.3/x"},
        {"cursor": "queued/5/\\"},
        {"cursor": 5},
        {"cursor": "failed/5/x", "state": "queued"},
        {"since": datetime(2026, 1, 1)},  # noqa: DTZ001
        {"since": float("nan")},
        {"until": 1e300},
        {"until": "yesterday"},
        {"until": True},
    ],
)
async def test_a_search_that_cannot_be_is_refused(admin, arguments):
    with pytest.raises(InvalidJob):
        await admin.jobs("mail", **arguments)


async def test_a_job_is_cancelled_asked_to_stop_or_had_ended(client, keys, admin):
    await submit(client, keys, "waits")
    await submit(client, keys, "later", wait=60_000)
    await submit(client, keys, "runs")
    await client.call("HSET", keys.record("runs"), "status", "processing")
    await client.call("HSET", keys.record("ended"), "status", "done")
    assert await admin.cancel("mail", "waits", who="anna") is Cancelled.CANCELLED
    assert await admin.cancel("mail", "later") is Cancelled.CANCELLED
    assert await admin.cancel("mail", "runs") is Cancelled.ASKED
    assert await admin.cancel("mail", "ended") is Cancelled.ENDED
    with pytest.raises(JobMissing):
        await admin.cancel("mail", "nobody")
    assert (await admin.job("mail", "waits")).status == "cancelled"
    assert (await admin.job("mail", "runs")).cancel_asked
    acts = await admin.audit("mail")
    assert [(act.what, act.detail) for act in acts] == [
        ("cancel", "runs"),
        ("cancel", "later"),
        ("cancel", "waits"),
    ]
    assert acts[-1].who == "anna"


async def test_a_failed_job_is_tried_again(client, keys, admin):
    item = read_item(job("a", Meta(tracked=True)), CODEC)
    letter = build_letter(
        item, queue="mail", lane="high", reason="exhausted", attempts=3, max_attempts=3,
        failures=[], now_ms=1,
    )  # fmt: skip
    await client.call("RPUSH", keys.dead_letters, letter)
    await admin.replay("mail", "a")
    assert await ids(client, keys.list_of("high")) == ["a"]
    assert (await admin.job("mail", "a")).status == "queued"
    with pytest.raises(JobMissing):
        await admin.replay("mail", "a")
    assert await admin.dead_letters("mail").count() == 0
