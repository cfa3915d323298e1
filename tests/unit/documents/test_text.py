"""Plain text in whatever encoding, and what is not text."""

from __future__ import annotations

import io
import time

import pytest

from penstock.errors import ParseError
from penstock.pipelines.documents.parsing.formats.blocks import ParsedDocument, ParseLimits
from penstock.pipelines.documents.parsing.formats.text import parse

LIMITS = ParseLimits(largest_text=64 << 20)
RUSSIAN = "Съешь же ещё этих мягких французских булок, да выпей чаю. Вода течёт вниз по реке. " * 5
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。" * 5
CHINESE = "水库的水位在春天上升，工程师每天记录一次。这份报告包括所有的测量。" * 5
FRENCH = "L'été dernier, les élèves ont été très occupés à réparer la forêt près du château. " * 5
POLISH = (
    "Zażółć gęślą jaźń. Woda płynie w dół rzeki, a inżynier mierzy jej poziom każdego dnia. " * 5
)


def read(data: bytes, limits: ParseLimits = LIMITS) -> ParsedDocument:
    return parse(io.BytesIO(data), limits)


def text_of(data: bytes) -> str:
    return "\n\n".join(block.text for block in read(data).blocks)


def refusal(data: bytes, limits: ParseLimits = LIMITS) -> ParseError:
    with pytest.raises(ParseError) as caught:
        read(data, limits)
    return caught.value


def test_each_paragraph_is_a_block_at_its_place():
    source = "\n  First line\nsecond line\n \t\n\n\nNext.\r\n\r\nLast."
    whole = source.replace("\r\n", "\n")
    blocks = read(source.encode()).blocks
    assert [block.text.strip() for block in blocks] == ["First line\nsecond line", "Next.", "Last."]
    for block in blocks:
        assert whole[block.start : block.start + len(block.text)] == block.text


@pytest.mark.parametrize(
    "encoding",
    ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"],
)
def test_unicode_is_told_by_its_mark_or_its_zeros(encoding):
    text = "Grüße an die Welt, and many more words in plain letters. 水"
    assert text_of(text.encode(encoding)) == text
    assert read(text.encode(encoding)).warnings == ()


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (FRENCH, "cp1252"),
        (FRENCH, "iso8859_1"),
        (POLISH, "iso8859_2"),
        (POLISH, "cp1250"),
        (RUSSIAN, "cp1251"),
        (RUSSIAN, "koi8_r"),
        (JAPANESE, "shift_jis"),
        (JAPANESE, "euc_jp"),
        (JAPANESE, "iso2022_jp"),
        (CHINESE, "gb18030"),
        (CHINESE, "big5"),
    ],
    ids=lambda value: value if len(value) < 20 else "",
)
def test_older_encodings_are_guessed_and_that_is_told(text, encoding):
    data = text.encode(encoding, "ignore")
    parsed = read(data)
    assert parsed.blocks[0].text.strip() == data.decode(encoding).strip()
    assert "guessed" in parsed.warnings[0]


def test_an_encoding_is_guessed_from_a_part_of_a_large_file():
    data = b"plain words \n" * 400_000 + (RUSSIAN + "\n").encode("cp1251") * 2000
    began = time.process_time()
    assert RUSSIAN.strip() in read(data).blocks[0].text
    assert time.process_time() - began < 20


def test_utf8_with_some_foreign_bytes_stays_utf8():
    data = ("Übergröße und Äpfel, größer als Öl. " * 20).encode() + "née Müller".encode("cp1252")
    parsed = read(data)
    assert parsed.blocks[0].text.startswith("Übergröße und Äpfel")
    assert parsed.blocks[0].text.endswith("née Müller")
    assert "Windows-1252" in parsed.warnings[0]


def test_broken_utf16_is_read_as_far_as_it_goes():
    parsed = read("\ufeffwords".encode("utf-16-le") + b"\x41")
    assert parsed.blocks[0].text.startswith("words")
    assert parsed.warnings


@pytest.mark.parametrize(
    "data",
    [b"text with a \x00 in it", b"\x00" * 100, bytes(range(256)) * 50, b"\x01\x02\x03\x04abc"],
)
def test_binary_data_is_refused(data):
    assert refusal(data).error_code == "ERR_NOT_TEXT"


@pytest.mark.parametrize("data", [b"", b" \n\t\r\n ", "\ufeff".encode(), "\u00a0\u2003".encode()])
def test_white_space_alone_is_refused(data):
    error = refusal(data)
    assert error.error_code == "ERR_NO_TEXT"
    assert error.suggestions


def test_colours_and_other_escapes_are_stripped():
    link = "\x1b]8;;http://x\x07link\x1b]8;;\x07"
    source = f"\x1b[1;31mred\x1b[0m and {link} and b\x08bo\x08ol\x08ld \x07."
    assert text_of(source.encode()) == "red and link and bold ."


def test_an_escape_without_end_swallows_nothing():
    assert text_of(b"a \x1b]0;title never ends\n\nSecond paragraph").endswith("Second paragraph")


def test_overrides_of_direction_are_removed_with_a_warning():
    parsed = read("access \u202elevel\u202c user \u2066x\u2069".encode())
    assert parsed.blocks[0].text == "access level user x"
    assert "direction" in parsed.warnings[0]


def test_too_much_text_is_refused_and_not_cut():
    small = ParseLimits(largest_text=1000)
    assert len(read(b"x" * 1000, small).blocks[0].text) == 1000
    for data in (b"x" * 1001, b"x" * 100_000, ("é" * 1001).encode()):
        assert refusal(data, small).error_code == "ERR_TOO_MUCH_TEXT"


@pytest.mark.parametrize(
    "data",
    [
        b"word " * 2_000_000,
        b"\n " * 2_000_000 + b"x",
        b" " * 10_000_000 + b"x",
        b"\x1b]" * 500_000 + b"x",
        b"\x1b[0" * 500_000 + b"x",
        "\u202ex".encode() * 500_000,
        b"\r" * 5_000_000 + b"x",
    ],
    ids=["line", "blank lines", "spaces", "titles", "colours", "overrides", "returns"],
)
def test_ten_megabytes_are_read_in_time(data):
    began = time.process_time()
    assert read(data).blocks
    assert time.process_time() - began < 15
