"""Files that kill the process that reads them: counted across workers, then refused at once."""

from __future__ import annotations

import pytest
from tests.kit.library import Library, new_home, paragraphs
from tests.kit.pdf_files import one_page, stream

from penstock.errors import ParseError, ParserDied, StoreAway
from penstock.testing.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

SMALL_MB = 128
BOMB = one_page(stream(b" " * (600 << 20), deflated=2))
"""A few hundred bytes that unpack to more than a parser may have."""


async def dies_once(library, rag, name: str, content: bytes = BOMB) -> str:
    job_id = await rag.send(name, content)
    told = await library.is_now(job_id, "retrying")
    assert told["retry_count"] == 1
    return job_id


async def test_a_file_that_killed_its_parser_twice_fails_and_is_refused_from_then_on(open_library):
    library = await open_library(parse_memory_mb=SMALL_MB)
    rag, other = library.rag(), library.rag()
    job_id = await dies_once(library, rag, "a.pdf")
    await library.hurry(job_id)
    told = await library.ended(job_id)

    assert (told["status"], told["error_code"]) == ("failed", "ERR_OUT_OF_MEMORY")
    assert (told["retry_count"], told["error_type"]) == (1, "ParseError")
    assert rag.files() == {"failed": ["a.pdf"]}
    assert rag.note("failed/a.pdf.error.json")["reason"] == "fatal"
    row = await rag.row("a.pdf")
    assert row.bad_digest == row.new_digest

    started = library.documents._parsers.started
    for place, name in ((rag, "a.pdf"), (rag, "copy.pdf"), (other, "elsewhere.pdf")):
        told = await place.take(name, BOMB)
        assert (told["status"], told["error_code"]) == ("failed", "ERR_OUT_OF_MEMORY")
        assert told["error"].startswith("known to be unreadable: ")
        assert told["retry_count"] == 0
    assert other.files() == {"failed": ["elsewhere.pdf"]}
    assert library.documents._parsers.started == started

    told = await other.take("elsewhere.pdf", BOMB, reindex=True)
    assert (told["status"], told["retry_count"]) == ("failed", 0)  # read once more, and refused
    assert "known" not in told["error"]
    assert library.documents._parsers.started > started


async def test_deaths_are_counted_across_workers():
    with new_home() as home:
        async with Library(home, parse_memory_mb=SMALL_MB) as first:
            rag = first.rag("r")
            job_id = await dies_once(first, rag, "a.pdf")
        async with Library(home, parse_memory_mb=SMALL_MB) as second:
            await second.hurry(job_id)
            told = await second.ended(job_id)

    assert (told["status"], told["error_code"]) == ("failed", "ERR_OUT_OF_MEMORY")
    assert told["retry_count"] == 1


async def test_a_replay_gives_a_deadly_file_another_two_attempts(open_library):
    library = await open_library(parse_memory_mb=SMALL_MB)
    rag = library.rag()
    job_id = await dies_once(library, rag, "a.pdf")
    await library.hurry(job_id)
    await library.ended(job_id)

    assert await library.documents.replay(job_id) == [job_id]

    told = await library.is_now(job_id, "retrying")
    assert told["retry_count"] == 1
    assert "incoming" in rag.files()


async def test_a_file_is_not_blamed_for_a_parser_that_had_read_another_one(open_library):
    library = await open_library(parse_memory_mb=SMALL_MB, parsers=1)
    rag = library.rag()
    assert (await rag.take("a.txt", paragraphs("one")))["status"] == "done"
    job_id = await dies_once(library, rag, "a.pdf")
    assert (await library.record(job_id))["error_code"] == "ERR_PARSER_LOST"

    assert (await rag.take("b.txt", paragraphs("another")))["status"] == "done"
    await library.hurry(job_id)

    async def read_again() -> bool:
        return (await library.record(job_id))["error_code"] == "ERR_OUT_OF_MEMORY"

    await eventually(read_again)  # alone, though the parser of its RAG was idle
    await library.hurry(job_id)
    assert (await library.ended(job_id))["retry_count"] == 2


async def test_deaths_of_a_file_that_was_read_at_last_are_forgotten(library, monkeypatch):
    rag, parsers, attempts = library.rag(), library.documents._parsers, []
    read = parsers._read

    async def dies_every_other_time(*arguments, **words):
        attempts.append(1)
        if len(attempts) % 2 == 0:
            return await read(*arguments, **words)
        raise ParserDied("it crashed", "ERR_PARSER_CRASHED")

    monkeypatch.setattr(parsers, "_read", dies_every_other_time)
    for reindex in (False, True):
        job_id = await rag.send("a.txt", paragraphs("forgotten"), reindex=reindex)
        await library.is_now(job_id, "retrying")
        await library.hurry(job_id)
        assert (await library.ended(job_id))["status"] == "done"


async def test_a_file_that_is_written_to_is_not_remembered_as_bad(library, monkeypatch):
    rag, parsers = library.rag(), library.documents._parsers
    path, read = rag.put("a.txt", paragraphs("one")), parsers._read

    async def meets_half_of_it(*arguments, **words):
        monkeypatch.setattr(parsers, "_read", read)
        with path.open("a") as file:
            file.write("\n\n" + paragraphs("two"))
        raise ParseError("half a document", "ERR_PARSE_FAILED")

    monkeypatch.setattr(parsers, "_read", meets_half_of_it)
    job_id = await rag.push("a.txt")
    await library.is_now(job_id, "retrying")
    assert (await library.record(job_id))["error_code"] == "ERR_FILE_CHANGED"
    await library.hurry(job_id)
    told = await library.ended(job_id)
    assert (told["status"], told["chunks_created"]) == ("done", 2)


@pytest.mark.parametrize("code", ["ERR_PARSER_START", "ERR_PARSER_CLOSED", "ERR_PARSER_KILLED"])
async def test_what_is_not_the_files_fault_is_not_counted(library, monkeypatch, code):
    rag = library.rag()
    error, parsers = ParserDied("not its fault", code), library.documents._parsers
    read, attempts = parsers._read, []

    async def fails(*arguments, **words):
        attempts.append(code)
        if len(attempts) == 3:
            return await read(*arguments, **words)
        raise error

    monkeypatch.setattr(parsers, "_read", fails)
    job_id = await rag.send(f"{code}.txt", paragraphs(code))
    for number in (1, 2):
        await library.is_now(job_id, "retrying")
        await library.hurry(job_id)
        await eventually(lambda number=number: len(attempts) > number)
    assert (await library.ended(job_id))["status"] == "done"


async def test_while_the_ledger_is_away_a_death_is_not_counted_and_the_job_is_tried_again(
    library, monkeypatch
):
    rag, ledger = library.rag(), library.documents._resources.ledger
    parsers, attempts = library.documents._parsers, []
    read = parsers._read

    async def dies(*arguments, **words):
        attempts.append(1)
        if len(attempts) == 4:
            return await read(*arguments, **words)
        raise ParserDied("it crashed", "ERR_PARSER_CRASHED")

    async def away(*_):
        raise StoreAway("no ledger")

    monkeypatch.setattr(parsers, "_read", dies)
    monkeypatch.setattr(ledger, "parser_died", away)
    job_id = await rag.send("a.txt", paragraphs("one"))
    for number in (1, 2, 3):
        await library.is_now(job_id, "retrying")
        await library.hurry(job_id)
        await eventually(lambda number=number: len(attempts) > number)
    assert (await library.ended(job_id))["status"] == "done"
