"""The watcher of `incoming/`, on a real file system with its real signs."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kit.lifecycle import check_lifecycle

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import ServerError
from penstock.errors.documents import ConfigurationWrong, FileRefused
from penstock.pipelines.documents.config.models import (
    ClientConfig,
    DocumentsConfig,
    RagConfig,
    Sources,
)
from penstock.pipelines.documents.watch import fs_events as signs
from penstock.pipelines.documents.watch import watcher
from penstock.pipelines.documents.watch.incoming import IncomingFolder
from penstock.pipelines.documents.watch.watcher import Watcher
from penstock.settings import DocumentSettings
from penstock.testing.clock import ManualClock
from penstock.testing.eventually import eventually
from penstock.throttled_log import RateLimitedLog

NEVER = 80_000.0
LOG = logging.getLogger(__name__)


class Desk:
    """Folders of RAGs, a configuration that tests change, and what was submitted."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "sources"
        self.rags_dir = folder / "rags"
        self.root.mkdir()
        self.rags_dir.mkdir()
        self.work = folder / "work"
        self.rags = {"faq": RagConfig(rag_id="faq")}
        self.calls: list[tuple[str, list[str]]] = []
        self.failure: Callable[[str, list[str]], Exception | None] = lambda rag_id, names: None
        self.incoming = self.root / "faq" / "incoming"
        self.incoming.mkdir(parents=True)

    def configuration(self) -> DocumentsConfig:
        return DocumentsConfig(
            client=ClientConfig(),
            rags=dict(self.rags),
            sources_root=self.root,
            rags_dir=self.rags_dir,
            work_dir=self.work,
        )

    async def submit(self, rag_id: str, names: list[str]) -> None:
        if (error := self.failure(rag_id, names)) is not None:
            raise error
        self.calls.append((rag_id, names))

    def watcher(
        self, *, settle_ms: float = 50, rescan_s: float = NEVER, clock: Clock = SYSTEM_CLOCK
    ) -> Watcher:
        return Watcher(
            DocumentSettings(settle_ms=settle_ms, rescan_s=rescan_s),
            configuration=self.configuration,
            submit=self.submit,
            clock=clock,
        )

    @property
    def names(self) -> list[str]:
        return [name for _, names in self.calls for name in names]


@pytest.fixture
def desk(tmp_path) -> Desk:
    return Desk(tmp_path)


async def listens(service: Watcher) -> None:
    """Wait until signs alone are enough: the look after listening has begun is over."""
    await eventually(lambda: service.looks >= 2)


async def test_it_keeps_the_start_and_stop_contract(desk):
    (desk.incoming / "a.txt").write_text("a")
    await check_lifecycle(desk.watcher, within_s=20)


async def test_it_keeps_the_contract_while_every_submission_fails(desk):
    (desk.incoming / "a.txt").write_text("a")
    desk.failure = lambda rag_id, names: ServerError("away")
    await check_lifecycle(lambda: desk.watcher(settle_ms=0), within_s=20)


async def test_what_is_there_at_the_start_is_submitted(desk):
    (desk.incoming / "a.txt").write_text("a")
    (desk.incoming / "deep" / "er").mkdir(parents=True)
    (desk.incoming / "deep" / "er" / "b.MD").write_text("b")
    async with desk.watcher():
        await eventually(lambda: len(desk.names) == 2)
    assert desk.calls == [("faq", ["a.txt", "deep/er/b.MD"])]


async def test_a_file_that_is_put_there_is_submitted_without_a_rescan(desk):
    async with desk.watcher() as service:
        await listens(service)
        (desk.incoming / "a.txt").write_text("a")
        await eventually(lambda: desk.names == ["a.txt"])


async def test_copies_that_submit_makes_wake_no_scan(desk):
    copy, file = desk.incoming / ".submitted" / "batch" / "a.txt", desk.incoming / "b.txt"
    copy.parent.mkdir(parents=True)
    copy.write_text("a")
    file.write_text("b")
    calls: list[frozenset[str]] = []
    events = signs.FileSystemEvents(
        frozenset({desk.incoming}), calls.append, ignored=".submitted", quiet=RateLimitedLog(LOG)
    )
    await eventually(lambda: bool(calls))  # it listens
    copy.unlink()
    file.unlink()
    await eventually(lambda: str(file) in frozenset().union(*calls))
    await events.close()
    assert frozenset().union(*calls) == {str(file)}


async def test_no_library_logs_each_change(desk, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("watchfiles"), "level", logging.NOTSET)
    caplog.set_level(logging.INFO)
    async with desk.watcher() as service:
        await listens(service)
        (desk.incoming / "a.txt").write_text("a")
        await eventually(lambda: desk.names == ["a.txt"])
    assert [record for record in caplog.records if record.name.startswith("watchfiles")] == []


async def test_a_file_in_a_new_folder_is_submitted_without_a_rescan(desk):
    async with desk.watcher() as service:
        await listens(service)
        (desk.incoming / "new").mkdir()
        (desk.incoming / "new" / "a.txt").write_text("a")
        await eventually(lambda: desk.names == ["new/a.txt"])


async def test_a_file_that_is_renamed_into_place_is_submitted_once(desk):
    async with desk.watcher() as service:
        await listens(service)
        draft = desk.incoming / "a.txt.part"
        draft.write_text("half")
        looks = service.looks
        await eventually(lambda: service.looks > looks)
        assert desk.names == []
        draft.rename(desk.incoming / "a.txt")
        await eventually(lambda: desk.names == ["a.txt"])


async def test_a_file_that_grows_is_submitted_when_it_has_stopped(desk):
    file = desk.incoming / "a.txt"
    sizes: list[int] = []

    def size_at_submission(rag_id: str, names: list[str]) -> None:
        sizes.append(file.stat().st_size)

    desk.failure = size_at_submission
    clock = ManualClock()
    async with desk.watcher(settle_ms=1_000, clock=clock) as service:
        await listens(service)
        with file.open("ab", buffering=0) as growing:
            for _ in range(6):
                growing.write(b"x" * 100)
                looks = service.looks
                await eventually(lambda seen=looks: service.looks > seen)
                await clock.advance(0.9)

        async def later() -> list[str]:
            await clock.advance(1)
            return desk.names

        await eventually(later)
    assert desk.names == ["a.txt"]
    assert sizes == [600]


def test_only_a_file_that_stays_the_same_is_whole(tmp_path):
    incoming = IncomingFolder(tmp_path, [".txt"], settle_s=1)
    file = tmp_path / "a.txt"
    file.write_text("a")
    first = incoming.look(10, again=True)
    assert (first.whole, first.due_s) == ([], 11)
    file.write_text("ab")  # size
    assert incoming.look(11, again=True).whole == []
    os.utime(file, ns=(1, 1))  # time
    assert incoming.look(12, again=True).whole == []
    other = tmp_path / "a.tmp"
    other.write_text("ab")
    os.utime(other, ns=(1, 1))
    other.replace(file)  # inode
    assert incoming.look(13, again=True).whole == []
    assert incoming.look(13.9, again=True).whole == []
    assert incoming.look(14, again=True).whole == ["a.txt"]


def test_what_was_submitted_is_shown_again_only_at_a_rescan_or_after_a_change(tmp_path):
    incoming = IncomingFolder(tmp_path, [".txt"], settle_s=0)
    file = tmp_path / "a.txt"
    file.write_text("a")
    assert incoming.look(1, again=False).whole == ["a.txt"]
    incoming.submitted(["a.txt"])
    assert incoming.look(2, again=False).whole == []
    assert incoming.look(3, again=True).whole == ["a.txt"]
    incoming.gone(["a.txt"])
    assert incoming.look(4, again=False).whole == ["a.txt"]
    incoming.submitted(["a.txt"])
    file.write_text("other")
    assert incoming.look(5, again=False).whole == ["a.txt"]
    incoming.submitted(["a.txt"])
    file.rename(tmp_path / "gone")
    assert incoming.look(6, again=False).whole == []
    (tmp_path / "gone").rename(file)
    assert incoming.look(7, again=False).whole == ["a.txt"]


def test_what_was_refused_is_not_shown_until_it_changes(tmp_path):
    incoming = IncomingFolder(tmp_path, [".txt"], settle_s=0)
    (tmp_path / "a.txt").write_text("a")
    assert incoming.look(1, again=False).whole == ["a.txt"]
    incoming.refused("a.txt")
    assert incoming.look(2, again=True).whole == []
    (tmp_path / "a.txt").write_text("other")
    assert incoming.look(3, again=False).whole == ["a.txt"]


def test_memory_is_bounded_and_the_rest_gets_its_turn(tmp_path):
    incoming = IncomingFolder(tmp_path, [".txt"], settle_s=0, most=2)
    for name in "abcd":
        (tmp_path / f"{name}.txt").write_text(name)
    assert incoming.look(1, again=False).whole == ["a.txt", "b.txt"]
    incoming.submitted(["a.txt", "b.txt"])
    assert incoming.look(2, again=False).whole == []
    (tmp_path / "a.txt").unlink()
    (tmp_path / "b.txt").unlink()
    assert incoming.look(3, again=False).whole == ["c.txt", "d.txt"]


@pytest.mark.parametrize(
    "name", [".hidden.txt", "a.txt~", "a.txt.tmp", "a.txt.part", "a.txt.crdownload", ".dir/a.txt"]
)
def test_hidden_and_unfinished_files_are_left_alone_without_a_word(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("a")
    sight = IncomingFolder(tmp_path, [".txt"], settle_s=0).look(1, again=True)
    assert (sight.whole, sight.left) == ([], {})


def test_the_empty_file_beside_an_unfinished_download_is_not_whole(tmp_path):
    incoming = IncomingFolder(tmp_path, [".txt"], settle_s=0)
    (tmp_path / "a.txt").touch()
    (tmp_path / "a.txt.part").write_text("half")
    assert incoming.look(1, again=True).whole == []
    (tmp_path / "a.txt.part").rename(tmp_path / "a.txt")
    assert incoming.look(2, again=True).whole == ["a.txt"]
    (tmp_path / "a.txt~").write_text("an editor's copy stays for ever")
    assert incoming.look(3, again=True).whole == ["a.txt"]


def test_links_and_devices_are_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("s")
    folder = tmp_path / "incoming"
    folder.mkdir()
    (folder / "link.txt").symlink_to(outside / "secret.txt")
    (folder / "links").symlink_to(outside)
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe.txt")
    assert IncomingFolder(folder, [".txt"], settle_s=0).look(1, again=True).whole == []


def test_a_name_that_is_no_text_is_left_and_told(tmp_path):
    (tmp_path / os.fsdecode(b"\xff.txt")).touch()
    sight = IncomingFolder(tmp_path, [".txt"], settle_s=0).look(1, again=True)
    assert sight.whole == []
    assert list(sight.left) == ["a name that is not UTF-8"]


async def test_files_of_another_kind_are_warned_of_once_and_left(desk, caplog):
    for number in range(5):
        (desk.incoming / f"{number}.exe").write_text("x")
    async with desk.watcher(rescan_s=0.02) as service:
        await eventually(lambda: service.looks > 5)
    (record,) = caplog.records
    assert record.getMessage() == (
        "faq: files with .exe are left in incoming/, such as 0.exe; "
        "it takes .docx, .htm, .html, .markdown, .md, .pdf, .text, .txt"
    )
    assert len(list(desk.incoming.iterdir())) == 5
    assert desk.calls == []


async def test_a_burst_of_two_thousand_files_arrives_whole_in_batches(desk, tmp_path):
    async with desk.watcher(settle_ms=100) as service:
        await listens(service)

        def burst() -> None:
            for number in range(2_000):
                draft = tmp_path / "draft"
                draft.write_text(str(number))
                draft.rename(desk.incoming / f"{number}.txt")

        await asyncio.to_thread(burst)
        await eventually(lambda: len(set(desk.names)) == 2_000)
    assert max(len(names) for _, names in desk.calls) <= watcher.BATCH
    assert len(desk.names) == 2_000  # each once


async def test_what_is_still_there_is_submitted_again_at_each_rescan(desk):
    (desk.incoming / "a.txt").write_text("a")
    async with desk.watcher(rescan_s=0.05):
        await eventually(lambda: len(desk.names) >= 4)
    assert set(desk.names) == {"a.txt"}


async def test_the_same_file_put_back_after_it_was_taken_away_is_submitted_again(desk, tmp_path):
    file = desk.incoming / "a.txt"
    async with desk.watcher() as service:
        await listens(service)
        file.write_text("a")
        await eventually(lambda: desk.names == ["a.txt"])
        for times in (2, 3):
            # The same inode, size and time: a look alone cannot tell.
            file.rename(tmp_path / "processed.txt")
            (tmp_path / "processed.txt").rename(file)
            await eventually(lambda n=times: desk.names == ["a.txt"] * n)


@pytest.mark.parametrize("removed", ["faq/incoming", "faq"])
async def test_a_folder_that_was_removed_is_made_again_and_watched(desk, removed):
    async with desk.watcher() as service:
        await listens(service)
        for number in range(3):  # the new one may well have the inode of the old one
            shutil.rmtree(desk.root / removed)
            await eventually(desk.incoming.is_dir)
            looks = service.looks
            await eventually(lambda seen=looks: service.looks > seen + 1)
            (desk.incoming / f"{number}.txt").write_text("a")
            await eventually(lambda n=number: len(desk.names) == n + 1)


async def test_a_root_that_has_gone_is_waited_for_and_not_made(desk, caplog):
    async with desk.watcher(rescan_s=0.05) as service:
        await listens(service)
        shutil.rmtree(desk.root)
        looks = service.looks
        await eventually(lambda: service.looks > looks + 2)
        assert not desk.root.exists()
        desk.incoming.mkdir(parents=True)
        (desk.incoming / "a.txt").write_text("a")
        await eventually(lambda: "a.txt" in desk.names)
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"cannot read {desk.incoming}: No such file or directory"]


async def test_a_rag_that_is_added_later_is_watched_without_a_rescan(desk):
    async with desk.watcher() as service:
        await listens(service)
        desk.rags["new"] = RagConfig(rag_id="new")
        (desk.rags_dir / "new.yaml").write_text("rag_id: new")  # the sign
        await eventually((desk.root / "new" / "incoming").is_dir)
        (desk.root / "new" / "incoming" / "a.txt").write_text("a")
        await eventually(lambda: desk.calls == [("new", ["a.txt"])])


async def test_a_rag_that_is_not_to_be_watched_is_left_alone(desk):
    desk.rags["quiet"] = RagConfig(rag_id="quiet", sources=Sources(watch=False))
    folder = desk.root / "quiet" / "incoming"
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text("a")
    (desk.incoming / "b.txt").write_text("b")
    async with desk.watcher(rescan_s=0.05) as service:
        await eventually(lambda: service.looks > 4)
        del desk.rags["faq"]
        looks, calls = service.looks, len(desk.calls)
        await eventually(lambda: service.looks > looks + 3)
    assert set(desk.names) == {"b.txt"}
    assert len(desk.calls) <= calls + 1


async def test_nothing_is_forgotten_while_the_server_is_away(desk, caplog):
    away = threading.Event()
    away.set()
    tries = 0

    def fail(rag_id: str, names: list[str]) -> Exception | None:
        nonlocal tries
        tries += 1
        return ServerError("away") if away.is_set() else None

    desk.failure = fail
    (desk.incoming / "a.txt").write_text("a")
    async with desk.watcher(rescan_s=0.05) as service:
        await eventually(lambda: tries >= 2)
        assert "cannot submit files of faq, trying again" in (service.trouble() or "")
        (desk.incoming / "b.txt").write_text("b")
        away.clear()
        await eventually(lambda: {"a.txt", "b.txt"} <= set(desk.names))
        await eventually(lambda: service.trouble() is None)
    assert [record.getMessage() for record in caplog.records] == [
        "watcher: cannot submit files of faq, trying again: ServerError: away"
    ]


async def test_one_bad_name_holds_up_no_others(desk, caplog):
    for name in ("a.txt", "bad.txt", "c.txt"):
        (desk.incoming / name).write_text(name)
    desk.failure = lambda rag_id, names: FileRefused("no") if "bad.txt" in names else None
    async with desk.watcher() as service:
        await eventually(lambda: set(desk.names) == {"a.txt", "c.txt"})
        assert service.trouble() is None
    assert [record.getMessage() for record in caplog.records] == [
        "faq: bad.txt is left where it is: no"
    ]


async def test_a_rag_that_cannot_be_used_holds_up_no_others(desk):
    desk.rags["a"] = RagConfig(rag_id="a")
    (desk.root / "a" / "incoming").mkdir(parents=True)
    for rag_id in ("a", "faq"):
        (desk.root / rag_id / "incoming" / "x.txt").write_text("x")
    desk.failure = lambda rag_id, names: (
        ConfigurationWrong("a.yaml", ("wrong",)) if rag_id == "a" else None
    )
    async with desk.watcher():
        await eventually(lambda: desk.calls == [("faq", ["x.txt"])])


async def test_a_configuration_that_cannot_be_read_is_asked_for_again(desk, caplog):
    (desk.incoming / "a.txt").write_text("a")
    read, wrong = desk.configuration, [1, 2]

    def configuration() -> DocumentsConfig:
        if wrong and wrong.pop():
            raise ConfigurationWrong("client.yaml", ("torn",))
        return read()

    desk.configuration = configuration
    async with desk.watcher():
        await eventually(lambda: desk.names == ["a.txt"])
    assert "client.yaml: torn" in caplog.records[0].getMessage()
    assert caplog.records[0].levelno == logging.WARNING


@pytest.mark.parametrize("broken", [1, 2])
async def test_where_the_kernel_cannot_listen_files_are_found_all_the_same(
    desk, monkeypatch, caplog, broken
):
    real, calls = signs.watch, []

    def watch(*folders, force_polling=None, **options):
        calls.append(force_polling)
        if len(calls) <= broken:
            raise OSError(28, "OS file watch limit reached")
        return real(*folders, force_polling=force_polling, **{**options, "poll_delay_ms": 20})

    monkeypatch.setattr(signs, "watch", watch)
    async with desk.watcher(rescan_s=NEVER if broken == 1 else 0.1) as service:
        await eventually(lambda: service.looks >= (2 if broken == 1 else 1))
        (desk.incoming / "a.txt").write_text("a")
        await eventually(lambda: "a.txt" in desk.names)
    assert calls == [None, True]
    assert "OS file watch limit reached" in caplog.text


async def test_two_watchers_of_one_folder_submit_the_same(desk):
    async with desk.watcher() as one, desk.watcher() as two:
        await listens(one)
        await listens(two)
        (desk.incoming / "a.txt").write_text("a")
        await eventually(lambda: desk.names == ["a.txt", "a.txt"])
