"""Penstock's side of the suite `documents`: a folder is submitted, and workers take it in.

python documents_ours.py ingest <workers> <sleep ms> <size> <count>
                         again <size> <count>
                         share <builtin | stub> <burn ms> <size> <count>
                         pages <pages> <times>
                         memory <pages>

Workers, parsers and the engine of the vectors are processes of their own.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

import documents_models as models
from documents_place import BUILTIN, CHUNKS, RAG, STUB, Place, open_place
from penstock.pipelines.documents.config.models import Chunking
from penstock.pipelines.documents.embedding.builtin import BuiltinEmbedder
from penstock.pipelines.documents.parsing.chunks import Part
from penstock.pipelines.documents.parsing.sandbox.pool import Parsers
from penstock.settings.documents import DocumentSettings

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from texts import edited, text

SYNCS = 5
SETTLED_PAGES = 500
BATCH = 256


async def ingest(workers: str, sleep_ms: str, size: str, count: str) -> dict[str, Any]:
    """First ingest, the same folder again, and again with one file edited."""
    os.environ[models.SLEEP] = sleep_ms
    texts = _texts(int(size), int(count))
    async with open_place(STUB, workers=int(workers)) as place:
        await place.warm_up(text(-1, int(size)))
        folder = place.write(texts)
        spent, (before, _) = await place.cpu_s(), models.read_notes()
        took_s, view = await place.ingest(folder)
        told = {
            "rate": len(texts) / took_s,
            "cpu": await place.cpu_s() - spent,
            "chunks": sum(file.chunks_created for file in view.files),
            "embedded": models.read_notes()[0] - before,
            "again": await _unchanged(place, len(texts)),
        }
        name = f"{int(count) // 2}.txt"
        new = edited(texts[name])
        place.write({name: new})
        before = models.read_notes()[0]
        report = await place.documents.sync(RAG, folder)
        assert report.submission is not None  # noqa: S101
        assert report.changed == (name,)  # noqa: S101
        await place.documents.wait(report.submission.batch_id)
        former, present = await _chunks(texts[name]), await _chunks(new)
        return told | {
            "edit_embedded": models.read_notes()[0] - before,
            "edit_changed": len(present - former),
            "edit_chunks": len(present),
        }


async def again(size: str, count: str) -> dict[str, Any]:
    """The same folder again, of many files."""
    async with open_place(STUB) as place:
        await place.ingest(place.write(_texts(int(size), int(count))))
        return {"again": await _unchanged(place, int(count))}


async def share(kind: str, burn_ms: str, size: str, count: str) -> dict[str, Any]:
    """How much of the time goes elsewhere than into the model.

    `inside` is what the model's calls took within the worker; `alone` what the same chunks take
    when nothing else runs, in calls of the same size.
    """
    os.environ[models.BURN] = burn_ms
    builtin = kind == "builtin"
    texts = _texts(int(size), int(count))
    chunking = Chunking() if builtin else CHUNKS
    async with open_place(BUILTIN if builtin else STUB, chunking=chunking) as place:
        await place.warm_up(text(-1, 5_000))
        folder = place.write(texts)
        before, before_s = models.read_notes()
        took_s, _ = await place.ingest(folder)
        made, inside_s = models.read_notes()
        told = {
            "wall": took_s,
            "inside": inside_s - before_s,
            "chunks": made - before,
            "rate": (made - before) / took_s,
        }
        if builtin:
            chunks = [chunk for one in texts.values() for chunk in await _chunks(one, chunking)]
            told["alone"] = await _alone(chunks)
        return told


async def pages(number: str, times: str) -> dict[str, Any]:
    """Pages a second of a PDF, read by one child."""
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        path = _pdf(Path(folder) / "reference.pdf", int(number))
        async with Parsers(DocumentSettings(parsers=1)) as parsers:
            await _read(parsers, path)  # the child starts
            began = time.perf_counter()
            for _ in range(int(times)):
                await _read(parsers, path)
            return {"rate": int(number) * int(times) / (time.perf_counter() - began)}


async def memory(number: str) -> dict[str, Any]:
    """How worker and parser grow over a long document, once they have settled."""
    async with open_place(BUILTIN, parsers=1) as place:
        await place.warm_up(text(-1, 5_000))
        path = _pdf(place.home / "long.pdf", int(number))
        batch = await place.documents.submit(RAG, [path])
        settled: dict[str, float] = {}
        most: dict[str, float] = {}
        async for view in place.documents.follow(batch.batch_id, every_s=0.05):
            held = place.resident_mb()
            most = {kind: max(mb, most.get(kind, 0)) for kind, mb in held.items()}
            if not settled and (view.files[0].done or 0) >= SETTLED_PAGES:
                settled = dict(most)
            if view.is_final and view.status != "done":
                raise SystemExit(f"{view.files[0].error}")
        return {
            kind: {"settled": settled[kind], "most": most[kind]} for kind in ("worker", "parser")
        }


def _texts(size: int, count: int) -> dict[str, str]:
    return {f"{number}.txt": text(number, size) for number in range(count)}


async def _unchanged(place: Place, count: int) -> float:
    """Documents a second of a sync that finds nothing to do; the median of some."""
    rates: list[float] = []
    for _ in range(SYNCS):
        began = time.perf_counter()
        report = await place.documents.sync(RAG, place.sources)
        rates.append(count / (time.perf_counter() - began))
        if report.unchanged != count or report.submission is not None:
            raise SystemExit(f"only {report.unchanged} of {count} files are unchanged")
    return statistics.median(rates)


async def _chunks(content: str, chunking: Chunking = CHUNKS) -> set[str]:
    """The chunks that a text is split into."""
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        path = Path(folder) / "a.txt"
        path.write_text(content)
        async with Parsers(DocumentSettings(parsers=1)) as parsers:
            parts = await _read(parsers, path, "txt", chunking)
    return {chunk.text for part in parts for chunk in part.chunks}


async def _alone(chunks: list[str]) -> float:
    """Seconds that the built-in model takes for these, with nothing beside it."""
    embedder = BuiltinEmbedder()
    await embedder.open()
    await embedder.embed(chunks[:BATCH])
    began = time.perf_counter()
    for first in range(0, len(chunks), BATCH):
        await embedder.embed(chunks[first : first + BATCH])
    took_s = time.perf_counter() - began
    await embedder.close()
    return took_s


async def _read(
    parsers: Parsers, path: Path, declared: str = "pdf", chunking: Chunking = CHUNKS
) -> list[Part]:
    with path.open("rb") as file:
        parse = parsers.parse(file.fileno(), name=path.name, declared=declared, chunking=chunking)
        return [part async for part in parse]


def _pdf(path: Path, number: int) -> Path:
    """A PDF of pages full of text: 45 lines of 80 characters."""
    from reportlab.pdfgen.canvas import Canvas  # noqa: PLC0415  not everybody measures this

    canvas = Canvas(str(path))
    for page in range(number):
        for line in range(45):
            words = "the quick brown fox jumps over the lazy dog and keeps running."
            canvas.drawString(50, 800 - 16 * line, f"Page {page} line {line}: {words}")
        canvas.showPage()
    canvas.save()
    return path


ROLES = {"ingest": ingest, "again": again, "share": share, "pages": pages, "memory": memory}


async def main(role: str, *arguments: str) -> None:
    print(json.dumps(await ROLES[role](*arguments)), flush=True)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
