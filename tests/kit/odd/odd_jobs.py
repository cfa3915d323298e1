"""Odd bytes where jobs, letters and records are expected, and what must hold for each of them.

Random bytes, real jobs with bytes changed, and JSON that decoders disagree about. The generators
take a `random.Random`, so that a failure is repeated with its number.
"""

import base64
import json
from collections.abc import Iterator
from random import Random

import msgspec
import zstandard

from penstock.delivery.retries import RetryPolicy
from penstock.queues.admin.purging import delayed_body
from penstock.queues.admin.views import show_job
from penstock.queues.dead_letters.letter import build_letter, read_letter
from penstock.queues.dead_letters.replay import edited_letter, replayed_item
from penstock.queues.dead_letters.views import show_letter
from penstock.queues.storage.job_record import JobRecord
from penstock.queues.storage.json_members import find_member, replace_value
from penstock.queues.storage.stored_job import Item, Meta, Trouble, read_item, task_item, write_item
from penstock.queues.worker.attempts import after_crash
from penstock.redis.codec import Codec
from penstock.settings import CodecSettings

CODEC = Codec(CodecSettings())
NOW_MS = 1_800_000_000_000

_NAMES = [
    *(b"a", b"id", b"job_id", b"task", b"args", b"kwargs", b"retry_count", b"max_retries", b"x y"),
    *(b"_penstock", b"_penstock", b"\\u005fpenstock", b"retry\\u005fcount", b"\xff", b"\\ud800"),
]
_VALUES = [
    *(b"1", b"0", b"-0", b"1.10", b"1E5", b"1e999", b"-1e999", b"null", b"true", b'""', b"[]"),
    *(b"{}", b"NaN", b"0x1F", b'"\xff"', b'"\xc3\xa9"', b'"\\ud800"', b'"\\u0000"', b'"},{"'),
    *(b"1" * 30, b"9" * 5_000, b'"' + b"x" * 300 + b'"', b"[" * 200 + b"]" * 200),
    *(b"[" * 3_000 + b"]" * 3_000, b'{"_penstock":{"attempts":3}}', b'[1,"]",{"a":"}"}]'),
    *(b"1_000", b"01", b"'a'", b'"a\nb"', b'"retry_count"', b'"\\"_penstock\\":1"', b"9999999999"),
]
_METAS = [
    *(b"{}", b'{"attempts":1}', b'{"attempts":1e0}', b'{"attempts":-1}', b'{"attempts":1001}'),
    *(
        b'{"raw":"="}',
        b'{"raw":"aGk="}',
        b'{"raw":"%%"}',
        b'{"raw":"\xff"}',
        b'{"raw":"eyJhIjoxfQ=="}',
    ),
    *(b'{"first_failed_ms":' + b"9" * 30 + b"}", b'{"expires_ms":99999999999999999}'),
    *(b'{"history":[{"attempt":1' + b"0" * 30 + b',"at_ms":1}]}', b'{"parked_ms":-5}'),
    *(b'{"history":[{"attempt":1,"at_ms":1,"message":"\xff"}]}', b'{"attempts":1,"x":1e999}'),
    *(b'{"attempts":1,"attempts":2}', b'{"id":"' + b"i" * 300 + b'"}', b'{"unique":"\\u0000 {}"}'),
    *(b'{"group":"' + b"g" * 900 + b'","begun":true,"crashes":2}', b'{"tracked":true,"id":"%"}'),
    *(b'{"headers":{"a":"b"},"max_attempts":1}', b'{"crashes":1,"begun":true,"attempts":3}'),
]
_BLANKS = [b"", b"", b"", b" ", b"\n", b"\t \r"]


def dice(first: int, count: int) -> Iterator[Random]:
    """So many sources of chance, each known by its number."""
    for number in range(first, first + count):
        yield Random(number)  # noqa: S311  it keeps no secret


def _real_job(rng: Random) -> bytes:
    meta = Meta(
        id="a" * rng.randrange(3),
        attempts=rng.randrange(4),
        crashes=rng.randrange(2),
        begun=rng.random() < 0.5,
        history=(Trouble(attempt=1, at_ms=NOW_MS, message="é"),),
        unique="u" * rng.randrange(2),
        tracked=rng.random() < 0.5,
    )
    match rng.randrange(4):
        case 0:
            return task_item(CODEC, id="1", task="t", args=b"[1]", kwargs=b'{"a":2}', meta=meta)
        case 1:
            body = json.dumps({"camera": "front", "retry_count": rng.randrange(3), "x": 1.5})
            return write_item(read_item(body.encode(), CODEC), meta, CODEC)
        case 2:
            return write_item(read_item(rng.randbytes(9), CODEC), meta, CODEC)
        case _:
            args = b'["%s"]' % (b"long " * 1_000)
            return task_item(CODEC, id="1", task="t", args=args, kwargs=b"{}", meta=meta)


def _changed(rng: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(changed) + 1)
        match rng.randrange(4):
            case 0 if place < len(changed):
                changed[place] = rng.randrange(256)
            case 1:
                del changed[place : place + rng.randint(1, 8)]
            case 2:
                changed[place:place] = rng.choice(_VALUES)[:40]
            case _:
                changed[place:place] = rng.randbytes(rng.randint(1, 3))
    return bytes(changed)


def _odd_object(rng: Random) -> bytes:
    def blank() -> bytes:
        return rng.choice(_BLANKS)

    members: list[bytes] = []
    for _ in range(rng.randrange(6)):
        name = rng.choice(_NAMES)
        value = rng.choice(_METAS if name == b"_penstock" and rng.random() < 0.9 else _VALUES)
        members.append(b'%s"%s"%s:%s%s%s' % (blank(), name, blank(), blank(), value, blank()))
    return blank() + b"{" + b",".join(members) + blank() + b"}" + blank()


def odd_job(rng: Random) -> bytes:
    """Return bytes that somebody may have pushed."""
    kind = rng.randrange(10)
    if kind == 0:
        return rng.randbytes(rng.randrange(40))
    if kind <= 3:
        return _changed(rng, _real_job(rng))
    job = _odd_object(rng) if kind <= 7 else _changed(rng, _odd_object(rng))
    if kind == 9:
        packed = base64.b64encode(zstandard.compress(job))
        return b"Z:" + (packed if rng.random() < 0.7 else _changed(rng, packed))
    return job


def odd_letter(rng: Random) -> bytes:
    """Return bytes that somebody may have put among the dead letters."""
    if rng.randrange(6) == 0:
        return odd_job(rng)
    item = read_item(odd_job(rng), CODEC)
    letter = _letter_of(item)
    if rng.randrange(3) == 0:
        return letter
    if rng.randrange(2) == 0:
        return _changed(rng, letter)
    names = [b"original_job", b"data", b"raw", b"id", b"history", b"buried_ms", b"suggestions"]
    names += [b"last_failed_at", b"attempt_count", b"_penstock", b"lane", b"error", b"queue_name"]
    values = [*_VALUES, *_METAS, b'"aGk="', b'"9999-12-31T23:59:59-14:00"', b'"0001-01-01"']
    fields = [b'"%s":%s' % (rng.choice(names), rng.choice(values)) for _ in range(rng.randrange(7))]
    return b"{" + b",".join(fields) + b"}"


def odd_record(rng: Random) -> list[bytes]:
    """Return names and values of a hash where a record is expected."""
    names = [b"status", b"attempt", b"submitted_at", b"failed_at", b"suggestions", b"progress_done"]
    names += [b"duration_seconds", b"result", b"\xff", b"chunks", b"retry_count", b"job_id", b""]
    texts = [b"nan", b"inf", b"1e999", b"9" * 5_000, b"9999-12-31T23:59:59-14:00", b"0001-01-01"]
    texts += [b'["a"]', b"[" * 3_000, b"\xff", b"", b"-1", b"2024-01-01", b"0001-01-01T00:00+14:00"]
    pairs: list[bytes] = []
    for _ in range(rng.randrange(8)):
        pairs += (rng.choice(names), rng.choice(texts + _VALUES))
    return pairs


def check_job(data: bytes) -> None:
    """Read, rewrite, charge, bury, show and requeue a job: none of its own bytes may change."""
    item = read_item(data, CODEC)
    as_json(show_job(item))
    for where in (b"f\n", b"bhigh\n", b"", b"x"):
        delayed_body(where + data, CODEC)
    if item.fault is None:
        named, over = item.id or "j", item.meta.attempts + 1
        meta = msgspec.structs.replace(item.meta, id=named, attempts=over, raw="")
        again = read_item(write_item(item, meta, CODEC), CODEC)
        expected = item.body
        if item.counts_retries:
            count = find_member(expected, "retry_count")
            assert count is not None
            expected = replace_value(expected, count, b"%d" % meta.attempts)
        assert again.body == expected
        assert msgspec.structs.replace(again.meta, raw="") == meta
        assert again.task == item.task
        assert again.id == named
        assert again.counts_retries == item.counts_retries
        once_more = read_item(write_item(again, meta, CODEC), CODEC)
        assert (once_more.body, once_more.meta) == (again.body, again.meta)
    check_crashes(item)
    letter = _letter_of(item)
    read = read_letter(letter)
    assert read.job == item.body, "the job in its letter is another"
    assert not read.fault
    check_letter(letter)


def check_crashes(item: Item) -> None:
    """A job whose worker dies again and again is buried at its limit, not before and not after."""
    policy, seen = RetryPolicy(max_attempts=3), item
    for _ in range(8):
        begun = msgspec.structs.replace(seen, meta=msgspec.structs.replace(seen.meta, begun=True))
        outcome = after_crash(
            *(begun, policy, CODEC), queue="q", lane="", worker="w", now_ms=NOW_MS
        )
        if outcome.reason is not None:
            assert read_letter(outcome.stored).job == seen.body
            limit = seen.meta.max_attempts or min(seen.asked_attempts or 3, 3)
            assert seen.fault is not None or seen.meta.attempts + 1 >= limit
            return
        before, seen = seen, read_item(outcome.stored, CODEC)
        assert seen.meta.attempts == before.meta.attempts + 1
    raise AssertionError("it is never buried")


def check_letter(data: bytes) -> None:
    """Read, show, requeue and edit a letter."""
    letter = read_letter(data)
    assert letter.id
    assert letter.data == data
    as_json(show_letter(letter, CODEC))
    try:
        item, job = replayed_item(letter, CODEC)
    except ValueError:
        assert letter.fault
    else:
        again = read_item(job, CODEC)
        if item.fault is None:
            assert again.body == item.body or item.counts_retries
            assert again.meta.attempts == 0
    for new in (b"x", b"\xff", b'{"a":1e999}', b"{}"):
        edited = read_letter(edited_letter(letter, new, CODEC))
        assert edited.job == new


def check_record(stored: list[bytes]) -> None:
    """Read and show a record."""
    record = JobRecord.of("q", "j", stored)
    as_json(record)
    json.dumps(record.contract_view())


def as_json(view: object) -> bytes:
    return msgspec.json.encode(view)


def _letter_of(item: Item) -> bytes:
    return build_letter(
        *(item,), queue="q", lane="", reason="exhausted", attempts=3, max_attempts=3, failures=(),
        now_ms=NOW_MS,
    )  # fmt: skip
