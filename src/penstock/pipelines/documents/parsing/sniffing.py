"""Detects the type of a file by its content."""

from __future__ import annotations

import os
import re
import struct
import zipfile
from typing import BinaryIO, Final

from penstock.errors import DocumentRefused, ParseError, UnsupportedFile
from penstock.pipelines.documents.parsing.formats.blocks import ParseLimits
from penstock.pipelines.documents.parsing.refusal_codes import explained

__all__ = ["HEAD_BYTES", "sniff"]

HEAD_BYTES: Final = 8_192
"""Bytes at a file's beginning that determine its type."""

_PDF_WITHIN: Final = 1_024
_TEXTS: Final = ("txt", "md", "html")
_BOMS: Final = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
# Possessive: a file of many comments must not be tried in all combinations of them.
_HTML: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*+(?>(?:<!--.*?-->|<\?xml[^>]*>)\s*+)*+<(?:!doctype\s+html|html)\b",
    re.IGNORECASE | re.DOTALL,
)

# Control characters that no text has; backspace, form feed and escape (colours) are in some.
_CONTROLS: Final = bytes({*range(1, 32)} - set(b"\t\n\r\b\f\x1b")) + b"\x7f"
_MOST_CONTROLS: Final = 0.05
_MOST_NULS_IN_ONE_HALF: Final = 0.3

# Other types of files that are often submitted, with their common names.
_OTHERS: Final = (
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old or encrypted Office file"),
    (b"{\\rtf", "RTF"),
    (b"\x89PNG\r\n", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"GIF8", "a GIF picture"),
    (b"II*\x00", "a TIFF picture"),
    (b"MM\x00*", "a TIFF picture"),
    (b"\x1f\x8b", "gzip"),
    (b"7z\xbc\xaf", "7z"),
    (b"Rar!\x1a\x07", "RAR"),
    (b"\x7fELF", "a program"),
    (b"MZ", "a program"),
    (b"%!PS", "PostScript"),
)
_PARTS_OF_OTHERS: Final = (
    ("xl/", "an Excel workbook"),
    ("ppt/", "a PowerPoint presentation"),
    ("visio/", "a Visio drawing"),
    ("meta-inf/container.xml", "an EPUB book"),
    ("content.xml", "an OpenDocument file"),
)

_DOCUMENT: Final = re.compile(r"word/document\d*\.xml")  # not every program leaves the number out
_SOME_PART: Final = re.compile(r"word/[^/]+\.xml")

_EOCD: Final = struct.Struct("<4s4H2LH")
_DIRECTORY_BYTES: Final = 16 << 20


def sniff(
    head: bytes,
    file: BinaryIO,
    declared: str,
    *,
    by_content: bool = False,
    limits: ParseLimits | None = None,
) -> str:
    """The type to read the file as: pdf, docx, md, txt or html.

    `head` is its first `HEAD_BYTES`, `declared` the type that its name stands for, "" for none.
    Where the two differ UnsupportedFile is raised, or with `by_content` the content decides. Among
    texts the name decides, since any text may be Markdown. No XML is parsed here.
    """
    if not head:
        raise explained(ParseError, "ERR_EMPTY_FILE", "the file is empty")
    if _is_pdf(head, declared):
        return _agreed("pdf", declared, by_content=by_content)
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _agreed(_in_archive(file, declared, limits), declared, by_content=by_content)
    if (other := _other(head)) is not None:
        raise _unsupported(other, declared)
    return _text_type(head, declared, by_content=by_content)


def _is_pdf(head: bytes, declared: str) -> bool:
    # What begins as a PDF is one, whatever else it may be as well.
    if head.lstrip(b"\xef\xbb\xbf \t\r\n\0").startswith(b"%PDF-"):
        return True
    # Mail gateways put lines of their own before it; but a text about PDFs is a text.
    return b"%PDF-" in head[:_PDF_WITHIN] and (declared == "pdf" or _is_binary(head))


def _agreed(found: str, declared: str, *, by_content: bool) -> str:
    if by_content or declared in ("", found):
        return found
    reason = f"its name says {declared}, its content is {found}"
    raise explained(UnsupportedFile, "ERR_TYPE_MISMATCH", reason)


def _text_type(head: bytes, declared: str, *, by_content: bool) -> str:
    binary = _is_binary(head)
    if declared in ("pdf", "docx") and not by_content:
        raise _broken(declared, "is not text either" if binary else "looks like plain text")
    if binary:
        raise _unsupported("neither text nor a document", declared)
    if declared in _TEXTS and not by_content:
        return declared
    if _HTML.match(head):
        return "html"
    return declared if declared in ("md", "txt") else "txt"


def _broken(declared: str, how: str) -> ParseError:
    if declared == "pdf":
        reason = f"PDF header corrupted or invalid: the content {how}"
        return explained(ParseError, "ERR_PDF_INVALID", reason)
    reason = f"the file is no DOCX archive: the content {how}"
    return explained(ParseError, "ERR_DOCX_INVALID", reason)


def _unsupported(found: str, declared: str) -> DocumentRefused:
    if declared == "docx" and "encrypted" in found:
        reason = f"the file is {found}, not a DOCX that can be opened without a password"
        return explained(ParseError, "ERR_DOCX_ENCRYPTED", reason)
    if declared:
        reason = f"its name says {declared}, its content is {found}"
        return explained(UnsupportedFile, "ERR_TYPE_MISMATCH", reason)
    return explained(UnsupportedFile, "ERR_UNSUPPORTED_TYPE", f"its content is {found}")


def _other(head: bytes) -> str | None:
    for magic, name in _OTHERS:
        # Letters alone may also begin a text.
        if head.startswith(magic) and (not magic.isalnum() or _is_binary(head)):
            return name
    return None


def _is_binary(head: bytes) -> bool:
    if head.startswith(_BOMS):
        return False
    if b"\0" in head:
        return not _is_wide(head)
    controls = len(head) - len(head.translate(None, _CONTROLS))
    return controls > _MOST_CONTROLS * len(head)


def _is_wide(head: bytes) -> bool:
    """UTF-16 without a mark: every other byte of Western text is NUL, the ones between never."""
    even, odd = head[::2].count(0), head[1::2].count(0)
    return min(even, odd) == 0 and max(even, odd) > _MOST_NULS_IN_ONE_HALF * len(head) / 2


def _in_archive(file: BinaryIO, declared: str, limits: ParseLimits | None) -> str:
    limits = limits or ParseLimits(largest_text=1)
    _check_directory(file, limits)
    try:
        with zipfile.ZipFile(file) as archive:
            names = {name.lower() for name in archive.namelist()}
    except (zipfile.BadZipFile, NotImplementedError, ValueError, UnicodeDecodeError):
        names = None
    if names is None:
        if declared in ("", "docx"):
            raise explained(ParseError, "ERR_DOCX_INVALID", "its archive is broken")
        raise _unsupported("a broken archive", declared)
    is_office = "[content_types].xml" in names
    if is_office and any(map(_DOCUMENT.fullmatch, names)):
        return "docx"
    for beginning, name in _PARTS_OF_OTHERS:
        if any(each.startswith(beginning) for each in names):
            reason = f"the file is {name}: this type is not read"
            raise explained(UnsupportedFile, "ERR_UNSUPPORTED_TYPE", reason)
    # Its main part may have any name: `[Content_Types].xml` has it, for the reader.
    if is_office and (declared == "docx" or any(map(_SOME_PART.fullmatch, names))):
        return "docx"
    if declared == "docx":
        reason = "the file is a ZIP archive, but no DOCX: it has no word/document.xml"
        raise explained(ParseError, "ERR_DOCX_INVALID", reason)
    raise _unsupported("a ZIP archive", declared)


def _check_directory(file: BinaryIO, limits: ParseLimits) -> None:
    """Bound the directory of an archive, which `zipfile` reads as a whole."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 65_536 - _EOCD.size))
    tail = file.read()
    place = tail.rfind(b"PK\x05\x06")
    if place < 0 or len(tail) - place < _EOCD.size:
        return  # `zipfile` will refuse it
    _, _, _, _, entries, directory, _, _ = _EOCD.unpack_from(tail, place)
    if entries > limits.zip_entries or directory > _DIRECTORY_BYTES:
        reason = f"its archive has {entries} entries, which no document needs"
        raise explained(ParseError, "ERR_ZIP_UNSAFE", reason)
