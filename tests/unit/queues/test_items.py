"""Jobs as they stand on a list: whatever anybody pushed is read, and comes back as it was."""

import base64
import json
import pickle
from base64 import b64encode

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from penstock.delivery.retries import MOST_ATTEMPTS
from penstock.queues.storage.stored_job import (
    LATEST_MS,
    Meta,
    Trouble,
    id_ms,
    new_id,
    new_ids,
    read_claimed,
    read_item,
    read_meta,
    task_item,
    write_item,
)
from penstock.redis.codec import Codec
from penstock.settings import CodecSettings

CODEC = Codec(CodecSettings())

metas = st.builds(
    Meta,
    id=st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    attempts=st.integers(0, MOST_ATTEMPTS),
    crashes=st.integers(0, MOST_ATTEMPTS),
    begun=st.booleans(),
    first_failed_ms=st.integers(0, LATEST_MS),
    unique=st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    expires_ms=st.integers(0, LATEST_MS),
    max_attempts=st.integers(0, MOST_ATTEMPTS),
    group=st.text("ab /{}", max_size=5),
    replays=st.integers(0, 5),
    parked_ms=st.integers(0, LATEST_MS),
    tracked=st.booleans(),
    headers=st.dictionaries(st.text("abc", max_size=3), st.text("xyz\n", max_size=9), max_size=3),
    history=st.lists(
        st.builds(
            Trouble, attempt=st.integers(1, 9), at_ms=st.integers(0, 9), message=st.text("é")
        ),
        max_size=3,
    ).map(tuple),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text('aé"\\}{,:\n'),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("ab_penstock", max_size=9), inner, max_size=3)
    ),
    max_leaves=10,
)
objects = st.dictionaries(
    st.sampled_from(["a", "job_id", "id", "args", "max_retries", "x y", "é"]), json_values
)


def test_a_task_reads_as_it_was_written():
    data = task_item(CODEC, id="1", task="mail.welcome", args=b"[42]", kwargs=b'{"lang":"de"}')
    assert json.loads(data) == {
        "id": "1",
        "task": "mail.welcome",
        "args": [42],
        "kwargs": {"lang": "de"},
    }
    item = read_item(data, CODEC)
    assert (item.id, item.task, bytes(item.args), bytes(item.kwargs)) == (
        *("1", "mail.welcome", b"[42]", b'{"lang":"de"}'),
    )
    assert item.meta == Meta()
    assert item.fault is None


@given(metas)
def test_what_is_remembered_of_a_task_travels_with_it(meta):
    data = task_item(CODEC, id="1", task="t", args=b"[]", kwargs=b"{}", meta=meta)
    item = read_item(data, CODEC)
    assert item.meta == meta
    assert item.body == task_item(CODEC, id="1", task="t", args=b"[]", kwargs=b"{}")
    again = read_item(write_item(item, Meta(attempts=1), CODEC), CODEC)
    assert (again.body, again.meta) == (item.body, Meta(attempts=1))


@given(objects, metas, st.sampled_from(["", " ", "\n\t"]))
def test_a_raw_object_is_never_changed_by_what_is_remembered_of_it(job, meta, blank):
    body = (json.dumps(job) + blank).encode()
    item = read_item(body, CODEC)
    assert (item.body, item.fault) == (body, None)
    again = read_item(write_item(item, meta, CODEC), CODEC)
    assert json.loads(again.body) == job
    assert again.meta == meta
    thrice = read_item(write_item(again, Meta(attempts=2), CODEC), CODEC)
    assert (json.loads(thrice.body), thrice.meta.attempts) == (job, 2)


@given(st.binary(max_size=300), metas)
def test_any_bytes_come_back_as_they_were(data, meta):
    item = read_item(data, CODEC)
    if item.fault is not None or item.meta != Meta() or item.counts_retries:
        return
    again = read_item(write_item(item, meta, CODEC), CODEC)
    assert again.body.rstrip() == data.rstrip()
    assert msgspec.structs.replace(again.meta, raw="") == meta


@pytest.mark.parametrize("size", [10, 5_000, 200_000])
def test_long_jobs_are_compressed_as_text_and_read_again(size):
    data = task_item(CODEC, id="1", task="t", args=b'["%b"]' % (b"a" * size), kwargs=b"{}")
    assert data.startswith(b"Z:") == (size > 1024)
    data.decode("ascii")
    item = read_item(data, CODEC)
    assert len(bytes(item.args)) == size + 4
    again = read_item(write_item(item, Meta(attempts=1), CODEC), CODEC)
    assert (bytes(again.args), again.meta.attempts) == (bytes(item.args), 1)


# ---- written past our producer


def frame(data, **options):
    return b"Z:" + base64.b64encode(zstandard.ZstdCompressor(**options).compress(data))


BOMB = frame(b"\x00" * 300_000_000)
HUGE = b"Z:" + base64.b64encode(
    b"\x28\xb5\x2f\xfd\xe0" + (2**60).to_bytes(8, "little") + b"\x00" * 9
)


@pytest.mark.parametrize(
    "data",
    [
        b"Z:not base64!",
        b"Z:KLUv/",
        b"Z:" + base64.b64encode(b"no frame at all"),
        BOMB,
        HUGE,
        frame(b"{}") + b"AAAA",
        b"Z:" + base64.b64encode(b"\x28\xb5\x2f\xfd\x23\xff\xff\xff\xff\x02\x01\x00\x00"),
    ],
    ids=["base64", "cut", "no frame", "bomb", "huge", "trailing", "dictionary"],
)
def test_what_says_it_is_compressed_and_is_not_has_a_fault(data):
    item = read_item(data, CODEC)
    assert item.fault is not None or item.body == data
    assert item.data == data
    assert len(item.body) <= 1_000_000


@pytest.mark.parametrize(
    "data",
    [
        *(
            b"",
            b" ",
            b"\x00",
            b"\xff\xfe",
            b"null",
            b"[]",
            b"5",
            b'"text"',
            b"{",
            b"{]",
            b"\xef\xbb\xbf{}",
        ),
        *(b'{"a":1,}', b'{"a":NaN}', b"[" * 100_000, b'{"a":' * 100_000, b"9" * 1_000_000),
        *('{"a":1}'.encode("utf-16"), b'{"a":"\xff"}', pickle.dumps({"a": 1})),
    ],
)
def test_what_is_no_object_is_a_raw_job_of_its_own_bytes(data):
    item = read_item(data, CODEC)
    assert (item.body, item.task, item.id, item.fault) == (data, "", "", None)
    if len(data) < 100_000:
        assert read_item(write_item(item, Meta(attempts=1), CODEC), CODEC).body == data


@pytest.mark.parametrize(
    "job",
    [
        {"task": 5, "args": []},
        {"task": None},
        {"task": ""},
        {"id": 7, "job_id": 8},
        {"job_id": "x" * 1_000_000},
        {"job_id": ""},
        {"retry_count": -1},
        {"retry_count": "3"},
        {"retry_count": 10**10},
        {"retry_count": True},
        {"retry_count": 1.5},
        {"max_retries": -5},
        {"max_retries": 10**30},
        {"max_retries": [1]},
        {"version": "abc", "unknown": {"a": [1]}},
        {"args": 5, "kwargs": "no", "task": "t"},
    ],
)
def test_fields_of_a_wrong_kind_are_left_to_the_job(job):
    data = json.dumps(job).encode()
    item = read_item(data, CODEC)
    assert (item.body, item.meta, item.asked_attempts) == (data, Meta(), 0)
    assert not item.counts_retries
    assert item.id == ""
    again = read_item(write_item(item, Meta(attempts=1), CODEC), CODEC)
    assert json.loads(again.body) == job


@pytest.mark.parametrize(
    "told",
    [
        *(5, None, "x", [], {"attempts": -1}, {"attempts": 10**10}, {"attempts": "3"}),
        *({"raw": "not base64!"}, {"history": 5}, {"headers": {"a": 1}}, {"tracked": "yes"}),
    ],
)
def test_what_others_keep_under_our_name_does_not_harm(told):
    data = json.dumps({"a": 1, "_penstock": told}).encode()
    item = read_item(data, CODEC)
    assert item.meta == Meta()
    assert item.fault is None
    assert read_item(write_item(item, Meta(attempts=1), CODEC), CODEC).meta.attempts == 1


def test_what_is_remembered_is_found_wherever_another_program_has_put_it():
    data = b'{"_penstock":{"attempts":2}, "a": 1}'
    item = read_item(data, CODEC)
    assert (item.meta.attempts, json.loads(item.body)) == (2, {"a": 1})


def test_a_job_with_two_members_of_one_name_is_at_fault_and_nothing_of_it_is_lost():
    item = read_item(b'{"job_id":"a","job_id":"b"}', CODEC)
    assert "two members of one name" in str(item.fault)
    assert item.id == "b"
    assert item.body == b'{"job_id":"a","job_id":"b"}'


@pytest.mark.parametrize(
    "data",
    [
        b'{"id":"1","task":"t","args":[],"kwargs":{},"task":"u"}',
        b'{"id":"1","task":"t","args":[1],"args":["a:b"],"kwargs":{}}',
        b'{"id":"1","task":"t","args":[{"a":1,"a":2}],"kwargs":{}}',
        b'{"id":"1","task":"t","args":[":"],"kwargs":{"a":1,"a":2}}',
        b'{"id":"1","task":"t","args":[],"kwargs":{"a":1},"kwargs":{}}',
        b'{"id":"1","task" :"t","args":[],"kwargs":{},"\\u0069d":"2"}',
        b'{"id":"1","task":"t","args":[],"_penstock":{"id":"a"},"_penstock":{"id":"b"}}',
        b'{"_penstock":{"id":"x","raw":"%s"}}' % b64encode(b'{"a":1,"a":2}'),
    ],
)
def test_no_form_of_a_job_hides_a_second_member_of_one_name(data):
    assert "two members of one name" in str(read_item(data, CODEC).fault)


@pytest.mark.parametrize(
    "data",
    [
        b'{"id":"a:b","task":"t","args":["a:b",{"a":1}],"kwargs":{"a":{"a":1}}}',
        b'{"id":"1","task":"t","args":[{"id":1,"task":2},{"id":1}],"kwargs":{}}',
        b'{"task":"t"}',
        b'{"task":"t","args":[":"],"_penstock":{"attempts":1}}',
        b'{"_penstock":{"id":"x","raw":"%s"}}' % b64encode(b'[{"a":1},{"a":2}]'),
    ],
)
def test_equal_names_in_different_objects_of_a_job_are_no_fault(data):
    assert read_item(data, CODEC).fault is None


@pytest.mark.parametrize(
    "data",
    [
        b'{"id":"1","task":"t","args":[],"kwargs":{},"task":"u"}',
        b'{"id":"1","task":"t","args":[1],"args":[1],"kwargs":{}}',
        b'{"id":"12345678901","task":"t","id":"2","args":[],"kwargs":{}}',
        b'{"task":"t","args":[],"kwargs":{},"a":1,"a":2}',
        b'{"id":"1","task":"t","args":[{"a":1}],"kwargs":{},"x":{"a":1,"a":2}}',
        b'{"id":"1","task":"t","kwargs":{},"kwargs":{}}',
        b'{"id":1,"task":"t","args":[],"kwargs":{},"kwargs":{}}',
        b'{"job_id":"a","job_id":"b"}',
    ],
)
def test_a_worker_sees_members_of_one_name_but_within_the_arguments(data):
    assert "two members of one name" in str(read_claimed(data, CODEC).fault)


def test_a_worker_leaves_the_arguments_of_a_call_to_what_decodes_them():
    data = b'{"id":"1","task":"t","args":[{"a":1,"a":2}],"kwargs":{}}'
    assert read_claimed(data, CODEC).fault is None
    assert read_item(data, CODEC).fault is not None


def test_what_a_job_at_fault_holds_is_known_so_that_it_can_be_released():
    item = read_item(b'{"a":1,"a":2,"_penstock":{"id":"j","unique":"u","tracked":true}}', CODEC)
    assert item.fault is not None
    assert (item.id, item.meta.unique, item.meta.tracked) == ("j", "u", True)
    assert item.body == b'{"a":1,"a":2}'


def test_what_is_remembered_has_no_name_twice():
    item = read_item(b'{"job_id":"j","_penstock":{"unique":"a","unique":"b"}}', CODEC)
    assert (item.fault is not None, item.meta.unique, item.body) == (True, "", item.data)
    assert read_meta(b'{"unique":"a","unique":"b"}') is None


def test_what_another_program_keeps_under_our_name_and_what_is_remembered_stand_side_by_side():
    theirs = read_item(b'{"job_id":"j","_penstock":"theirs"}', CODEC)
    item = read_item(write_item(theirs, Meta(attempts=1), CODEC), CODEC)
    assert item.data.count(b"_penstock") == 2
    assert (item.fault, item.meta.attempts, item.body) == (None, 1, theirs.body)


@pytest.mark.parametrize(
    "told",
    [
        {"attempts": 10**10},
        {"group": "g" * 513},
        {"history": [{"attempt": 1, "at_ms": 1}] * 101},
        {"unique": "u" * 257},
        {"expires_ms": -1},
        {"max_attempts": 2.5},
        {"headers": {"a": 1}},
    ],
)
def test_what_is_remembered_beyond_its_bounds_is_another_programs(told):
    item = read_item(json.dumps({"job_id": "j", "_penstock": told}).encode(), CODEC)
    assert item.meta == Meta()
    assert json.loads(item.body)["_penstock"] == told


def test_the_seeds_count_of_retries_is_read_and_kept_up_to_date():
    item = read_item(b'{"job_id":"j","retry_count":1,"max_retries":3}', CODEC)
    assert (item.meta.attempts, item.asked_attempts, item.counts_retries) == (1, 4, True)
    again = read_item(write_item(item, Meta(attempts=2), CODEC), CODEC)
    assert json.loads(again.body)["retry_count"] == 2
    assert again.meta.attempts == 2


# ---- ids


def test_ids_sort_by_time_and_tell_it():
    ids = [new_id(), *new_ids(1000), *new_ids(3)]
    assert len(set(ids)) == len(ids)
    assert all(len(one) == 32 and id_ms(one) is not None for one in ids)
    assert [one[:12] for one in ids] == sorted(one[:12] for one in ids)
    many = new_ids(65_536)
    assert sorted(many) == many
    assert len(set(many)) == len(many)


@pytest.mark.parametrize("other", ["", "x" * 32, "order-7", "g" + "0" * 31, "0" * 31])
def test_other_ids_tell_no_time(other):
    assert id_ms(other) is None
