"""Which fences stand around the parsers of a worker, for its log, its readiness and its record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.pipelines.documents.parsing.sandbox.pool import Parsers
from penstock.runtime.service import Service

__all__ = ["DETAIL", "FenceCheck"]

DETAIL: Final = "documents.fences"
"""Name in the details of a worker's record: `all`, or `without fences: …` with the reasons."""


class FenceCheck(Service):
    """Starts a parser with the worker, and reports the fences that it could not raise.

    With `required` they keep the worker from being ready, as it claims no jobs then.
    """

    restartable = True

    def __init__(self, parsers: Parsers, *, required: bool) -> None:
        super().__init__("documents: fences")
        self._parsers, self._required = parsers, required

    async def run(self) -> None:
        await self._parsers.prove()
        await self.stop_asked.wait()

    def trouble(self) -> str | None:
        missing = self._without()
        return f"no documents are read: {missing}" if missing and self._required else None

    def limitation(self) -> str | None:
        missing, with_ocr = self._without(), self._without(ocr=True)
        if self._required:
            return f"documents with OCR are not read: {with_ocr}" if with_ocr else None
        if missing:
            return f"documents are read {missing}"
        return f"documents with OCR are read {with_ocr}" if with_ocr else None

    def details(self) -> Mapping[str, str]:
        if self._parsers.missing_fences() is None:
            return {}
        found, with_ocr = self._without() or "all", self._without(ocr=True)
        if with_ocr and with_ocr != found:
            found = f"{found}; with OCR {with_ocr}"
        return {DETAIL: found}

    def _without(self, *, ocr: bool = False) -> str:
        missing = self._parsers.missing_fences(ocr=ocr) or {}
        listed = ", ".join(f"{fence} ({reason})" for fence, reason in missing.items())
        return f"without fences: {listed}" if listed else ""
