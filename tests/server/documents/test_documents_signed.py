"""Documents where every queue and topic requires signatures."""

from __future__ import annotations

import pytest
from tests.kit.library import paragraphs
from tests.kit.signing import signing

from penstock.testing.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_documents_are_taken_in_where_everything_is_signed(open_library):
    library = await open_library(signing=signing())
    rag = library.rag()
    told = await rag.take("town.txt", paragraphs("the lighthouse", "the bakery"))
    assert told["status"] == "done"
    assert (await rag.take("broken.pdf", b"%PDF-1.4 nothing"))["status"] == "failed"
    assert len(await rag.search("the lighthouse")) > 0
    assert [letter for letter in await library.letters() if letter["reason"] == "refused"] == []


async def test_a_document_that_a_stranger_pushes_is_refused(open_library):
    library = await open_library(signing=signing())
    rag = library.rag()
    await rag.take("town.txt", paragraphs("the lighthouse"))
    job = (
        '{"task": "ingest", "args": [], "rag_id": "x", "path": "/etc/passwd", "job_id": "stranger"}'
    )
    await library.app.redis.call("RPUSH", library.queue.keyring.waiting, job)
    await eventually(library.letters)
    (letter,) = await library.letters()
    assert (letter["reason"], letter["error_code"]) == ("refused", "unsigned")
