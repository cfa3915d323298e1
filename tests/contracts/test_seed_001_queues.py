"""The security pipeline's queues, letter by letter: its keys, messages and answers.

Everything is written and read with plain commands, as its other programs do.
"""

import base64
import json
import re
import secrets

import pytest

from penstock import Fixed, RetryPolicy, block
from penstock.settings import CodecSettings
from penstock.testing.eventually import eventually

DETECTION = {
    "camera_id": "front_door",
    "file_path": "/export/foscam/Front Door/image_001.jpg",
    "timestamp": "2026-01-24T10:30:00.000000",
}
ANALYSIS = {
    "batch_id": "abc123-def456",
    "camera_id": "front_door",
    "detection_ids": [1, 2, 3],
    "started_at": "2026-01-24T10:30:00.000000",
    "ended_at": "2026-01-24T10:31:30.000000",
}
ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.mark.parametrize(
    ("queue", "job"), [("detection_queue", DETECTION), ("analysis_queue", ANALYSIS)]
)
async def test_what_any_program_pushes_is_handled_first_in_first_out(workplace, cli, queue, job):
    app, seen = await workplace.open(), []

    @app.queue(queue).handler
    async def handle(payload: dict) -> None:
        seen.append(payload)

    for number in range(3):
        cli("RPUSH", queue, json.dumps({**job, "n": number}))
    assert cli("LLEN", queue) == 3
    assert json.loads(cli("LINDEX", queue, 0)) == {**job, "n": 0}
    await workplace.start(app, concurrency=1)
    await eventually(lambda: len(seen) == 3)
    assert seen == [{**job, "n": number} for number in range(3)]
    await eventually(lambda: cli("EXISTS", queue) == 0)


async def test_what_is_pushed_here_reads_there_as_the_same_json(workplace, cli):
    app = await workplace.open()
    await app.queue("detection_queue").push(DETECTION)
    assert cli("TYPE", "detection_queue") == "list"
    assert json.loads(cli("LINDEX", "detection_queue", -1)) == DETECTION
    assert cli("TTL", "detection_queue") == -1


async def test_a_job_that_fails_for_good_is_a_letter_of_the_documented_shape(workplace, cli):
    app = await workplace.open()
    queue = app.queue("detection_queue", retry=RetryPolicy(max_attempts=3, backoff=Fixed(0.02)))

    @queue.handler
    async def detect(job: dict) -> None:
        raise ConnectionError("Connection refused: detector service unavailable")

    cli("RPUSH", "detection_queue", json.dumps(DETECTION))
    await workplace.start(app)
    await eventually(lambda: cli("LLEN", "dlq:detection_queue") == 1)
    letter = json.loads(cli("LINDEX", "dlq:detection_queue", 0))
    assert letter["original_job"] == DETECTION
    assert letter["error"] == "Connection refused: detector service unavailable"
    assert letter["attempt_count"] == 3
    assert letter["queue_name"] == "detection_queue"
    assert ISO.fullmatch(letter["first_failed_at"])
    assert ISO.fullmatch(letter["last_failed_at"])
    assert letter["first_failed_at"] < letter["last_failed_at"]
    assert letter["error_type"] == "ConnectionError"
    assert 0 < len(letter["stack_trace"]) <= 4_096
    assert list(letter)[:6] == [
        *("original_job", "error", "attempt_count", "first_failed_at", "last_failed_at"),
        "queue_name",
    ]
    assert cli("TTL", "dlq:detection_queue") == -1
    assert cli("EXISTS", "detection_queue") == 0


async def test_letters_of_the_original_program_can_be_queued_again(workplace, cli):
    app, seen = await workplace.open(), []

    @app.queue("detection_queue").handler
    async def detect(job: dict) -> None:
        seen.append(job)

    letter = {
        "original_job": DETECTION,
        "error": "Connection refused: detector service unavailable",
        "attempt_count": 3,
        "first_failed_at": "2026-01-24T10:30:05.000000",
        "last_failed_at": "2026-01-24T10:30:15.000000",
        "queue_name": "detection_queue",
    }
    cli("RPUSH", "dlq:detection_queue", json.dumps(letter))
    cli("RPUSH", "dlq:detection_queue", "not a letter")
    await workplace.start(app)
    dead = app.queues.dead_letters("detection_queue")
    await dead.replay()
    await eventually(lambda: DETECTION in seen)


# ---- overflow


async def test_the_documented_call_moves_the_oldest_to_the_overflow(workplace, cli):
    app = await workplace.open()
    for number in range(5):
        cli("RPUSH", "detection_queue", json.dumps({**DETECTION, "n": number}))
    result = await app.add_to_queue_safe(
        queue_name="detection_queue",
        data={"camera_id": "front_door", "file_path": "/path/to/image.jpg"},
        max_size=5,
        overflow_policy="dlq",
    )
    assert (result.success, result.queue_length, result.moved_to_dlq_count) == (True, 5, 1)
    assert (result.dropped_count, result.error, result.had_backpressure) == (0, None, True)
    assert result.warning
    assert cli("LLEN", "detection_queue") == 5
    assert cli("LLEN", "dlq:overflow:detection_queue") == 1
    moved = json.loads(cli("LINDEX", "dlq:overflow:detection_queue", 0))
    assert moved["original_job"] == {**DETECTION, "n": 0}
    assert (moved["queue_name"], moved["reason"], moved["overflow_policy"]) == (
        *("detection_queue", "overflow", "dlq"),
    )
    assert (moved["attempt_count"], bool(moved["error"])) == (0, True)
    assert ISO.fullmatch(moved["first_failed_at"])
    assert ISO.fullmatch(moved["last_failed_at"])
    assert cli("TTL", "dlq:overflow:detection_queue") == -1


async def test_reject_adds_nothing_and_drop_oldest_trims(workplace, cli):
    app = await workplace.open()
    for number in range(3):
        cli("RPUSH", "detection_queue", json.dumps({"n": number}))
    rejected = await app.add_to_queue_safe("detection_queue", {"n": 3}, 3, "reject")
    assert (rejected.success, rejected.queue_length) == (False, 3)
    assert rejected.error
    assert rejected.had_backpressure
    assert cli("LLEN", "detection_queue") == 3
    dropped = await app.add_to_queue_safe("detection_queue", {"n": 3}, 3, "drop_oldest")
    assert (dropped.success, dropped.dropped_count, dropped.queue_length) == (True, 1, 3)
    kept = [json.loads(job)["n"] for job in cli("LRANGE", "detection_queue", 0, -1)]
    assert kept == [1, 2, 3]
    assert cli("EXISTS", "dlq:overflow:detection_queue") == 0


async def test_an_unknown_policy_falls_back_to_reject_with_a_warning(workplace, cli):
    app = await workplace.open()
    cli("RPUSH", "detection_queue", "{}")
    result = await app.add_to_queue_safe("detection_queue", {}, 1, "no such policy")
    assert not result.success
    assert cli("LLEN", "detection_queue") == 1
    added = await app.add_to_queue_safe("detection_queue", {}, 5, "no such policy")
    assert added.success
    assert "no such policy" in added.warning


async def test_plain_text_is_added_as_it_is(workplace, cli):
    app = await workplace.open()
    await app.add_to_queue_safe("detection_queue", "plain text")
    assert cli("LINDEX", "detection_queue", 0) == "plain text"


async def test_pressure_has_the_documented_fields(workplace, cli):
    app = await workplace.open()
    rows = (
        (0, 0.0, False, False),
        (7, 0.7, False, False),
        (8, 0.8, True, False),
        (10, 1, True, True),
    )
    for length, ratio, pressed, full in rows:
        cli("DEL", "detection_queue")
        for _ in range(length):
            cli("RPUSH", "detection_queue", "{}")
        metrics = await app.get_queue_pressure(
            queue_name="detection_queue", max_size=10, timeout=5.0
        )
        assert (metrics.current_length, metrics.max_size) == (length, 10)
        assert metrics.fill_ratio == pytest.approx(ratio)
        assert metrics.is_at_pressure_threshold == pressed
        assert metrics.is_full == full
        assert metrics.overflow_policy == "reject"


async def test_defaults_are_the_documented_ones(workplace):
    app = await workplace.open()
    settings = app.settings.queues
    assert (settings.max_size, settings.overflow_policy, settings.pressure) == (
        *(10_000, "reject", 0.8),
    )
    assert app.settings.codec.compress_above == 1024


async def test_block_is_a_policy_of_ours(workplace, cli):
    app = await workplace.open()
    cli("RPUSH", "detection_queue", "{}")
    result = await app.add_to_queue_safe("detection_queue", {}, 1, block(0.05))
    assert (result.success, cli("LLEN", "detection_queue")) == (False, 1)


# ---- compression


def of_size(size):
    """A job whose JSON has so many bytes, and which can be compressed."""
    empty = len(b'{"camera_id":""}')
    return {"camera_id": "x" * (size - empty)}


async def test_a_payload_at_the_threshold_stays_text_and_one_above_is_compressed(workplace, cli):
    app, seen = await workplace.open(), []
    queue = app.queue("detection_queue")

    @queue.handler
    async def detect(job: dict) -> None:
        seen.append(job)

    at, above = of_size(1024), of_size(1025)
    await queue.push(at)
    await queue.push(above)
    plain, packed = cli("LRANGE", "detection_queue", 0, -1)
    assert len(plain) == 1024
    assert json.loads(plain) == at
    assert packed.startswith("Z:")
    assert base64.b64decode(packed[2:])[:4] == b"\x28\xb5\x2f\xfd"
    assert len(packed) < 1025
    cli("RPUSH", "detection_queue", json.dumps(above))  # one that its writer did not compress
    await workplace.start(app, concurrency=1)
    await eventually(lambda: seen == [at, above, above])


async def test_what_does_not_get_smaller_is_left_alone(workplace, cli):
    app = await workplace.open()
    text = secrets.token_urlsafe(1500)
    await app.queue("detection_queue").push({"t": text})
    assert json.loads(cli("LINDEX", "detection_queue", 0)) == {"t": text}


async def test_text_that_begins_like_a_compressed_one_comes_out_as_it_went_in(workplace, cli):
    app, seen = await workplace.open(), []
    queue = app.queue("detection_queue")

    @queue.handler
    async def detect(job: str) -> None:
        seen.append(job)

    await workplace.start(app)
    await queue.push("Z: is a letter")
    await eventually(lambda: seen == ["Z: is a letter"])


async def test_the_threshold_is_a_setting_and_retries_keep_to_it(workplace, cli):
    app = await workplace.open(codec=CodecSettings(compress_above=100))
    queue = app.queue("detection_queue", retry=RetryPolicy(max_attempts=2, backoff=Fixed(60)))

    @queue.handler
    async def detect(job: dict) -> None:
        raise LookupError

    await workplace.start(app)
    await queue.push(of_size(101))
    await eventually(lambda: cli("ZCARD", "penstock:queue:detection_queue:delayed") == 1)
    (body,) = cli("HVALS", "penstock:queue:detection_queue:delayed_bodies")
    assert body.startswith("f\nZ:")
