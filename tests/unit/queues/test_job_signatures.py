"""What a signature of a job covers: any other byte, place or key, and the job is refused."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.signing import NEW, OLD, signing

from penstock.queues.storage.job_signatures import JobSignatures
from penstock.queues.storage.stored_job import (
    Meta,
    Trouble,
    read_item,
    task_body,
    task_item,
    write_item,
)
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.settings import CodecSettings, Settings, SigningSettings

CODEC = Codec(CodecSettings())
SENT = Meta(
    unique="once", expires_ms=99, max_attempts=4, group="g", tracked=True, headers={"who": "me"}
)
CALL = {"id": "1", "task": "pay", "args": b"[1]", "kwargs": b'{"to":"bob"}'}


def signatures(queue="mail", namespace="shop", **others):
    settings = SigningSettings(**signing(**others))
    made = JobSignatures.of(
        Client(Settings(url="redis://none", namespace=namespace, signing=settings)), queue
    )
    assert made is not None
    return made


MAIL = signatures()


def signed_call(meta=SENT, by=MAIL, **changes):
    call = {**CALL, **changes}
    signed = by.signed_call(call["id"], call["task"], task_body(**call), meta)
    return task_item(CODEC, **call, meta=signed)


def signed_raw(body, by=MAIL, job_id="raw-1", meta=SENT):
    item = msgspec.structs.replace(read_item(body, CODEC), id=job_id)
    return write_item(item, by.signed_item(item, meta), CODEC)


def code(data, by=MAIL):
    refusal = by.refusal(read_item(data, CODEC))
    return None if refusal is None else refusal.error_code


@pytest.mark.parametrize(
    "body", [b"text", b"", b"\xff\x00", b'{"a": 1.10}', b"[1]", b'{"retry_count":2}', b"{}"]
)
def test_a_signed_raw_job_is_accepted(body):
    assert code(signed_raw(body)) is None


def test_a_signed_call_is_accepted_also_compressed():
    assert code(signed_call()) is None
    large = signed_call(args=b'["%s"]' % (b"x" * 100_000))
    assert large.startswith(b"Z:")
    assert code(large) is None


@pytest.mark.parametrize("data", [signed_call(), signed_raw(b"text"), signed_raw(b'{"a":1}')])
def test_no_changed_byte_goes_unnoticed(data):
    """Or nothing that runs has changed: blanks and counters of attempts, say."""
    original = read_item(data, CODEC)
    facts = [*["id", "task", "body"]]
    for place in range(len(data)):
        for changed in {data[place] ^ 1, data[place] ^ 0x20, 0, 0x22, 0x7D, 0x30}:
            if changed == data[place]:
                continue
            item = read_item(data[:place] + bytes([changed]) + data[place + 1 :], CODEC)
            if item.fault is None and MAIL.refusal(item) is None:
                assert [getattr(item, name) for name in facts] == [
                    getattr(original, name) for name in facts
                ]
                assert (bytes(item.args), bytes(item.kwargs)) == (
                    *(bytes(original.args), bytes(original.kwargs)),
                )
                kept = ("unique", "expires_ms", "max_attempts", "group", "headers", "signature")
                for name in kept:
                    assert getattr(item.meta, name) == getattr(original.meta, name), place


@pytest.mark.parametrize("data", [signed_call(), signed_raw(b"text")])
def test_no_cut_or_longer_job_is_accepted(data):
    for end in range(len(data)):
        assert code(data[:end]) is not None
    for more in (b"x", b"{}", data, b"\x00"):
        assert code(data + more) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"unique": "other"},
        {"unique": ""},
        {"expires_ms": 0},
        {"max_attempts": 9},
        {"group": ""},
        {"headers": {}},
        {"headers": {"who": "you"}},
        {"headers": {"who": "me", "more": ""}},
    ],
)
def test_what_the_sender_chose_is_covered(change):
    item = read_item(signed_call(), CODEC)
    changed = write_item(item, msgspec.structs.replace(item.meta, **change), CODEC)
    assert code(changed) == "altered"


@pytest.mark.parametrize("data", [signed_call(), signed_raw(b'{"retry_count":0,"a":[]}')])
def test_what_retries_write_is_not_covered(data):
    item = read_item(data, CODEC)
    trouble = Trouble(attempt=2, at_ms=7, message="oh")
    meta = msgspec.structs.replace(
        *(item.meta,),
        id=item.id,
        attempts=2,
        crashes=1,
        unbegun=1,
        begun=True,
        parked_ms=5,
        first_failed_ms=7,
        history=(trouble,),
        replays=3,
    )
    later = b',"later":{"x":1}'
    again = write_item(msgspec.structs.replace(item, later=later), meta, CODEC)
    assert code(again) is None
    assert b'"retry_count":2' in again or b"retry_count" not in data


def test_a_signature_fits_no_other_job_queue_namespace_or_key():
    item, other = read_item(signed_call(), CODEC), read_item(signed_call(id="2"), CODEC)
    swapped = msgspec.structs.replace(item.meta, signature=other.meta.signature)
    assert code(write_item(item, swapped, CODEC)) == "altered"
    assert code(signed_call(), by=signatures(queue="other")) == "altered"
    assert code(signed_call(), by=signatures(namespace="")) == "altered"
    assert code(signed_call(), by=signatures(queue="shop", namespace="mail")) == "altered"
    other_key = OLD.replace("old=b29v", "old=bm9v")
    assert code(signed_call(), by=signatures(keys=other_key)) == "altered"
    assert code(signed_call(), by=signatures(keys=NEW, sign_with="new")) == "unknown_key"


def test_a_raw_job_does_not_become_a_call_nor_a_call_a_raw_job():
    call = read_item(signed_call(meta=None), CODEC)
    as_raw = b'{"_penstock":{"id":"1","signature":%s,"raw":%s}}' % (
        msgspec.json.encode(call.meta.signature),
        msgspec.json.encode(call.body),
    )
    assert read_item(as_raw, CODEC).body == call.body
    assert code(as_raw) == "altered"


def member(data):
    """The metadata of a job as it is stored, and the job before it."""
    head, _, tail = data.partition(b',"_penstock":')
    return head, tail[:-1]


HEAD, META = member(signed_call())
MORE_THAN_ONE = {
    "another task after it": HEAD + b',"_penstock":' + META + b',"task":"evil"}',
    "another task before it": HEAD + b',"task":"evil","_penstock":' + META + b"}",
    "other arguments first": b'{"args":[666],' + HEAD[1:] + b',"_penstock":' + META + b"}",
    "metadata twice": HEAD + b',"_penstock":{},"_penstock":' + META + b"}",
    "metadata twice, odd first": HEAD + b',"_penstock":7,"_penstock":' + META + b"}",
    "a name with escapes": HEAD + b',"t\\u0061sk":"evil","_penstock":' + META + b"}",
    "metadata with escapes": HEAD + b',"\\u005fpenstock":{},"_penstock":' + META + b"}",
    "headers twice": HEAD + b',"_penstock":{"headers":{},' + META[1:-1] + b',"headers":{}}}',
    "in an object": b'{"x":' + HEAD + b',"_penstock":' + META + b"}}",
}


@pytest.mark.parametrize("data", MORE_THAN_ONE.values(), ids=MORE_THAN_ONE)
def test_what_is_verified_is_what_runs(data):
    assert code(data) is not None


def test_the_order_of_members_and_blanks_around_them_do_not_matter():
    first = b'{"_penstock":' + META + b"," + HEAD[1:] + b"}"
    assert code(first) is None
    assert code(HEAD + b' , "_penstock" : ' + META + b" }") in {None, "altered"}


FORMS = [
    *("", " ", ":", "::", "1:old:", "1:old", "1::x", "2:old:x", "old:x", "1:o l d:x", "1:../old:x"),
    *("1:old:" + "A" * 100_000, "1:" + "k" * 100_000 + ":x", "1:old:é", "1:\ud7ff:x", "1:old:\x00"),
]


@pytest.mark.parametrize("form", FORMS, ids=range(len(FORMS)))
def test_signatures_of_odd_forms_are_refused(form):
    item = read_item(signed_call(), CODEC)
    data = write_item(item, msgspec.structs.replace(item.meta, signature=form), CODEC)
    refusal = MAIL.refusal(read_item(data, CODEC))
    assert refusal is not None
    assert len(str(refusal)) < 300


@pytest.mark.parametrize("value", [5, None, [], {}, True, ["1:old:x"]])
def test_a_signature_of_another_type_counts_as_none(value):
    meta = json.loads(META) | {"signature": value}
    data = HEAD + b',"_penstock":' + json.dumps(meta).encode() + b"}"
    assert code(data) == "unsigned"


@pytest.mark.parametrize("id_", ["", "\\ud800", "\\u0000", "x" * 10_000])
def test_odd_ids_raise_nothing(id_):
    assert code(b'{"id":"%s","task":"pay"}' % id_.encode()) == "unsigned"


@given(st.lists(st.binary(max_size=6), max_size=4), st.lists(st.binary(max_size=6), max_size=4))
def test_parts_lend_each_other_no_bytes(one, other):
    signer = MAIL._signer
    assert (signer.sign(*one) == signer.sign(*other)) == (one == other)


def test_keys_are_rotated_one_after_the_other():
    old, both = signatures(keys=OLD), signatures(sign_with="new")
    new = signatures(keys=NEW, sign_with="new")
    assert [code(signed_call(by=old), by=by) for by in (old, both)] == [None, None]
    assert [code(signed_call(by=both), by=by) for by in (both, new)] == [None, None]
    assert code(signed_call(by=both), by=old) == "unknown_key"
    assert code(signed_call(by=old), by=new) == "unknown_key"
