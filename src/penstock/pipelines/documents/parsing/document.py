"""How far the reading of one document has come."""

from __future__ import annotations

import msgspec

from penstock.errors import ParseError
from penstock.pipelines.documents.chunks import Part
from penstock.pipelines.documents.configuration import Chunking
from penstock.pipelines.documents.parsing import wire
from penstock.pipelines.documents.parsing.codes import explained
from penstock.settings_documents import DocumentSettings

__all__ = ["Progress"]

_HOPELESS = 1_000
"""So many pages in a row that cannot be read: the rest is only claimed to be there."""


class Progress:
    """Asks for one part after the other, and adds up what is known of them."""

    def __init__(
        self,
        name: str,
        declared: str,
        chunking: Chunking,
        settings: DocumentSettings,
        *,
        ocr: bool,
        by_content: bool,
    ) -> None:
        self._name, self._declared, self._chunking = name, declared, chunking
        self._settings, self._ocr, self._by_content = settings, ocr, by_content
        self.parts = self._end = self._done = self._total = 0
        self._blank = self._failed = self._failed_in_a_row = self._chunks = 0
        self._type, self.ended = "", False

    def next_order(self) -> wire.Order:
        return wire.Order(
            self._type,
            self._declared,
            self._by_content,
            self._chunking,
            self._ocr,
            self._done,
            self._done + self._settings.part_pages,
            self._end,
            max(1, self._settings.largest_text - self._end),
        )

    def take(self, read: wire.Read) -> Part:
        """The part, with what only the whole document shows in the last one's warnings."""
        part, pages = read.part, read.part.done - self._done
        self.parts += 1
        self._type, self._done, self._total = part.type, part.done, part.total
        self._end = read.end
        self._blank += read.blank
        self._failed += read.failed
        self._chunks += len(part.chunks)
        hopeless = read.failed == pages
        self._failed_in_a_row = self._failed_in_a_row + pages if hopeless else 0
        lost = self._failed_in_a_row >= _HOPELESS
        self.ended = part.done >= part.total or lost
        if not self.ended:
            return part
        warnings = (*part.warnings, *self._warnings())
        return msgspec.structs.replace(part, done=part.total, warnings=warnings)

    def check(self) -> None:
        """At the end: ParseError if nothing at all was found."""
        if self._chunks:
            return
        if self._failed and not self._blank:
            reason = "none of the PDF's pages can be read"
            raise explained(ParseError, "ERR_PDF_INVALID", reason, self._name)
        pages = f" on its {self._total} pages (scanned?)" if self._type == "pdf" else ""
        reason = f"there is no text in the document{pages}"
        raise explained(ParseError, "ERR_NO_TEXT", reason, self._name)

    def _unread(self) -> int:
        return self._total - self._done

    def _warnings(self) -> list[str]:
        told: list[str] = []
        if self._blank:
            told.append(f"{self._blank} of {self._total} pages have no text (scanned?)")
        if failed := self._failed + self._unread():
            told.append(f"{failed} of {self._total} pages could not be read")
        return told
