"""Fences of a worker's parsers: where they are reported, and what requires them."""

from __future__ import annotations

import asyncio
import sys

import pytest
from tests.kit.library import Library, new_home, paragraphs

from penstock.inspector.workers import list_workers
from penstock.pipelines.documents.parsing.sandbox import parser_process as process
from penstock.pipelines.documents.submit.job_message import QUEUE
from penstock.testing.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")
MISSING = "without fences: files (Landlock: Function not implemented)"


@pytest.fixture
def without_landlock(monkeypatch) -> None:
    """As on an old kernel."""
    refusing = (
        "from penstock.pipelines.documents.parsing.sandbox import fences; "
        "fences.restrict_files = lambda *_: 'Landlock: Function not implemented'; "
    )
    program = process._PROGRAM.replace("main(int", f"{refusing}main(int")
    monkeypatch.setattr(process, "_PROGRAM", program)


async def reported(library) -> dict[str, str]:
    """Once the heartbeat of its worker has them."""

    async def there() -> dict[str, str]:
        return (await library.documents.health()).fences

    return await eventually(there, within_s=30)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such fences")
async def test_a_worker_reports_that_all_fences_stand(library):
    (fences,) = (await reported(library)).values()
    if fences != "all":
        pytest.skip(f"this system reads documents {fences}")
    assert (await library.documents.health()).ok


@pytest.mark.usefixtures("without_landlock")
async def test_health_and_doctor_name_the_fences_that_a_worker_lacks():
    with new_home() as home:
        async with Library(home) as library:
            fences = await reported(library)
            ((worker, said),) = fences.items()
            assert said.startswith(MISSING)
            health = await library.documents.health()
            assert health.ok  # it reads, as its files may be its own
            (view,) = await list_workers(library.app.redis)
            assert (view.id, view.about.ready) == (worker, True)
            findings = (await library.app.doctor()).findings
            (found,) = [one for one in findings if one.check == "workers"]
            assert found.level == "warning"
            assert found.message.startswith(f"worker {worker}: documents are read {MISSING}")
            rag = library.rag()
            assert (await rag.take("a.txt", paragraphs("one")))["status"] == "done"
            assert library.documents.metrics.view().unfenced == 1


@pytest.mark.usefixtures("without_landlock")
async def test_a_job_that_requires_fences_is_retried_and_never_read_without_them():
    with new_home() as home:
        async with Library(home) as library:
            rag = library.rag()
            job_id = await rag.send("a.txt", paragraphs("one"), require_fences=True)
            told = await library.is_now(job_id, "retrying")
            assert (told["error_type"], told["retry_count"]) == ("FencesMissing", 1)
            assert (await library.record(job_id))["error_code"] == "ERR_FENCES_MISSING"
            assert "files (Landlock: Function not implemented)" in told["error"]
            assert rag.files()["incoming"]


async def test_a_worker_that_requires_fences_claims_nothing_without_them(
    without_landlock, monkeypatch
):
    with new_home() as home:
        strict = Library(home, fences="require")
        async with strict.app, strict.documents:
            services = strict.documents.attend(watch=False)
            worker = strict.app.worker(queues=[QUEUE], services=services)
            running = asyncio.create_task(worker.run())
            rag = strict.rag()
            job_id = await rag.send("a.txt", paragraphs("one"))
            refusal = f"no documents are read: {MISSING}"
            await eventually(lambda: refusal in str(worker.readiness()), within_s=30)
            assert (await strict.documents.status(job_id))["status"] == "queued"

            monkeypatch.undo()
            async with strict.beside() as able:
                told = await able.ended(job_id)
            assert (told["status"], told["retry_count"]) == ("done", 0)
            await worker.stop()
            await running
