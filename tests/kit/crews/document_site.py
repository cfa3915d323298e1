"""Real worker processes around one place for documents, and what must be true in the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from tests.kit.crews.papers import Paper
from tests.kit.crews.worker_crew import Launcher, WorkerCrew, WorkerProcess
from tests.kit.settings import settings_of

from penstock import Penstock
from penstock.errors import DocumentError, PenstockError
from penstock.pipelines.documents.admin.views import DocumentBatchView
from penstock.pipelines.documents.config.models import TYPES, RagConfig
from penstock.pipelines.documents.config.writing import text_of
from penstock.pipelines.documents.parsing.sandbox.pool import Parsers
from penstock.pipelines.documents.service import Documents
from penstock.pipelines.documents.submit.job_message import QUEUE
from penstock.stores.files.moving import PART
from penstock.stores.vectors.daemon_process import DaemonProcess
from penstock.testing.eventually import eventually
from penstock.testing.processes import is_alive, processes_in

RAG = "default"
MAX_ATTEMPTS, BACKOFF = 4, (0.5, 0.5, 0.5)
SILENCE_S, BEAT_S = 1.5, 0.2


class Site(WorkerCrew):
    """A data directory, workers that take documents in there, and a user who asks for things."""

    def __init__(
        self, launcher: Launcher, url: str | None, namespace: str, folder: Path, **options
    ) -> None:
        self.home = options.pop("home", folder / "home")
        orders = {
            "url": url,
            "namespace": namespace,
            "home": str(self.home),
            "queues": {"silence_s": SILENCE_S, "beat_s": BEAT_S, "poll_s": 0.05},
            "worker": {"poll_s": 0.2, "grace_s": 30.0},
            "timeouts": {"connect_s": 2.0, "command_s": 5.0},
            "embedded": {"linger_s": 0.5},
            "vectors": {"linger_s": 0.5},
            "documents": {"parsers": 1, "concurrency": 4, "settle_ms": 100, "rescan_s": 1.0},
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
            default = orders.get(name)
            orders[name] = {**default, **value} if isinstance(default, dict) else value
        super().__init__(launcher, folder, Penstock(settings=settings_of(orders)), orders)
        self.documents = Documents(self.app)
        self.resources = self.documents._resources
        self.children: set[int] = set()

    async def __aenter__(self):
        await super().__aenter__()
        await self.documents.open()
        return self

    async def __aexit__(self, kind, *_: object) -> None:
        await super().__aexit__()
        if kind is None:
            await self.nobody_is_left()

    async def close(self) -> None:
        await self.documents.close()
        await super().close()

    # ---- processes

    def note_stop(self, worker: WorkerProcess) -> None:
        self.note_children(worker.pid)

    def note_children(self, pid: int) -> None:
        """Remember the processes that a worker has started: they are to end with it."""
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                self.children |= set(map(int, (task / "children").read_text().split()))

    def house(self) -> DaemonProcess:
        """The place of the process that has the vectors."""
        return DaemonProcess(self.home / "vectors", self.app.settings.vectors)

    async def nobody_is_left(self) -> None:
        await eventually(
            lambda: not any(map(is_alive, self.children)), what="the end of all children"
        )
        await eventually(
            lambda: not processes_in(self.home / "vectors"), what="the end of the house"
        )

    # ---- files

    @property
    def place(self) -> Path:
        return self.resources.config.folder_of(self.resources.rag(RAG))

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
        rag = self.resources.rag(RAG)
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

    async def ended(self, batch_id: str, within_s: float = 60.0) -> DocumentBatchView:
        """Wait for the end of a batch."""

        async def final():
            view = await self.view(batch_id)
            return view if view is not None and view.is_final else None

        try:
            return await eventually(final, within_s, what=f"the end of {batch_id}")
        except AssertionError:
            raise AssertionError(await self.state(batch_id)) from None

    async def comes_to(self, job_id: str, within_s: float = 60.0, **facts) -> dict:
        """Wait until a job's status says so; the status then."""

        async def so():
            status = await self.documents.status(job_id)
            return status if facts.items() <= status.items() else None

        try:
            return await eventually(so, within_s, what=f"{facts}")
        except AssertionError:
            raise AssertionError(
                f"{facts}: {await self.documents.status(job_id)}\n{self.log_tails(3_000)}"
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

    async def view(self, batch_id: str) -> DocumentBatchView | None:
        try:
            return await self.documents.batch(batch_id)
        except PenstockError:
            return None

    async def state(self, batch_id: str) -> str:
        """What a person wants to know who finds that a batch has not ended."""
        view = await self.documents.batch(batch_id)
        still = [file for file in view.files if file.status not in {"done", "failed"}]
        facts = await self.app.queues.facts(QUEUE)
        return f"{view.counts}\n{still[:5]}\n{facts}\n{self.log_tails(3_000)}"

    async def settled(self, within_s: float = 60.0) -> None:
        """Wait until queue and ledger agree that nothing is left to do."""

        async def nothing_left():
            facts = await self.app.queues.facts(QUEUE)
            open_ones = await self.resources.ledger.jobs.unended(-60_000)
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
        row = await self.resources.ledger.rag(RAG)
        assert row is not None
        vectors = self.resources.vectors
        info = await vectors.describe(row.physical)
        assert info is not None
        assert await vectors.counts(row.physical, list(indexed)) == indexed
        assert info.points == sum(indexed.values())
        assert await vectors.aliases() == {RAG: row.physical}
        assert [one.name for one in await vectors.collections()] == [row.physical]

    def check_parts(self) -> None:
        """Nothing is kept of documents that are done."""
        assert [path.name for path in self.resources.config.work_dir.iterdir()] == []

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
