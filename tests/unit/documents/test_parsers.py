"""Documents in real child processes, some of which die of them."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.kit.pdf_files import one_page, stream, written

from penstock.errors import DocumentError, NotOpen, ParseError, ParserDied, UnsupportedFile
from penstock.pipelines.documents.config.models import Chunking
from penstock.pipelines.documents.parsing.chunks import Part, parser_version
from penstock.pipelines.documents.parsing.refusal_codes import SUGGESTIONS
from penstock.pipelines.documents.parsing.sandbox import parser_process as process
from penstock.pipelines.documents.parsing.sandbox import pool
from penstock.pipelines.documents.parsing.sandbox.pool import Parsers
from penstock.pipelines.documents.parsing.sandbox.spool import discard, purge
from penstock.settings.documents import DocumentSettings
from penstock.testing.eventually import eventually
from penstock.testing.processes import is_alive

TEXT = b"Water flows from the reservoir to the turbine.\n\n" * 40
CHUNKING = Chunking(size=256, overlap=0)
linux = pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")


@pytest.fixture
async def parsers() -> AsyncIterator[Parsers]:
    async with Parsers(DocumentSettings(parsers=1, part_pages=10)) as made:
        yield made


@contextmanager
def opened(path: Path, data: bytes) -> Iterator[int]:
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


async def read(
    parsers: Parsers, path: Path, data: bytes, declared: str | None = None, **options: Any
) -> list[Part]:
    declared = path.suffix[1:] if declared is None else declared
    with opened(path, data) as fd:
        return [
            part
            async for part in parsers.parse(
                fd, name=path.name, declared=declared, chunking=CHUNKING, **options
            )
        ]


async def refused(parsers: Parsers, path: Path, data: bytes, **options: Any) -> DocumentError:
    with pytest.raises(DocumentError) as caught:
        await read(parsers, path, data, **options)
    assert caught.value.suggestions
    return caught.value


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """A child that stands still: what it is asked to do is not done, and not refused."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGCONT)


async def warm(parsers: Parsers, folder: Path, owner: str = "") -> int:
    """Have a child that has read a document."""
    await read(parsers, folder / "warm.txt", b"warm", owner=owner)
    return parsers.pids[0]


async def started(parsers: Parsers) -> int:
    """Have a child that has read nothing."""
    await parsers.prove()
    return parsers.pids[0]


async def test_a_text_is_one_part_with_its_chunks(parsers: Parsers, tmp_path: Path) -> None:
    (part,) = await read(parsers, tmp_path / "a.txt", TEXT)

    assert (part.type, part.done, part.total) == ("txt", 1, 1)
    assert len(part.chunks) > 1
    whole = TEXT.decode()
    for chunk in part.chunks:
        assert whole[chunk.start : chunk.end] == chunk.text


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.md", b"# Title\n\nSome *words* here.\n"),
        ("a.html", b"<!doctype html><h1>Title</h1><p>Some words here."),
        ("a.txt", "Grüße".encode("utf-16")),
    ],
)
async def test_each_type_has_its_reader(
    parsers: Parsers, tmp_path: Path, name: str, data: bytes
) -> None:
    (part,) = await read(parsers, tmp_path / name, data)

    assert part.type == name.partition(".")[2]
    assert part.chunks


async def test_a_pdf_comes_in_parts_that_continue_each_other(
    parsers: Parsers, tmp_path: Path
) -> None:
    data = written([f"This is page {number}." for number in range(1, 26)], title="The title")

    parts = await read(parsers, tmp_path / "a.pdf", data)

    assert [(part.done, part.total) for part in parts] == [(10, 25), (20, 25), (25, 25)]
    assert [part.title for part in parts] == ["The title", "", ""]
    chunks = [chunk for part in parts for chunk in part.chunks]
    assert [chunk.start for chunk in chunks] == sorted(chunk.start for chunk in chunks)
    assert len({chunk.start for chunk in chunks}) == len(chunks)
    assert parsers.started == 1


async def test_the_last_part_tells_what_only_the_whole_document_shows(
    parsers: Parsers, tmp_path: Path
) -> None:
    data = written([f"text {number}" if number % 5 else "" for number in range(60)])

    parts = await read(parsers, tmp_path / "a.pdf", data)

    assert [part.warnings for part in parts[:-1]] == [()] * 5
    assert parts[-1].warnings == ("12 of 60 pages have no text (scanned?)",)


async def test_pages_that_are_only_claimed_do_not_keep_a_child_busy(
    parsers: Parsers, tmp_path: Path
) -> None:
    data = one_page(pages=b"<</Type/Pages/Kids[3 0 R]/Count 1000000>>")

    parts = await read(parsers, tmp_path / "a.pdf", data)

    assert parts[-1].done == parts[-1].total == 1_000_000
    assert parts[-1].warnings == ("999999 of 1000000 pages could not be read",)


async def test_a_document_with_too_much_text_is_refused_whatever_its_parts(tmp_path: Path) -> None:
    async with Parsers(DocumentSettings(parsers=1, part_pages=2, largest_text=45)) as parsers:
        for name, data in (
            ("a.pdf", written(["ten letters"] * 10)),
            ("a.txt", b"ten letters\n" * 10),
        ):
            with pytest.raises(ParseError) as caught:
                await read(parsers, tmp_path / name, data)
            assert caught.value.error_code == "ERR_TOO_MUCH_TEXT"
            assert "more than 45 characters" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "data", "kind", "code"),
    [
        ("a.txt", b"", ParseError, "ERR_EMPTY_FILE"),
        ("a.txt", b" \n\t\n", ParseError, "ERR_NO_TEXT"),
        ("a.txt", one_page(), UnsupportedFile, "ERR_TYPE_MISMATCH"),
        ("a.pdf", b"not a PDF", ParseError, "ERR_PDF_INVALID"),
        ("a.pdf", written(["x"], user_password="p"), ParseError, "ERR_PDF_ENCRYPTED"),
        ("a.pdf", written(["", ""]), ParseError, "ERR_NO_TEXT"),
        ("a.pdf", one_page(pages=b"<</Type/Pages/Kids[]/Count 0>>"), ParseError, "ERR_PDF_EMPTY"),
        (
            "a.pdf",
            one_page(pages=b"<</Type/Pages/Kids[9 0 R 9 0 R]/Count 2>>"),
            ParseError,
            "ERR_PDF_INVALID",
        ),
        ("a.docx", b"PK\x03\x04 broken", ParseError, "ERR_DOCX_INVALID"),
    ],
)
async def test_what_cannot_be_read_is_refused_for_good_and_the_child_lives(
    parsers: Parsers, tmp_path: Path, name: str, data: bytes, kind: type[Exception], code: str
) -> None:
    pid = await warm(parsers, tmp_path)

    error = await refused(parsers, tmp_path / name, data)

    assert (type(error), error.error_code) == (kind, code)
    assert code in SUGGESTIONS
    assert parsers.pids == (pid,)


async def test_a_docx_that_has_lost_bytes_is_a_broken_one(parsers: Parsers, tmp_path: Path) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("[Content_Types].xml", "_rels/.rels", "word/document.xml"):
            archive.writestr(name, "<x/>")
    data = file.getvalue()

    error = await refused(parsers, tmp_path / "a.docx", data[:50] + data[60:])

    assert (type(error), error.error_code) == (ParseError, "ERR_DOCX_INVALID")


async def test_suggestions_name_the_file(parsers: Parsers, tmp_path: Path) -> None:
    error = await refused(parsers, tmp_path / "my policy.pdf", b"%PDF-1.4 no")

    assert error.suggestions[0] == "Verify PDF is valid using: pdfinfo my policy.pdf"


async def test_with_by_content_the_name_does_not_matter(parsers: Parsers, tmp_path: Path) -> None:
    (part,) = await read(parsers, tmp_path / "a.txt", one_page(), by_content=True)

    assert part.type == "pdf"


async def test_a_child_does_not_move_the_place_in_the_parents_file(
    parsers: Parsers, tmp_path: Path
) -> None:
    with opened(tmp_path / "a.txt", TEXT * 2_000) as fd:
        os.lseek(fd, 7, os.SEEK_SET)
        async for _ in parsers.parse(fd, name="a.txt", declared="txt", chunking=CHUNKING):
            pass
        assert os.lseek(fd, 0, os.SEEK_CUR) == 7


async def test_a_descriptor_that_can_be_written_to_is_not_handed_out(
    parsers: Parsers, tmp_path: Path
) -> None:
    with (tmp_path / "a.txt").open("w+b") as file, pytest.raises(ValueError, match="reading only"):
        async for _ in parsers.parse(
            file.fileno(), name="a.txt", declared="txt", chunking=CHUNKING
        ):
            pass


async def test_a_closed_pool_reads_nothing(tmp_path: Path) -> None:
    parsers = Parsers(DocumentSettings(parsers=1))

    with pytest.raises(NotOpen):
        await read(parsers, tmp_path / "a.txt", TEXT)


async def test_no_more_children_than_asked_for_and_all_end_with_the_pool(tmp_path: Path) -> None:
    async with Parsers(DocumentSettings(parsers=2)) as parsers:
        await asyncio.gather(*(read(parsers, tmp_path / f"{n}.txt", TEXT) for n in range(20)))
        pids = parsers.pids
        assert len(pids) == parsers.started == 2

    assert not any(map(is_alive, pids))


def test_it_works_on_uvloop(tmp_path: Path) -> None:
    async def main() -> int:
        async with Parsers(DocumentSettings(parsers=1)) as parsers:
            return len(await read(parsers, tmp_path / "a.txt", TEXT))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == 1


async def test_whoever_is_read_for_when_the_pool_closes_is_told_so(
    parsers: Parsers, tmp_path: Path
) -> None:
    pid = await warm(parsers, tmp_path)
    with frozen(pid):
        reading = asyncio.create_task(refused(parsers, tmp_path / "a.txt", TEXT))
        await eventually(lambda: parsers.at_work)
        await parsers.__aexit__(None, None, None)

    assert (await reading).error_code == "ERR_PARSER_CLOSED"


async def test_the_least_memory_of_the_settings_is_enough_for_a_small_document(
    tmp_path: Path,
) -> None:
    async with Parsers(DocumentSettings(parsers=1, parse_memory_mb=64)) as parsers:
        assert await read(parsers, tmp_path / "a.txt", TEXT)
        assert await read(parsers, tmp_path / "a.pdf", written(["text"] * 20))


async def test_empty_lines_take_no_memory(tmp_path: Path) -> None:
    lines = b"first" + b"\n" * 3_000_000 + b"last"
    async with Parsers(DocumentSettings(parsers=1, parse_memory_mb=256)) as parsers:
        (part,) = await read(parsers, tmp_path / "a.txt", lines)

    assert [chunk.text for chunk in part.chunks] == ["first\n\nlast"]


@linux
async def test_a_child_has_no_secrets_no_descriptors_and_fences(
    parsers: Parsers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "s3cret")
    with (tmp_path / "open").open("wb") as file:
        os.set_inheritable(file.fileno(), True)
        pid = await warm(parsers, tmp_path)

    proc = Path(f"/proc/{pid}")
    names = {entry.partition(b"=")[0] for entry in (proc / "environ").read_bytes().split(b"\0")}
    assert names <= {b"", b"PATH", b"LANG", b"LC_CTYPE"}
    targets = {str(entry.readlink()) for entry in (proc / "fd").iterdir()}
    assert {t for t in targets if not t.startswith(("socket:", f"/proc/{pid}/"))} == {"/dev/null"}
    status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines())
    assert status["NoNewPrivs"] == "1"
    limits = [line.split("  ") for line in (proc / "limits").read_text().splitlines()]
    most = {fields[0]: [f.strip() for f in fields[1:] if f.strip()][:2] for fields in limits}
    for name in ("Max core file size", "Max file size", "Max processes"):
        assert most[name] == ["0", "0"]
    assert most["Max address space"] == [str(1 << 30)] * 2


@pytest.mark.faults
async def test_a_file_that_needs_too_much_memory_kills_only_its_child(tmp_path: Path) -> None:
    cap_mb = 256
    bomb = one_page(stream(b" " * (600 << 20), deflated=2))
    assert len(bomb) < 10_000
    peaks: list[int] = []

    async with Parsers(DocumentSettings(parsers=1, parse_memory_mb=cap_mb)) as parsers:
        await started(parsers)
        reading = asyncio.create_task(refused(parsers, tmp_path / "bomb.pdf", bomb))
        while not reading.done():
            peaks += [_peak_kb(pid, "VmPeak") for pid in parsers.pids]
            await asyncio.sleep(0.005)
        error = await reading
        assert await read(parsers, tmp_path / "a.txt", TEXT)

    assert isinstance(error, ParserDied)
    assert error.error_code == "ERR_OUT_OF_MEMORY"
    assert 0 < max(peaks) <= cap_mb << 10


def _peak_kb(pid: int, field: str) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(x.split()[1]) for x in status.splitlines() if x.startswith(field)), 0)


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [
        (signal.SIGKILL, ParserDied, "ERR_PARSER_KILLED"),
        (signal.SIGSEGV, ParserDied, "ERR_PARSER_CRASHED"),
        (signal.SIGXCPU, ParseError, "ERR_PARSE_TOO_SLOW"),
    ],
)
async def test_a_child_that_dies_amid_a_part_says_how_and_is_replaced(
    parsers: Parsers, tmp_path: Path, number: int, kind: type[Exception], code: str
) -> None:
    pid = await started(parsers)
    with frozen(pid):
        reading = asyncio.create_task(refused(parsers, tmp_path / "a.txt", TEXT))
        await eventually(lambda: parsers.at_work)
        os.kill(pid, number)
    error = await reading

    assert (type(error), error.error_code) == (kind, code)
    assert await read(parsers, tmp_path / "a.txt", TEXT)
    assert parsers.started == 2


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGXCPU])
async def test_a_death_is_not_blamed_on_a_document_if_an_earlier_one_may_have_caused_it(
    parsers: Parsers, tmp_path: Path, number: int
) -> None:
    with frozen(await warm(parsers, tmp_path)):
        reading = asyncio.create_task(refused(parsers, tmp_path / "a.txt", TEXT))
        await eventually(lambda: parsers.at_work)
        os.kill(parsers.pids[0], number)
    error = await reading

    assert (type(error), error.error_code) == (ParserDied, "ERR_PARSER_LOST")


async def test_a_child_reads_documents_of_one_owner_only(parsers: Parsers, tmp_path: Path) -> None:
    first = await warm(parsers, tmp_path, "one")
    assert await warm(parsers, tmp_path, "one") == first

    assert await warm(parsers, tmp_path, "another") != first
    assert len(parsers.pids) == 1


async def test_parts_that_are_each_within_their_time_do_not_go_on_for_ever(
    tmp_path: Path,
) -> None:
    data = written(["text"] * 3)
    async with Parsers(DocumentSettings(parsers=1, part_pages=1, parse_total_s=1e-9)) as parsers:
        error = await refused(parsers, tmp_path / "a.pdf", data)

    assert (type(error), error.error_code) == (ParseError, "ERR_PARSE_TOO_SLOW")


@linux
async def test_a_child_has_no_more_memory_than_all_together_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "memory_bytes", lambda: 1 << 30)
    async with Parsers(DocumentSettings(parsers=1)) as parsers:
        pid = await warm(parsers, tmp_path)
        limits = Path(f"/proc/{pid}/limits").read_text()  # noqa: ASYNC240  of the kernel

    assert f"Max address space         {512 << 20} " in limits


async def test_a_child_that_dies_while_idle_is_not_noticed(
    parsers: Parsers, tmp_path: Path
) -> None:
    os.kill(await warm(parsers, tmp_path), signal.SIGKILL)
    await eventually(lambda: not parsers.pids)

    assert await read(parsers, tmp_path / "a.txt", TEXT)


async def test_a_part_that_takes_too_long_ends_its_child(tmp_path: Path) -> None:
    async with Parsers(DocumentSettings(parsers=1, parse_wall_s=1.0)) as parsers:
        pid = await started(parsers)
        with frozen(pid):
            error = await refused(parsers, tmp_path / "a.txt", TEXT)
            await eventually(lambda: not is_alive(pid))

        assert isinstance(error, ParserDied)
        assert error.error_code == "ERR_PARSE_TIMEOUT"


@linux
def test_a_worker_that_was_stopped_reads_the_answer_that_came_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(TEXT * 5_000)  # more than a socket holds
    program = """
import asyncio, os, signal, sys
from penstock.pipelines.documents.config.models import Chunking
from penstock.pipelines.documents.parsing.sandbox.pool import Parsers
from penstock.settings.documents import DocumentSettings

async def main():
    async with Parsers(DocumentSettings(parsers=1, parse_wall_s=1.0)) as parsers:
        await parsers.prove()
        fd = os.open(sys.argv[1], os.O_RDONLY)
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGSTOP)
        parts = parsers.parse(fd, name="a", declared="txt", chunking=Chunking())
        print(len([part async for part in parts]))

asyncio.run(main())
"""
    worker = subprocess.Popen(
        (sys.executable, "-c", program, str(tmp_path / "a.txt")), stdout=subprocess.PIPE
    )
    _, status = os.waitpid(worker.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    time.sleep(2.5)  # it has to be stopped for longer than a part may take
    os.kill(worker.pid, signal.SIGCONT)

    assert worker.communicate()[0] == b"1\n"


@pytest.mark.faults
async def test_a_part_that_uses_too_much_processor_time_is_refused_for_good(
    tmp_path: Path,
) -> None:
    # One page of much text, thirty thousand times.
    text = b"BT /F1 9 Tf 20 700 Td " + b"(words in a row and more) Tj 0 -1 Td " * 2_000 + b"ET"
    kids = b"3 0 R " * 30_000
    page = one_page(stream(text), pages=b"<</Type/Pages/Kids[%s]/Count 30000>>" % kids)
    settings = DocumentSettings(parsers=1, parse_cpu_s=1, part_pages=10_000)

    async with Parsers(settings) as parsers:
        error = await refused(parsers, tmp_path / "a.pdf", page)

    assert (type(error), error.error_code) == (ParseError, "ERR_PARSE_TOO_SLOW")


async def test_a_cancellation_kills_the_child_that_works_for_the_caller(
    parsers: Parsers, tmp_path: Path
) -> None:
    pid = await warm(parsers, tmp_path)
    with frozen(pid):
        reading = asyncio.create_task(read(parsers, tmp_path / "a.txt", TEXT))
        await eventually(lambda: parsers.at_work)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await eventually(lambda: not is_alive(pid))

    assert parsers.at_work == 0
    assert await read(parsers, tmp_path / "a.txt", TEXT)


HELLO = "s.recv(9999); s.sendall(frame(Ready(1, 1)))"
FAKES = {
    "noise": f"{HELLO}; s.recv(9999); s.sendall(b'\\x00\\x00\\x00\\x05hello')",
    "too long": f"{HELLO}; s.recv(9999); s.sendall(b'\\xff' * 8)",
    "twice": f"{HELLO}; s.recv(9999); s.sendall(2 * frame(Refused('parse', 'ERR_X', 'no')))",
    "bad code": f"{HELLO}; s.recv(9999); s.sendall(frame(Refused('parse', 'what\\n', 'no')))",
    "ready again": f"{HELLO}; s.recv(9999); s.sendall(frame(Ready(1, 1)))",
    "unknown kind": f"{HELLO}; s.recv(9999); p = Part([Chunk('a', 'b')], 'txt'); "
    "s.sendall(frame(Read(p, 1)))",
    "no progress": f"{HELLO}; s.recv(9999); s.sendall(frame(Read(Part([], 'pdf', 0, 9), 1)))",
    "a page too few": f"{HELLO}; s.recv(9999); s.sendall(frame(Read(Part([], 'pdf', 5, 9), 1)))",
    "endless pages": f"{HELLO}; s.recv(9999); p = Part([], 'pdf', 10, 2**40); "
    "s.sendall(frame(Read(p, 1)))",
    "another type": f"{HELLO}; s.recv(9999); s.sendall(frame(Read(Part([Chunk('a')], 'exe'), 1)))",
    "endless title": f"{HELLO}; s.recv(9999); p = Part([Chunk('a')], 'txt', title=9999 * 'a'); "
    "s.sendall(frame(Read(p, 1)))",
    "endless headings": f"{HELLO}; s.recv(9999); c = Chunk('a', headings=9999 * ('ab',)); "
    "s.sendall(frame(Read(Part([c], 'txt'), 1)))",
    "endless chunks": f"{HELLO}; s.recv(9999); p = Part([Chunk('ab')] * (2 << 20), 'txt'); "
    "s.sendall(frame(Read(p, 1)))",
    "endless suggestions": f"{HELLO}; s.recv(9999); "
    "s.sendall(frame(Refused('parse', 'ERR_X', 'no', 99 * ('ab',))))",
    "hangs up": f"{HELLO}; s.recv(9999); s.close()",
}


@pytest.mark.parametrize("fake", FAKES)
async def test_a_child_that_was_taken_over_is_not_believed(
    parsers: Parsers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: str
) -> None:
    program = (
        "import sys, socket, time; sys.path[:] = sys.argv[3:]; "
        "from penstock.pipelines.documents.parsing.sandbox.child_program import _framed as frame; "
        "from penstock.pipelines.documents.parsing.sandbox.protocol import *; "
        "from penstock.pipelines.documents.parsing.chunks import *; "
        f"s = socket.socket(fileno=int(sys.argv[1])); {FAKES[fake]}; time.sleep(60)"
    )
    monkeypatch.setattr(process, "_PROGRAM", program)

    error = await refused(parsers, tmp_path / "a.txt", TEXT)

    assert (type(error), error.error_code) == (ParserDied, "ERR_PARSER_CRASHED")
    await eventually(lambda: not parsers.pids)


async def test_a_worker_waits_for_no_answer_that_is_larger_than_a_child_can_make(
    parsers: Parsers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import sys, socket, time; sys.path[:] = sys.argv[3:]; "
        "from penstock.pipelines.documents.parsing.sandbox.child_program import _framed as frame; "
        "from penstock.pipelines.documents.parsing.sandbox.protocol import *; "
        f"s = socket.socket(fileno=int(sys.argv[1])); {HELLO}; s.recv(9999); "
        "s.sendall((257 << 20).to_bytes(8)); time.sleep(60)"
    )
    monkeypatch.setattr(process, "_PROGRAM", program)

    assert "a message of 269484032 bytes" in str(await refused(parsers, tmp_path / "a.txt", TEXT))


@linux
async def test_a_child_that_answers_requests_without_reading_them_is_ended(
    parsers: Parsers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fionread = 0x541B
    program = (
        "import sys, socket, fcntl; sys.path[:] = sys.argv[3:]; "
        "from penstock.pipelines.documents.parsing.sandbox.child_program import _framed as frame; "
        "from penstock.pipelines.documents.parsing.sandbox.protocol import *; "
        "from penstock.pipelines.documents.parsing.chunks import *; "
        f"s = socket.socket(fileno=int(sys.argv[1])); {HELLO}\n"
        "seen = 0\n"
        "while True:\n"
        f"    there = int.from_bytes(fcntl.ioctl(s, {fionread}, bytes(4)), sys.byteorder)\n"
        "    if there > seen:\n"
        "        seen = there\n"
        "        s.sendall(frame(Read(Part([Chunk('a')], 'txt'), 1)))\n"
    )
    monkeypatch.setattr(process, "_PROGRAM", program)

    async def read_often() -> None:
        for _ in range(10_000):
            await read(parsers, tmp_path / "a.txt", TEXT)

    with pytest.raises(ParserDied, match="requests that it has not read"):
        await read_often()
    await eventually(lambda: not parsers.pids)


async def test_a_child_that_was_taken_over_cannot_give_endless_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import sys, socket; sys.path[:] = sys.argv[3:]; "
        "from penstock.pipelines.documents.parsing.sandbox.child_program import _framed as frame; "
        "from penstock.pipelines.documents.parsing.sandbox.protocol import *; "
        "from penstock.pipelines.documents.parsing.chunks import *; "
        f"s = socket.socket(fileno=int(sys.argv[1])); {HELLO}; "
        "chunks = [Chunk(60_000 * 'a')] * 100; "
        "[s.recv(9999) and s.sendall(frame(Read(Part(chunks, 'pdf', n, 99), 1))) "
        "for n in range(1, 100)]"
    )
    monkeypatch.setattr(process, "_PROGRAM", program)

    async with Parsers(DocumentSettings(parsers=1, part_pages=1, largest_text=9)) as parsers:
        error = await refused(parsers, tmp_path / "a.pdf", TEXT)

    assert (type(error), error.error_code) == (ParseError, "ERR_TOO_MUCH_TEXT")


async def test_a_missing_library_is_told(
    parsers: Parsers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = process._PROGRAM.replace(
        "sys.argv[3:]; ", "sys.argv[3:]; sys.modules['lxml'] = None; "
    )
    monkeypatch.setattr(process, "_PROGRAM", without)

    error = await refused(parsers, tmp_path / "a.txt", TEXT)

    assert (type(error), error.error_code) == (ParserDied, "ERR_PARSER_START")
    assert "lxml" in str(error)


@pytest.mark.faults
async def test_a_child_is_replaced_after_many_parts_and_when_it_has_grown(
    parsers: Parsers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_REUSE", 3)
    for _ in range(6):
        await read(parsers, tmp_path / "a.txt", TEXT)
    assert parsers.started == 2

    monkeypatch.setattr(pool, "_GROWTH", -1.0)
    for _ in range(3):
        await read(parsers, tmp_path / "a.txt", TEXT)
    assert parsers.started == 5


async def test_recognition_has_children_of_its_own(
    parsers: Parsers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "tools" / "bin"
    tools.mkdir(parents=True)
    program = tools / "tesseract"
    program.write_text("#!/bin/sh\ncat >/dev/null\necho read from a picture\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    await warm(parsers, tmp_path)

    parts = await read(parsers, tmp_path / "a.pdf", written([""]), ocr=True)

    assert parts[0].chunks[0].text == "read from a picture"
    assert (parsers.started, len(parsers.pids)) == (2, 1)
    await warm(parsers, tmp_path)
    assert parsers.started == 3


class Counted:
    """How many parts were really read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parts = 0
        really = process.ParserProcess.read

        async def counting(*arguments: Any) -> Any:
            self.parts += 1
            return await really(*arguments)

        monkeypatch.setattr(process.ParserProcess, "read", counting)


async def test_an_interrupted_job_goes_on_after_the_parts_that_were_kept(
    parsers: Parsers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = [f"This is page {number}." if number % 7 else "" for number in range(45)]
    data, spool = written(pages), tmp_path / "work" / "job"
    whole = await read(parsers, tmp_path / "a.pdf", data)
    counted = Counted(monkeypatch)

    with opened(tmp_path / "a.pdf", data) as fd:
        begun = parsers.parse(fd, name="a.pdf", declared="pdf", chunking=CHUNKING, spool=spool)
        first = [await anext(begun), await anext(begun)]  # type: ignore[arg-type]
    assert counted.parts == 2

    again = await read(parsers, tmp_path / "a.pdf", data, spool=spool)
    assert again == whole
    assert again[:2] == first
    assert counted.parts == 5

    assert await read(parsers, tmp_path / "a.pdf", data, spool=spool) == whole
    assert counted.parts == 5


async def test_a_kept_part_that_is_not_whole_is_read_again(
    parsers: Parsers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = tmp_path / "job"
    whole = await read(parsers, tmp_path / "a.txt", TEXT, spool=spool)
    (kept,) = spool.iterdir()
    kept.write_bytes(kept.read_bytes()[:100])
    counted = Counted(monkeypatch)

    assert await read(parsers, tmp_path / "a.txt", TEXT, spool=spool) == whole
    assert await read(parsers, tmp_path / "a.txt", TEXT, spool=spool) == whole
    assert counted.parts == 1


async def test_without_room_for_parts_the_document_is_read_all_the_same(
    parsers: Parsers, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")

    assert await read(parsers, tmp_path / "a.txt", TEXT, spool=tmp_path / "file" / "job")


def test_what_was_kept_for_long_is_purged(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part-000000.msgpack").write_bytes(b"x")
    (tmp_path / "no folder").write_bytes(b"x")
    for name in ("old", "no folder"):
        os.utime(tmp_path / name, (1, 1))

    assert purge(tmp_path, 3_600) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "no folder"]
    assert purge(tmp_path / "absent", 3_600) == 0
    discard(tmp_path / "new")
    discard(tmp_path / "new")
    assert not (tmp_path / "new").exists()


async def test_memory_stays_flat_over_many_pages(parsers: Parsers, tmp_path: Path) -> None:
    data = written(
        ["\n".join(f"line {line} of {page} " * 3 for line in range(30)) for page in range(700)]
    )
    pid = await warm(parsers, tmp_path)
    sizes: list[int] = []

    with opened(tmp_path / "a.pdf", data) as fd:
        async for part in parsers.parse(fd, name="a.pdf", declared="pdf", chunking=CHUNKING):
            sizes.append(_peak_kb(pid, "VmRSS"))
            assert part.total == 700

    assert len(sizes) == 70
    assert max(sizes[10:]) - sizes[10] < 20 << 10


def test_the_version_names_the_libraries() -> None:
    ours, *libraries = parser_version().split("-")
    assert ours.isdecimal()
    assert version("charset-normalizer") in libraries
    assert "none" not in parser_version()
