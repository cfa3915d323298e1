"""Dead letters of queues: the seed's fields, nothing lost of the job, and no letter that raises."""

import base64
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.delivery.failures import Failure
from penstock.delivery.retries import DeathReason
from penstock.queues.dead_letters.letter import HISTORY, build_letter, read_letter
from penstock.queues.dead_letters.replay import edited_letter, replayed_item
from penstock.queues.storage.stored_job import Item, Meta, Trouble, read_item, task_item, write_item
from penstock.redis.codec import Codec
from penstock.settings import CodecSettings

CODEC = Codec(CodecSettings())
JOB = b'{"camera_id":"front_door","file_path":"/export/foscam/Front Door/image_001.jpg"}'
NOW = 1_770_000_000_123


def failure(attempt=3, message="Connection refused: detector service unavailable", stack="a stack"):
    return Failure(
        error_class="ConnectionError",
        message=message,
        stack=stack,
        fingerprint="feed",
        at_ms=NOW - 1_000,
        attempt=attempt,
    )


def letter_of(data=JOB, **changes):
    item = data if isinstance(data, Item) else read_item(data, CODEC)
    about = {
        "queue": "detection_queue",
        "lane": "",
        "reason": DeathReason.EXHAUSTED,
        "attempts": 3,
        "max_attempts": 3,
        "failures": [failure()],
        "now_ms": NOW,
        **changes,
    }
    return build_letter(item, **about)


def test_a_letter_begins_with_the_fields_of_the_seed():
    record = json.loads(letter_of())
    assert list(record)[:6] == [
        "original_job",
        "error",
        "attempt_count",
        "first_failed_at",
        "last_failed_at",
        "queue_name",
    ]
    assert record["original_job"] == json.loads(JOB)
    assert record["error"] == "Connection refused: detector service unavailable"
    assert record["attempt_count"] == 3
    assert record["last_failed_at"] == "2026-02-02T02:39:59.123Z"
    assert record["queue_name"] == "detection_queue"


def test_a_letter_tells_who_failed_how_and_how_often():
    meta = Meta(
        attempts=2,
        first_failed_ms=NOW - 60_000,
        history=(Trouble(attempt=1, at_ms=NOW - 60_000, message="first"),),
        group="acme",
        replays=1,
    )
    data = task_item(CODEC, id="job-1", task="mail.send", args=b"[1]", kwargs=b"{}", meta=meta)
    letter = read_letter(
        letter_of(data, lane="acme", error_code="E42", suggestions=["look at the fan"])
    )
    assert (letter.id, letter.job_id, letter.task) == ("job-1", "job-1", "mail.send")
    assert (letter.lane, letter.group, letter.reason) == ("acme", "acme", "exhausted")
    assert (letter.error_type, letter.error_code) == ("ConnectionError", "E42")
    assert letter.suggestions == ("look at the fan",)
    assert (letter.fingerprint, letter.stack) == ("feed", "a stack")
    assert (letter.attempts, letter.max_attempts, letter.replays) == (3, 3, 1)
    assert [trouble.attempt for trouble in letter.history] == [1, 3]
    assert letter.first_failed_at == "2026-02-02T02:39:00.123Z"
    assert letter.buried_ms == NOW
    assert not letter.fault


def test_a_long_stack_keeps_its_end():
    letter = read_letter(letter_of(failures=[failure(stack="x" * 9_000 + "the end")]))
    assert len(letter.stack) == 4_096
    assert letter.stack.endswith("the end")


def test_of_many_failures_the_last_are_kept():
    failures = [failure(attempt) for attempt in range(1, 100)]
    history = read_letter(letter_of(failures=failures)).history
    assert [trouble.attempt for trouble in history] == list(range(100 - HISTORY, 100))


def test_a_crash_is_told_where_no_error_was_seen():
    letter = read_letter(letter_of(failures=[], reason="crashed", crash="killed by signal 9"))
    assert (letter.error, letter.error_type) == ("killed by signal 9", "Crashed")
    assert letter.fingerprint
    assert letter.fingerprint == read_letter(letter_of(failures=[], reason="crashed")).fingerprint


@pytest.mark.parametrize("message", ["half a pair \ud800", "nul \0", "é" * 5_000])
def test_any_message_can_be_stored(message):
    assert json.loads(letter_of(failures=[], crash=message))["error"]


@pytest.mark.parametrize(
    "job",
    [
        JOB,
        b"plain text",
        b"[1, 2]",
        b"17",
        b'"a string"',
        b"",
        b"{no json",
        b'{"a": "\xff\xfe"}',
        b"\x80\x81\x00",
        b'{\n  "pretty": true,\n  "big": 123456789012345678901234567890\n}',
        '{"text": "naïve ☃"}'.encode(),
        b'{"job_id":"j","retry_count":2,"max_retries":3}',
    ],
)
def test_what_is_queued_again_is_the_job_that_was_buried(job):
    item = read_item(job, CODEC)
    letter = read_letter(letter_of(item))
    revived, data = replayed_item(letter, CODEC)
    again = read_item(data, CODEC)
    if item.counts_retries:
        assert json.loads(again.body) == {**json.loads(job), "retry_count": 0}
    else:
        assert again.body == job
    assert revived.body == item.body
    assert again.meta.attempts == 0
    assert again.meta.replays == 1
    assert [trouble.message for trouble in again.meta.history] == [failure().message]
    assert again.fault is None


def test_a_job_that_nobody_named_keeps_the_id_its_worker_gave_it():
    item = read_item(JOB, CODEC)
    item.id = "given"
    _, data = replayed_item(read_letter(letter_of(item)), CODEC)
    assert read_item(data, CODEC).id == "given"


def test_what_penstock_remembers_comes_back_with_the_job_but_not_its_attempts():
    meta = Meta(
        attempts=2, crashes=1, begun=True, unique="u", tracked=True, group="g", max_attempts=7,
        headers={"a": "b"}, expires_ms=5, parked_ms=9,
    )  # fmt: skip
    data = task_item(CODEC, id="i", task="t", args=b"[]", kwargs=b"{}", meta=meta)
    _, again = replayed_item(read_letter(letter_of(data)), CODEC)
    found = read_item(again, CODEC)
    assert found.id == "i"
    assert found.meta == msgspec.structs.replace(
        meta, attempts=0, crashes=0, begun=False, parked_ms=0, expires_ms=0, replays=1,
        history=found.meta.history, first_failed_ms=NOW - 1_000,
    )  # fmt: skip


def test_a_job_that_cannot_be_unpacked_is_queued_again_byte_by_byte():
    item = read_item(b"Z:KLUv/broken", CODEC)
    assert item.fault
    letter = read_letter(letter_of(item, reason=DeathReason.UNDECODABLE))
    _, data = replayed_item(letter, CODEC)
    assert data == b"Z:KLUv/broken"


def test_a_packed_job_is_told_unpacked():
    body = json.dumps({"text": "x" * 5_000}).encode()
    packed = write_item(Item(body, body=body), Meta(id="p"), CODEC)
    assert packed.startswith(b"Z:")
    letter = json.loads(letter_of(packed))
    assert letter["original_job"] == {"text": "x" * 5_000}
    _, again = replayed_item(read_letter(json.dumps(letter).encode()), CODEC)
    assert read_item(again, CODEC).id == "p"


def overflow_letter(item):
    return json.dumps(
        {
            "original_job": json.loads(item) if item.startswith(b"{") else item.decode(),
            "error": "the queue was full",
            "attempt_count": 0,
            "first_failed_at": "2026-02-02T02:40:00.123Z",
            "last_failed_at": "2026-02-02T02:40:00.123Z",
            "queue_name": "detection_queue",
            "reason": "overflow",
            "overflow_policy": "dlq",
            "buried_ms": NOW,
        }
    ).encode()


def test_a_job_that_was_moved_aside_is_read_with_what_stands_in_it():
    meta = Meta(group="acme", unique="u", tracked=True)
    data = task_item(CODEC, id="i", task="t", args=b"[]", kwargs=b"{}", meta=meta)
    letter = read_letter(overflow_letter(data))
    assert (letter.id, letter.task, letter.group) == ("i", "t", "acme")
    assert (letter.reason, letter.buried_ms) == ("overflow", NOW)
    _, again = replayed_item(letter, CODEC)
    assert read_item(again, CODEC).meta == msgspec.structs.replace(meta, replays=1)


def test_a_packed_job_that_was_moved_aside_comes_back():
    body = json.dumps({"job_id": "j", "text": "x" * 5_000}).encode()
    packed = write_item(Item(body, body=body), Meta(), CODEC)
    letter = read_letter(overflow_letter(packed))
    assert letter.job_id == "j"
    _, again = replayed_item(letter, CODEC)
    assert read_item(again, CODEC).body == body


def test_the_overflow_letters_of_the_old_program_are_read():
    data = json.dumps(
        {
            "original_queue": "detection_queue",
            "data": JOB.decode(),
            "reason": "queue_overflow",
            "overflow_policy": "dlq",
        }
    ).encode()
    letter = read_letter(data)
    assert (letter.queue, letter.reason, letter.job) == ("detection_queue", "queue_overflow", JOB)
    assert letter.id.startswith("letter-")


def test_a_letter_of_the_old_program_is_queued_again():
    record = {
        "original_job": json.loads(JOB),
        "error": "Connection refused",
        "attempt_count": 3,
        "first_failed_at": "2026-01-24T10:30:05.000000",
        "last_failed_at": "2026-01-24T10:30:15.000000",
        "queue_name": "detection_queue",
    }
    letter = read_letter(json.dumps(record).encode())
    assert letter.buried_ms == 1_769_250_615_000
    assert letter.attempts == 3
    _, data = replayed_item(letter, CODEC)
    assert json.loads(read_item(data, CODEC).body) == json.loads(JOB)


@pytest.mark.parametrize(
    "data",
    [b"", b"no json", b"[]", b"null", b"{}", b'{"original_job":', b'{"raw":"%%"}', b"\xff"],
)
def test_what_holds_no_job_is_told_and_cannot_be_queued(data):
    letter = read_letter(data)
    assert letter.fault
    with pytest.raises(ValueError, match=letter.fault):
        replayed_item(letter, CODEC)


@pytest.mark.parametrize("value", [[], {}, 1, None, True, -1, "x", 1e400, 2**70])
def test_fields_of_a_wrong_kind_are_passed_over(value):
    names = [*json.loads(letter_of()), "raw"]
    for name in names:
        record = {**json.loads(letter_of()), name: value}
        letter = read_letter(json.dumps(record).encode())
        assert isinstance(letter.error, str)
        assert 0 <= letter.attempts <= 1_000


@given(st.binary(max_size=200))
def test_no_bytes_make_a_letter_raise(data):
    letter = read_letter(data)
    assert letter.data == data
    buried = read_letter(letter_of(Item(data, body=data)))
    assert buried.job == data


def test_an_edited_letter_keeps_everything_but_the_job():
    meta = Meta(unique="u", tracked=True)
    data = task_item(CODEC, id="i", task="t", args=b"[1]", kwargs=b"{}", meta=meta)
    letter = read_letter(letter_of(data))
    new = task_item(CODEC, id="i", task="t", args=b"[2]", kwargs=b"{}")
    edited = read_letter(edited_letter(letter, new, CODEC))
    assert edited.job == new
    assert edited.history == letter.history
    assert edited.fingerprint == letter.fingerprint
    _, again = replayed_item(edited, CODEC)
    assert read_item(again, CODEC).meta.unique == "u"
    assert bytes(read_item(again, CODEC).args) == b"[2]"


def test_an_edited_overflow_letter_keeps_what_stood_in_its_job():
    data = task_item(CODEC, id="i", task="t", args=b"[]", kwargs=b"{}", meta=Meta(group="g"))
    edited = read_letter(edited_letter(read_letter(overflow_letter(data)), b"a text", CODEC))
    assert (edited.job, edited.job_id) == (b"a text", "i")
    _, again = replayed_item(edited, CODEC)
    assert read_item(again, CODEC).meta.group == "g"
    assert read_item(again, CODEC).body == b"a text"


def test_a_letter_that_was_no_letter_can_be_mended():
    edited = read_letter(edited_letter(read_letter(b"junk"), b"\xff\x00", CODEC))
    assert edited.job == b"\xff\x00"
    assert base64.b64decode(json.loads(edited.data)["raw"]) == b"\xff\x00"
    assert not edited.fault
