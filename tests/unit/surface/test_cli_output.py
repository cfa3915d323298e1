"""Output of commands: the same data for programs, nothing that a terminal obeys or hides."""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stdout

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.secret_spellings import CANARY, SPELLINGS, planted

from penstock.interfaces.cli.output import say, say_json, say_lines
from penstock.interfaces.cli.wording import table

HOSTILE = [
    *range(10),
    *range(11, 0x20),
    0x7F,
    *range(0x80, 0xA0),
    0xAD,
    0x61C,
    0x180E,
    *range(0x200B, 0x2010),
    0x2028,
    0x2029,
]
HOSTILE += [*range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFEFF, 0x3164, 0xE0001]
HOSTILE += [*range(0xE0020, 0xE0080), 0xE0100]
SEEN = re.compile("[" + "".join(map(re.escape, map(chr, HOSTILE))) + "]")
texts = st.text(
    st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(HOSTILE).map(chr))
)


@pytest.mark.parametrize("indent", [0, 2])
@given(data=st.recursive(texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner)))
def test_json_is_the_same_data_without_characters_for_terminals(indent, data):
    shown = printed(lambda: say_json({"payload": data}, indent=indent))
    assert json.loads(shown) == {"payload": data}
    assert not SEEN.search(shown)
    assert shown.count("\n") == 1 or indent


@given(texts)
def test_text_has_no_characters_for_terminals(text):
    for act in (lambda: say(text), lambda: say(text, is_data=True), lambda: say_lines([text])):
        shown = printed(act)
        assert not SEEN.search(shown)
        assert shown.count("\n") <= 1


@pytest.mark.parametrize("text", planted(), ids=SPELLINGS)
def test_errors_are_shown_without_secrets_and_payloads_as_they_are(text):
    view = {"error": text, "reasons": [text], "history": [{"message": text}], "payload": text}
    shown = json.loads(printed(lambda: say_json(view)))
    assert shown.pop("payload") == text
    assert CANARY not in json.dumps(shown)
    assert CANARY not in printed(lambda: say(text))
    lines = printed(lambda: table(("ID", "ERROR"), [("1", text)]))
    assert CANARY not in lines


def test_data_in_text_is_shown_as_it_is():
    assert "token=abcdefgh" in printed(lambda: say("token=abcdefgh", is_data=True))
    assert "token=abcdefgh" in printed(lambda: table(("KEY", "ERROR"), [("token=abcdefgh", "-")]))


def test_names_within_data_are_no_fields_of_errors():
    view = {"payload": {"error": "password=x"}, "job": {"url": "redis://u:p@h"}, "id": "token=abc"}
    assert json.loads(printed(lambda: say_json(view))) == view


def printed(act) -> str:
    """What `act` writes to standard output."""
    stream = io.StringIO()
    with redirect_stdout(stream):
        act()
    return stream.getvalue()
