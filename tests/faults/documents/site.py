"""Real worker processes around one place for documents, and what must be true in the end."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock import Penstock
from penstock.errors import DocumentError, PenstockError
from penstock.pipelines.documents.configuration import TYPES, RagConfig
from penstock.pipelines.documents.configuration_writing import text_of
from penstock.pipelines.documents.parsing.parsers import Parsers
from penstock.pipelines.documents.sending import QUEUE
from penstock.pipelines.documents.service import Documents
from penstock.pipelines.documents.views import BatchView
from penstock.settings import (
    DocumentSettings,
    EmbeddedSettings,
    QueueSettings,
    Settings,
    TableSettings,
    TimeoutSettings,
    VectorSettings,
    WorkerSettings,
)
from penstock.stores.files.moving import PART
from penstock.stores.vectors.place import HousePlace
from penstock.testing.eventually import eventually
from penstock.testing.processes import is_alive, processes_in

from ..topics.crew import Launcher  # noqa: TID252  the tests are no installed package
from .papers import Paper

WORKER = Path(__file__).parent / "worker.py"
RAG = "default"
MAX_ATTEMPTS, BACKOFF = 4, (0.5, 0.5, 0.5)
SILENCE_S, BEAT_S = 1.5, 0.2
GROUPS = {
    "queues": QueueSettings,
    "worker": WorkerSettings,
    "timeouts": TimeoutSettings,
    "embedded": EmbeddedSettings,
    "tables": TableSettings,
    "vectors": VectorSettings,
    "documents": DocumentSettings,
}


class Hand:
    """One worker process."""

    def __init__(self, site: Site, actor: str, pid: int) -> None:
        self._site, self.actor, self.pid = site, actor, pid

    @property
    def code(self) -> int | None:
        """How it has ended: an exit code, or a signal's number below zero."""
        return self._site.launcher.codes.get(self.pid)

    @property
    def log(self) -> str:
        return (self._site.folder / f"{self.actor}.log").read_text()

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def kill(self) -> None:
        self._site.note_children(self.pid)
        self.signal(signal.SIGKILL)
        await self.ended()

    async def ended(self, within_s: float = 30.0) -> int:
        """Wait for its end; how it ended."""
        await eventually(lambda: self.code is not None, within_s, what=f"the end of {self.actor}")
        assert self.code is not None
        return self.code

    async def up(self) -> None:
        """Wait until it heeds signals."""
        sign = self._site.folder / f"{self.actor}.up"
        await eventually(lambda: sign.exists() or self.code is not None, 30, what=self.actor)

    async def stop(self) -> None:
        """Let it end in good order."""
        await self.up()
        self._site.note_children(self.pid)
        self.signal(signal.SIGTERM)
        code = await self.ended(60)
        assert code == 0, f"{self.actor} ended with {code}:\n{self.log[-5000:]}"


class Site:
    """A data directory, workers that take documents in there, and a user who asks for things."""

    def __init__(
        self, launcher: Launcher, url: str | None, namespace: str, folder: Path, **options
    ) -> None:
        self.launcher, self.folder = launcher, folder
        self.home = options.pop("home", folder / "home")
        self.told = {
            "url": url,
            "namespace": namespace,
            "home": str(self.home),
            "folder": str(folder),
            "queues": {"silence_s": SILENCE_S, "beat_s": BEAT_S, "poll_s": 0.05},
            "worker": {"poll_s": 0.2, "grace_s": 30.0},
            "timeouts": {"connect_s": 2.0, "command_s": 5.0},
            "embedded": {"linger_s": 0.5},
            "vectors": {"linger_s": 0.5},
            "max_attempts": MAX_ATTEMPTS,
            "backoff": BACKOFF,
            "tidy_s": 0.5,
            "settled_ms": 1_000,
            "embedder_s": 0.5,
            "crash": "",
            "poison": False,
            "pause_s": 0.0,
            "watch": False,
        }
        for name, value in options.items():
            inner = self.told.get(name)
            self.told[name] = {**inner, **value} if isinstance(inner, dict) else value
        documents = {"parsers": 1, "concurrency": 4, "settle_ms": 100, "rescan_s": 1.0}
        self.told["documents"] = {**documents, **options.get("documents", {})}
        self.app = Penstock(settings=self.settings())
        self.documents = Documents(self.app)
        self.workshop = self.documents._workshop
        self.hands: list[Hand] = []
        self.children: set[int] = set()
        self._names = itertools.count(1)

    def settings(self) -> Settings:
        groups = {name: kind(**self.told.get(name, {})) for name, kind in GROUPS.items()}
        told = self.told
        return Settings(url=told["url"], namespace=told["namespace"], home=told["home"], **groups)

    async def __aenter__(self):
        await self.app.open()
        await self.documents.open()
        return self

    async def __aexit__(self, kind, *_: object) -> None:
        for hand in self.hands:
            if hand.code is None:
                self.note_children(hand.pid)
                hand.signal(signal.SIGKILL)
                hand.signal(signal.SIGCONT)
        for hand in self.hands:
            await hand.ended()
        await self.documents.close()
        await self.app.close()
        if kind is None:
            await self.nobody_is_left()

    # ---- processes

    async def hire(self, count: int = 1, **overrides) -> list[Hand]:
        """Start workers."""
        hired = []
        for _ in range(count):
            actor = f"worker-{next(self._names)}"
            told = {**self.told, "actor": actor, **overrides}
            pid = await asyncio.to_thread(self.launcher.start, told)
            hired.append(Hand(self, actor, pid))
        self.hands += hired
        return hired

    @property
    def living(self) -> list[Hand]:
        return [hand for hand in self.hands if hand.code is None]

    async def dismiss(self) -> None:
        """Let all workers end in good order."""
        for hand in self.living:
            await hand.stop()

    def note_children(self, pid: int) -> None:
        """Remember the processes that a worker has started: they are to end with it."""
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                self.children |= set(map(int, (task / "children").read_text().split()))

    def house(self) -> HousePlace:
        """The place of the process that has the vectors."""
        return HousePlace(self.home / "vectors", self.settings().vectors)

    async def nobody_is_left(self) -> None:
        await eventually(
            lambda: not any(map(is_alive, self.children)), 30, what="the end of all children"
        )
        await eventually(
            lambda: not processes_in(self.home / "vectors"), 30, what="the end of the house"
        )

    # ---- files

    @property
    def place(self) -> Path:
        return self.workshop.config.folder_of(self.workshop.rag(RAG))

    def files(self, folder: str) -> set[str]:
        """Names of what is in one of the folders; notes and what a killed worker began left out."""
        root = self.place / folder
        names = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
        whole = {name for name in names if not Path(name).name.startswith(PART)}
        return {name for name in whole if not name.endswith((".meta.json", ".error.json"))}

    def note(self, folder: str, name: str, ending: str) -> dict:
        return msgspec.json.decode((self.place / folder / f"{name}{ending}").read_bytes())

    async def fresh(self, path: Path) -> int | str:
        """How many chunks a file has, or why it cannot be read, by reading it here and now."""
        rag = self.workshop.rag(RAG)
        count = 0
        with path.open("rb") as file:
            try:
                async for part in self._parsers.parse(
                    file.fileno(),
                    name=path.name,
                    declared=TYPES.get(path.suffix, ""),
                    chunking=rag.chunking,
                ):
                    count += len(part.chunks)
            except DocumentError as error:
                return error.error_code
        return count or "ERR_NO_TEXT"

    async def fresh_counts(self, paths: Iterable[Path]) -> dict[str, int | str]:
        settings = self.app.settings.documents
        async with Parsers(settings) as own:
            self._parsers = own
            return {path.name: await self.fresh(path) for path in paths}

    # ---- jobs

    async def submit(self, *paths: Path, **words):
        submission = await self.documents.submit(RAG, paths, **words)
        assert not submission.refused, submission.refused
        return submission

    async def ended(self, batch_id: str, within_s: float = 60.0) -> BatchView:
        """Wait for the end of a batch."""

        async def final():
            view = await self.view(batch_id)
            return view if view is not None and view.is_final else None

        try:
            return await eventually(final, within_s, what=f"the end of {batch_id}")
        except AssertionError:
            raise AssertionError(await self.state(batch_id)) from None

    async def comes_to(self, job_id: str, within_s: float = 30.0, **facts) -> dict:
        """Wait until a job's status says so; the status then."""

        async def so():
            status = await self.documents.status(job_id)
            return status if facts.items() <= status.items() else None

        try:
            return await eventually(so, within_s, what=f"{facts}")
        except AssertionError:
            raise AssertionError(
                f"{facts}: {await self.documents.status(job_id)}\n{self.hands[-1].log[-3000:]}"
            ) from None

    async def takes_in(self, folder: Path, *, workers: int = 1):
        """Submit all of a folder and let workers begin; the submission, and the chunks of each."""
        expected = await self.fresh_counts(within(folder))
        submission = await self.submit(folder)
        await self.hire(workers)
        return submission, expected

    async def goes_on(self, batch_id: str, by: int, within_s: float = 60.0) -> bool:
        """Wait until so many more files have ended; False if all have."""
        began = (await self.documents.batch(batch_id)).ended

        async def so():
            view = await self.documents.batch(batch_id)
            return view if view.is_final or view.ended >= began + by else None

        try:
            view = await eventually(so, within_s, what="progress")
        except AssertionError:
            raise AssertionError(await self.state(batch_id)) from None
        return not view.is_final

    async def view(self, batch_id: str) -> BatchView | None:
        try:
            return await self.documents.batch(batch_id)
        except PenstockError:
            return None

    async def state(self, batch_id: str) -> str:
        """What a person wants to know who finds that a batch has not ended."""
        view = await self.documents.batch(batch_id)
        still = [file for file in view.files if file.status not in {"done", "failed"}]
        logs = "\n".join(
            f"--- {hand.actor} ({hand.code}):\n{hand.log[-3000:]}" for hand in self.hands[-4:]
        )
        facts = await self.app.queues.facts(QUEUE)
        return f"{view.counts}\n{still[:5]}\n{facts}\n{logs}"

    async def settled(self, within_s: float = 30.0) -> None:
        """Wait until queue and ledger agree that nothing is left to do."""

        async def nothing_left():
            facts = await self.app.queues.facts(QUEUE)
            open_ones = await self.workshop.ledger.jobs.unended(-60_000)
            return facts.waiting + facts.delayed + facts.claimed + len(open_ones) == 0

        await eventually(nothing_left, within_s, what="queue and ledger to be empty")

    # ---- the end

    async def check(
        self, indexed: dict[str, int], failed: dict[str, str], *, versions: int = 1
    ) -> None:
        """All that must be true when all is done.

        `indexed` has the number of chunks of each document, `failed` the code of each.
        """
        await self.settled()
        assert self.files("incoming") == set()
        if versions == 1:
            stored = self.files("processed")
            assert stored == set(indexed), stored ^ set(indexed)
        assert self.files("failed") == set(failed)
        await self.check_ledger(indexed, failed)
        await self.check_points(indexed)
        for name, code in failed.items():
            body = self.note("failed", name, ".error.json")
            assert (body["status"], body["error_code"]) == ("failed", code)
        self.check_parts()

    async def check_ledger(self, indexed: dict[str, int], failed: dict[str, str]) -> None:
        rows = {row.doc_id: row for row in await self.documents.documents(RAG, limit=10_000)}
        there = {name: row for name, row in rows.items() if row.sealed}
        assert {name: row.chunks for name, row in there.items()} == indexed
        for name, row in there.items():
            assert row.generation == row.sealed or row.state == "failed", row
            note = self.note("processed", row.stored, ".meta.json")
            assert (note["status"], note["digest"]) == ("done", row.digest), name
        assert {row.state for name, row in there.items() if name not in failed} <= {"indexed"}
        assert {
            row.doc_id: row.error_code for row in rows.values() if row.state == "failed"
        } == failed

    async def check_points(self, indexed: dict[str, int]) -> None:
        row = await self.workshop.ledger.rag(RAG)
        assert row is not None
        vectors = self.workshop.vectors
        info = await vectors.describe(row.physical)
        assert info is not None
        assert await vectors.counts(row.physical, list(indexed)) == indexed
        assert info.points == sum(indexed.values())
        assert await vectors.aliases() == {RAG: row.physical}
        assert [one.name for one in await vectors.collections()] == [row.physical]

    def check_parts(self) -> None:
        """Nothing is kept of documents that are done."""
        assert [path.name for path in self.workshop.config.work_dir.iterdir()] == []

    async def check_statuses(self, jobs: Sequence, failed: dict[str, str]) -> None:
        for job in jobs:
            status = await self.documents.status(job.job_id)
            if job.document in failed:
                expected = ("failed", failed[job.document])
                assert (status["status"], status["error_code"]) == expected, status
            else:
                assert status["status"] == "done", status
                assert not status.get("error"), status

    async def check_found(self, papers: Iterable[Paper]) -> None:
        """Every planted sentence is the best answer to itself."""
        for paper in papers:
            if paper.sentence:
                (best, *_) = await self.documents.search(RAG, paper.sentence, top_k=3)
                assert best.document == paper.name, (paper, best)
                assert paper.sentence in best.text


def within(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def write_rag(home: Path, **sections) -> None:
    """Configure the RAG before anybody else does."""
    folder = home / "documents" / "rags"
    folder.mkdir(parents=True)
    rag = msgspec.convert({"rag_id": RAG, **sections}, RagConfig)
    (folder / f"{RAG}.yaml").write_text(text_of(rag))
