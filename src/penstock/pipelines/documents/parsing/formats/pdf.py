"""Text of PDF files, some pages at a time, by PDFium. Runs in a child: PDFium may crash."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from itertools import count
from typing import Any, BinaryIO, Final, cast

from penstock.errors import DocumentError, ParseError
from penstock.pipelines.documents.parsing.formats.blocks import (
    ParsedDocument,
    ParseLimits,
    TextBlock,
    too_much_text,
)
from penstock.pipelines.documents.parsing.refusal_codes import explained

__all__ = ["BETWEEN_PAGES", "Pages", "page_count", "pages"]

pdfium: Any = import_module("pypdfium2")  # it has no types
raw: Any = import_module("pypdfium2.raw")

BETWEEN_PAGES: Final = "\n\n"
"""Separator of pages in the document's whole text."""

_OCR_DPI: Final = 200
_OCR_PIXELS: Final = 40_000_000  # an A3 page at that resolution has 7.7 million

_LIGATURES: Final = str.maketrans({
    "\ufb00": "ff", "\ufb01": "fi", "\ufb02": "fl", "\ufb03": "ffi", "\ufb04": "ffl",
    "\ufb05": "st", "\ufb06": "st", "\xa0": " ", "\r": "\n", "\x00": None,
})  # fmt: skip

# PDFium puts one of these where a hyphen ends a line: the word continues below.
_BROKEN_WORD: Final = re.compile("[\x02\ufffe\xad]\n?")


class Pages(ParsedDocument):
    """Some pages of a PDF."""

    total: int = 0
    """Pages of the whole document."""
    end: int = 0
    """Characters of the document up to the end of these pages."""
    blank: int = 0
    """How many of these pages have no text."""
    failed: int = 0
    """How many of these pages could not be read."""


def page_count(file: BinaryIO) -> int:
    with _opened(file) as document:
        return len(document)


def pages(
    file: BinaryIO, first: int, last: int, limits: ParseLimits, ocr: bool = False, *, start: int = 0
) -> Pages:
    """Read the pages from `first` (from 0) up to and without `last`.

    `start` is where their text begins in the whole one, and `limits` are for what follows. A page
    that cannot be read is counted, not raised; with `ocr` pages without text are read by
    `tesseract`. ERR_TOO_MUCH_TEXT beyond `limits.largest_text`.
    """
    program = _tesseract() if ocr else None
    with _opened(file) as document:
        total = len(document)
        found = Pages([], total=total, title=_title(document) if first == 0 else "")
        found.end = start
        for index in range(first, min(last, total)):
            try:
                text = _text_of(document, index, program)
            except (pdfium.PdfiumError, ValueError, OverflowError):
                found.failed += 1
                continue
            if not text:
                found.blank += 1
                continue
            where = found.end + (len(BETWEEN_PAGES) if found.end else 0)
            found.blocks.append(TextBlock(text, page=index + 1, start=where))
            found.end = where + len(text)
            if found.end > start + limits.largest_text:
                raise too_much_text(start + limits.largest_text)
    return found


@contextmanager
def _opened(file: BinaryIO) -> Generator[Any]:
    # By hand: PDFium leaves an earlier error standing, so that only the missing handle tells a file
    # that it cannot open from one without pages.
    access = raw.FPDF_FILEACCESS()  # to be held until the document is closed
    access.m_FileLen = file.seek(0, os.SEEK_END)
    access.m_GetBlock = _read_block
    access.m_Param = key = next(_keys)
    _being_read[key] = file
    try:
        handle = raw.FPDF_LoadCustomDocument(access, None)
        if not handle:
            raise _refusal(raw.FPDF_GetLastError())
        document = pdfium.PdfDocument(handle)
        try:
            if not len(document):
                raise explained(ParseError, "ERR_PDF_EMPTY", "the PDF has no pages")
            yield document
        finally:
            document.close()
    finally:
        del _being_read[key]


_keys = count(1)
_being_read: dict[int, BinaryIO] = {}


# One for all files, made by the import: a fenced child cannot have new executable memory.
@dict(raw.FPDF_FILEACCESS._fields_)["m_GetBlock"]
def _read_block(key: int, place: int, target: object, size: int) -> int:
    """How PDFium reads: never all of a file, and never beyond what is there by then."""
    file = _being_read[key]
    try:
        file.seek(place)
        data = file.read(size)
    except (OSError, ValueError):
        return 0
    if len(data) != size:
        return 0
    ctypes.memmove(cast("Any", target), data, size)
    return 1


def _refusal(code: int) -> ParseError:
    if code in (raw.FPDF_ERR_PASSWORD, raw.FPDF_ERR_SECURITY):
        reason = "the PDF is encrypted and cannot be opened without its password"
        return explained(ParseError, "ERR_PDF_ENCRYPTED", reason)
    return explained(ParseError, "ERR_PDF_INVALID", "PDF header corrupted or invalid")


def _title(document: Any) -> str:
    try:
        title: str = document.get_metadata_value("Title")
    except (pdfium.PdfiumError, UnicodeError):
        return ""
    return "" if title.lower() in ("untitled", "(anonymous)") else title.strip()[:500]


def _text_of(document: Any, index: int, tesseract: str | None) -> str:
    page = document[index]
    try:
        textpage = page.get_textpage()
        try:
            text = _tidy(textpage.get_text_bounded())
        finally:
            textpage.close()
        if not text and tesseract is not None:
            text = _tidy(_recognised(page, tesseract))
        return text
    finally:
        page.close()


def _tidy(text: str) -> str:
    text = text.replace("\r\n", "\n").translate(_LIGATURES)
    return _BROKEN_WORD.sub("", text).strip()


def _tesseract() -> str:
    program = shutil.which("tesseract")
    if program is None:
        reason = "pages are to be read by OCR, but there is no program tesseract"
        raise explained(ParseError, "ERR_OCR_MISSING", reason)
    return program


def _recognised(page: Any, tesseract: str) -> str:
    width, height = page.get_size()
    if width <= 0 or height <= 0:
        return ""
    # A page may claim to be as large as a house.
    scale = min(_OCR_DPI / 72, (_OCR_PIXELS / (width * height)) ** 0.5)
    bitmap = page.render(scale=scale, grayscale=True, may_draw_forms=False)
    try:
        # As PGM, which needs no library, and through pipes, since a child writes no files.
        rows, pixels = bitmap.stride, memoryview(bitmap.buffer).cast("B")
        picture = b"".join(pixels[y * rows : y * rows + bitmap.width] for y in range(bitmap.height))
        header = b"P5 %d %d 255\n" % (bitmap.width, bitmap.height)
    finally:
        bitmap.close()
    done = subprocess.run(  # noqa: S603  found on PATH by us
        (tesseract, "stdin", "stdout", "--dpi", str(round(scale * 72))),
        input=header + picture,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PATH": os.environ.get("PATH", ""), "OMP_THREAD_LIMIT": "1"},
        check=False,
    )
    if done.returncode != 0:
        reason = f"tesseract ended with {done.returncode}"
        raise explained(DocumentError, "ERR_OCR_FAILED", reason)
    return done.stdout.decode("utf-8", "replace")
