"""The whole pipeline of documents in one process, with everything real: see `library`."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Self

import pytest_asyncio
from tests.kit.workplace import QUICK

from penstock import Penstock
from penstock.errors import JobMissing
from penstock.pipelines.documents.ingest.cleanup import Cleanup
from penstock.pipelines.documents.ledger.tables import DocumentRow, JobRow
from penstock.pipelines.documents.search import SearchHit
from penstock.pipelines.documents.service import Documents
from penstock.pipelines.documents.submit.job_message import QUEUE
from penstock.pipelines.documents.submit.submitter import SubmitResult
from penstock.queues.queue import Queue
from penstock.settings import (
    DocumentSettings,
    EmbeddedSettings,
    QueueSettings,
    Settings,
    SigningSettings,
    TableSettings,
    VectorSettings,
    WorkerSettings,
)
from penstock.testing.eventually import eventually
from penstock.testing.processes import all_gone

__all__ = ["Library", "Rag", "library", "new_home", "open_library", "paragraphs"]

_numbers = itertools.count(1)
_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where the disk is not waited for: what a power cut leaves is tested elsewhere."""
_WORDS = (
    *("valve", "pump", "boiler", "harbour", "lantern", "meadow", "copper", "violin", "glacier"),
    *("orchard", "saddle", "compass", "thunder", "ribbon", "anchor", "walnut", "falcon", "basket"),
    *("marble", "candle", "tunnel", "bridge", "pepper", "velvet"),
)


def paragraphs(*subjects: str) -> str:
    """A text of one chunk for each subject (see `Rag`): no two of them alike."""
    return "\n\n".join(
        f"About {subject}: its {_WORDS[len(subject) % 24]} is kept in the "
        f"{_WORDS[sum(subject.encode()) % 24]} room of the old house, as every guest who asks for "
        f"{subject} is told there."
        for subject in subjects
    )


class Library:
    """A data directory, an application, `Documents`, and a worker, all of which end with it.

        async with Library(home) as library:
            rag = library.rag()
            told = await rag.take("a.txt", "some text")
            assert told["status"] == "done"

    `beside` is another program on the same data, with a worker of its own.
    """

    def __init__(
        self,
        home: Path,
        *,
        tables: str | None = None,
        signing: dict[str, str] | None = None,
        port: int = 0,
        **documents: Any,
    ) -> None:
        self.home = home
        self.settings = Settings(
            home=str(home),
            embedded=EmbeddedSettings(linger_s=0.1, port=port),
            tables=TableSettings(url=tables),
            vectors=VectorSettings(linger_s=0.1),
            queues=QueueSettings(**QUICK),
            worker=WorkerSettings(grace_s=1.0, poll_s=0.2),
            signing=SigningSettings(**(signing or {})),
            documents=DocumentSettings(**{"parsers": 1, **documents}),
        )
        self.app = Penstock(settings=self.settings)
        self.documents = Documents(self.app)
        self._opened = AsyncExitStack()
        self._is_beside = False

    async def __aenter__(self) -> Self:
        await self._opened.enter_async_context(self.app)
        await self._opened.enter_async_context(self.documents)
        services = self.documents.attend(watch=False)
        (self.cleanup,) = [one for one in services if isinstance(one, Cleanup)]
        worker = self.app.worker(queues=[QUEUE], services=services)
        running = asyncio.create_task(worker.run(), name="worker of the library")

        async def stop() -> None:
            await worker.stop()
            await running
            for failure in worker.failures:
                raise failure

        self._opened.push_async_callback(stop)
        await eventually(lambda: worker.readiness().ready)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()
        if not self._is_beside:
            for place in (self.home, self.home / "vectors"):
                await asyncio.to_thread(all_gone, place, 10.0)

    def beside(self) -> Library:
        """Another process on the same data, as far as anybody can tell."""
        other = Library(self.home, tables=self.settings.tables.url)
        other._is_beside = True
        return other

    @property
    def queue(self) -> Queue:
        return self.app.registry.queues[QUEUE]

    def rag(self, rag_id: str = "", **said: Any) -> Rag:
        """A RAG of one's own, whose file says this; its chunks are single paragraphs."""
        rag_id = rag_id or f"rag{next(_numbers)}"
        said = {"chunking": {"size": 200, "overlap": 0}, **said}
        self.write_rag(rag_id, json.dumps({"rag_id": rag_id, **said}))
        return Rag(self, rag_id)

    def write_rag(self, rag_id: str, text: str) -> None:
        """Write the file of a RAG, and let it be read at once."""
        folder = self.home / "documents" / "rags"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{rag_id}.yaml").write_text(text)  # JSON is YAML
        self.look_again()

    def look_again(self) -> None:
        """Let the configuration be read anew, without waiting for the next look."""
        self.documents._resources._looked_at = float("-inf")

    # ---- jobs

    async def ended(self, job_id: str) -> dict[str, Any]:
        """The status of a job that ends soon."""
        return await self.is_now(job_id, "done", "failed", "cancelled")

    async def is_now(self, job_id: str, *statuses: str) -> dict[str, Any]:
        """The status of a job, once it is one of these."""

        async def reached() -> dict[str, Any] | None:
            try:
                told = await self.documents.status(job_id)
            except JobMissing:
                return None
            return told if told["status"] in statuses else None

        return await eventually(reached, what=f"{job_id} {' or '.join(statuses)}")

    async def waits_s(self, job_id: str) -> float | None:
        """In how many seconds a job is tried again; None if it does not wait."""
        call = self.app.redis.call
        due = await call("ZSCORE", self.queue.keyring.delayed, job_id)
        seconds, micros = await call("TIME")
        return None if due is None else float(due) / 1000 - int(seconds) - int(micros) / 1e6

    async def hurry(self, job_id: str) -> None:
        """Let a job that waits for its next attempt be due now, and nothing else hold it back."""
        await self.unpark((await self.record(job_id))["rag_id"])
        moved = await self.app.redis.call("ZADD", self.queue.keyring.delayed, "XX", "CH", 1, job_id)
        assert moved == 1, f"{job_id} does not wait"

    async def unpark(self, rag_id: str) -> None:
        """Let jobs begin that were held back since another one failed."""
        gate = self.documents._resources.gate
        gate.succeeded()
        gate._parked_until.clear()
        await self.app.queues.resume(QUEUE, rag_id)

    async def record(self, job_id: str) -> dict[str, str]:
        """`HGETALL rag:ingest:job:<id>`."""
        flat = await self.app.redis.call("HGETALL", f"rag:ingest:job:{job_id}")
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return {name.decode(): value.decode() for name, value in pairs}

    async def letters(self) -> list[dict[str, Any]]:
        """The dead letters, latest first."""
        stored = await self.app.redis.call("LRANGE", self.queue.keyring.dead_letters, 0, -1)
        return [json.loads(letter) for letter in stored]

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Nobody takes a job from the queue meanwhile."""
        await self.app.queues.pause(QUEUE)
        try:
            yield
        finally:
            await self.app.queues.resume(QUEUE)

    async def job_row(self, job_id: str) -> JobRow | None:
        return await self.documents._resources.ledger.jobs.get(job_id)


class Rag:
    """One RAG of a library, with the places of its files and what is known of its documents."""

    def __init__(self, library: Library, rag_id: str) -> None:
        self.library, self.id = library, rag_id
        self.documents = library.documents
        self.folder = library.home / "documents" / "sources" / rag_id
        self.outside = library.home / "outside" / rag_id
        """Where files are before they are submitted."""
        self.outside.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file that is not in `incoming/`."""
        return _written(self.outside / name, content)

    def put(self, name: str, content: str | bytes) -> Path:
        """Write a file into `incoming/`."""
        return _written(self.folder / "incoming" / name, content)

    async def submit(self, *paths: Path | str, **words: Any) -> SubmitResult:
        return await self.documents.submit(self.id, paths, **words)

    async def send(self, name: str, content: str | bytes, **words: Any) -> str:
        """Write a file and submit it; its job."""
        submission = await self.submit(self.write(name, content), **words)
        assert submission.refused == ()
        return submission.jobs[0].job_id

    async def take(self, name: str, content: str | bytes, **words: Any) -> dict[str, Any]:
        """Write a file, submit it, and wait for its end; its status."""
        return await self.library.ended(await self.send(name, content, **words))

    async def push(self, name: str, **said: Any) -> str:
        """What another program pushes for a file in `incoming/`, as seed 002 has it; the job."""
        job_id = said.get("job_id") or f"rag-{self.id}-1704882600-{next(_numbers):08x}"
        message = {
            "job_id": job_id,
            "rag_id": self.id,
            "source_path": str(self.folder / "incoming" / name),
            "source_type": name.rpartition(".")[2],
            "filename": name.rpartition("/")[2],
            "submitted_at": "2025-01-10T20:15:30.123456Z",
            "submitted_by": "cli",
            "options": {"reindex": False, "skip_validation": False, "preserve_metadata": True},
            "retry_count": 0,
            "max_retries": 3,
            **said,
        }
        await self.library.app.redis.call("LPUSH", QUEUE, json.dumps(message))
        return job_id

    async def pushed(self, name: str, **said: Any) -> dict[str, Any]:
        """As `push`; its status at the end."""
        return await self.library.ended(await self.push(name, **said))

    # ---- what is there

    async def row(self, document: str) -> DocumentRow:
        row = await self.documents._resources.ledger.document(self.id, document)
        assert row is not None, f"the ledger has no {document}"
        return row

    async def points(self, document: str) -> int:
        """How many points the collection in use has of a document."""
        collection = await self.collection()
        vectors = self.documents._resources.vectors
        return (await vectors.counts(collection, [document])).get(document, 0)

    async def total(self) -> int:
        """How many points the collection in use has."""
        about = await self.documents._resources.vectors.describe(await self.collection())
        return about.points if about is not None else 0

    async def collection(self) -> str:
        row = await self.documents._resources.ledger.rag(self.id)
        assert row is not None
        return row.physical

    async def search(self, query: str, **words: Any) -> list[SearchHit]:
        return await self.documents.search(self.id, query, **words)

    async def finds(self, query: str) -> list[str]:
        """The documents of the hits, best first."""
        return [found.document for found in await self.search(query)]

    def files(self) -> dict[str, list[str]]:
        """What is in each folder that has something, without the notes beside files."""
        found = {
            place: sorted(
                str(path.relative_to(self.folder / place))
                for path in (self.folder / place).rglob("*")
                if not path.is_dir() and not path.name.endswith((".meta.json", ".error.json"))
            )
            for place in ("incoming", "processed", "failed")
        }
        return {place: names for place, names in found.items() if names}

    def note(self, name: str) -> dict[str, Any]:
        """A note beside a file: `processed/a.txt.meta.json`."""
        return json.loads((self.folder / name).read_text())


def _written(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@contextmanager
def new_home() -> Iterator[Path]:
    """A data directory, which goes with the block."""
    with tempfile.TemporaryDirectory(prefix="penstock-docs-", dir=_MEMORY) as folder:
        yield Path(folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def library() -> AsyncIterator[Library]:
    """One library for the tests of a module: each uses RAGs of its own, and breaks nothing."""
    with new_home() as home:
        async with Library(home) as opened:
            yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def open_library() -> AsyncIterator[Callable[..., Awaitable[Library]]]:
    """`await open_library()` is a library of one's own; `of=library` a program beside it."""
    with new_home() as home:
        async with AsyncExitStack() as opened:

            async def open_one(of: Library | None = None, **words: Any) -> Library:
                made = of.beside() if of is not None else Library(home, **words)
                return await opened.enter_async_context(made)

            yield open_one
