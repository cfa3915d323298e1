"""Whatever bytes stand where an entry, a letter or a topic's facts are expected: nothing raises."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.odd.odd_jobs import dice
from tests.kit.odd.odd_messages import (
    CODEC,
    VALUES,
    check_entry,
    check_facts,
    check_letter,
    odd_entry,
    odd_letter,
    odd_value,
)

from penstock.delivery.stored import whole_number
from penstock.delivery.times import iso_time
from penstock.topics.dead_letters.letter import Letter, letter_fields
from penstock.topics.message import Message, Source, is_marker

CASES = 2_000
"""Of each kind in every run; the torture run has a million."""

_parts = st.binary(max_size=30) | st.sampled_from(VALUES)


@given(st.lists(st.tuples(_parts, _parts), min_size=1, max_size=5), st.randoms())
def test_any_bytes_are_an_entry(fields, rng):
    check_entry(rng, [part for item in fields for part in item])


@given(st.lists(_parts, max_size=9))
def test_any_bytes_are_a_letter(fields):
    check_letter(fields)


@given(_parts, st.randoms())
def test_any_bytes_are_facts(stored, rng):
    check_facts(rng, stored)


def test_odd_entries_letters_and_facts_are_read():
    for rng in dice(0, CASES):
        check_entry(rng, odd_entry(rng))
        check_letter(odd_letter(rng))
        check_facts(rng, odd_value(rng))


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_a_million_odd_entries_letters_and_facts_are_read():
    for rng in dice(CASES, 340_000):
        check_entry(rng, odd_entry(rng))
        check_letter(odd_letter(rng))
        check_facts(rng, odd_value(rng))


@pytest.mark.parametrize(
    ("stored", "number"),
    [(b"12", 12), ("7", 7), (5, 5), (b"", 0), (None, 0), (b"-3", 0), (b"1" * 19, 0), (b"\xb2", 0)],
)
def test_a_number_has_few_digits_or_is_none(stored, number):
    assert whole_number(stored) == number


def test_times_that_somebody_else_chose_can_be_spelled():
    assert iso_time(2**64) == "9999-12-31T23:59:59.999Z"
    assert iso_time(-1) == "1970-01-01T00:00:00.000Z"


def test_only_a_lone_field_with_a_number_is_a_marker():
    assert is_marker([b"barrier", b"2"])
    assert not is_marker([b"barrier", b"two"])
    assert not is_marker([b"barrier", b"2", b"payload", b"1"])


def test_a_letter_keeps_bytes_that_are_no_text():
    source = Source("orders", 0, "billing", CODEC.decoder(int))
    fields = [b"\xff", b"\x00\xfe", b"a", b"1", b"a", b"2"]
    message = Message(source, b"5-1", fields)
    stored = letter_fields(message, reason="undecodable", attempts=1)
    letter = Letter(b"6-0", [part if type(part) is bytes else part.encode() for part in stored])
    assert letter.raw_fields == fields
    assert letter.fields == {"\\xff": "\x00\\xfe", "a": "2"}
