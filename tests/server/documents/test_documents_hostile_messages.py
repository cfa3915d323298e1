"""Messages that were pushed past our producers: no path leads out, and names are only labels."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import pytest_asyncio
from tests.kit.library import Library, paragraphs

from penstock.runtime.logs import SafeText
from penstock.testing.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "the C4nary of another"
COMMANDS = "\x1b]0;owned\x07\x1b[31m\u009b2J\n\r\u202e\u200b"
"""What a terminal would obey or hide."""


class Surroundings:
    """A RAG whose `incoming/` is full of traps, and everything that they lead to."""

    def __init__(self, library: Library) -> None:
        self.library, self.rag, self.other = library, library.rag(), library.rag()
        self.secret = self.rag.write("secret.txt", paragraphs(SECRET))
        self.other.put("theirs.txt", paragraphs(SECRET))
        self.incoming = self.rag.folder / "incoming"
        self.incoming.mkdir(parents=True)

    def lay(self, name: str) -> None:
        """Put a trap there, unless an earlier message has left it."""
        path = self.incoming / name
        if not os.path.lexists(path):
            TRAPS[name](self, path)

    def path(self, text: str) -> str:
        return text.format(
            rag=self.rag.id, other=self.other.id, secret=self.secret, incoming=self.incoming
        )

    def facts(self) -> dict[str, tuple[int, ...]]:
        """Of all that is outside; the time of access as well, since nothing here reads a file."""
        places = [self.rag.outside, self.other.folder, self.library.home / "documents" / "rags"]
        files = [path for place in places for path in place.rglob("*") if not path.is_dir()]
        found = {}
        for path in [*files, Path("/etc/passwd")]:
            about = path.lstat()
            found[str(path)] = (about.st_ino, about.st_size, about.st_mode, about.st_mtime_ns)
            if path == self.secret:
                found["read"] = (about.st_atime_ns,)
        return found


def socket_at(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as listener:  # its own path would be too long
            listener.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


TRAPS = {
    "link.txt": lambda around, path: path.symlink_to(around.secret),
    "dangling.txt": lambda around, path: path.symlink_to(around.rag.outside / "made.txt"),
    "zero.txt": lambda _, path: path.symlink_to("/dev/zero"),
    "environ.txt": lambda _, path: path.symlink_to("/proc/self/environ"),
    "loop.txt": lambda _, path: path.symlink_to(path.name),
    "linked": lambda around, path: path.symlink_to(around.rag.outside),
    "up": lambda _, path: path.symlink_to(".."),
    "pipe.txt": lambda _, path: os.mkfifo(path),
    "socket.txt": lambda _, path: socket_at(path),
    "folder.txt": lambda _, path: path.mkdir(),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def around(library: Library) -> Surroundings:
    made = Surroundings(library)
    # Whatever reads it now sets a later time of access, also on file systems mounted `relatime`.
    os.utime(made.secret, ns=(0, made.secret.stat().st_mtime_ns))
    return made


OUTSIDE = [
    *("/etc/passwd", "/dev/zero", "/proc/self/environ", "/proc/self/root/etc/passwd", "{secret}"),
    *(
        "/dev/stdin",
        "..",
        "../..",
        "../../{other}/incoming/theirs.txt",
        "{other}/incoming/theirs.txt",
    ),
    *(
        "{incoming}/../../{other}/incoming/theirs.txt",
        "{rag}/incoming/../../x",
        "../rags/{rag}.yaml",
    ),
    *("{rag}/failed/x.txt", "{rag}/incoming", "{rag}/incoming/", "{rag}/incoming/.", "{rag}"),
    *(
        "{rag}/incoming/a\0b.txt",
        "\0",
        "{rag}/incoming/up/../x.txt",
        "/" + "../" * 60 + "etc/passwd",
    ),
    *("{rag}/incoming/" + "a" * 256, "{rag}/incoming/" + "é" * 200, "a/" * 2_040 + "a"),
    *("file:///etc/passwd", "http://127.0.0.1:1/x", "~/x", "$HOME/x", "..\\..\\x", "C:\\x"),
    *(f"{{rag}}/incoming/{name}" for name in (r"\x2e\x2e/secret.txt", r"a\x2f..\x2fb", r"\x00")),
    *(f"../{COMMANDS}", f"{COMMANDS}/incoming/x.txt", "//etc/passwd", " /etc/passwd"),
]
MISSING = [
    *("%2e%2e/%2e%2e/secret.txt", "..%2f..%2fsecret.txt", "%2fetc%2fpasswd", "..\\..\\secret.txt"),
    *(
        "\uff0e\uff0e/secret.txt",
        "\\xff.txt",
        f"{COMMANDS}.txt",
        "-rf",
        "\\\\x2e\\\\x2e/secret.txt",
    ),
    *("a/" * 1_900 + "a", "'$(touch x)`touch y`;|&.txt"),
]
TRAPPED = {
    **dict.fromkeys(["link.txt", "dangling.txt", "zero.txt", "environ.txt", "loop.txt"], "SYMLINK"),
    **dict.fromkeys(["linked/secret.txt", "up/incoming/link.txt"], "SYMLINK"),
    **dict.fromkeys(["pipe.txt", "socket.txt", "folder.txt"], "NOT_A_FILE"),
}


@pytest.mark.parametrize(
    ("path", "code"),
    [
        *((path, "PATH_OUTSIDE") for path in OUTSIDE),
        *((f"{{rag}}/incoming/{name}", "FILE_NOT_FOUND") for name in MISSING),
        *((f"{{rag}}/incoming/{name}", code) for name, code in TRAPPED.items()),
        *((f"{{incoming}}/{name}", code) for name, code in TRAPPED.items()),
        ("x" * 4_097, "MESSAGE_INVALID"),
        ("", "MESSAGE_INVALID"),
    ],
)
async def test_a_path_that_leads_out_is_refused_at_once_and_nothing_outside_is_touched(
    library, around, path, code
):
    for name in TRAPS:
        if f"/{name}" in path:
            around.lay(name)
    before = around.facts()
    told = await around.rag.pushed("a.txt", source_path=around.path(path))
    assert (told["status"], told["error_code"], told["retry_count"]) == ("failed", f"ERR_{code}", 0)
    assert around.facts() == before
    assert SECRET not in str(told)


async def test_a_name_that_is_no_text_is_a_job_that_cannot_be_read(library, around):
    before, letters = around.facts(), len(await library.letters())
    for name in (b"\xff\xfe.txt", b'"\\ud800.txt"'):
        path = b"%b/incoming/%b" % (around.rag.id.encode(), name)
        body = b'{"rag_id":"%b","source_path":"%b"}' % (around.rag.id.encode(), path)
        await library.app.redis.call("LPUSH", "rag:ingest:queue", body)

    async def buried():
        return len(await library.letters()) == letters + 2

    await eventually(buried)
    assert around.facts() == before


@pytest.mark.parametrize(
    "words",
    [
        *({name: "../../x"} for name in ("document", "filename", "digest", "batch_id", "source")),
        *({name: COMMANDS} for name in ("document", "filename", "submitted_at", "submitted_by")),
        {"target": "../../x"},
        {"source": "/etc"},
        {"size": 1 << 70},
        {"submitted_at": "0001-01-01T00:00:00+23:59"},
        {"submitted_at": "9999-12-31T23:59:59-23:59"},
        {"metadata": {"document": "x", "text": "x", "generation": 9, "rag_id": "x"}},
        *({"job_id": text} for text in ("../../x", "a/b", "/etc/passwd", "nul\0", COMMANDS)),
        *({"job_id": text} for text in ("..", "é" * 200, "x" * 256, "\u202e.txt")),
    ],
    ids="-".join,
)
async def test_other_fields_are_labels_wherever_they_seem_to_lead(library, around, words):
    rag, before = library.rag(), around.facts()
    for number in range(2):  # the second has to give its file another name
        rag.put("a.txt", paragraphs(f"lighthouse {number}"))
        if "job_id" in words:
            words = {"job_id": f"{words['job_id'][number:]}"}
        told = await rag.pushed("a.txt", **words)
        assert (told["status"], told["retry_count"]) == ("done", 0)
    stored = [path.name for path in (rag.folder / "processed").iterdir()]
    assert all(name.isprintable() for name in stored)
    if "target" not in words:  # a copy for a rebuild that there is not
        assert {place: len(names) for place, names in rag.files().items()} == {"processed": 2}
    assert around.facts() == before


async def test_hostile_names_are_escaped_in_the_log(open_library, caplog):
    library = await open_library()
    rag = library.rag()
    safe = SafeText()
    caplog.handler.addFilter(safe)
    try:
        for words in (
            {"source_path": f"../{COMMANDS}"},
            {"rag_id": COMMANDS},
            {"source_path": f"{rag.id}/incoming/{COMMANDS}"},
            {"options": COMMANDS, "job_id": f"job {COMMANDS}"},
        ):
            assert (await rag.pushed("a.txt", **words))["status"] == "failed"
    finally:
        caplog.handler.removeFilter(safe)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(lines) == 4
    assert all(line.isprintable() for line in lines)
    assert sum(r"\x1b" in line for line in lines) == 4


@pytest.mark.parametrize(
    ("first", "second"),
    [("job-10", "job-1"), ("b/../c", "../c"), ('"quoted"\n', '"'), ("ö" * 200, "ö" * 100)],
    ids=["begins alike", "paths", "quotes", "long"],
)
async def test_a_replay_brings_back_the_file_of_its_own_job_whatever_its_id(library, first, second):
    rag = library.rag()
    for job_id in (first, second):
        rag.put("a.txt", " " * len(job_id))  # nothing to read
        assert (await rag.pushed("a.txt", job_id=job_id))["status"] == "failed"
    async with library.paused():
        await library.documents.replay(second)
        assert (rag.folder / "incoming" / "a.txt").read_text() == " " * len(second)
        assert len(rag.files()["failed"]) == 1
    assert (await library.ended(second))["error_code"] == "ERR_NO_TEXT"
