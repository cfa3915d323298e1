"""A parser that was taken over by a document: what it cannot do to its parent and to files."""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.kit.paths import ROOT

from penstock.errors import FencesMissing
from penstock.pipelines.documents.config.models import Chunking
from penstock.pipelines.documents.parsing.sandbox import parser_process as process
from penstock.pipelines.documents.parsing.sandbox import pool
from penstock.pipelines.documents.parsing.sandbox.fence_check import DETAIL, FenceCheck
from penstock.pipelines.documents.parsing.sandbox.pool import Parsers
from penstock.settings.documents import DocumentSettings
from penstock.testing.eventually import eventually

linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such fences")
STRANGER = 65_534
EVERY_CALL_NEEDED = {
    "x86_64": {
        *(0, 3, 11, 12, 13, 14, 17, 19, 24, 25, 28, 35, 39, 96, 98, 131, 186, 202, 219),
        *(228, 229, 230, 295, 318, 327, 435),
    },
    "aarch64": {
        *(57, 63, 65, 67, 69, 98, 101, 113, 114, 115, 124, 128, 132, 134, 135, 165, 169, 172),
        *(178, 214, 215, 216, 233, 278, 286, 435),
    },
}
"""Memory, time, reading what is open; 435 is clone3, which is answered with ENOSYS."""
ALLOWED_FOR_OCR = {"stat", "access", "chdir", "fork", "output", "executable memory"}


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that other users can reach, unlike those of pytest."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


def taken_over(folder: Path, uid: int, kind: str) -> dict[str, Any]:
    program = ("-m", "tests.kit.programs.taken_over_parser", str(uid), str(folder), kind)
    printed = subprocess.run(
        (sys.executable, *program), stdout=subprocess.PIPE, cwd=ROOT, check=True
    ).stdout
    report: dict[str, Any] = json.loads(printed)
    if {"calls", "files"} & set(report["missing"]):
        pytest.skip(f"this system lacks fences: {report['missing']}")
    return report


def users() -> list[Any]:
    root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
    return [
        pytest.param(os.getuid(), id="this user"),
        pytest.param(STRANGER, marks=root, id="nobody"),
    ]


@linux
@pytest.mark.parametrize("uid", users())
def test_a_parser_that_was_taken_over_harms_neither_its_worker_nor_files(
    shared: Path, uid: int
) -> None:
    report = taken_over(shared, uid, "plain")

    assert report["missing"] == {}
    assert {name: one for name, one in report["outcomes"].items() if one != "EPERM"} == {}
    assert report["before"] == report["after"]


@linux
def test_only_the_calls_that_reading_needs_reach_the_kernel(shared: Path) -> None:
    report = taken_over(shared, os.getuid(), "plain")

    assert set(report["reached"]) == EVERY_CALL_NEEDED[os.uname().machine]


@linux
@pytest.mark.parametrize("uid", users())
def test_a_parser_that_may_start_programs_harms_nothing_either(shared: Path, uid: int) -> None:
    report = taken_over(shared, uid, "ocr")

    allowed = {name for name, one in report["outcomes"].items() if one == "done"}
    assert allowed <= ALLOWED_FOR_OCR
    assert report["before"] == report["after"]


PROCESSES_WITHOUT_NAMESPACE = """
import os, resource, socket, sys
from penstock.pipelines.documents.parsing.sandbox import fences
from penstock.pipelines.documents.parsing.sandbox.protocol import ParserSetup

class Refusing:
    def __init__(self, libc): self.libc = libc
    def unshare(self, flags): return -1
    def __getattr__(self, name): return getattr(self.libc, name)

leave = fences.leave
fences.leave = lambda libc, program: leave(Refusing(libc), program)
if uid := int(sys.argv[1]):
    os.setresuid(uid, uid, uid)
fences.raise_all(ParserSetup(1 << 30, 30, True), os.getppid(), socket.socketpair()[0])
print(resource.getrlimit(resource.RLIMIT_NPROC)[0])
"""


@linux
@pytest.mark.parametrize("uid", users())
def test_text_recognition_starts_beside_many_processes_where_namespaces_are_refused(
    uid: int,
) -> None:
    printed = subprocess.run(
        (sys.executable, "-c", PROCESSES_WITHOUT_NAMESPACE, str(uid)),
        stdout=subprocess.PIPE,
        check=True,
    ).stdout

    assert (int(printed) == 16) == (uid == 0 == os.getuid())


async def read(parsers: Parsers, path: Path, **options: Any) -> int:
    path.write_text("some text")  # noqa: ASYNC240  a few bytes
    descriptor = os.open(path, os.O_RDONLY)
    try:
        parts = parsers.parse(
            descriptor,
            name=path.name,
            declared="txt",
            chunking=Chunking(size=256, overlap=0),
            **options,
        )
        return len([part async for part in parts])
    finally:
        os.close(descriptor)


@pytest.fixture
def without_landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an old kernel."""
    refusing = (
        "from penstock.pipelines.documents.parsing.sandbox import fences; "
        "fences.restrict_files = lambda *_: 'Landlock: Function not implemented'; "
    )
    program = process._PROGRAM.replace("main(int", f"{refusing}main(int")
    monkeypatch.setattr(process, "_PROGRAM", program)


@pytest.mark.usefixtures("without_landlock")
async def test_a_missing_fence_is_logged_once_and_does_not_keep_a_document_from_being_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    async with Parsers(DocumentSettings(parsers=1)) as parsers:
        for number in range(3):
            assert await read(parsers, tmp_path / f"{number}.txt")
            for pid in parsers.pids:
                os.kill(pid, signal.SIGKILL)
            await eventually(lambda: not parsers.pids)
        missing = dict(parsers.missing_fences() or {})

    assert missing["files"] == "Landlock: Function not implemented"
    (record,) = [one for one in caplog.records if "fences" in one.message]
    assert record.levelno == logging.WARNING
    assert "Missing: files (Landlock: Function not implemented)" in record.message
    assert 'documents.fences = "require"' in record.message


@linux
async def test_the_reason_for_a_missing_fence_may_be_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = (
        "from penstock.pipelines.documents.parsing.sandbox import fences; "
        "fences.restrict_files = lambda *_: 'only root can run ' + 200 * '/folder'; "
    )
    program = process._PROGRAM.replace("main(int", f"{refusing}main(int")
    monkeypatch.setattr(process, "_PROGRAM", program)
    async with Parsers(DocumentSettings(parsers=1)) as parsers:
        assert await read(parsers, tmp_path / "a.txt")
        assert (await parsers.prove())["files"].startswith("only root can run /folder")


@linux
async def test_where_all_fences_stand_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    async with Parsers(DocumentSettings(parsers=1, fences="require")) as parsers:
        if await parsers.prove():
            pytest.skip(f"this system lacks fences: {parsers.missing_fences()}")
        assert await read(parsers, tmp_path / "a.txt")

    (record,) = [one for one in caplog.records if "fences" in one.message]
    assert record.levelno == logging.INFO


@pytest.mark.usefixtures("without_landlock")
@pytest.mark.parametrize("by", ["setting", "document"])
async def test_a_document_that_requires_fences_is_not_read_without_them(
    tmp_path: Path, by: str
) -> None:
    settings = DocumentSettings(parsers=1, fences="require" if by == "setting" else "use")
    async with Parsers(settings) as parsers:
        with pytest.raises(FencesMissing, match=r"files .Landlock: Function not") as caught:
            await read(parsers, tmp_path / "a.txt", require_fences=by == "document")
        assert parsers.started == 1

    assert caught.value.error_code == "ERR_FENCES_MISSING"
    assert caught.value.missing["files"]
    assert caught.value.suggestions
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  our own
    assert (str(copy), copy.missing) == (str(caught.value), caught.value.missing)


@pytest.fixture
def ocr_without_privileges(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where only root can run `tesseract`."""
    program = process._PROGRAM.replace(
        "main(int",
        "from penstock.pipelines.documents.parsing.sandbox import fences; leave = fences.leave; "
        "fences.leave = lambda libc, program: leave(libc, program)._replace("
        "privileges='only root can run it' if program else ''); main(int",
        1,
    )
    monkeypatch.setattr(process, "_PROGRAM", program)


@linux
@pytest.mark.usefixtures("ocr_without_privileges")
async def test_a_fence_that_only_parsers_with_ocr_lack_is_reported_and_hinders_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tesseract").write_text("#!/bin/sh\n")
    (tmp_path / "tesseract").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    async with Parsers(DocumentSettings(parsers=1, fences="require")) as parsers:
        if await parsers.prove():
            pytest.skip(f"this system lacks fences: {parsers.missing_fences()}")
        check = FenceCheck(parsers, required=True)
        with pytest.raises(FencesMissing, match="only root can run it"):
            await read(parsers, tmp_path / "a.txt", ocr=True)
        assert await read(parsers, tmp_path / "a.txt")

    missing = "without fences: privileges (only root can run it)"
    assert check.trouble() is None
    assert check.limitation() == f"documents with OCR are not read: {missing}"
    assert check.details() == {DETAIL: f"all; with OCR {missing}"}
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert record.message.startswith("no documents with OCR are read. Missing fences: privileges")


def test_all_parsers_together_have_half_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool, "memory_bytes", lambda: 8 << 30)

    assert Parsers(DocumentSettings(parsers=3)).size == 3
    assert not caplog.records
    assert Parsers(DocumentSettings(parsers=16)).size == 4
    assert "at most 4 of 16 parsers" in caplog.text
    assert Parsers(DocumentSettings(parsers=16, parse_memory_mb=6_000)).size == 1
