"""Bytes into text: detection of the encoding, and removal of control characters."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable
from typing import BinaryIO, Final

from penstock.errors import ParseError
from penstock.pipelines.documents.parsing.formats.blocks import ParseLimits, too_much_text

__all__ = ["clean", "decode", "no_text", "read_bytes", "read_text"]

SAMPLE: Final = 64 * 1024
"""Bytes from which an encoding is guessed, which takes a second for a megabyte."""

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark is its beginning
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CANDIDATES: Final = [
    "cp1252", "iso8859_15", "cp1250", "iso8859_2", "cp1251", "koi8_r", "cp866", "cp1253", "cp1254",
    "cp1255", "cp1256", "cp1257", "cp932", "euc_jp", "iso2022_jp", "gb18030", "big5", "cp949",
    "utf_16_le", "utf_16_be",
]  # fmt: skip

_ESCAPES = re.compile(
    "\x1b(?:"
    r"\[[0-?]{0,64}[ -/]{0,8}[@-~]"  # colours, movements
    "|\\][^\x07\x1b\n]{0,512}(?:\x07|\x1b\\\\)"  # titles, links
    r"|[()*+][0-9A-Za-z]"
    r"|[@-Z\\^_=>c78])"
)
_STRUCK_OVER = re.compile("[^\n\x08]\x08")
_LINE_ENDS = re.compile("\r\n?|\f|\v")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f\x80-\x84\x86-\x9f\ufeff\ufffe\uffff]")
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")


def no_text() -> ParseError:
    return ParseError(
        "the document has no text", "ERR_NO_TEXT", ("Check that the file is not empty",)
    )


def read_text(file: BinaryIO, limits: ParseLimits) -> tuple[str, list[str]]:
    """A text file, decoded and cleaned, with warnings."""
    data = read_bytes(file, limits.largest_text * 4 + 4, limits)
    text, warnings = decode(data)
    text = clean(text, warnings)
    if len(text) > limits.largest_text:
        raise too_much_text(limits.largest_text)
    if not text or text.isspace():
        raise no_text()
    return text, warnings


def read_bytes(file: BinaryIO, most: int, limits: ParseLimits) -> bytes:
    """All of a file; ParseError if it has more bytes than its text can have."""
    # Not `read(most + 1)`, which would take that much memory for a small file.
    if file.seek(0, os.SEEK_END) > most:
        raise too_much_text(limits.largest_text)
    file.seek(0)
    return file.read()


def decode(data: bytes, declared: str | None = None) -> tuple[str, list[str]]:
    """Text, with warnings about guesses.

    By a byte order mark, else as valid UTF-8, else as the file `declared`, else guessed.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return _decoded(data[len(mark) :], encoding)
    wide = _wide(data)
    if wide is not None:
        return _decoded(data, wide)
    _refuse_binary(data)
    try:
        # Escape sequences of ISO-2022 are ASCII too.
        if b"\x1b$" not in data and b"\x1b(" not in data:
            return data.decode(), []
    except UnicodeDecodeError:
        mixed = _mostly_utf8(data)
        if mixed is not None:
            return mixed, ["some bytes are not UTF-8 and were read as Windows-1252"]
    if declared is not None and _known(declared):
        return _decoded(data, declared)
    return _guessed(data)


def clean(text: str, warnings: list[str]) -> str:
    """Remove control characters and terminal escapes; lines end with a line feed."""
    if "\r" in text or "\f" in text or "\v" in text:
        text = _LINE_ENDS.sub("\n", text)
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    if "\x08" in text:
        text = _STRUCK_OVER.sub("", text)
    text = _CONTROLS.sub("", text)
    if not text.isascii() and _BIDI.search(text):
        # They could hide text, which is then shown in another order than it is stored.
        text = _BIDI.sub("", text)
        warnings.append("signs that change the direction of writing were removed")
    return text


def _decoded(data: bytes, encoding: str) -> tuple[str, list[str]]:
    try:
        return data.decode(encoding), []
    except (UnicodeDecodeError, UnicodeError):
        text = data.decode(encoding, "replace")
        return text, [f"some bytes are not valid {encoding} and were replaced"]


def _wide(data: bytes) -> str | None:
    """UTF-16 or UTF-32 without a mark: every other byte of Western text is then zero."""
    sample = data[: SAMPLE // 4 * 4]
    if b"\x00" not in sample or len(sample) < 4:  # noqa: PLR2004
        return None
    zeros = [sample[place::4].count(0) / len(sample[place::4]) for place in range(4)]
    much, little = 0.4, 0.05
    if zeros[3] > 1 - little and zeros[2] > 1 - little and zeros[0] < little:
        return "utf-32-le"
    if zeros[0] > 1 - little and zeros[1] > 1 - little and zeros[3] < little:
        return "utf-32-be"
    even, odd = (zeros[0] + zeros[2]) / 2, (zeros[1] + zeros[3]) / 2
    if odd > much and even < little:
        return "utf-16-le"
    if even > much and odd < little:
        return "utf-16-be"
    return None


def _refuse_binary(data: bytes) -> None:
    sample = data[:SAMPLE]
    controls = len(sample) - len(sample.translate(None, _ODD_BYTES))
    if b"\x00" in data or controls * 10 > len(sample):
        raise ParseError(
            "the file is not text: it holds binary data",
            "ERR_NOT_TEXT",
            ("Check that the file's extension is right",),
        )


_ODD_BYTES: Final = bytes(set(range(0x20)) - set(b"\t\n\v\f\r\x08\x1b")) + b"\x7f"


def _mostly_utf8(data: bytes) -> str | None:
    """UTF-8 with a few bytes of another encoding, as in files that were pasted together."""
    wrong = 0

    def as_windows(error: UnicodeError) -> tuple[str, int]:
        nonlocal wrong
        assert isinstance(error, UnicodeDecodeError)  # noqa: S101
        wrong += 1
        part = error.object[error.start : error.end]
        return part.decode("cp1252", "replace"), error.end

    text = _decode_with(data, as_windows)
    right = sum(not part.isascii() for part in _WORDS.findall(text[: SAMPLE * 4])) - wrong
    return text if right > wrong else None


_WORDS = re.compile(r"[^\s\x00-\x40]+")


def _decode_with(data: bytes, handler: Callable[[UnicodeError], tuple[str, int]]) -> str:
    codecs.register_error("penstock.mixed", handler)
    return data.decode("utf-8", "penstock.mixed")


def _known(encoding: str) -> bool:
    try:
        # Codecs such as `zip` or `rot13` encode no text.
        "".encode(codecs.lookup(encoding).name)
    except (LookupError, UnicodeError):
        return False
    return True


def _guessed(data: bytes) -> tuple[str, list[str]]:
    from charset_normalizer import from_bytes  # noqa: PLC0415  (seldom needed, and slow to load)

    sample = _sample(data)
    best = from_bytes(sample, cp_isolation=list(_CANDIDATES)).best()
    encoding = best.encoding if best is not None else "cp1252"
    if encoding == "cp1250" and not _CP1250_ONLY.search(sample) and _LATIN2_LETTERS.search(sample):
        encoding = "iso8859_2"
    text, warnings = _decoded(data, encoding)
    return text, [f"the encoding was guessed: {encoding}", *warnings]


# Windows-1250 differs from Latin-2 by these letters only.
_CP1250_ONLY = re.compile(rb"[\x80-\x9f]")
_LATIN2_LETTERS = re.compile(rb"[\xa1\xa5\xa6\xac\xb1\xb5\xb6\xbc]")


def _sample(data: bytes) -> bytes:
    """A sample of the data with non-ASCII characters, cut at the ends of lines."""
    first = re.search(rb"[\x80-\xff\x1b]", data)
    begin = data.rfind(b"\n", 0, first.start()) + 1 if first else 0
    sample = data[begin : begin + SAMPLE]
    if len(data) > begin + SAMPLE:
        sample = sample[: sample.rfind(b"\n") + 1 or len(sample)]
    return sample
