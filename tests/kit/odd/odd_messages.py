"""Odd bytes where entries, letters and facts of topics are expected; what must hold for each.

Random bytes, real entries with bytes changed, and values that decoders disagree about. The
generators take a `random.Random`, so that a failure is repeated with its number.
"""

import os
from random import Random

import msgspec
import zstandard

from penstock.delivery.audit import read_act
from penstock.delivery.failures import Failure, read_failures
from penstock.errors import DecodeError
from penstock.interfaces.cli.wording import message_line, moment
from penstock.redis.codec import Codec
from penstock.settings import CodecSettings
from penstock.topics.admin.browsing import show_entry
from penstock.topics.consumer.fair_share import candidates, quota, read_member
from penstock.topics.consumer.growth_barrier import read_markers
from penstock.topics.dead_letters.letter import Letter, letter_fields
from penstock.topics.dead_letters.replay import foreign_fields
from penstock.topics.message import Message, Source, field_of, is_marker
from penstock.topics.storage.group_registration import read_registration
from penstock.topics.storage.message_id import identify
from penstock.topics.storage.metadata import read_options

CODEC = Codec(CodecSettings())
TYPES = (int, dict[str, int], str, bytes, object)
SOURCES = [Source("orders", 3, "billing", CODEC.decoder(type_)) for type_ in TYPES]

NAMES = [
    *(b"payload", b"payload", b"key", b"headers", b"targetGroup", b"barrier", b"retryCount"),
    *(b"maxRetries", b"timestamp", b"partitionId", b"originalMessageId", b"messageId", b"fields"),
    *(b"", b"\xff", b"x" * 300, b"rawFields", b"topic"),
]
_FRAME = zstandard.ZstdCompressor().compress(b'{"total":1}' * 200)
_REFERENCE = (
    b'{"x-payload-storage-type":"hash","x-payload-hash-ref":"%s","x-payload-original-size":"%s"}'
)
VALUES = [
    *(b"1", b"0", b"-1", b"", b"{}", b"[]", b"null", b"NaN", b"1e999", b'"a"', b'"\xff"', b"\xff"),
    *(b"9" * 30, b"9" * 5_000, b"1" + b"0" * 4_299, b"\xd9\xa1", b"0x10", b" 1", b"1_000", b"+5"),
    *(b"[" * 300 + b"]" * 300, b"[" * 100_000, b'{"a":' * 3_000, b'{"a":"\\ud800"}', b'"\\ud800"'),
    *(b'{"a":1,"b":[{}],"c":"d"}', b'{"\xff":"\xfe"}', b'{"a":1e999}', b'{"a":%b}' % (b"9" * 400)),
    *(_FRAME, _FRAME[:20], _FRAME[:4], _FRAME[:4] + os.urandom(40), b"(\xb5/\xfd" + b"\xff" * 30),
    *(b"0-1-1", b"3-1700000000000-0", b"99999-1-1", b"d-" + b"a" * 32, b"d-x", b"1700000000000-0"),
    *(b"18446744073709551615-18446744073709551615", b"1-99999999999999999999999", b"-", b"+", b"$"),
    *(_REFERENCE % (b"penstock:other", b"5"), _REFERENCE % (b"", b"9" * 400)),
    *(b'{"x-payload-storage-type":"hash"}', b'{"x-payload-storage-type":{"a":1}}'),
    *(b'{"pin":[0,0]}', b'{"pin":[3,1],"cap":-4}', b'{"start":"abc","partitions":-1}', b"billing"),
    *(b'{"retention":{"max_length":-1}}', b'{"retention":{"max_age_s":1e308}}', b"2026-01-01"),
    *(b'[{"error_class":"E","message":"m","stack":"","fingerprint":"f","at_ms":%s,"attempt":%s}]'
      % (at, attempt) for at, attempt in ((b"1", b"1"), (b"9" * 30, b"1"), (b"-5", b"9" * 40))),
    msgspec.msgpack.encode([b"a", b"\xff"]), msgspec.msgpack.encode([1, {}, None]), b"\xdd\xff\xff",
]  # fmt: skip
_REAL = [
    [b"payload", b'{"total":12}', b"key", b"ann"],
    [b"payload", b"12", b"headers", b'{"trace":"t-1"}', b"messageId", b"2-1700000000000-3"],
    [b"targetGroup", b"billing", b"payload", b"5", b"key", "é".encode(), b"headers", b"{}"],
    [b"key", b"k", b"headers", _REFERENCE % (b"streaming:mq:payload:orders:p:3:n", b"70000")],
    [b"payload", _FRAME, b"timestamp", b"2026-01-01T00:00:00.000Z", b"retryCount", b"1"],
    [b"barrier", b"2"],
]
_LETTER = [
    *(b"originalTopic", b"orders", b"payload", b"12", b"timestamp", b"2026-01-01T00:00:00.000Z"),
    *(b"failedAt", b"2026-01-01T00:00:01.000Z", b"retryCount", b"2", b"partitionId", b"3"),
    *(b"headers", b'{"trace":"t"}', b"originalMessageId", b"1700000000000-0", b"maxRetries", b"2"),
    *(b"key", b"k", b"group", b"billing", b"attempts", b"3", b"reason", b"exhausted"),
    *(b"errorClass", b"ValueError", b"errorMessage", b"no", b"stack", b"", b"fingerprint", b"f"),
    *(b"firstFailureMs", b"1700000000000", b"lastFailureMs", b"1700000000001"),
]


def odd_value(rng: Random) -> bytes:
    match rng.randrange(4):
        case 0:
            return rng.randbytes(rng.randrange(40))
        case 1:
            return mutated(rng, rng.choice(VALUES)[:2_000])
        case _:
            return rng.choice(VALUES)


def mutated(rng: Random, data: bytes) -> bytes:
    """Change, drop or repeat some bytes."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(changed) + 1)
        match rng.randrange(3):
            case 0:
                changed[place : place + 1] = rng.randbytes(1)
            case 1:
                del changed[place : place + rng.randrange(1, 4)]
            case _:
                changed[place:place] = changed[place : place + 8]
    return bytes(changed)


def odd_entry(rng: Random) -> list[bytes]:
    """Fields of an entry, names and values in turn."""
    if rng.random() < 0.4:
        return [mutated(rng, part) if rng.random() < 0.4 else part for part in rng.choice(_REAL)]
    fields: list[bytes] = []
    for _ in range(rng.randrange(1, 6)):
        name = rng.choice(NAMES) if rng.random() < 0.9 else rng.randbytes(rng.randrange(5))
        fields += [name, odd_value(rng)]
    return fields


def odd_letter(rng: Random) -> list[bytes]:
    fields = list(_LETTER)
    for _ in range(rng.randrange(1, 5)):
        place = rng.randrange(len(fields))
        fields[place] = odd_value(rng)
    if rng.random() < 0.5:
        fields += [rng.choice(NAMES), odd_value(rng)]
    return fields if rng.random() < 0.9 else odd_entry(rng)


def entry_id(rng: Random) -> bytes:
    if rng.random() < 0.9:
        return b"1700000000000-%d" % rng.randrange(100)
    return b"%d-%d" % (rng.randrange(2**64), rng.randrange(2**64))


def check_entry(rng: Random, fields: list[bytes]) -> None:
    """Whatever a consumer, the views and the dead letters do with an entry."""
    message = Message(rng.choice(SOURCES), entry_id(rng), fields, rng.randrange(1, 4))
    assert isinstance(message.id, str)
    assert message.id.isascii()
    _ = (repr(message), message.key, message.headers, message.all_headers, is_marker(fields))
    assert message.sent_ms >= 0
    error: Exception = ValueError("no")
    try:
        _ = message.payload
    except DecodeError as undecodable:
        error = undecodable
    place = ((message.sent_ms, int(message.entry_id.partition(b"-")[2])), 3)
    view = show_entry(CODEC, place, fields, None, 100)
    assert view.id == message.id
    msgspec.json.encode(view)
    message_line(view)
    failures = [Failure.of(error, message.attempt, 1_700_000_000_000)]
    stored = letter_fields(message, reason="undecodable", attempts=1, failures=failures)
    letter = check_letter([part if type(part) is bytes else part.encode() for part in stored])
    assert letter.message_id == message.id
    payload = field_of(fields, b"payload")
    if payload is not None:
        assert letter.raw[b"payload"] == payload
    elif len(fields) % 2 == 0:
        assert letter.raw_fields == fields, "a replay gives back every byte"


def check_letter(fields: list[bytes]) -> Letter:
    letter = Letter(b"1700000000000-0", fields)
    view = letter.view(CODEC, 100)
    msgspec.json.encode(view)
    for ms in (view.first_failure_ms, view.last_failure_ms, view.buried_ms):
        moment(ms)
    assert letter.partition >= 0
    _ = (letter.index_field, letter.headers, letter.fields, letter.payload)
    if letter.raw_fields is not None:
        assert len(foreign_fields(letter)) % 2 == 0
    return letter


def check_facts(rng: Random, stored: bytes) -> None:
    """Everything else that is stored with a topic or a group."""
    failures = read_failures(stored)
    assert read_failures(msgspec.json.encode(failures)) == failures
    members = {"me": read_member(stored), "you": read_member(odd_value(rng))}
    if quota("me", candidates(8, members["me"], members), members) < 0:
        raise AssertionError(members)
    read_options("orders", stored)
    assert read_registration(stored, 4).start
    markers = read_markers([b"barrier:2:0", stored, b"barrier:" + stored, b"1-1", stored, stored])
    assert all(isinstance(index, int) for places in markers.values() for index in places)
    assert identify(1, b"1-1", stored)
    act = read_act(b"1700000000000-0", {b"count": stored, b"who": stored, b"detail": stored})
    msgspec.json.encode(act)
