"""A confined folder: what it refuses, what it moves, and what a kill leaves behind."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.errors import (
    DocumentError,
    FileMissing,
    FileRefused,
    StoreAway,
    StoreError,
    StoreFull,
)
from penstock.stores.files import folder as folder_module
from penstock.stores.files import moving, naming
from penstock.stores.files.folder import Folder

MB = 1_000_000
_EXCHANGE = 2
NAMES = [
    "report.pdf",
    "-rf",
    "--help.txt",
    "two\nlines.txt",
    "tab\there",
    "trailing. ",
    "trailing.",
    " leading",
    "مرحبا بالعالم.txt",
    "\u202eexe.fdp",
    "שלום.md",
    "日本語の文書.pdf",
    "한국어.docx",
    "ไทย.txt",
    "देवनागरी.txt",
    "Ελληνικά",
    "кириллица",
    "😀🏳️‍🌈.md",
    "e\u0301 decomposed",
    "back\\slash",
    "quote'\"$(x);&|*?.txt",
    "CON",
    "nul.txt",
    "a" * 255,
    "é" * 127,
    "...",
    "..x",
    "x..",
    os.fsdecode(b"bytes \xff\xfe.txt"),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "rag" / "incoming"


@pytest.fixture
def incoming(root: Path) -> Folder:
    return Folder.made(root)


@pytest.fixture
def processed(tmp_path: Path) -> Folder:
    return Folder.made(tmp_path / "rag" / "processed")


def put(folder: Folder, name: str, data: bytes = b"text") -> str:
    path = folder.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return name


@contextlib.contextmanager
def exchanging(one: Path, other: Path) -> Iterator[None]:
    """Let two names change places all the time, so that neither is ever missing."""
    rename, here = ctypes.CDLL(None, use_errno=True).renameat2, -100
    names, done = (os.fsencode(one), os.fsencode(other)), threading.Event()

    def exchange() -> None:
        while not done.is_set():
            assert rename(here, names[0], here, names[1], _EXCHANGE) == 0, ctypes.get_errno()

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def refusal(folder: Folder, name: str, max_bytes: int = MB) -> str:
    with pytest.raises(FileRefused) as refused:
        folder.open(name, max_bytes=max_bytes)
    return refused.value.error_code


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class TestPaths:
    def test_a_made_folder_is_for_its_user_alone(self, incoming: Folder) -> None:
        assert incoming.root.stat().st_mode & 0o777 == 0o700

    @pytest.mark.parametrize("name", NAMES)
    def test_any_name_that_a_file_can_have_is_allowed(self, incoming: Folder, name: str) -> None:
        assert incoming.relative(name) == name
        assert incoming.relative(incoming.root / "sub" / name) == f"sub/{name}"

    def test_a_path_is_spelled_the_same_however_it_comes(self, incoming: Folder) -> None:
        assert incoming.relative("./a//b/./c.txt") == "a/b/c.txt"
        assert incoming.relative(f"{incoming.root}/a/b/c.txt") == "a/b/c.txt"

    @pytest.mark.parametrize(
        "path",
        [
            "",
            ".",
            "..",
            "../x",
            "a/../../x",
            "a/..",
            "a/../b",
            "/",
            "/etc/passwd",
            "//etc/passwd",
            "nul\0byte",
            "a" * 256,
            "é" * 128,
            "/".join(["a" * 200] * 30),
            "lone \ud800 surrogate",
        ],
    )
    def test_a_path_that_leads_elsewhere_is_refused(self, incoming: Folder, path: str) -> None:
        with pytest.raises(FileRefused) as refused:
            incoming.relative(path)
        assert refused.value.error_code == "ERR_PATH_OUTSIDE"
        for act in (
            lambda: incoming.open(path, max_bytes=MB),
            lambda: incoming.write(path, b""),
            lambda: incoming.remove(path),
            lambda: incoming.identity(path),
        ):
            with pytest.raises(FileRefused) as refused:
                act()
            assert refused.value.error_code == "ERR_PATH_OUTSIDE"

    def test_a_twin_whose_name_begins_alike_is_outside(self, incoming: Folder) -> None:
        twin = Path(f"{incoming.root}-evil")
        twin.mkdir()
        (twin / "x").write_text("x")
        for path in (f"{twin}/x", f"{incoming.root}/../{twin.name}/x", str(incoming.root)):
            with pytest.raises(FileRefused) as refused:
                incoming.relative(path)
            assert refused.value.error_code == "ERR_PATH_OUTSIDE"

    def test_a_link_to_the_root_is_followed_once(self, incoming: Folder, tmp_path: Path) -> None:
        link = tmp_path / "link"
        link.symlink_to(incoming.root)
        folder = Folder(link)
        put(incoming, "a")
        assert folder.relative(link / "a") == folder.relative(incoming.root / "a") == "a"
        link.unlink()
        link.symlink_to("/etc")
        assert folder.read("a", MB) == b"text"

    @pytest.mark.parametrize("name", NAMES)
    def test_an_escaped_path_is_text_and_leads_back(self, name: str) -> None:
        text = naming.escaped(name)
        text.encode()
        assert naming.unescaped(text) == name

    def test_labels_of_different_files_differ(self, incoming: Folder) -> None:
        names = [
            os.fsdecode(b"a\xff"),
            "a\\xff",
            "a\\\\xff",
            os.fsdecode(b"a\\\xff"),
            os.fsdecode(b"a\\\\\xff"),
            "a\\xfg",
            "a\\",
        ]
        assert len({incoming.label(name) for name in names}) == len(names)
        assert [naming.unescaped(naming.escaped(name)) for name in names] == names
        assert incoming.label("a\\b") == "a\\b"
        assert incoming.label("e\u0301") == unicodedata.normalize("NFC", "e\u0301")

    def test_a_name_beside_a_long_one_is_short_enough_and_its_own(self) -> None:
        names = ["d/" + "é" * 126 + end for end in ("abc", "abd")]
        made = {naming.with_ending(name, ".meta.json") for name in names}
        assert len(made) == 2
        assert all(len(os.fsencode(name)) <= 2 + 255 for name in made)
        assert naming.with_ending("d/a.pdf", ".meta.json") == "d/a.pdf.meta.json"


class TestOpening:
    @pytest.mark.parametrize("name", NAMES)
    def test_what_is_in_a_file_of_any_name_is_read(self, incoming: Folder, name: str) -> None:
        put(incoming, f"sub/{name}", name.encode("utf-8", "surrogateescape"))
        with incoming.open(f"sub/{name}", max_bytes=MB) as file:
            assert file.digest() == hashlib.sha256(os.fsencode(name)).hexdigest()
            assert not file.changed()
            assert file.size == file.identity.size == len(os.fsencode(name))
            assert file.mtime_ns == (incoming.root / "sub" / name).stat().st_mtime_ns
            assert file.still_at(incoming, f"sub/{name}")

    def test_no_descriptor_stays_open(self, incoming: Folder, processed: Folder) -> None:
        put(incoming, "a/b/c")
        (incoming.root / "link").symlink_to("a")
        os.mkfifo(incoming.root / "fifo")
        before = open_descriptors()
        for name in ("a/b/c", "a/b", "a/missing", "link", "link/b/c", "fifo", "no/no"):
            with contextlib.suppress(DocumentError), incoming.open(name, max_bytes=MB) as file:
                incoming.move(name, processed, "x/y", identity=file.identity, suffix="job")
        list(incoming.walk())
        assert open_descriptors() == before

    def test_what_is_no_regular_file_is_refused_at_once(self, incoming: Folder) -> None:
        (incoming.root / "folder").mkdir()
        os.mkfifo(incoming.root / "fifo")
        with socket.socket(socket.AF_UNIX) as listener:
            here = os.open(incoming.root, os.O_RDONLY)
            try:
                listener.bind(f"/proc/self/fd/{here}/socket")
            finally:
                os.close(here)
            for name in ("folder", "fifo", "socket"):
                assert refusal(incoming, name) == "ERR_NOT_A_FILE"

    def test_a_device_is_refused(self) -> None:
        assert refusal(Folder(Path("/dev")), "null") == "ERR_NOT_A_FILE"

    def test_a_link_is_refused_wherever_it_leads(self, incoming: Folder, tmp_path: Path) -> None:
        put(incoming, "real/file")
        (tmp_path / "secret").write_text("secret")
        links = {
            "in": "real/file",
            "out": str(tmp_path / "secret"),
            "up": "../../secret",
            "nowhere": "nothing",
            "self": "self",
        }
        for name, goal in links.items():
            (incoming.root / name).symlink_to(goal)
            assert refusal(incoming, name) == "ERR_SYMLINK"
        (incoming.root / "dir").symlink_to("real")
        (incoming.root / "outdir").symlink_to(tmp_path)
        assert refusal(incoming, "dir/file") == "ERR_SYMLINK"
        assert refusal(incoming, "outdir/secret") == "ERR_SYMLINK"
        with pytest.raises(FileRefused):
            incoming.write("outdir/new", b"x")
        assert not (tmp_path / "new").exists()

    def test_a_hard_link_is_the_file_it_is(self, incoming: Folder) -> None:
        put(incoming, "a")
        (incoming.root / "b").hardlink_to(incoming.root / "a")
        assert incoming.read("b", MB) == b"text"

    def test_too_large_a_file_is_refused_with_both_sizes(self, incoming: Folder) -> None:
        put(incoming, "a", b"x" * 1_001)
        with pytest.raises(FileRefused, match=r"1,001 bytes; 1,000 are") as refused:
            incoming.open("a", max_bytes=1_000)
        assert refused.value.error_code == "ERR_FILE_TOO_LARGE"
        assert incoming.read(put(incoming, "b", b"x" * 1_000), 1_000) == b"x" * 1_000

    def test_what_is_missing_is_told_apart_from_a_root_that_is_away(self, root: Path) -> None:
        folder = Folder(root)
        with pytest.raises(StoreAway):
            folder.open("a", max_bytes=MB)
        put(Folder.made(root), "file")
        for name in ("a", "a/b", "file/b"):
            with pytest.raises(FileMissing) as missing:
                folder.open(name, max_bytes=MB)
            assert missing.value.error_code == "ERR_FILE_NOT_FOUND"
        assert folder.identity("a") is None

    @pytest.mark.parametrize(
        ("number", "kind", "code"),
        [
            (errno.EACCES, FileRefused, "ERR_FILE_PERMISSION"),
            (errno.EIO, StoreAway, "ERR_STORE_AWAY"),
            (errno.ESTALE, StoreAway, "ERR_STORE_AWAY"),
            (errno.EMFILE, StoreAway, "ERR_STORE_AWAY"),
            (errno.ENOSPC, StoreFull, "ERR_DISK_FULL"),
            (errno.EDQUOT, StoreFull, "ERR_DISK_FULL"),
        ],
    )
    def test_what_the_disk_says_is_told_in_our_words(
        self,
        incoming: Folder,
        monkeypatch: pytest.MonkeyPatch,
        number: int,
        kind: type[DocumentError | StoreError],
        code: str,
    ) -> None:
        put(incoming, "a")

        def fails(*_: object, **__: object) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(moving.os, "pread", fails)
        monkeypatch.setattr(moving.os, "write", fails)
        for act in (lambda: incoming.read("a", MB), lambda: incoming.write("b", b"x")):
            with pytest.raises(kind) as failed:
                act()
            assert failed.value.error_code == code
        assert sorted(p.name for p in incoming.root.iterdir()) == ["a"]

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_a_file_without_permission_is_refused(self, incoming: Folder) -> None:
        put(incoming, "a")
        (incoming.root / "a").chmod(0)
        assert refusal(incoming, "a") == "ERR_FILE_PERMISSION"

    def test_a_file_that_grows_is_not_read_beyond_what_is_allowed(self, incoming: Folder) -> None:
        put(incoming, "a", b"x" * 100)
        with incoming.open("a", max_bytes=1_000) as file:
            put(incoming, "a", b"x" * 5_000_000)
            with pytest.raises(FileRefused, match="grew") as refused:
                file.digest()
        assert refused.value.error_code == "ERR_FILE_TOO_LARGE"

    def test_a_file_written_to_while_it_is_read_counts_as_changed(self, incoming: Folder) -> None:
        put(incoming, "a", b"x" * 100)
        with incoming.open("a", max_bytes=1_000) as file:
            assert not file.changed()
            with (incoming.root / "a").open("ab") as more:
                more.write(b"y")
            assert file.digest() == hashlib.sha256(b"x" * 100 + b"y").hexdigest()
            assert file.changed()

    def test_a_file_whose_size_is_not_true_counts_as_changed(self) -> None:
        with Folder(Path("/proc")).open("version", max_bytes=MB) as file:
            file.digest()
            assert file.changed()

    def test_a_replaced_file_is_no_longer_at_its_name(self, incoming: Folder) -> None:
        put(incoming, "a")
        with incoming.open("a", max_bytes=MB) as file:
            assert file.still_at(incoming, "a")
            incoming.write("a", b"other")
            assert not file.still_at(incoming, "a")
            incoming.remove("a")
            assert not file.still_at(incoming, "a")
            assert file.digest() == hashlib.sha256(b"text").hexdigest()

    @pytest.mark.parametrize("swapped", ["file", "folder"])
    def test_a_link_swapped_in_at_any_moment_is_never_followed(
        self, incoming: Folder, tmp_path: Path, swapped: str
    ) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "file").write_text("secret")
        put(incoming, "sub/file", b"honest")
        honest, evil = incoming.root / "honest", incoming.root / "evil"
        if swapped == "file":
            victim = incoming.root / "sub" / "file"
            evil.symlink_to(outside / "file")
        else:
            victim = incoming.root / "sub"
            evil.symlink_to(outside)
        done = threading.Event()

        def swap() -> None:
            while not done.is_set():
                victim.rename(honest)
                evil.rename(victim)
                victim.rename(evil)
                honest.rename(victim)

        swapper = threading.Thread(target=swap)
        swapper.start()
        read = refused = 0
        try:
            until = time.monotonic() + 20
            while (read < 300 or refused < 300) and time.monotonic() < until:
                try:
                    assert incoming.read("sub/file", MB) == b"honest"
                    read += 1
                except (FileRefused, FileMissing):
                    refused += 1
        finally:
            done.set()
            swapper.join()
        assert read
        assert refused


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux exchanges two names")
class TestExchangedLinks:
    """A link and what it stands in for change places while they are used."""

    @pytest.fixture
    def outside(self, tmp_path: Path) -> Path:
        made = tmp_path / "outside"
        made.mkdir()
        (made / "file").write_text("secret")
        return made

    def tried(self, act: Callable[[], object], often: int) -> None:
        """Do it until it has succeeded and was refused so often."""
        done = refused = 0
        until = time.monotonic() + 20
        while min(done, refused) < often and time.monotonic() < until:
            try:
                act()
                done += 1
            except (FileRefused, FileMissing):
                refused += 1
        assert done
        assert refused

    @pytest.mark.parametrize("exchanged", ["sub", "sub/file"])
    def test_it_is_never_read_through(
        self, incoming: Folder, outside: Path, exchanged: str
    ) -> None:
        put(incoming, "sub/file", b"honest")
        link = incoming.root / "link"
        link.symlink_to(outside if exchanged == "sub" else outside / "file")

        def read() -> None:
            assert incoming.read("sub/file", MB) == b"honest"

        with exchanging(incoming.root / exchanged, link):
            self.tried(read, 1_000)

    @pytest.mark.parametrize("act", ["write", "copy in", "move", "remove"])
    def test_nothing_is_written_moved_or_removed_through_it(
        self, incoming: Folder, outside: Path, act: str
    ) -> None:
        put(incoming, "sub/file", b"honest")
        link = incoming.root / "link"
        link.symlink_to(outside)

        def use() -> None:
            source = incoming.root / put(incoming, "source", b"ours")
            match act:
                case "write":
                    incoming.write("sub/file", b"ours", sync=False, lasting=False)
                case "copy in":
                    incoming.copy_in(source, "sub/file", max_bytes=MB)
                case "move":
                    with incoming.open("source", max_bytes=MB) as file:
                        identity = file.identity
                    incoming.move("source", incoming, "sub/file", identity=identity, suffix="j")
                case _:
                    incoming.remove("sub/file")

        with exchanging(incoming.root / "sub", link):
            self.tried(use, 50)
        assert [path.name for path in outside.iterdir()] == ["file"]
        assert (outside / "file").read_text() == "secret"


class TestMoving:
    def move(self, source: Folder, target: Folder, name: str, to: str | None = None) -> str | None:
        with source.open(name, max_bytes=MB) as file:
            return source.move(name, target, to or name, identity=file.identity, suffix="job1")

    @pytest.mark.parametrize("name", NAMES)
    def test_a_file_of_any_name_is_moved(
        self, incoming: Folder, processed: Folder, name: str
    ) -> None:
        put(incoming, f"a/{name}")
        assert self.move(incoming, processed, f"a/{name}") == f"a/{name}"
        assert list(incoming.walk()) == []
        assert processed.read(f"a/{name}", MB) == b"text"
        # Once more, to a name that is taken.
        put(incoming, f"a/{name}", b"second")
        other = self.move(incoming, processed, f"a/{name}")
        assert other is not None
        assert other != f"a/{name}"
        assert processed.read(other, MB) == b"second"
        assert processed.read(f"a/{name}", MB) == b"text"

    def test_a_taken_name_gets_the_suffix_before_its_extension(
        self, incoming: Folder, processed: Folder
    ) -> None:
        moved: list[str | None] = []
        for number in range(4):
            put(incoming, "x/report.pdf", b"%d" % number)
            moved.append(self.move(incoming, processed, "x/report.pdf"))
        assert moved == [
            "x/report.pdf",
            "x/report--job1.pdf",
            "x/report--job1-2.pdf",
            "x/report--job1-3.pdf",
        ]
        assert [processed.read(str(name), MB) for name in moved] == [b"0", b"1", b"2", b"3"]

    def test_a_newer_file_of_the_same_name_stays(self, incoming: Folder, processed: Folder) -> None:
        put(incoming, "a")
        with incoming.open("a", max_bytes=MB) as file:
            incoming.write("a", b"newer")
            assert incoming.move("a", processed, "a", identity=file.identity, suffix="j") is None
        assert incoming.read("a", MB) == b"newer"
        assert list(processed.walk()) == []

    def test_a_file_that_was_written_to_stays(self, incoming: Folder, processed: Folder) -> None:
        put(incoming, "a")
        with incoming.open("a", max_bytes=MB) as file:
            put(incoming, "a", b"longer text")
            assert incoming.move("a", processed, "a", identity=file.identity, suffix="j") is None
        assert incoming.read("a", MB) == b"longer text"

    def test_a_move_that_is_repeated_finds_it_done(
        self, incoming: Folder, processed: Folder
    ) -> None:
        put(processed, "d/a", b"in the way")
        put(incoming, "d/a")
        with incoming.open("d/a", max_bytes=MB) as file:
            for _ in range(3):
                assert (
                    incoming.move("d/a", processed, "d/a", identity=file.identity, suffix="j")
                    == "d/a--j"
                )
            (incoming.root / "d").rmdir()
            assert (
                incoming.move("d/a", processed, "d/a", identity=file.identity, suffix="j")
                == "d/a--j"
            )
        assert sorted(processed.walk()) == ["d/a", "d/a--j"]

    def test_a_missing_file_is_not_moved(self, incoming: Folder, processed: Folder) -> None:
        put(incoming, "a")
        with incoming.open("a", max_bytes=MB) as file:
            incoming.remove("a")
            assert incoming.move("a", processed, "a", identity=file.identity, suffix="j") is None

    def test_a_file_swapped_at_the_last_moment_is_put_back(
        self, incoming: Folder, processed: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(incoming, "a")
        real = moving.rename_new
        swaps = [b"second", b"third"]

        def swapped(source_dir: int, source: str, target_dir: int, target: str) -> None:
            if swaps:
                incoming.write("a", swaps.pop(0))
            real(source_dir, source, target_dir, target)

        monkeypatch.setattr(moving, "rename_new", swapped)
        with incoming.open("a", max_bytes=MB) as file:
            assert incoming.move("a", processed, "a", identity=file.identity, suffix="j") is None
        assert list(processed.walk()) == []
        # The second was taken and had lost its name to the third: both are kept.
        assert {name: incoming.read(name, MB) for name in incoming.walk()} == {
            "a": b"third",
            "a--j": b"second",
        }

    def test_files_that_change_places_meanwhile_are_all_kept(
        self, incoming: Folder, processed: Folder
    ) -> None:
        for number in range(60):
            put(incoming, "a", b"wanted")
            put(incoming, "other", b"other")
            with incoming.open("a", max_bytes=MB) as file:
                identity = file.identity
            started, done = threading.Event(), threading.Event()

            def swap(done: threading.Event = done, started: threading.Event = started) -> None:
                names = [incoming.root / name for name in ("a", "other", "third")]
                while not done.is_set():
                    for source, target in ((0, 2), (1, 0), (2, 1)):
                        # The mover may have it, for ever or for an instant.
                        with contextlib.suppress(FileNotFoundError, FileExistsError):
                            target_name = names[target]
                            target_name.hardlink_to(names[source])
                            names[source].unlink()
                    started.set()

            swapper = threading.Thread(target=swap)
            swapper.start()
            started.wait()
            try:
                moved = incoming.move("a", processed, f"{number}", identity=identity, suffix="j")
            finally:
                done.set()
                swapper.join()
            there = [incoming.read(name, MB) for name in incoming.walk()]
            assert b"other" in there
            if moved is None:
                assert b"wanted" in there
                assert processed.identity(f"{number}") is None
            else:
                assert processed.read(moved, MB) == b"wanted"
            for name in list(incoming.walk()):
                incoming.remove(name)

    def test_without_rename_noreplace_links_do_it(
        self, incoming: Folder, processed: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(moving, "_rename_noreplace", None)
        put(incoming, "a")
        put(processed, "a", b"in the way")
        assert self.move(incoming, processed, "a") == "a--job1"
        assert processed.read("a", MB) == b"in the way"
        # Killed between link and unlink: under both names.
        put(incoming, "b")
        (processed.root / "b").hardlink_to(incoming.root / "b")
        assert self.move(incoming, processed, "b") == "b"
        assert list(incoming.walk()) == []

    def test_between_file_systems_the_file_is_copied(
        self, incoming: Folder, processed: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = moving.rename_new
        ours = incoming.root.stat().st_ino

        def other_device(source_dir: int, source: str, target_dir: int, target: str) -> None:
            if os.fstat(source_dir).st_ino == ours != os.fstat(target_dir).st_ino:
                raise OSError(errno.EXDEV, "other device")
            real(source_dir, source, target_dir, target)

        monkeypatch.setattr(moving, "rename_new", other_device)
        for data, name in ((b"x" * 3_000_000, "a"), (b"", "a--job1")):
            put(incoming, "a", data)
            with incoming.open("a", max_bytes=10 * MB) as file:
                moved = incoming.move("a", processed, "a", identity=file.identity, suffix="job1")
            assert moved == name
            assert processed.read(name, 10 * MB) == data
            assert list(incoming.root.iterdir()) == []
            assert (processed.root / name).stat().st_mode & 0o777 == 0o600

    @pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no second file system")
    def test_to_a_real_other_file_system(self, incoming: Folder) -> None:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
            target = Folder(Path(other))
            put(incoming, "a/b", b"text")
            assert self.move(incoming, target, "a/b") == "a/b"
            assert target.read("a/b", MB) == b"text"
            assert list(incoming.walk()) == []

    def test_a_folder_in_the_way_does_not_stop_a_move(
        self, incoming: Folder, processed: Folder
    ) -> None:
        put(processed, "a/inner")
        put(incoming, "a")
        assert self.move(incoming, processed, "a") == "a--job1"

    def test_processes_that_move_to_one_name_lose_nothing(
        self, incoming: Folder, processed: Folder
    ) -> None:
        movers, each = 4, 50
        for mover in range(movers):
            for number in range(each):
                put(incoming, f"{mover}/{number}", b"%d/%d" % (mover, number))
        program = (
            "import sys, pathlib\n"
            "from penstock.stores.files.folder import Folder\n"
            "source, target, mover, each = sys.argv[1:]\n"
            "source, target = Folder(pathlib.Path(source)), Folder(pathlib.Path(target))\n"
            "sys.stdin.readline()\n"
            "for number in range(int(each)):\n"
            "    name = f'{mover}/{number}'\n"
            "    with source.open(name, max_bytes=1000) as file:\n"
            "        assert source.move(name, target, f'deep/down/{number % 5}.txt',\n"
            "            identity=file.identity, suffix='same')\n"
        )
        started = [
            subprocess.Popen(
                [
                    *(sys.executable, "-c", program),
                    *(str(incoming.root), str(processed.root), str(mover), str(each)),
                ],
                stdin=subprocess.PIPE,
                text=True,
            )
            for mover in range(movers)
        ]
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.close()
        assert [process.wait(timeout=60) for process in started] == [0] * movers
        found = sorted(processed.read(name, MB) for name in processed.walk())
        assert found == sorted(b"%d/%d" % (m, n) for m in range(movers) for n in range(each))
        assert list(incoming.walk()) == []

    def test_processes_that_move_the_same_file_move_it_once(
        self, incoming: Folder, processed: Folder
    ) -> None:
        moved: list[str | None] = []
        for number in range(30):
            put(incoming, "a", b"%d" % number)
            with incoming.open("a", max_bytes=MB) as file:
                identity = file.identity

                def mover(identity: folder_module.Identity = identity) -> None:
                    moved.append(incoming.move("a", processed, "a", identity=identity, suffix="j"))

                threads = [threading.Thread(target=mover) for _ in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
        contents = sorted(int(processed.read(name, MB)) for name in processed.walk())
        assert contents == list(range(30))
        assert list(incoming.walk()) == []

    def test_many_moves_are_made_durable_at_once(
        self, incoming: Folder, processed: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: list[int] = []
        real = os.fsync

        def counted(fd: int) -> None:
            synced.append(os.fstat(fd).st_ino)
            real(fd)

        processed.write("d/made", b"")
        for number in range(10):
            put(incoming, f"{number}")
        monkeypatch.setattr(folder_module.os, "fsync", counted)
        for number in range(10):
            with incoming.open(f"{number}", max_bytes=MB) as file:
                incoming.move(
                    f"{number}",
                    processed,
                    f"d/{number}",
                    identity=file.identity,
                    suffix="j",
                    sync=False,
                )
        assert synced == []
        processed.settle()
        incoming.settle()
        processed.settle()
        assert synced == [(processed.root / "d").stat().st_ino, incoming.root.stat().st_ino]


class TestWriting:
    def test_a_file_is_written_for_its_user_alone_and_replaced(self, incoming: Folder) -> None:
        for data in (b"one", b"", b"two" * 100_000):
            incoming.write("a/b/c.json", data)
            assert incoming.read("a/b/c.json", MB) == data
        assert (incoming.root / "a/b/c.json").stat().st_mode & 0o777 == 0o600
        assert (incoming.root / "a/b").stat().st_mode & 0o777 == 0o700
        incoming.remove("a/b/c.json")
        incoming.remove("a/b/c.json")
        assert list((incoming.root / "a/b").iterdir()) == []

    def test_a_link_is_replaced_not_written_through(self, incoming: Folder, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("secret")
        for act in (lambda: incoming.write("a", b"x"), lambda: incoming.remove("a")):
            (incoming.root / "a").unlink(missing_ok=True)
            (incoming.root / "a").symlink_to(tmp_path / "secret")
            act()
            assert (tmp_path / "secret").read_text() == "secret"

    def test_a_folder_is_neither_overwritten_nor_removed(self, incoming: Folder) -> None:
        (incoming.root / "a").mkdir()
        for act in (lambda: incoming.write("a", b"x"), lambda: incoming.remove("a")):
            with pytest.raises(FileRefused) as refused:
                act()
            assert refused.value.error_code == "ERR_NOT_A_FILE"
        assert [path.name for path in incoming.root.iterdir()] == ["a"]

    def test_a_file_from_outside_is_copied(self, incoming: Folder, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.write_bytes(os.urandom(3_000_000))
        (tmp_path / "link").symlink_to(source)
        incoming.copy_in(tmp_path / "link", "x/copy", max_bytes=4_000_000)
        incoming.copy_in(source, "x/copy", max_bytes=4_000_000)
        assert incoming.read("x/copy", 4_000_000) == source.read_bytes()
        with pytest.raises(FileRefused) as refused:
            incoming.copy_in(source, "x/other", max_bytes=1_000)
        assert refused.value.error_code == "ERR_FILE_TOO_LARGE"
        with pytest.raises(FileMissing):
            incoming.copy_in(tmp_path / "nothing", "x/other", max_bytes=1_000)
        os.mkfifo(tmp_path / "fifo")
        with pytest.raises(FileRefused):
            incoming.copy_in(tmp_path / "fifo", "x/other", max_bytes=1_000)
        assert [path.name for path in (incoming.root / "x").iterdir()] == ["copy"]

    def test_a_file_that_changes_while_it_is_copied_is_not_taken(
        self, incoming: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = tmp_path / "source"
        source.write_bytes(b"x" * 3_000_000)
        real = moving.write_all

        def write_and_change(fd: int, data: bytes) -> None:
            real(fd, data)
            with source.open("r+b") as file:
                file.write(b"changed")

        monkeypatch.setattr(folder_module, "write_all", write_and_change)
        with pytest.raises(DocumentError, match="while it was copied") as failed:
            incoming.copy_in(source, "copy", max_bytes=4_000_000)
        assert not isinstance(failed.value, FileRefused)
        assert list(incoming.root.iterdir()) == []

    @pytest.mark.parametrize("act", ["write", "copy_in", "move"])
    def test_killed_before_the_rename_no_half_file_is_seen(
        self, incoming: Folder, tmp_path: Path, act: str
    ) -> None:
        program = f"""
import errno, os, signal, sys, pathlib
from penstock.stores.files import folder, moving
target = folder.Folder(pathlib.Path(sys.argv[1]))
source = folder.Folder(pathlib.Path(sys.argv[2]))
def killed(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
def other_device(*_):
    moving.rename_new = killed
    raise OSError(errno.EXDEV, "other device")
os.rename, moving.rename_new = killed, other_device
if {act!r} == "write":
    target.write("a", b"x" * 100_000)
elif {act!r} == "copy_in":
    target.copy_in(source.root / "a", "a", max_bytes=1_000_000)
else:
    with source.open("a", max_bytes=1_000_000) as file:
        source.move("a", target, "a", identity=file.identity, suffix="j")
"""
        source = Folder.made(tmp_path / "source")
        put(source, "a", b"x" * 100_000)
        ended = subprocess.run(
            [sys.executable, "-c", program, str(incoming.root), str(source.root)],
            check=False,
            timeout=60,
        )
        assert ended.returncode == -signal.SIGKILL
        assert list(incoming.walk()) == []
        assert incoming.identity("a") is None
        assert source.read("a", MB) == b"x" * 100_000
        assert len(list(incoming.root.iterdir())) == 1
        assert incoming.tidy(older_s=3_600) == 0
        assert incoming.tidy(older_s=0) == 1
        assert list(incoming.root.iterdir()) == []


class TestWalking:
    def test_regular_files_of_every_name_are_found(self, incoming: Folder, tmp_path: Path) -> None:
        names = [name for name in NAMES if not name.startswith(".")]
        for name in names:
            put(incoming, name)
            put(incoming, f"deep/er/{name}")
        put(incoming, ".hidden")
        put(incoming, ".dir/inside")
        os.mkfifo(incoming.root / "fifo")
        (incoming.root / "link").symlink_to("report.pdf")
        (incoming.root / "loop").symlink_to(".")
        (incoming.root / "out").symlink_to(tmp_path)
        assert sorted(incoming.walk()) == sorted([*names, *(f"deep/er/{name}" for name in names)])
        for name in incoming.walk():
            assert incoming.read(name, MB) == b"text"

    def test_a_folder_that_goes_away_meanwhile_is_left_out(self, incoming: Folder) -> None:
        put(incoming, "a/x")
        put(incoming, "b/x")
        found: list[str] = []
        for name in incoming.walk():
            found.append(name)
            other = "b" if name.startswith("a") else "a"
            (incoming.root / other / "x").unlink()
            (incoming.root / other).rmdir()
        assert len(found) == 1

    def test_a_folder_replaced_by_a_link_is_told_and_not_entered(
        self, incoming: Folder, tmp_path: Path
    ) -> None:
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside" / "secret").write_text("x")
        put(incoming, "a/x")
        put(incoming, "b/x")
        refusals: list[FileRefused] = []
        found: list[str] = []
        for name in incoming.walk(refusals.append):
            found.append(name)
            other = incoming.root / ("b" if name.startswith("a") else "a")
            (other / "x").unlink()
            other.rmdir()
            other.symlink_to(tmp_path / "outside")
        assert len(found) == 1
        assert [error.error_code for error in refusals] == ["ERR_SYMLINK"]
