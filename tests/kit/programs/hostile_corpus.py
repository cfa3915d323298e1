"""Reads hostile files with real parsers, and prints what became of them as one JSON object.

    python -m tests.kit.programs.hostile_corpus FOLDER SCALE '{"parsers": 2}'

A process of its own, as the memory that it and its parsers took is measured: that of a parser is
known only where it is more than its parent ever had. So the files are made by another one. The
third argument is for `DocumentSettings`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.kit.hostile_files import HostileFile, hostile_files

from penstock.errors import DocumentError, DocumentRefused, ParserDied
from penstock.pipelines.documents.config.models import Chunking
from penstock.pipelines.documents.parsing.refusal_codes import SUGGESTIONS
from penstock.pipelines.documents.parsing.sandbox.parser_process import ParserProcess
from penstock.pipelines.documents.parsing.sandbox.pool import Parsers
from penstock.settings.documents import DocumentSettings


@dataclass
class Figures:
    files: int = 0
    read: int = 0
    refused: dict[str, int] = field(default_factory=dict[str, int])
    slowest_s: float = 0.0
    slowest: str = ""
    parser_mb: int = 0
    """Most of one parser, as far as known."""
    worker_mb: int = 0
    """Most of this process."""
    deaths: list[str] = field(default_factory=list[str])
    launched: list[int] = field(default_factory=list[int])
    """Ids of processes that parsers started."""


async def read_all(
    folder: Path, scale: float, settings: DocumentSettings, maker: ProcessPoolExecutor
) -> Figures:
    files = hostile_files(scale)
    figures = Figures(files=len(files))
    waiting = iter(enumerate(files))

    async def read_some(parsers: Parsers) -> None:
        for number, file in waiting:
            path = folder / str(number)
            await asyncio.wrap_future(maker.submit(make, number, scale, path))
            await read_one(parsers, path, file, figures)

    async with Parsers(settings) as parsers:
        watching = asyncio.create_task(watch(parsers, figures))
        async with asyncio.TaskGroup() as readers:
            for _ in range(parsers.size):
                readers.create_task(read_some(parsers))
        watching.cancel()
        # The pool has to be as good as before.
        before, harmless = figures.read, HostileFile("harmless", "txt", lambda: b"some words")
        path = folder / harmless.name
        path.write_bytes(harmless.make())
        await read_one(parsers, path, harmless, figures)
        assert figures.read == before + 1
    figures.read = before
    return figures


def make(number: int, scale: float, path: Path) -> None:
    path.write_bytes(hostile_files(scale)[number].make())


async def read_one(parsers: Parsers, path: Path, file: HostileFile, figures: Figures) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    began = time.monotonic()
    try:
        async for _ in parsers.parse(
            descriptor,
            name="file",
            declared=file.declared,
            chunking=Chunking(size=512, overlap=0),
            by_content=file.by_content,
        ):
            pass
    except DocumentError as error:
        code = error.error_code
        assert code in SUGGESTIONS, (file.name, error)
        assert isinstance(error, DocumentRefused | ParserDied), (file.name, error)
        figures.refused[code] = figures.refused.get(code, 0) + 1
        if isinstance(error, ParserDied):
            figures.deaths.append(f"{file.name} ({code})")
    else:
        figures.read += 1
    finally:
        os.close(descriptor)
        await asyncio.to_thread(path.unlink)
    took_s = time.monotonic() - began
    if took_s > figures.slowest_s:
        figures.slowest_s, figures.slowest = took_s, file.name


async def watch(parsers: Parsers, figures: Figures) -> None:
    """Note the processes that parsers start."""
    while True:
        for pid in parsers.pids:
            try:
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text()  # noqa: ASYNC240
            except OSError:
                continue
            figures.launched += [int(child) for child in children.split()]
        await asyncio.sleep(0.05)


class MeasuredParser(ParserProcess):
    peak_kb = 0

    def on_end(self) -> None:
        peak_kb = self.ended.result().max_rss_kb or 0
        MeasuredParser.peak_kb = max(MeasuredParser.peak_kb, peak_kb)
        super().on_end()


def own_peak_kb() -> int:
    """Not by getrusage: that counts the process that this one was started by."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def main() -> None:
    folder, scale, settings = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    values: dict[str, Any] = json.loads(settings)
    sys.modules[Parsers.__module__].ParserProcess = MeasuredParser  # type: ignore[attr-defined]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as maker:
        figures = asyncio.run(read_all(folder, scale, DocumentSettings(**values), maker))
    figures.parser_mb = MeasuredParser.peak_kb >> 10

    figures.worker_mb = own_peak_kb() >> 10
    print(json.dumps(asdict(figures)))


if __name__ == "__main__":
    main()
