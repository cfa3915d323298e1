"""Reads one part of a document: its type, text and chunks. Runs in a child process."""

from __future__ import annotations

import io
import os
from typing import BinaryIO, Final, Literal

from penstock.errors import DocumentError, DocumentRefused, ParseError, UnsupportedFile
from penstock.pipelines.documents.parsing.chunks import MOST_CHUNKS, Part
from penstock.pipelines.documents.parsing.formats import docx, html, markdown, pdf, text
from penstock.pipelines.documents.parsing.formats.blocks import ParsedDocument, ParseLimits
from penstock.pipelines.documents.parsing.refusal_codes import explained
from penstock.pipelines.documents.parsing.sandbox import protocol as wire
from penstock.pipelines.documents.parsing.sniffing import HEAD_BYTES, sniff
from penstock.pipelines.documents.parsing.splitting import split

__all__ = ["carry_out"]

_AT_ONCE: Final = 1 << 20
"""Files up to this size are read into memory."""

_READERS: Final = {"docx": docx.parse, "md": markdown.parse, "txt": text.parse, "html": html.parse}


def carry_out(order: wire.PartRequest, descriptor: int) -> wire.Read | wire.Refused:
    """Read the part; MemoryError passes through."""
    kind: Literal["parse", "unsupported", "again"] = "parse"
    code, suggestions = "ERR_PARSE_FAILED", ()
    try:
        return _read(order, descriptor)
    except MemoryError:
        raise
    except DocumentError as error:
        if not isinstance(error, DocumentRefused):
            kind = "again"
        elif isinstance(error, UnsupportedFile):
            kind = "unsupported"
        code, reason = error.error_code, str(error)[:1000]
        suggestions = error.suggestions
    except OSError as error:
        kind, code = "again", "ERR_FILE_READ"
        reason = f"the file could not be read: {error.strerror or error}"
    except RecursionError:
        reason = "the document is nested too deeply"
    except Exception as error:  # noqa: BLE001  of a reader, on unexpected content
        reason = f"the reader failed with {type(error).__name__}: {str(error)[:300]}"
    return wire.Refused(kind, code, reason, suggestions)


def _read(order: wire.PartRequest, descriptor: int) -> wire.Read:
    file = _file(descriptor, order.size)
    limits = ParseLimits(largest_text=order.largest_text)
    found = order.type
    if not found:
        head = file.read(HEAD_BYTES)
        found = sniff(head, file, order.declared, by_content=order.by_content, limits=limits)
        file.seek(0)
    if found == "pdf":
        return _read_pages(order, file, limits)
    parsed = _READERS[found](file, limits)
    part = _part(order, parsed, found)
    if not part.chunks:
        raise explained(ParseError, "ERR_NO_TEXT", "there is no text in the document")
    end = max((chunk.end for chunk in part.chunks), default=0)
    return wire.Read(part, end)


def _read_pages(order: wire.PartRequest, file: BinaryIO, limits: ParseLimits) -> wire.Read:
    pages = pdf.pages(file, order.first, order.last, limits, order.ocr, start=order.start)
    part = _part(order, pages, "pdf", min(order.last, pages.total), pages.total)
    return wire.Read(part, pages.end, pages.blank, pages.failed)


def _part(
    order: wire.PartRequest, parsed: ParsedDocument, found: str, done: int = 1, total: int = 1
) -> Part:
    chunks = split(parsed.blocks, order.chunking)
    if len(chunks) > MOST_CHUNKS:
        reason = f"there are more than {MOST_CHUNKS:,} chunks in one part of the document"
        raise explained(ParseError, "ERR_TOO_MANY_ELEMENTS", reason)
    return Part(chunks, found, done, total, parsed.title[:500], parsed.warnings)


def _file(descriptor: int, size: int) -> BinaryIO:
    if size <= _AT_ONCE:
        return io.BytesIO(os.pread(descriptor, size, 0))
    return io.BufferedReader(_Positioned(descriptor, size), 1 << 16)


class _Positioned(io.RawIOBase):
    """A file with a position of its own: the descriptor's is shared with the parent."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor, self._size, self._place = descriptor, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"a place before the beginning: {base + offset}")
        self._place = base + offset
        return self._place

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        count = os.preadv(self._descriptor, (buffer,), self._place)
        self._place += count
        return count
