"""Parts of a ZIP archive from strangers, each check before anything is unpacked."""

from __future__ import annotations

import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import IO, BinaryIO, Final

from penstock.errors import ParseError
from penstock.pipelines.documents.parsing.formats.blocks import ParseLimits
from penstock.pipelines.documents.parsing.formats.lxml_api import MarkupError
from penstock.pipelines.documents.parsing.refusal_codes import explained

__all__ = ["Archive", "XmlPart"]

HEAD: Final = 64 * 1024
"""Bytes of an XML part in which its first element has to begin."""

_DIRECTORY_BYTES: Final = 4 << 20
_END: Final = struct.Struct("<4s4H2LH")
_END64_LOCATOR: Final = struct.Struct("<4sLQL")
_END64: Final = struct.Struct("<4sQ2H2L4Q")
_LOCAL_HEADER: Final = 30
_SHORTEST_TAG: Final = len("<a/>")
_ENCRYPTED: Final = 0x1 | 0x40 | 0x2000
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

_DECLARED = re.compile(r"""<\?xml[^>]{0,200}?\sencoding\s*=\s*["']([^"']{1,40})["']""")
_HARMLESS = re.compile(r"(?:utf-?8|us-ascii|ascii|iso-8859-\d+|windows-125\d)", re.IGNORECASE)
_BEFORE_ROOT = re.compile(r"\s+|<\?.*?\?>|<!--.*?-->", re.DOTALL)


def _unsafe(reason: str) -> ParseError:
    return explained(ParseError, "ERR_ZIP_UNSAFE", f"its archive {reason}")


def _bomb(reason: str) -> ParseError:
    return ParseError(
        f"its archive {reason}",
        "ERR_ZIP_BOMB",
        ("Open the file in a word processor and save it again as .docx",),
    )


def _invalid(reason: str) -> ParseError:
    return explained(ParseError, "ERR_DOCX_INVALID", reason)


def _encrypted() -> ParseError:
    reason = "the document is encrypted with a password, or in Word's old .doc format"
    return explained(ParseError, "ERR_DOCX_ENCRYPTED", reason)


@contextmanager
def _unpacking() -> Generator[None]:
    """What goes wrong while a part is unpacked, in our words."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise _invalid("its archive is broken") from error
    except (NotImplementedError, RuntimeError, UnicodeDecodeError, struct.error) as error:
        raise _invalid("its archive is packed in a way that is not read") from error
    except MarkupError as error:
        raise _xml_error(error) from error


class Archive:
    """The archive of a DOCX, its directory checked as a whole. Raises `ParseError`."""

    def __init__(self, file: BinaryIO, limits: ParseLimits) -> None:
        self._limits = limits
        file.seek(0)
        head = file.read(8)
        if head.startswith(b"\xd0\xcf\x11\xe0"):
            raise _encrypted()
        if not head.startswith(b"PK"):
            raise _invalid("the file is no DOCX: it is not an archive")
        begin = _check_directory(file, limits)
        with _unpacking():
            try:
                self._zip = zipfile.ZipFile(file)
            except ValueError as error:
                raise _invalid("its archive is broken") from error
        _check_entries(self._zip.infolist(), begin, limits)
        self._names = {info.filename.lower(): info for info in self._zip.infolist()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._names

    @contextmanager
    def part(self, name: str) -> Generator[XmlPart]:
        """An XML part that declares no document type, to be read once from its beginning."""
        info = self._names.get(name.lower())
        if info is None:
            raise _invalid(f"the document has no {name}")
        if info.file_size > self._limits.xml_bytes:
            raise _bomb(f"holds {info.file_size:,} bytes in {name}")
        self._check_tags(info)
        with _unpacking(), self._zip.open(info) as unpacked:
            head = _read(unpacked, HEAD)
            _check_prolog(head, name)
            yield XmlPart(head, unpacked, self._limits.xml_bytes)

    def _check_tags(self, info: zipfile.ZipInfo) -> None:
        """Count tags before they are parsed, which takes a hundred times as long."""
        most = self._limits.xml_tags
        if info.file_size < most * _SHORTEST_TAG:
            return
        tags = 0
        with _unpacking(), self._zip.open(info) as unpacked:
            while data := unpacked.read(1 << 20):
                tags += data.count(b"<")
        if tags > most:
            reason = f"{info.filename} has {tags:,} tags, which no document needs"
            raise explained(ParseError, "ERR_TOO_MANY_ELEMENTS", reason)


class XmlPart:
    """A part from its beginning, as far as the limit."""

    def __init__(self, head: bytes, rest: IO[bytes], most: int) -> None:
        self._head, self._rest, self._left = head, rest, most

    def read(self, size: int = -1) -> bytes:
        if self._head:
            data, self._head = self._head, b""
        else:
            data = self._rest.read(size if size > 0 else HEAD)
        self._left -= len(data)
        if self._left < 0:
            raise _bomb("holds more than its directory says")
        return data


def _read(file: IO[bytes], size: int) -> bytes:
    data = b""
    while len(data) < size and (more := file.read(size - len(data))):
        data += more
    return data


def _check_directory(file: BinaryIO, limits: ParseLimits) -> int:
    """Where the directory begins. `zipfile` reads it as a whole, so its size is asked first."""
    size = file.seek(0, os.SEEK_END)
    tail_at = max(0, size - 65_536 - _END.size - _END64.size - _END64_LOCATOR.size)
    file.seek(tail_at)
    tail = file.read()
    place = tail.rfind(b"PK\x05\x06")
    if place < 0 or len(tail) - place < _END.size:
        raise _invalid("its archive is cut off, or broken")
    _, _, _, _, entries, length, _, _ = _END.unpack_from(tail, place)
    end = place
    locator = place - _END64_LOCATOR.size
    if locator >= _END64.size and tail.startswith(b"PK\x06\x07", locator):
        end = locator - _END64.size
        if tail.startswith(b"PK\x06\x06", end):
            found = _END64.unpack_from(tail, end)
            entries, length = max(found[6], found[7]), found[8]
    if entries > limits.zip_entries or length > _DIRECTORY_BYTES:
        raise _unsafe(f"has {entries:,} entries, which no document needs")
    return tail_at + end - length


def _check_entries(entries: list[zipfile.ZipInfo], directory: int, limits: ParseLimits) -> None:
    if len(entries) > limits.zip_entries:
        raise _unsafe(f"has {len(entries):,} entries, which no document needs")
    names: set[str] = set()
    total = 0
    for info in entries:
        _check_entry(info, limits)
        name = info.filename.lower()
        if name in names:
            raise _unsafe("has two entries of the same name")
        names.add(name)
        total += info.file_size
    if total > limits.zip_bytes:
        raise _bomb(f"would unpack to {total:,} bytes")
    _check_overlaps(entries, directory)


def _check_entry(info: zipfile.ZipInfo, limits: ParseLimits) -> None:
    if info.flag_bits & _ENCRYPTED:
        raise _encrypted()
    name = info.orig_filename
    steps = re.split(r"[/\\]", name)
    if not name or "\0" in name or ".." in steps or not steps[0] or ":" in steps[0]:
        raise _unsafe("has an entry whose name leads out of it")
    if stat.S_ISLNK(info.external_attr >> 16):
        raise _unsafe("has an entry that is a link")
    if info.header_offset < 0:
        raise _invalid("its archive is broken: something before its directory is missing")
    if info.compress_type not in _METHODS:
        raise _invalid("its archive is packed in a way that is not read")
    large = info.file_size > limits.zip_ratio_from
    if large and info.file_size > limits.zip_ratio * max(info.compress_size, 1):
        raise _bomb(f"has an entry that unpacks to {info.file_size:,} bytes from a few")


def _check_overlaps(entries: list[zipfile.ZipInfo], directory: int) -> None:
    """A few bytes that many entries share unpack to many times as much."""
    ordered = sorted(entries, key=lambda info: info.header_offset, reverse=True)
    following = directory
    for info in ordered:
        if info.header_offset + _LOCAL_HEADER + info.compress_size > following:
            raise _unsafe("has entries that overlap")
        following = info.header_offset


def _check_prolog(head: bytes, name: str) -> None:
    """Refuse a document type, and whatever could hide one from this look."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        text = head.decode("utf-16", "replace")
    elif head.startswith(b"<\x00"):
        text = head.decode("utf-16-le", "replace")
    elif head.startswith(b"\x00<"):
        text = head.decode("utf-16-be", "replace")
    else:
        text = head.removeprefix(b"\xef\xbb\xbf").decode("latin-1")
        declared = _DECLARED.match(text)
        if declared and not _HARMLESS.fullmatch(declared[1]):
            raise _invalid(f"{name} is in an encoding that is not read")
    at = 0
    while skipped := _BEFORE_ROOT.match(text, at):
        at = skipped.end()
    if text.startswith("<!", at) and not text.startswith("<!--", at):
        raise ParseError(
            f"{name} declares a document type, which no DOCX has",
            "ERR_XML_DOCTYPE",
            ("Open the file in a word processor and save it again as .docx",),
        )
    if not re.match(r"<[^\W\d]", text[at : at + 2]):
        raise _invalid(f"{name} is not XML")


def _xml_error(error: SyntaxError) -> ParseError:
    text = str(error)
    if "depth" in text.lower():
        return _invalid("the document is nested too deeply")
    if "huge" in text.lower() or "too long" in text:
        return ParseError(
            "a single piece of text in the document is longer than 10 million characters",
            "ERR_TOO_MUCH_TEXT",
            ("Divide the document into several",),
        )
    return _invalid(f"the document's XML is broken: {text[:200]}")
