"""Some hundred hostile files through real parsers: each is read or refused."""

# ruff: noqa: PT017, PTH208, T201  the figures are printed

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.kit.hostile_files import HostileFile, hostile_files

from penstock.errors import DocumentError, DocumentRefused, ParserDied
from penstock.pipelines.documents.config.models import Chunking
from penstock.pipelines.documents.parsing.refusal_codes import BY_THE_FILE, SUGGESTIONS
from penstock.pipelines.documents.parsing.sandbox.parser_process import ParserProcess
from penstock.pipelines.documents.parsing.sandbox.pool import Parsers
from penstock.settings.documents import DocumentSettings

PARENT_MB = 700
"""Of the worker: a document of `largest_text` characters, several times."""


@dataclass
class Figures:
    read: int = 0
    refused: dict[str, int] = field(default_factory=dict[str, int])
    slowest: tuple[float, str] = (0.0, "")
    child_kb: int = 0
    deaths: list[str] = field(default_factory=list[str])
    launched: set[int] = field(default_factory=set[int])

    def __str__(self) -> str:
        slow_s, name = self.slowest
        return (
            f"{self.read + sum(self.refused.values())} files: {self.read} read, "
            f"{sum(self.refused.values())} refused {self.refused}; "
            f"slowest {slow_s:.1f} s ({name}); "
            f"a parser had {self.child_kb >> 10} MB at most, the worker {own_mb()} MB; "
            f"{len(self.deaths)} parsers died: {self.deaths}"
        )


def own_mb() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20


async def watch(parsers: Parsers, figures: Figures) -> None:
    """Whether a parser starts a process."""
    while True:
        for pid in parsers.pids:
            try:
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text()  # noqa: ASYNC240
            except OSError:
                continue
            figures.launched |= {int(child) for child in children.split()}
        await asyncio.sleep(0.05)


async def run(folder: Path, files: list[HostileFile], settings: DocumentSettings) -> Figures:
    figures = Figures()
    waiting = iter(files)

    async def read_some(parsers: Parsers) -> None:
        for file in waiting:
            await read_one(parsers, folder, file, figures)

    async with Parsers(settings) as parsers:
        watching = asyncio.create_task(watch(parsers, figures))
        async with asyncio.TaskGroup() as readers:
            for _ in range(parsers.size):
                readers.create_task(read_some(parsers))
        watching.cancel()
        # The pool has to be as good as before.
        harmless = HostileFile("harmless", "txt", lambda: b"some words")
        before = figures.read
        await read_one(parsers, folder, harmless, figures)
        assert figures.read == before + 1
    figures.read = before
    return figures


async def read_one(parsers: Parsers, folder: Path, file: HostileFile, figures: Figures) -> None:
    path = folder / f"{abs(hash(file.name))}"
    await asyncio.to_thread(lambda: path.write_bytes(file.make()))
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
        if code in BY_THE_FILE:
            figures.deaths.append(f"{file.name} ({code})")
    else:
        figures.read += 1
    finally:
        os.close(descriptor)
        path.unlink()
    figures.slowest = max(figures.slowest, (time.monotonic() - began, file.name))


def measured(monkeypatch: pytest.MonkeyPatch, figures: list[int]) -> None:
    """Collect the peak memory of each parser when it ends."""
    on_end = ParserProcess.on_end

    def noting(self: ParserProcess) -> None:
        figures.append(self.ended.result().max_rss_kb or 0)
        on_end(self)

    monkeypatch.setattr(ParserProcess, "on_end", noting)


async def judged(
    folder: Path, scale: float, settings: DocumentSettings, monkeypatch: pytest.MonkeyPatch
) -> Figures:
    peaks: list[int] = []
    measured(monkeypatch, peaks)
    files = hostile_files(scale)
    assert len(files) >= 200
    before = sorted(os.listdir(folder))
    figures = await run(folder, files, settings)
    figures.child_kb = max(peaks)
    print(f"\n{figures}")
    assert figures.read + sum(figures.refused.values()) == len(files)
    assert figures.child_kb <= settings.parse_memory_mb << 10
    assert own_mb() <= PARENT_MB
    assert not figures.launched
    assert sorted(os.listdir(folder)) == before
    return figures


async def test_small_hostile_files_are_all_read_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = DocumentSettings(
        parsers=2, parse_memory_mb=512, parse_cpu_s=20, parse_wall_s=120.0, largest_text=4 << 20
    )

    figures = await judged(tmp_path, 0.02, settings, monkeypatch)

    assert figures.slowest[0] < settings.parse_wall_s
    assert figures.deaths == []


@pytest.mark.torture
@pytest.mark.slow(3_600)
@pytest.mark.timeout(3_600)
async def test_large_hostile_files_end_no_more_than_their_parser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = DocumentSettings(parsers=2)

    figures = await judged(tmp_path, 1.0, settings, monkeypatch)

    assert figures.slowest[0] <= settings.parse_wall_s + 5
