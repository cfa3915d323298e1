"""The pool of child processes that read documents."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from penstock.errors import DocumentError, NotOpen, ParseError, ParserDied, UnsupportedFile
from penstock.pipelines.documents.chunks import Part, digest_of
from penstock.pipelines.documents.configuration import Chunking
from penstock.pipelines.documents.parsing import wire
from penstock.pipelines.documents.parsing.codes import explained
from penstock.pipelines.documents.parsing.document import Progress
from penstock.pipelines.documents.parsing.process import Ended, Garbage, ParserProcess
from penstock.pipelines.documents.parsing.spool import Spool
from penstock.queues.child_process import Ending
from penstock.settings_documents import DocumentSettings

__all__ = ["Parsers"]

_START_S: Final = 120.0
"""How long a child may take to start, on a machine that has much else to do."""

_REUSE: Final = 5_000
"""After so many parts a child is replaced, whatever it has gathered."""

_GROWTH: Final = 0.25
"""A child that has grown by this share of what it may have is replaced: something leaks."""


# Of what a child says, which may not be ours any more.
_MOST_WORDS: Final = 1_000
_MOST_LINES: Final = 10


class Parsers:
    """Reads documents in child processes, up to `settings.parsers` at once.

        async with Parsers(settings.documents) as parsers:
            async for part in parsers.parse(fd, name="a.pdf", declared="pdf", chunking=chunking):
                ...

    A child reads one part at a time and is free between two parts of a document. It is started when
    needed, and again after it died; it ends with the pool, and with the process of the pool.
    """

    def __init__(self, settings: DocumentSettings) -> None:
        self._settings = settings
        self.size = settings.parsers or _processors()
        self._free = asyncio.Semaphore(self.size)
        self._idle: list[ParserProcess] = []
        self._all: set[ParserProcess] = set()
        self._open = False
        self.started = 0
        """Children so far."""
        self.at_work = 0
        """Parts that are being read."""

    def open(self) -> None:
        """Be ready for use, as `async with` does it. Whoever opens it so has to `close()` it."""
        self._open = True

    async def __aenter__(self) -> Self:
        self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the children, whatever they do. May come twice."""
        self._open = False
        self._idle.clear()
        for child in self._all:
            child.kill()
        if self._all:
            await asyncio.wait([child.ended for child in self._all])
        self._all.clear()

    @property
    def pids(self) -> tuple[int, ...]:
        """The children that are alive."""
        return tuple(child.pid for child in self._all if not child.ended.done())

    async def parse(
        self,
        fd: int,
        *,
        name: str,
        declared: str,
        chunking: Chunking,
        ocr: bool = False,
        by_content: bool = False,
        spool: Path | None = None,
    ) -> AsyncIterator[Part]:
        """Read the file behind the descriptor `fd`, which is open for reading only.

        A PDF comes in parts of `settings.part_pages` pages, anything else as one. `declared` is the
        type that the name stands for, "" if for none; with `by_content` what the file really is
        decides. Parts that are kept in the folder `spool` are not read again.

        Raises what `errors` has for documents: UnsupportedFile and ParseError for good, ParserDied
        and DocumentError for now. To stop early is allowed between parts; a cancellation during
        one kills the child.
        """
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
            raise ValueError("the descriptor of a document must be open for reading only")
        kept = Spool(spool) if spool is not None else None
        progress = Progress(
            name, declared, chunking, self._settings, ocr=ocr, by_content=by_content
        )
        while not progress.ended:
            read = await asyncio.to_thread(kept.kept, progress.parts) if kept else None
            if read is None:
                read = await self._read(progress.next_order(), fd, name)
                if kept is not None:
                    await asyncio.to_thread(kept.keep, progress.parts, read)
            yield progress.take(read)
        progress.check()

    async def _read(self, order: wire.Order, fd: int, name: str) -> wire.Read:
        async with self._free:
            within_s = self._settings.parse_wall_s
            child = await self._child(ocr=order.ocr)
            self.at_work += 1
            try:
                answer = await child.read(wire.frame(order), fd, within_s)
                if isinstance(answer, wire.Read):
                    _check(answer, order)
                    self._give_back(child)
                    return answer
            except TimeoutError:
                reason = f"reading took longer than {within_s:g} s, so the parser was ended"
                raise explained(ParserDied, "ERR_PARSE_TIMEOUT", reason, name) from None
            except Garbage as error:
                child.kill()
                reason = f"the parser gave an answer that makes no sense ({error})"
                raise explained(ParserDied, "ERR_PARSER_CRASHED", reason, name) from None
            except Ended as error:
                raise self._death(error.ending, name) from None
            finally:
                self.at_work -= 1
            if answer.kind == "memory":
                child.kill()  # what is left of the document may fill it still
            else:
                self._give_back(child)
        raise _refusal(answer, name)

    async def _child(self, *, ocr: bool) -> ParserProcess:
        if not self._open:
            raise NotOpen("the parsers are closed: use them within `async with`")
        self._idle = [child for child in self._idle if not child.dying]
        for child in reversed(self._idle):  # the last used one, so that others can be swapped out
            if child.ocr == ocr:
                self._idle.remove(child)
                return child
        if self._idle and sum(not child.dying for child in self._all) >= self.size:
            self._idle.pop(0).kill()  # to make room for one of the other kind
        return await self._start(ocr=ocr)

    async def _start(self, *, ocr: bool) -> ParserProcess:
        settings = self._settings
        setup = wire.Setup(settings.parse_memory_mb << 20, settings.parse_cpu_s, ocr)
        try:
            child = ParserProcess(setup, wire.largest_body(settings.largest_text))
        except OSError as error:  # no memory, too many processes: that passes
            reason = f"a parser could not be started: {error}"
            raise ParserDied(reason, "ERR_PARSER_START") from None
        self.started += 1
        self._all.add(child)
        child.ended.add_done_callback(lambda _: self._all.discard(child))
        try:
            problem = (await child.ready(_START_S)).problem
        except TimeoutError:
            problem = f"it was not ready within {_START_S:g} s"
        except (Ended, Garbage) as error:
            problem = f"it ended at once: {error}"
        if problem:
            child.kill()
            reason = f"a parser could not be started: {problem}"
            raise explained(ParserDied, "ERR_PARSER_START", reason)
        return child

    def _give_back(self, child: ParserProcess) -> None:
        grown = (child.resident_kb - child.first_resident_kb) >> 10
        worn = child.parts >= _REUSE or grown > _GROWTH * self._settings.parse_memory_mb
        if worn or not self._open:
            child.kill()
        else:
            self._idle.append(child)

    def _death(self, ending: Ending, name: str) -> DocumentError:
        if not self._open:
            reason = "the parsers were closed while they read the document"
            return explained(ParserDied, "ERR_PARSER_CLOSED", reason, name)
        if ending.signal == signal.SIGXCPU:
            reason = f"reading took more than {self._settings.parse_cpu_s} s of processor time"
            return explained(ParseError, "ERR_PARSE_TOO_SLOW", reason, name)
        how = f"exited with code {ending.exit_code}"
        if ending.signal is not None:
            how = f"was ended by {signal.Signals(ending.signal).name}"
        # The system ends with SIGKILL who asks for memory that is not there; a library that gets
        # none aborts or, where it does not look, crashes.
        peak_kb, half_kb = ending.max_rss_kb, self._settings.parse_memory_mb << 9
        aborted = ending.signal == signal.SIGABRT and peak_kb is None
        if ending.signal == signal.SIGKILL or aborted or (peak_kb or 0) > half_kb:
            reason = f"the parser {how}, most likely for lack of memory"
            return explained(ParserDied, "ERR_OUT_OF_MEMORY", reason, name)
        return explained(ParserDied, "ERR_PARSER_CRASHED", f"the parser {how}", name)


def _processors() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _check(read: wire.Read, order: wire.Order) -> None:
    """A digest names a text's vector for all documents: it has to be that of the text."""
    part = read.part
    fits = all(chunk.digest == digest_of(chunk.text) for chunk in part.chunks)
    if not fits or not order.first < part.done <= part.total:
        raise Garbage("parts that do not fit together")


def _refusal(refused: wire.Refused, name: str) -> DocumentError:
    kinds: dict[str, type[DocumentError]] = {
        "parse": ParseError,
        "unsupported": UnsupportedFile,
        "memory": ParserDied,
        "again": DocumentError,
    }
    error = explained(kinds[refused.kind], refused.code, refused.reason[:_MOST_WORDS], name)
    if error.suggestions:
        return error
    told = tuple(line[:_MOST_WORDS] for line in refused.suggestions[:_MOST_LINES])
    return kinds[refused.kind](error.reason, error.error_code, told)
