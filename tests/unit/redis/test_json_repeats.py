"""Names that a JSON object has twice are found, however they are written, and nothing else is."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.redis.codec.json_rules import repeats_a_member

texts = st.text(st.characters(exclude_categories=()), max_size=4)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)
writers = st.sampled_from(
    [
        json.dumps,
        lambda value: json.dumps(value, separators=(",", ":")),
        lambda value: json.dumps(value, indent=1),
        lambda value: json.dumps(value, ensure_ascii=False),
    ]
)


@given(values, writers)
def test_what_an_encoder_writes_repeats_no_name(value, write):
    written = write(value).encode("utf-8", "surrogatepass")
    assert not repeats_a_member(written)


@given(values, values, values, texts, writers, st.booleans())
def test_a_repeated_name_is_found_at_any_depth(beside, one, other, name, write, is_deep):
    first, second = write(name), json.dumps(name)
    repeated = f"{{{first}:{write(one)}, {second} :{write(other)}}}"
    written = f'[{write(beside)}, {{"in":{repeated}}}]' if is_deep else repeated
    assert repeats_a_member(written.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize(
    "written",
    [
        b'{"a":1,"\\u0061":1}',
        b'{"a":1e999,"a":1}',
        b'{"a":%s,"a":1}' % (b"9" * 10_000),
        b'{"a":"\xff","a":1}',
        b'{"\xff":1,"\xff":1}',
        b'{"":1,"":1}',
        b'{"a":"\x01","a":1}',
        b'{"a":1.10,"a":1.10}',
        b'{"a":NaN,"a":1}',
        b'{"a":%s,"a":1}' % (b"[" * 900 + b"]" * 900),
    ],
)
def test_nothing_beside_it_hides_a_repeated_name(written):
    assert repeats_a_member(written)


@pytest.mark.parametrize(
    "written",
    [b'{"a":{"a":1},"b":[{"a":1},{"a":1}]}', b'{"a":1e999}', b'{"a":"\\"a\\":","b":"a"}', b"5"],
)
def test_equal_names_in_different_objects_are_no_repeat(written):
    assert not repeats_a_member(written)


def test_what_cannot_be_checked_counts_as_a_repeat():
    assert repeats_a_member(b"[" * 100_000 + b"]" * 100_000)
    assert repeats_a_member(b'{"a":')


def test_the_bytes_of_our_own_encoder_need_no_second_look():
    assert not repeats_a_member(msgspec.json.encode({"id": "x", "args": [1.5, "é", None]}))
