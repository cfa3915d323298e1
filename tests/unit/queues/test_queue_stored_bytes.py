"""Whatever bytes stand where a job, letter or record is expected: nothing raises or is lost."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.odd.odd_jobs import (
    CODEC,
    check_job,
    check_letter,
    check_record,
    dice,
    odd_job,
    odd_letter,
    odd_record,
)

from penstock.delivery.retries import MOST_ATTEMPTS, RetryPolicy
from penstock.errors import SettingError
from penstock.queues.storage.json_members import (
    find_member,
    is_only_member,
    replace_value,
    without_member,
)
from penstock.queues.storage.stored_job import Item, Meta, read_item, write_item
from penstock.queues.worker.attempts import after_crash
from penstock.redis.codec import Codec
from penstock.settings import CodecSettings

CASES = 2_000
"""Of each kind in every run; the torture run has a million."""

FOREIGN = [
    b'{"_penstock":{"attempts":1},"x":1e999}',
    b'{"_penstock":{"attempts":1},"x":"\xff"}',
    b'{"retry_count":0,"x":"\xff"}',
    b'{"retry_count":0,"x":1e999}',
    b'{"retry_count":0,"price":1.10,"price":1.20}',
    b'{"_penstock":{"first_failed_ms":%s}}' % (b"9" * 30),
    b'{"_penstock":{"history":[{"attempt":%s,"at_ms":1}]}}' % (b"9" * 30),
    b'{"_penstock":{"raw":"aGk="},"mine":1}',
    b'{"retry_count":0,"deep":%s}' % (b"[" * 900 + b"]" * 900),
    b'{"_penstock":{},"deep":%s}' % (b"[" * 100_000 + b"]" * 100_000),
    b'{"_penstock":{"attempts":1},"n":%s}' % (b"9" * 10_000),
    b" {} ",
    b'{"\\u005fpenstock":{"attempts":1},"a":1}',
]  # fmt: skip


@pytest.mark.parametrize("data", FOREIGN, ids=lambda data: data[:40].decode("latin-1"))
def test_a_job_that_no_decoder_takes_as_a_whole_keeps_its_bytes(data):
    check_job(data)


@given(st.binary(max_size=60) | st.binary(max_size=20).map(lambda odd: b'{"a":' + odd + b"}"))
def test_any_bytes_are_a_job(data):
    check_job(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_letter(data):
    check_letter(data)


@pytest.mark.parametrize("part", range(4))
def test_odd_jobs_are_read_rewritten_charged_buried_and_queued_again(part):
    for rng in dice(part * CASES, CASES):
        check_job(odd_job(rng))


def test_odd_letters_are_read_shown_edited_and_queued_again():
    for rng in dice(0, CASES):
        check_letter(odd_letter(rng))


def test_odd_records_are_read_and_shown():
    for rng in dice(0, CASES):
        check_record(odd_record(rng))


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_a_million_odd_jobs_letters_and_records():
    for rng in dice(0, 1_000_000):
        check_job(odd_job(rng))
        check_letter(odd_letter(rng))
        check_record(odd_record(rng))


def test_a_count_of_retries_is_all_that_changes_in_a_job():
    body = b'{ "price": 1.10, "retry_count" : 0, "x": [1, 2],"cost": 1e999 }\n'
    stored = write_item(read_item(body, CODEC), Meta(id="j", attempts=3), CODEC)
    assert read_item(stored, CODEC).body == body.replace(b": 0,", b": 3,")


def test_a_job_too_large_to_be_packed_stays_unpacked():
    codec = Codec(CodecSettings(compress_above=64, max_inflated=2_048))
    data = b'{"retry_count":0,"x":"%s"}' % (b"x" * 4_096)
    item = read_item(data, codec)
    again = read_item(write_item(item, Meta(attempts=1), codec), codec)
    assert again.body == data.replace(b":0", b":1")
    assert again.meta.attempts == 1


@pytest.mark.parametrize("limit", [1, 2, 999, 1_000, 1_001, 1_005, 100_000])
@pytest.mark.parametrize("foreign", [False, True])
def test_crashes_end_with_the_last_attempt_that_the_policy_allows(limit, foreign):
    item = Item(b"x", body=b'{"retry_count":0}', counts_retries=foreign)
    policy = RetryPolicy(max_attempts=limit)

    def outcome(over: int) -> str:
        item.meta = Meta(attempts=over, crashes=min(over, 2), begun=True)
        told = after_crash(item, policy, CODEC, queue="q", lane="", worker="w", now_ms=1)
        if told.reason is None:
            assert read_item(told.stored, CODEC).meta.attempts == over + 1
        return "bury" if told.reason else "back"

    assert outcome(limit - 1) == "bury"
    if limit > 1:
        assert outcome(limit - 2) == "back"
    assert outcome(limit) == "bury"


def test_a_policy_cannot_allow_more_attempts_than_can_be_counted():
    assert RetryPolicy(max_attempts=MOST_ATTEMPTS).max_attempts == MOST_ATTEMPTS
    with pytest.raises(SettingError, match="from 1 to 1,000,000,000"):
        RetryPolicy(max_attempts=MOST_ATTEMPTS + 1)


values = st.integers() | st.text('a"\\}],:', max_size=4)
objects = st.dictionaries(
    st.text('a"é\\', max_size=3), values | st.lists(values, max_size=3), min_size=1, max_size=4
)


@given(objects, st.data())
def test_a_member_is_found_replaced_and_removed_as_a_decoder_sees_it(job, data):
    body = msgspec.json.encode(job)
    name = data.draw(st.sampled_from(sorted(job)))
    member = find_member(body, name)
    assert member is not None
    assert msgspec.json.decode(body[member.value : member.end]) == job[name]
    assert is_only_member(body, member) == (len(job) == 1)
    assert msgspec.json.decode(replace_value(body, member, b"[7]")) == {**job, name: [7]}
    del job[name]
    assert msgspec.json.decode(without_member(body, member)) == job


def test_a_member_that_is_not_there_is_not_found():
    assert find_member(b'{"a":{"b":1},"c":"b"}', "b") is None
    assert find_member(b"{}", "b") is None
