"""Any bytes as printable text and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.redis.codec.escaping import escaped, unescaped


@given(st.binary(max_size=40) | st.text(max_size=40).map(lambda t: t.encode(errors="ignore")))
def test_every_text_is_printable_and_gives_its_bytes_back(data):
    shown = escaped(data)
    assert shown.isprintable()
    assert unescaped(shown) == data


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"", ""),
        ("café 1".encode(), "café 1"),
        (b"\xff\n", r"\xff\x0a"),
        (b"\\xff", r"\\xff"),
        ("\u2028".encode(), r"\xe2\x80\xa8"),
        (b"\xed\xa0\x80", r"\xed\xa0\x80"),
    ],
)
def test_what_is_not_printable_is_escaped(data, shown):
    assert escaped(data) == shown


@pytest.mark.parametrize("text", ["\\", "a\\q", "\\x", "\\x1", "\\\\\\"])
def test_a_lone_backslash_is_refused(text):
    with pytest.raises(ValueError, match="expected"):
        unescaped(text)


@given(st.text(max_size=40))
def test_any_other_text_is_bytes_or_refused(text):
    try:
        assert isinstance(unescaped(text), bytes)
    except ValueError:
        assert "\\" in text or any("\ud800" <= c <= "\udfff" for c in text)
