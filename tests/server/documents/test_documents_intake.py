"""Documents that come in for the first time: what a user sees, where the file is, what is found."""

from __future__ import annotations

import hashlib
import io
import json
import re
from datetime import datetime

import docx
import pytest
from tests.kit.library import paragraphs
from tests.kit.pdf_files import written

from penstock.errors import DocumentRefused, JobMissing, RagMissing

pytestmark = pytest.mark.asyncio(loop_scope="module")

STATUS = {
    "job_id": str,
    "rag_id": str,
    "filename": str,
    "status": str,
    "submitted_at": str,
    "started_at": str,
    "completed_at": str,
    "duration_seconds": float,
    "chunks_created": int,
    "embeddings_generated": int,
    "tokens_used": int,
    "error": type(None),
    "error_type": type(None),
    "retry_count": int,
}
"""The status of seed 002."""


def word_file(*, heading: str, text: str, table: tuple[str, str]) -> bytes:
    file, document = io.BytesIO(), docx.Document()
    document.add_heading(heading, 1)
    document.add_paragraph(text)
    cells = document.add_table(1, 2).rows[0].cells
    cells[0].text, cells[1].text = table
    document.save(file)
    return file.getvalue()


async def test_a_file_is_found_once_its_job_is_done(library):
    rag = library.rag()
    text = paragraphs("the lighthouse", "the bakery", "the quarry")
    told = await rag.take("town.txt", text)
    assert {name: type(told[name]) for name in STATUS} == STATUS
    assert told["status"] == "done"
    assert (told["rag_id"], told["filename"]) == (rag.id, "town.txt")
    assert re.fullmatch(rf"rag-{rag.id}-\d{{10}}-[0-9a-f]{{8}}", told["job_id"])
    assert (told["chunks_created"], told["embeddings_generated"], told["retry_count"]) == (3, 3, 0)
    assert told["tokens_used"] > 3
    times = [told[name] for name in ("submitted_at", "started_at", "completed_at")]
    assert times == sorted(times)
    assert all(datetime.fromisoformat(time).tzinfo is not None for time in times)
    assert rag.files() == {"processed": ["town.txt"]}
    assert (rag.folder / "processed" / "town.txt").read_text() == text
    assert (rag.outside / "town.txt").read_text() == text  # the user's own stays
    assert await rag.total() == await rag.points("town.txt") == 3
    row = await rag.row("town.txt")
    assert (row.state, row.generation, row.sealed, row.chunks) == ("indexed", 1, 1, 3)
    assert (row.stored, row.type, row.size) == ("town.txt", "txt", len(text))
    assert row.digest == hashlib.sha256(text.encode()).hexdigest()
    assert (row.error, row.bad_digest, row.duplicate_of, row.attempts) == ("", "", "", 1)
    job = await library.job_row(told["job_id"])
    assert (job.state, job.chunks, job.doc_id) == ("done", 3, "town.txt")
    best = (await rag.search("who knows about the quarry?"))[0]
    assert best.text == text.split("\n\n")[2]
    assert text[best.start : best.end] == best.text


async def test_the_record_is_a_hash_of_texts(library):
    rag = library.rag()
    told = await rag.take("a.txt", paragraphs("a record"))
    record = await library.record(told["job_id"])
    assert record["status"] == "done"
    for name in ("job_id", "rag_id", "filename", "submitted_at", "started_at", "completed_at"):
        assert record[name] == told[name]
    for name in ("chunks_created", "embeddings_generated", "tokens_used", "retry_count"):
        assert record[name] == str(told[name])
    assert record["source_type"] == "txt"
    assert re.fullmatch(rf"{rag.id}/incoming/(.+/)?a\.txt", record["source_path"])
    assert json.loads(record["result"])["document"] == "a.txt"
    assert "error" not in record
    seconds = await library.app.redis.call("TTL", f"rag:ingest:job:{told['job_id']}")
    assert 0 < seconds <= 7 * 86_400


async def test_ids_that_look_like_numbers_stay_texts(library):
    rag = library.rag("451")
    told = await rag.take("7e5.txt", paragraphs("a number"))
    assert (told["rag_id"], told["filename"], told["status"]) == ("451", "7e5.txt", "done")
    assert (await library.documents.status(told["job_id"]))["rag_id"] == "451"


async def test_a_note_beside_the_file_tells_what_became_of_it(library):
    rag = library.rag()
    told = await rag.take("a.txt", paragraphs("one", "two"), metadata={"author": "Zoë", "year": 7})
    note = rag.note("processed/a.txt.meta.json")
    expected = {
        "job_id": told["job_id"],
        "rag_id": rag.id,
        "filename": "a.txt",
        "status": "done",
        "submitted_by": "cli",
        "document": "a.txt",
        "generation": 1,
        "chunks_created": 2,
        "embeddings_generated": 2,
        "embeddings_reused": 0,
        "type": "txt",
        "metadata": {"author": "Zoë", "year": 7},
        "digest": (await rag.row("a.txt")).digest,
        "changed_since_submit": False,
        "duplicate_of": "",
    }
    assert {name: note[name] for name in expected} == expected
    (found,) = await rag.search("two", top_k=1)
    assert found.metadata == {"author": "Zoë", "year": 7}


@pytest.mark.parametrize(
    ("name", "content", "query", "expected"),
    [
        pytest.param(
            "plain.txt",
            paragraphs("the ferry", "the marmot"),
            "marmot",
            {"type": "txt", "page": None, "headings": ()},
            id="txt",
        ),
        pytest.param(
            "guide.md",
            "# Guide\n\nWelcome to the town.\n\n## Animals\n\nThe marmot sleeps until April.\n",
            "when does the marmot sleep",
            {"type": "md", "page": None, "headings": ("Guide", "Animals")},
            id="md",
        ),
        pytest.param(
            "page.html",
            "<html><body><h1>Guide</h1><p>Welcome to the town.</p><h2>Animals</h2>"
            "<p>The marmot sleeps until April.</p></body></html>",
            "when does the marmot sleep",
            {"type": "html", "page": None, "headings": ("Guide", "Animals")},
            id="html",
        ),
        pytest.param(
            "report.docx",
            word_file(heading="Animals", text="The marmot sleeps until April.", table=("a", "b")),
            "when does the marmot sleep",
            {"type": "docx", "page": None, "headings": ("Animals",)},
            id="docx",
        ),
        pytest.param(
            "book.pdf",
            written([paragraphs("the ferry"), paragraphs("the chapel", "the marmot")]),
            "who asks for the marmot",
            {"type": "pdf", "page": 2, "headings": ()},
            id="pdf",
        ),
    ],
)
async def test_every_type_is_read_and_says_where_a_sentence_is(
    library, name, content, query, expected
):
    rag = library.rag()
    told = await rag.take(name, content)
    assert (told["status"], told["error"]) == ("done", None)
    assert told["source_type"] == expected["type"]
    best = (await rag.search(query))[0]
    assert "marmot" in best.text
    assert {field: getattr(best, field) for field in expected} == expected
    assert (best.document, best.end > best.start) == (name, True)
    assert await rag.points(name) == await rag.total() == told["chunks_created"]
    assert rag.files() == {"processed": [name]}


async def test_a_planted_sentence_is_the_best_answer_among_many(library):
    rag = library.rag()
    for number in range(12):
        subjects = [f"subject {number}.{one}" for one in range(10)]
        if number == 7:
            subjects[4] = "the seven submarines of Admiral Quist"
        rag.write(f"{number}.txt", paragraphs(*subjects))
    submission = await rag.submit(rag.outside)
    view = await library.documents.wait(submission.batch_id)
    assert (view.status, view.counts) == ("done", {"done": 12})
    found = await rag.search("how many submarines has Admiral Quist?")
    assert (found[0].document, len(found)) == ("7.txt", 5)
    assert "seven submarines" in found[0].text
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    only = await rag.search("submarines", documents=["3.txt"], top_k=2)
    assert [one.document for one in only] == ["3.txt", "3.txt"]
    assert await rag.search("submarines", threshold=0.999) == []
    assert await rag.total() == 120


async def test_names_of_every_script_and_folders_are_kept(library):
    rag = library.rag()
    names = [
        "Übersicht.txt",
        "отчёт 2024.txt",
        "日本語/資料.txt",
        "🦊 fox.txt",
        "a'b\"c.txt",
        "-rf.txt",
    ]
    subjects = ["boats", "snow", "cheese", "music", "taxes", "horses"]
    for name, subject in zip(names, subjects, strict=True):
        rag.write(name, paragraphs(subject))
    submission = await rag.submit(rag.outside)
    view = await library.documents.wait(submission.batch_id)
    assert {file.document: file.status for file in view.files} == dict.fromkeys(names, "done")
    assert rag.files() == {"processed": sorted(names)}
    for name, subject in zip(names, subjects, strict=True):
        assert (await rag.finds(subject))[0] == name


async def test_a_name_in_another_normal_form_is_the_same_document(library):
    rag = library.rag()
    await rag.take("u\u0308ber.txt", paragraphs("first"))
    told = await rag.take("\u00fcber.txt", paragraphs("second"))
    assert told["document"] == "\u00fcber.txt"
    assert [row.doc_id for row in await library.documents.documents(rag.id)] == ["\u00fcber.txt"]
    assert await rag.total() == 1


async def test_what_another_program_pushes_is_taken_in(library):
    rag = library.rag()
    rag.put("policy.txt", paragraphs("the policy", "the holidays"))
    told = await rag.pushed("policy.txt", job_id=f"rag-{rag.id}-1704882600-a7b2c3d4")
    assert {name: type(told[name]) for name in STATUS} == STATUS
    assert (told["job_id"], told["status"]) == (f"rag-{rag.id}-1704882600-a7b2c3d4", "done")
    assert (told["chunks_created"], told["retry_count"], told["error"]) == (2, 0, None)
    assert (told["rag_id"], told["filename"]) == (rag.id, "policy.txt")
    assert rag.files() == {"processed": ["policy.txt"]}
    assert (await rag.finds("holidays"))[0] == "policy.txt"
    assert (await library.record(told["job_id"]))["status"] == "done"
    assert (await library.job_row(told["job_id"])).state == "done"


async def test_a_pushed_message_may_have_no_more_than_it_must(library):
    rag = library.rag()
    rag.put("a/b.txt", paragraphs("a subfolder"))
    message = {
        "job_id": f"rag-{rag.id}-1-00000001",
        "rag_id": rag.id,
        "source_path": f"{rag.id}/incoming/a/b.txt",
        "source_type": "txt",
        "filename": "b.txt",
        "submitted_at": "2025-01-10T20:15:30Z",
    }
    await library.app.redis.call("LPUSH", "rag:ingest:queue", json.dumps(message))
    told = await library.ended(message["job_id"])
    assert (told["status"], told["chunks_created"]) == ("done", 1)
    assert rag.files() == {"processed": ["a/b.txt"]}
    assert (await rag.row("a/b.txt")).state == "indexed"


async def test_a_pushed_message_of_an_older_date_counts(library):
    rag = library.rag()
    await rag.take("a.txt", paragraphs("before"))
    rag.put("a.txt", paragraphs("after"))
    told = await rag.pushed("a.txt", submitted_at="1999-12-31T23:59:59Z")
    assert told["status"] == "done"
    assert [found.text for found in await rag.search("x")] == [paragraphs("after")]
    assert "incoming" not in rag.files()


async def test_a_dry_run_tells_and_does_nothing(library):
    rag = library.rag()
    rag.write("a.txt", paragraphs("a"))
    rag.write("b.exe", b"MZ")
    submission = await rag.submit(rag.outside / "a.txt", rag.outside / "b.exe", dry_run=True)
    assert submission.dry_run
    assert [(job.job_id, job.document) for job in submission.jobs] == [("", "a.txt")]
    assert [refused.error_code for refused in submission.refused] == ["ERR_UNSUPPORTED_TYPE"]
    assert rag.files() == {}
    with pytest.raises(JobMissing):
        await library.documents.batch(submission.batch_id)


async def test_questions_without_an_answer(library):
    rag = library.rag()
    with pytest.raises(RagMissing):
        await library.documents.search("nowhere", "anything")
    with pytest.raises(DocumentRefused) as refused:
        await rag.search(" \n")
    assert refused.value.error_code == "ERR_EMPTY_QUERY"
    assert await rag.search("anything") == []
    with pytest.raises(JobMissing):
        await library.documents.status("rag-x-1-00000000")


async def test_explain_tells_where_a_job_is_and_why(library):
    rag = library.rag()
    told = await rag.take("a.txt", paragraphs("a", "b"))
    explained = await library.documents.explain(told["job_id"])
    assert explained.status["status"] == "done"
    assert explained.document.doc_id == "a.txt"
    assert "generation 1 is found, 2 chunks" in explained.lines
    async with library.paused():
        job_id = await rag.send("b.txt", paragraphs("c"))
        waiting = await library.documents.explain(job_id)
        assert waiting.lines[0].startswith("queued, attempt 0 of 4")
        assert any(line == "1 job waits, 0 run, 1 worker lives" for line in waiting.lines)
    assert (await library.ended(job_id))["status"] == "done"
