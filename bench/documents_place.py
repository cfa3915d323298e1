"""A place where documents are taken in: a data directory, workers of their own, a folder of files.

python documents_place.py work     is the program of a worker
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

import documents_models as models
from penstock import Penstock, Settings
from penstock.pipelines.documents.config.models import Chunking, Embeddings, RagConfig
from penstock.pipelines.documents.config.reading import read_configuration
from penstock.pipelines.documents.config.writing import write_rag
from penstock.pipelines.documents.service import Documents
from penstock.pipelines.documents.submit.job_message import QUEUE
from penstock.settings.documents import DocumentSettings, VectorSettings

RAG = "bench"
STUB = Embeddings(provider="python", model="documents_models:stub", cache=False)
BUILTIN = Embeddings()
CHUNKS = Chunking(size=1_024, overlap=128)
WARM_UP = 40
_HOME, _PARSERS = "BENCH_HOME", "BENCH_PARSERS"
_LOOK_S = 0.01
_LINGER_S, _LEAVE_S = 0.5, 10.0
_PROC = Path("/proc")


class Place:
    """What a program measures: files that go in, and what the processes spend on them."""

    def __init__(self, home: Path, documents: Documents, workers: list[int]) -> None:
        self.home, self.documents, self.workers = home, documents, workers
        self.sources = home / "sources"
        self._processed = home / "documents" / "sources" / RAG / "processed"

    def write(self, texts: dict[str, str]) -> Path:
        """Make a folder of files to take in."""
        self.sources.mkdir(exist_ok=True)
        for name, text in texts.items():
            (self.sources / name).write_text(text)
        return self.sources

    async def warm_up(self, text: str) -> None:
        """Let every process have done some work of the kind."""
        folder = self.home / "warm"
        folder.mkdir()
        for number in range(WARM_UP):
            (folder / f"warm{number}.txt").write_text(f"{number} {text}")
        batch = await self.documents.submit(RAG, [folder])
        await self.wait(batch.batch_id, WARM_UP)
        shutil.rmtree(folder)

    async def ingest(self, folder: Path) -> tuple[float, Any]:
        """Submit a folder; how long it takes until all is done, and the batch."""
        before = self._stored()
        began = time.perf_counter()
        batch = await self.documents.submit(RAG, [folder])
        view = await self.wait(batch.batch_id, before + len(batch.jobs))
        return time.perf_counter() - began, view

    async def wait(self, batch_id: str, stored: int) -> Any:
        """Wait until all of a batch is done. To ask for each file all the time would cost."""
        deadline = time.monotonic() + 300
        while self._stored() < stored and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        async for view in self.documents.follow(batch_id, every_s=2 * _LOOK_S):
            if view.is_final:
                if view.counts != {"done": len(view.files)}:
                    raise SystemExit(f"{view.counts}: {[file.error for file in view.files][:3]}")
                return view
        raise SystemExit("the batch has no end")

    async def is_left(self) -> None:
        """Wait until the engine's process has ended, so that it costs nobody else anything."""
        deadline = time.monotonic() + _LEAVE_S
        while len(self._processes()) > 1 and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)

    async def cpu_s(self) -> float:
        """What all have spent so far: workers, parsers, the engine, the server, this process."""
        ticks = sum(sum(map(int, fields[11:13])) for fields in self._processes().values())
        told: bytes = await self.documents.app.redis.call("INFO", "cpu")
        facts = dict(line.split(":", 1) for line in told.decode().splitlines() if ":" in line)
        server_s = float(facts["used_cpu_user"]) + float(facts["used_cpu_sys"])
        return ticks / os.sysconf("SC_CLK_TCK") + server_s

    def resident_mb(self) -> dict[str, float]:
        """What workers and parsers hold."""
        page = os.sysconf("SC_PAGE_SIZE") / (1 << 20)
        held = {"worker": 0.0, "parser": 0.0}
        for pid, fields in self._processes().items():
            kind = "worker" if pid in self.workers else "parser"
            if pid in self.workers or int(fields[1]) in self.workers:
                held[kind] += int(fields[21]) * page
        return held

    def _processes(self) -> dict[int, list[str]]:
        """By process id, what `/proc/<pid>/stat` says after the name."""
        ours = {os.getpid(), *self.workers}
        found: dict[int, list[str]] = {}
        for entry in _PROC.iterdir() if _PROC.is_dir() else ():
            if not entry.name.isdigit():
                continue
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended
            pid, home = int(entry.name), os.fsencode(self.home)
            if pid in ours or int(fields[1]) in self.workers or home in command:
                found[pid] = fields
        return found

    def _stored(self) -> int:
        if not self._processed.is_dir():
            return 0
        return sum(not name.endswith(".json") for name in os.listdir(self._processed))  # noqa: PTH208


@asynccontextmanager
async def open_place(
    embeddings: Embeddings,
    *,
    chunking: Chunking = CHUNKS,
    workers: int = 1,
    parsers: int = 0,
) -> AsyncIterator[Place]:
    """A new data directory, on the server of the suite, and workers on it."""
    # What the engine's process writes at the last moment is of no interest.
    with tempfile.TemporaryDirectory(prefix="bench", ignore_cleanup_errors=True) as home:
        notes = Path(home) / "notes"
        notes.mkdir()
        os.environ.update({_HOME: home, _PARSERS: str(parsers), models.NOTES: str(notes)})
        rag = RagConfig(rag_id=RAG, embeddings=embeddings, chunking=chunking)
        settings = _settings()
        (Path(home) / "documents" / "rags").mkdir(parents=True)
        write_rag(read_configuration(settings), rag)
        app = Penstock(settings=settings)
        async with app, Documents(app) as documents:
            started = [
                await asyncio.create_subprocess_exec(sys.executable, __file__, "work")
                for _ in range(workers)
            ]
            place = Place(Path(home), documents, [process.pid for process in started])
            try:
                yield place
            finally:
                for process in started:
                    process.terminate()
                for process in started:
                    await process.wait()
        await place.is_left()


def _settings() -> Settings:
    return Settings(
        url=os.environ["BENCH_URL"],
        home=os.environ[_HOME],
        documents=DocumentSettings(parsers=int(os.environ[_PARSERS])),
        vectors=VectorSettings(linger_s=_LINGER_S),
    )


async def work() -> None:
    """Take documents in until told to stop."""
    models.note_builtin()
    app = Penstock(settings=_settings())
    async with app, Documents(app) as documents:
        services = documents.attend(watch=False)
        await app.worker(queues=[QUEUE], services=services).run()


if __name__ == "__main__":
    uvloop.run(work())
