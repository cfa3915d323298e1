"""The pool of child processes that read documents."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final, Self

import msgspec

from penstock.errors import (
    DocumentError,
    FencesMissing,
    NotOpen,
    ParseError,
    ParserDied,
    UnsupportedFile,
)
from penstock.pipelines.documents.config.models import TYPES, Chunking
from penstock.pipelines.documents.parsing.chunks import Part
from penstock.pipelines.documents.parsing.refusal_codes import DEATHS, explained
from penstock.pipelines.documents.parsing.sandbox import protocol as wire
from penstock.pipelines.documents.parsing.sandbox.parser_process import (
    InvalidReply,
    ParserEnded,
    ParserProcess,
)
from penstock.pipelines.documents.parsing.sandbox.spool import Spool
from penstock.processes.child import Ending, IdleChildren, signal_name
from penstock.processes.machine import memory_bytes, processors
from penstock.settings.documents import DocumentSettings

__all__ = ["Parsers"]

logger = logging.getLogger(__name__)

_START_S: Final = 120.0
"""How long a child may take to start, on a busy machine."""

_HOPELESS: Final = 1_000
"""After so many unreadable pages in a row the rest is taken for unreadable."""

_REUSE: Final = 5_000
"""After so many parts a child is replaced."""

_GROWTH: Final = 0.25
"""A child that has grown by this share of its memory limit is replaced: something leaks."""

_SHARE: Final = 0.5
"""Share of the machine's memory that all children of a pool may have together."""


class Parsers:
    """Reads documents in child processes, up to `settings.parsers` at once.

        async with Parsers(settings.documents) as parsers:
            async for part in parsers.parse(fd, name="a.pdf", declared="pdf", chunking=chunking):
                ...

    A child reads one part at a time and is free between two parts of a document. It reads documents
    of one owner only: taken over by one of them, it could falsify or reveal the next ones. It is
    started when needed, and again after it died; it ends with the pool, and with its process.
    """

    def __init__(self, settings: DocumentSettings) -> None:
        self._settings = settings
        self.size, self._memory_bytes = _children_at_once(settings)
        self._children: IdleChildren[ParserProcess] = IdleChildren(self.size)
        self.started = 0
        """Children started so far."""
        self.at_work = 0
        """Parts that are being read."""
        self._missing: dict[bool, Mapping[str, str]] = {}

    def open(self) -> None:
        """Open as `async with` does; `close` must follow."""
        self._children.is_open = True

    async def __aenter__(self) -> Self:
        self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Kill the children. May be called twice."""
        await self._children.close(ParserProcess.kill)

    @property
    def pids(self) -> tuple[int, ...]:
        """The living children."""
        return tuple(child.pid for child in self._children.living)

    def missing_fences(self, *, ocr: bool = False) -> Mapping[str, str] | None:
        """By fence, why it does not stand; None before a child of this kind was started."""
        return self._missing.get(ocr)

    async def parse(
        self,
        fd: int,
        *,
        name: str,
        declared: str,
        chunking: Chunking,
        owner: str = "",
        ocr: bool = False,
        by_content: bool = False,
        spool: Path | None = None,
        require_fences: bool = False,
    ) -> AsyncIterator[Part]:
        """Read the file behind the descriptor `fd`, which is open for reading only.

        A PDF comes in parts of `settings.part_pages` pages, anything else as one. `declared` is the
        type that the name stands for, "" if for none; with `by_content` what the file really is
        decides. A child that reads it has read nothing of another `owner`. Parts that are kept in
        the folder `spool` are not read again. `require_fences` has the meaning of
        `documents.fences`, for this document.

        Raises what `errors` has for documents: UnsupportedFile and ParseError for good, ParserDied,
        FencesMissing and DocumentError for now. To stop early is allowed between parts; a
        cancellation during one kills the child.
        """
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
            raise ValueError("the descriptor of a document must be open for reading only")
        kept = Spool(spool) if spool is not None else None
        size = os.fstat(fd).st_size
        parts = _Parts(
            name, size, declared, chunking, self._settings, ocr=ocr, by_content=by_content
        )
        fenced = require_fences or self._settings.fences == "require"
        while not parts.ended:
            read = await asyncio.to_thread(kept.kept, parts.parts) if kept else None
            if read is None:
                read = await self._read(parts, fd, owner, fenced=fenced)
                if kept is not None:
                    await asyncio.to_thread(kept.keep, parts.parts, read)
            yield parts.take(read)
        parts.check()

    async def prove(self) -> Mapping[str, str]:
        """Start a child unless there is one; by fence, why it does not stand."""
        if self.missing_fences() is None:
            async with self._children.free:
                self._give_back(await self._child(ocr=False))
        return self.missing_fences() or {}

    async def _read(self, parts: _Parts, fd: int, owner: str, *, fenced: bool) -> wire.Read:
        request, name = parts.next_request(), parts.name
        async with self._children.free:
            within_s = self._settings.parse_wall_s
            child = await self._child(ocr=request.ocr, owner=owner)
            if fenced and child.missing_fences:
                self._give_back(child)
                raise FencesMissing(child.missing_fences)
            child.assign(owner, parts)
            self.at_work += 1
            began = time.monotonic()
            try:
                reply = await child.read(request, fd, within_s)
                if isinstance(reply, wire.Read):
                    _check(reply, request)
                    self._give_back(child)
                    # Not more than a part may have: this process may have been stopped.
                    parts.spend(min(time.monotonic() - began, within_s))
                    return reply
                error = _refusal(reply, name)
            except TimeoutError:
                reason = f"reading took longer than {within_s:g} s, so the parser was ended"
                error = explained(ParserDied, "ERR_PARSE_TIMEOUT", reason, name)
            except InvalidReply as invalid:
                reason = f"the parser gave an answer that makes no sense ({invalid})"
                error = explained(ParserDied, "ERR_PARSER_CRASHED", reason, name)
            except ParserEnded as ended:
                error = self._death(ended.ending, name)
            finally:
                self.at_work -= 1
            if isinstance(error, ParserDied):
                child.kill()  # the document may still fill its memory
            else:
                self._give_back(child)
        raise _certain(error, child, name)

    async def _child(self, *, ocr: bool, owner: str | None = None) -> ParserProcess:
        children = self._children
        if not children.is_open:
            raise NotOpen("the parsers are closed: use them within `async with`")
        for whose in (owner, None):
            child = children.take(
                lambda child, whose=whose: (
                    (child.ocr, child.owner, child.dying) == (ocr, whose, False)
                )
            )
            if child is not None:
                return child
        if sum(not child.dying for child in children.living) >= self.size:
            other = children.take(lambda child: not child.dying, oldest=True)
            if other is not None:
                other.kill()  # to make room for a child of this kind
        return await self._start(ocr=ocr)

    async def _start(self, *, ocr: bool) -> ParserProcess:
        settings = self._settings
        setup = wire.ParserSetup(self._memory_bytes, settings.parse_cpu_s, ocr)
        try:
            child = ParserProcess(
                setup, wire.largest_body(settings.largest_text, self._memory_bytes)
            )
        except OSError as error:  # no memory, too many processes: that passes
            reason = f"a parser could not be started: {error}"
            raise ParserDied(reason, "ERR_PARSER_START") from None
        self.started += 1
        self._children.add(child)
        try:
            problem = (await child.ready(_START_S)).problem
        except TimeoutError:
            problem = f"it was not ready within {_START_S:g} s"
        except (ParserEnded, InvalidReply) as error:
            problem = f"it ended at once: {error}"
        if problem:
            child.kill()
            reason = f"a parser could not be started: {problem}"
            raise explained(ParserDied, "ERR_PARSER_START", reason)
        self._note_fences(child)
        return child

    def _note_fences(self, child: ParserProcess) -> None:
        if self._missing.get(child.ocr) != child.missing_fences:
            self._missing[child.ocr] = child.missing_fences
            _log_fences(child, required=self._settings.fences == "require")

    def _give_back(self, child: ParserProcess) -> None:
        grown = (child.resident_kb - child.first_resident_kb) << 10
        worn = child.parts >= _REUSE or grown > _GROWTH * self._memory_bytes
        if worn or not self._children.is_open:
            child.kill()
        else:
            self._children.put_back(child)

    def _death(self, ending: Ending, name: str) -> DocumentError:
        if not self._children.is_open:
            reason = "the parsers were closed while they read the document"
            return explained(ParserDied, "ERR_PARSER_CLOSED", reason, name)
        if ending.signal == signal.SIGXCPU:
            reason = f"reading took more than {self._settings.parse_cpu_s} s of processor time"
            return explained(ParseError, "ERR_PARSE_TOO_SLOW", reason, name)
        how = f"exited with code {ending.exit_code}"
        if ending.signal is not None:
            how = f"was ended by {signal_name(ending.signal)}"
        if ending.signal == signal.SIGKILL:  # not by us
            reason = f"the parser {how}, most likely since the machine has no memory left"
            return explained(ParserDied, "ERR_PARSER_KILLED", reason, name)
        # At the limit of its memory a library aborts or crashes.
        peak_kb, half_kb = ending.max_rss_kb, self._memory_bytes >> 11
        aborted = ending.signal == signal.SIGABRT and peak_kb is None
        if aborted or (peak_kb or 0) > half_kb:
            reason = f"the parser {how}, most likely for lack of memory"
            return explained(ParserDied, "ERR_OUT_OF_MEMORY", reason, name)
        return explained(ParserDied, "ERR_PARSER_CRASHED", f"the parser {how}", name)


class _Parts:
    """Makes the request for each part of a document, and sums up the parts."""

    def __init__(
        self,
        name: str,
        size: int,
        declared: str,
        chunking: Chunking,
        settings: DocumentSettings,
        *,
        ocr: bool,
        by_content: bool,
    ) -> None:
        self.name, self._size, self._declared, self._chunking = name, size, declared, chunking
        self._settings, self._ocr, self._by_content = settings, ocr, by_content
        self.parts = self._end = self._done = self._total = 0
        self._blank = self._failed = self._failed_in_a_row = self._characters = 0
        self._type, self.ended, self._spent_s = "", False, 0.0

    def next_request(self) -> wire.PartRequest:
        return wire.PartRequest(
            self._size,
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
        """The part; the last one with the warnings about the whole document.

        ParseError if the chunks are larger than those of any document: a child that was taken over
        could give the whole of `largest_text` with every part.
        """
        part, pages = read.part, read.part.done - self._done
        self._characters += sum(len(chunk.text) for chunk in part.chunks)
        if self._characters > wire.largest_chunks(self._settings.largest_text):
            reason = "the chunks of the document are larger than its text may be"
            raise explained(ParseError, "ERR_TOO_MUCH_TEXT", reason, self.name)
        self.parts += 1
        self._type, self._done, self._total = part.type, part.done, part.total
        self._end = read.end
        self._blank += read.blank
        self._failed += read.failed
        hopeless = read.failed == pages
        self._failed_in_a_row = self._failed_in_a_row + pages if hopeless else 0
        lost = self._failed_in_a_row >= _HOPELESS
        self.ended = part.done >= part.total or lost
        if not self.ended:
            return part
        warnings = (*part.warnings, *self._warnings())
        return msgspec.structs.replace(part, done=part.total, warnings=warnings)

    def spend(self, seconds: float) -> None:
        """Note the time of a part; ParseError if that of all is too much."""
        self._spent_s += seconds
        most_s = self._settings.parse_total_s
        if self._spent_s > most_s:
            reason = f"reading all parts of the document took longer than {most_s:g} s"
            raise explained(ParseError, "ERR_PARSE_TOO_SLOW", reason, self.name)

    def check(self) -> None:
        """At the end: ParseError if there was no text at all."""
        if self._characters:
            return
        if self._failed and not self._blank:
            reason = "none of the PDF's pages can be read"
            raise explained(ParseError, "ERR_PDF_INVALID", reason, self.name)
        pages = f" on its {self._total} pages (scanned?)" if self._type == "pdf" else ""
        reason = f"there is no text in the document{pages}"
        raise explained(ParseError, "ERR_NO_TEXT", reason, self.name)

    def _unread(self) -> int:
        return self._total - self._done

    def _warnings(self) -> list[str]:
        warnings: list[str] = []
        if self._blank:
            warnings.append(f"{self._blank} of {self._total} pages have no text (scanned?)")
        if failed := self._failed + self._unread():
            warnings.append(f"{failed} of {self._total} pages could not be read")
        return warnings


def _children_at_once(settings: DocumentSettings) -> tuple[int, int]:
    """The number of children, and the memory of each."""
    wanted, memory = settings.parsers or processors(), settings.parse_memory_mb << 20
    share = int(memory_bytes() * _SHARE)
    most = max(1, share // memory)
    if most < wanted or share < memory:
        logger.warning(
            "at most %d of %d parsers run at once, with %d MB each: all together have half of the "
            "memory, which is %d MB (documents.parsers, documents.parse_memory_mb)",
            *(min(most, wanted), wanted, min(memory, share) >> 20, share >> 20),
        )
    return min(wanted, most), min(memory, share)


def _log_fences(child: ParserProcess, *, required: bool) -> None:
    missing = child.missing_fences
    what = "documents with OCR" if child.ocr else "documents"
    standing = ", ".join(fence for fence in wire.FENCES if fence not in missing)
    if not missing:
        logger.info("%s are read behind all fences: %s", what, standing)
        return
    listed = "; ".join(f"{fence} ({reason})" for fence, reason in missing.items())
    standing = standing or "none"
    if required:
        logger.error("no %s are read. Missing fences: %s. Standing: %s", what, listed, standing)
        return
    logger.warning(
        "%s are read without all fences. Missing: %s. Standing: %s. Files that are not your own "
        'should be read on a machine that has all of them: documents.fences = "require"',
        *(what, listed, standing),
    )


def _check(read: wire.Read, request: wire.PartRequest) -> None:
    part = read.part
    pages = part.done - request.first
    if not (
        part.type in ((request.type,) if request.type else TYPES.values())
        and part.done == min(request.last, part.total)
        and read.blank + read.failed <= pages > 0
    ):
        raise InvalidReply("parts that do not fit together")


def _certain(error: DocumentError, child: ParserProcess, name: str) -> DocumentError:
    """The error, or another one if an earlier document may be the cause."""
    if not child.has_read_others or error.error_code not in DEATHS:
        return error
    reason = f"{error.reason}; it had read other documents before, so this one is read again alone"
    return explained(ParserDied, "ERR_PARSER_LOST", reason, name)


def _refusal(refused: wire.Refused, name: str) -> DocumentError:
    kinds: dict[str, type[DocumentError]] = {
        "parse": ParseError,
        "unsupported": UnsupportedFile,
        "memory": ParserDied,
        "again": DocumentError,
    }
    error = explained(kinds[refused.kind], refused.code, refused.reason, name)
    if error.suggestions:
        return error
    return kinds[refused.kind](refused.reason, refused.code, refused.suggestions)
