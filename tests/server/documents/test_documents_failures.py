"""Documents that cannot be taken in: what a user is told, and where the file is."""

from __future__ import annotations

import json
import os

import pytest
from tests.kit.fakes.embedding_api import EmbeddingApi
from tests.kit.library import paragraphs
from tests.kit.pdf_files import written

from penstock.errors import ConfigurationWrong, RagMissing, StoreAway, StoreFull
from penstock.testing.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

FAILED = {
    "error": str,
    "error_type": str,
    "error_code": str,
    "suggestions": list,
    "failed_at": str,
    "retry_count": int,
    "max_retries": int,
    "completed_at": type(None),
}


def behind(api: EmbeddingApi) -> dict[str, object]:
    """Embeddings of an API, without a cache that would hide it."""
    return {"provider": "http", "model": "m", "url": api.url, "dimension": 4, "cache": False}


# ---- no repetition would help


@pytest.mark.parametrize(
    ("name", "content", "code", "kind"),
    [
        ("blank.txt", " \n\n ", "ERR_NO_TEXT", "ParseError"),
        ("empty.txt", "", "ERR_EMPTY_FILE", "ParseError"),
        ("lie.pdf", "this is no PDF at all", "ERR_PDF_INVALID", "ParseError"),
        ("text.docx", "nor is this a DOCX", "ERR_DOCX_INVALID", "ParseError"),
        ("page.docx", written(["x"]), "ERR_TYPE_MISMATCH", "UnsupportedFile"),
        ("locked.pdf", written(["x"], user_password="s"), "ERR_PDF_ENCRYPTED", "ParseError"),
        ("cut.pdf", written(["x" * 50] * 3)[:200], "ERR_PDF_INVALID", "ParseError"),
        ("picture.txt", b"\x89PNG\r\n\x1a\n" + bytes(64), "ERR_TYPE_MISMATCH", "UnsupportedFile"),
    ],
    ids=["blank", "empty", "no PDF", "no DOCX", "other type", "encrypted", "cut", "picture"],
)
async def test_a_file_that_cannot_be_read_goes_to_failed_at_once(
    library, name, content, code, kind
):
    rag = library.rag()
    rag.put(name, content)
    told = await rag.pushed(name)
    assert {field: type(told[field]) for field in FAILED} == FAILED
    assert (told["status"], told["error_code"], told["error_type"]) == ("failed", code, kind)
    assert (told["retry_count"], told["max_retries"]) == (0, 3)
    assert rag.files() == {"failed": [name]}
    note = rag.note(f"failed/{name}.error.json")
    assert {field: note[field] for field in ("job_id", "status", "reason", "retry_count")} == {
        "job_id": told["job_id"],
        "status": "failed",
        "reason": "fatal",
        "retry_count": 0,
    }
    assert (note["error"], note["error_code"]) == (told["error"], code)
    assert note["suggestions"] == told["suggestions"]
    row = await rag.row(name)
    assert (row.state, row.sealed, row.error_code) == ("failed", 0, code)
    assert row.bad_digest == row.new_digest
    assert await rag.total() == 0
    (letter,) = [one for one in await library.letters() if told["job_id"] in json.dumps(one)]
    assert (letter["reason"], letter["attempt_count"]) == ("fatal", 1)
    job = await library.job_row(told["job_id"])
    assert (job.state, job.error_code) == ("failed", code)


async def test_a_file_that_has_vanished_is_told_as_such(library, caplog):
    rag = library.rag()
    told = await rag.pushed("ghost.txt")
    lines = [one for one in caplog.records if one.name == "penstock.failures"]
    assert any(told["job_id"] in one.getMessage() for one in lines if one.levelname == "ERROR")
    assert any(one.exc_info for one in lines if one.levelname == "WARNING")
    assert (told["status"], told["error_code"]) == ("failed", "ERR_FILE_NOT_FOUND")
    assert (told["error_type"], told["retry_count"]) == ("FileMissing", 0)
    assert told["suggestions"]
    assert rag.files() == {}
    assert (await library.job_row(told["job_id"])).state == "failed"


async def test_a_file_that_vanishes_after_it_was_submitted(library):
    rag = library.rag()
    async with library.paused():
        rag.put("a.txt", paragraphs("here today"))
        (job,) = (await rag.submit(rag.folder / "incoming" / "a.txt")).jobs
        (rag.folder / "incoming" / "a.txt").unlink()
    told = await library.ended(job.job_id)
    assert (told["status"], told["error_code"]) == ("failed", "ERR_FILE_NOT_FOUND")


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("../other/incoming/a.txt", "ERR_PATH_OUTSIDE"),
        ("/etc/passwd", "ERR_PATH_OUTSIDE"),
        ("{rag}/incoming/../../x.txt", "ERR_PATH_OUTSIDE"),
        ("{rag}/failed/a.txt", "ERR_PATH_OUTSIDE"),
        ("{rag}/incoming", "ERR_PATH_OUTSIDE"),
        ("{rag}/incoming/a\0b.txt", "ERR_PATH_OUTSIDE"),
    ],
)
async def test_a_path_that_leads_elsewhere_is_refused(library, path, code):
    rag = library.rag()
    told = await rag.pushed("a.txt", source_path=path.format(rag=rag.id))
    assert (told["status"], told["error_code"], told["retry_count"]) == ("failed", code, 0)
    assert rag.files() == {}


async def test_links_and_pipes_are_not_opened(library):
    rag = library.rag()
    secret = rag.write("secret.txt", paragraphs("a secret"))
    library.documents._resources.config  # noqa: B018  makes the folders
    (rag.folder / "incoming" / "link.txt").symlink_to(secret)
    (rag.folder / "incoming" / "folder").symlink_to(rag.outside)
    os.mkfifo(rag.folder / "incoming" / "pipe.txt")
    codes = {}
    for name in ("link.txt", "folder/secret.txt", "pipe.txt"):
        told = await rag.pushed(name)
        assert (told["status"], told["retry_count"]) == ("failed", 0)
        codes[name] = told["error_code"]
    assert codes == {
        "link.txt": "ERR_SYMLINK",
        "folder/secret.txt": "ERR_SYMLINK",
        "pipe.txt": "ERR_NOT_A_FILE",
    }
    assert secret.read_text() == paragraphs("a secret")
    assert await rag.finds("a secret") == []


async def test_what_a_rag_does_not_take_is_refused_when_it_is_submitted(library):
    rag = library.rag(sources={"max_mb": 0.001, "extensions": [".txt", ".md"]})
    paths = [
        rag.write("program.exe", b"MZ"),
        rag.write("page.html", "<p>hello</p>"),
        rag.write("large.txt", "x" * 2_000),
        rag.write("empty.txt", ""),
        rag.outside / "missing.txt",
        rag.write("good.txt", paragraphs("the good one")),
    ]
    submission = await rag.submit(*paths)
    refused = {refusal.path.rpartition("/")[2]: refusal for refusal in submission.refused}
    assert {name: refusal.error_code for name, refusal in refused.items()} == {
        "program.exe": "ERR_UNSUPPORTED_TYPE",
        "page.html": "ERR_UNSUPPORTED_TYPE",
        "large.txt": "ERR_FILE_TOO_LARGE",
        "empty.txt": "ERR_EMPTY_FILE",
        "missing.txt": "ERR_FILE_NOT_FOUND",
    }
    assert [job.document for job in submission.jobs] == ["good.txt"]
    assert (await library.ended(submission.jobs[0].job_id))["status"] == "done"
    assert rag.files() == {"processed": ["good.txt"]}  # nothing is left of the others


async def test_what_a_rag_does_not_take_is_refused_when_it_is_pushed(library):
    rag = library.rag(sources={"max_mb": 0.001, "extensions": [".txt"]})
    rag.put("page.html", "<p>hello</p>")
    rag.put("large.txt", "x" * 2_000)
    page, large = await rag.pushed("page.html"), await rag.pushed("large.txt")
    assert (page["status"], page["error_code"]) == ("failed", "ERR_UNSUPPORTED_TYPE")
    assert (large["status"], large["error_code"]) == ("failed", "ERR_FILE_TOO_LARGE")
    assert rag.files() == {"failed": ["large.txt", "page.html"]}


async def test_the_content_decides_if_validation_is_skipped(library):
    rag = library.rag()
    told = await rag.take("notes.pdf", paragraphs("plain words"), skip_validation=True)
    assert (told["status"], told["chunks_created"]) == ("done", 1)
    assert (await rag.row("notes.pdf")).type == "txt"


async def test_an_unknown_rag_is_refused(library):
    rag = library.rag()
    with pytest.raises(RagMissing):
        await library.documents.submit("nowhere", [rag.write("a.txt", "x")])
    told = await rag.pushed("a.txt", rag_id="nowhere")
    assert (told["status"], told["error_code"]) == ("failed", "ERR_RAG_UNKNOWN")
    assert (told["retry_count"], told["rag_id"]) == (0, "nowhere")
    assert rag.id in told["error"]


async def test_a_rag_whose_file_is_broken_is_told_with_its_mistakes(library):
    rag = library.rag()
    library.write_rag(rag.id, f"rag_id: {rag.id}\nchunking: {{size: 100, overlap: 100}}\nnews: 1\n")
    try:
        with pytest.raises(ConfigurationWrong) as wrong:
            await rag.submit(rag.write("a.txt", "x"))
        assert len(wrong.value.problems) == 2
        rag.folder.joinpath("incoming").mkdir(parents=True, exist_ok=True)
        rag.put("a.txt", paragraphs("a"))
        told = await rag.pushed("a.txt")
        assert (told["status"], told["error_code"]) == ("failed", "ERR_CONFIG_INVALID")
        assert "overlap" in told["error"]
        health = await library.documents.health()
        assert any(problem.startswith(f"{rag.id}.yaml: ") for problem in health.problems)
        assert rag.files() == {"incoming": ["a.txt"]}
    finally:
        library.rag(rag.id)


@pytest.mark.parametrize(
    "body",
    [
        '{"job_id": "rag-bad-1-00000001", "rag_id": "x"}',
        '{"job_id": "rag-bad-1-00000002", "rag_id": "x", "v": 2}',
        '{"job_id": "rag-bad-1-00000003", "rag_id": 7, "source_path": "a", "filename": "a"}',
    ],
)
async def test_a_message_that_makes_no_sense_is_a_failed_job(library, body):
    await library.app.redis.call("LPUSH", "rag:ingest:queue", body)
    told = await library.ended(json.loads(body)["job_id"])
    assert (told["status"], told["error_code"]) == ("failed", "ERR_MESSAGE_INVALID")
    assert (told["retry_count"], told["error_type"]) == (0, "DocumentRefused")


async def test_garbage_in_the_queue_hurts_nobody(library):
    before = len(await library.letters())
    for body in (b"", b"not json", b"[1, 2]", b'"text"', b"\xff\xfe\x00", b"null"):
        await library.app.redis.call("LPUSH", "rag:ingest:queue", body)

    async def buried():
        return len(await library.letters()) == before + 6

    await eventually(buried)
    assert (await library.rag().take("a.txt", paragraphs("a")))["status"] == "done"


# ---- known to be bad


async def test_a_known_bad_file_is_not_read_again_until_it_changes(library):
    rag = library.rag()
    first = await rag.take("a.pdf", "no PDF", skip_validation=False)
    assert (first["status"], first["error_code"]) == ("failed", "ERR_PDF_INVALID")
    parsed = library.documents.metrics.view().seconds["parse"]
    again = await rag.take("a.pdf", "no PDF")
    assert (again["status"], again["error_code"]) == ("failed", "ERR_PDF_INVALID")
    assert again["error"] == f"known to be unreadable: {first['error']}"
    assert library.documents.metrics.view().seconds["parse"] == parsed
    assert len(rag.files()["failed"]) == 2
    fixed = await rag.take("a.pdf", written(["This one is good."]))
    assert (fixed["status"], fixed["chunks_created"]) == ("done", 1)
    row = await rag.row("a.pdf")
    assert (row.state, row.bad_digest, row.error) == ("indexed", "", "")


async def test_reindex_reads_a_known_bad_file_again(library):
    rag = library.rag()
    await rag.take("a.pdf", "no PDF")
    told = await rag.take("a.pdf", "no PDF", reindex=True)
    assert (told["status"], told["error"].startswith("known")) == ("failed", False)


async def test_a_bad_version_leaves_the_good_one_found(library):
    rag = library.rag()
    await rag.take("a.pdf", written(["The chapel has a green door."]))
    told = await rag.take("a.pdf", "no PDF")
    assert told["status"] == "failed"
    row = await rag.row("a.pdf")
    assert (row.state, row.sealed, row.generation, row.chunks) == ("failed", 1, 2, 1)
    assert await rag.finds("green door") == ["a.pdf"]
    assert await rag.total() == 1
    assert rag.files() == {"failed": ["a.pdf"], "processed": ["a.pdf"]}


# ---- a repetition may help


async def test_the_retry_table_is_followed_to_its_end(library):
    async with EmbeddingApi() as api:
        rag = library.rag(embeddings=behind(api))
        api.before = answer(status=500, body={"error": {"message": "boom"}})
        job_id = await rag.send("a.txt", paragraphs("one", "two"))
        for number, wait_s in enumerate((5, 10, 30), start=1):
            told = await library.is_now(job_id, "retrying")
            assert (told["retry_count"], told["error_type"]) == (number, "EmbedderFailed")
            assert "HTTP 500: boom" in told["error"]
            assert wait_s - 2 < await library.waits_s(job_id) <= wait_s
            assert rag.files()["incoming"]
            await library.hurry(job_id)
            await eventually(lambda number=number: len(api.asked) == number + 1)
        told = await library.ended(job_id)
    assert (told["status"], told["retry_count"], told["max_retries"]) == ("failed", 3, 3)
    assert (told["error_code"], told["error_type"]) == ("ERR_EMBEDDER_AWAY", "EmbedderFailed")
    assert rag.files() == {"failed": ["a.txt"]}
    note = rag.note("failed/a.txt.error.json")
    assert (note["reason"], note["retry_count"], note["max_retries"]) == ("exhausted", 3, 3)
    assert note["error_code"] == "ERR_EMBEDDER_AWAY"
    assert "EmbedderFailed" in note["traceback"]
    (letter,) = [one for one in await library.letters() if job_id in json.dumps(one)]
    assert (letter["reason"], letter["attempt_count"]) == ("exhausted", 4)
    row = await rag.row("a.txt")
    assert (row.state, row.sealed, row.bad_digest, row.attempts) == ("failed", 0, "", 4)
    assert await rag.total() == 0
    assert (await library.job_row(job_id)).state == "failed"


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ({"status": 500, "body": {}}, "ERR_EMBEDDER_AWAY"),
        ({"status": 429, "body": {}, "headers": {"Retry-After": "0"}}, "ERR_EMBEDDER_BUSY"),
        ({"cut": True}, "ERR_EMBEDDER_AWAY"),
        ({"body": b'{"data": ['}, "ERR_EMBEDDER_ANSWER"),
    ],
)
async def test_an_embedder_that_recovers_costs_a_retry(library, what, code):
    async with EmbeddingApi() as api:
        rag = library.rag(embeddings=behind(api))
        failing = [True]

        async def fails(_):
            return what if failing[0] else None

        api.before = fails
        job_id = await rag.send("a.txt", paragraphs("one", "two"))
        await library.is_now(job_id, "retrying")
        assert (await library.record(job_id))["error_code"] == code
        failing.clear()
        failing.append(False)
        await library.hurry(job_id)
        told = await library.ended(job_id)
    assert (told["status"], told["retry_count"], told["error"]) == ("done", 1, None)
    assert (told["chunks_created"], await rag.total()) == (2, 2)
    row = await rag.row("a.txt")
    assert (row.state, row.generation, row.attempts) == ("indexed", 1, 2)
    assert rag.files() == {"processed": ["a.txt"]}


async def test_an_embedder_that_refuses_the_key_is_fatal(library):
    async with EmbeddingApi() as api:
        rag = library.rag(embeddings=behind(api))
        api.then(status=401, body={})
        told = await rag.take("a.txt", paragraphs("one"))
    assert (told["status"], told["error_code"]) == ("failed", "ERR_EMBEDDER_FORBIDDEN")
    assert told["retry_count"] == 0
    row = await rag.row("a.txt")
    assert (row.state, row.bad_digest) == ("failed", "")  # the file itself is not bad


@pytest.mark.parametrize("error", [StoreAway("no vectors"), StoreFull("no room")])
async def test_a_store_that_recovers_costs_a_retry(library, monkeypatch, error):
    rag = library.rag()
    vectors = library.documents._resources.vectors
    upsert = vectors.upsert

    async def fails(*_):
        monkeypatch.setattr(vectors, "upsert", upsert)
        raise error

    monkeypatch.setattr(vectors, "upsert", fails)
    job_id = await rag.send("a.txt", paragraphs("one", "two"))
    told = await library.is_now(job_id, "retrying")
    assert (told["retry_count"], told["error"]) == (1, str(error))
    assert (await library.record(job_id))["error_code"] == error.error_code
    await library.hurry(job_id)
    told = await library.ended(job_id)
    assert (told["status"], told["retry_count"]) == ("done", 1)
    assert await rag.total() == 2


async def test_a_file_that_is_written_to_while_it_is_read_is_read_again(library):
    async with EmbeddingApi() as api:
        rag = library.rag(embeddings=behind(api))
        path = rag.put("a.txt", paragraphs("one"))

        async def write(_):
            api.before = None
            with path.open("a") as file:
                file.write("\n\n" + paragraphs("two"))

        api.before = write
        job_id = await rag.push("a.txt")
        told = await library.is_now(job_id, "retrying")
        assert (await library.record(job_id))["error_code"] == "ERR_FILE_CHANGED"
        assert rag.files() == {"incoming": ["a.txt"]}
        await library.hurry(job_id)
        told = await library.ended(job_id)
        assert (told["status"], told["chunks_created"], told["retry_count"]) == ("done", 2, 1)
        assert await rag.points("a.txt") == await rag.total() == 2


async def test_a_file_that_is_replaced_while_it_is_read_is_read_again(library):
    async with EmbeddingApi() as api:
        rag = library.rag(embeddings=behind(api))
        path = rag.put("a.txt", paragraphs("old"))

        async def replace(_):
            api.before = None
            rag.write("new", paragraphs("new")).replace(path)

        api.before = replace
        job_id = await rag.push("a.txt")
        await library.is_now(job_id, "retrying")
        assert (await library.record(job_id))["error_code"] == "ERR_FILE_CHANGED"
        assert rag.files() == {"incoming": ["a.txt"]}
        assert await rag.search("x") == []
        await library.hurry(job_id)
        told = await library.ended(job_id)
        assert (told["status"], told["retry_count"]) == ("done", 1)
        assert [found.text for found in await rag.search("x")] == [paragraphs("new")]
    assert rag.files() == {"processed": ["a.txt"]}
    assert await rag.total() == 1


@pytest.mark.parametrize(("asked", "attempts"), [(0, 1), (1, 2), (99, 4)])
async def test_a_producer_may_ask_for_fewer_retries(library, asked, attempts):
    async with EmbeddingApi() as api:
        rag = library.rag(embeddings=behind(api))
        api.before = answer(status=500, body={})
        rag.put("a.txt", paragraphs("one"))
        job_id = await rag.push("a.txt", max_retries=asked)
        for number in range(1, attempts):
            await library.is_now(job_id, "retrying")
            await library.hurry(job_id)
            await eventually(lambda number=number: len(api.asked) == number + 1)
        told = await library.ended(job_id)
    assert (told["status"], told["retry_count"]) == ("failed", attempts - 1)
    assert told["max_retries"] == attempts - 1
    assert (await library.record(job_id))["max_retries"] == str(attempts - 1)
    assert rag.note("failed/a.txt.error.json")["max_retries"] == attempts - 1
    assert len(api.asked) == attempts
    assert rag.files() == {"failed": ["a.txt"]}


def answer(**what):
    async def always(_):
        return what

    return always
