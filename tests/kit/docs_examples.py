"""Does what a page of the documentation says: writes its files, runs its programs and commands.

- A Python block that begins with a comment such as `# shop.py` is a file. It is run where it stands
  and prints what the `text` block after it shows; without one, a command may run it instead. Other
  Python blocks are fragments, which must be valid.
- In a `console` block, lines that begin with `$` are commands; the others show what they print.
  `penstock worker` goes on in the background; lines shown for it, also in a later `text` block,
  are waited for before the next command, in any order and among others.
- `text first run` is not compared, and `console first run` not run, when the page is read again.
- `…` stands for anything; moments, durations, ids and paths may differ, and an id that is shown is
  replaced in later commands.

Programs and commands run in this process, workers in processes of their own.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock import sync
from penstock.interfaces.cli.main import main
from penstock.redis.client import Client
from penstock.testing.servers import wait_until

LONGEST_S = 20
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"# (\w+\.py)\n")
VARIABLE = re.compile(
    r"(?P<id>\b[0-9a-f]{32}\b|\b(?:\d+-)?\d{13}-\d+\b)"
    r"|(?P<moment>\d\d:\d\d:\d\d\.\d{3}|\d{4}-\d\d-\d\dT[\d:.]+Z)"
    r"|(?P<duration>\b\d+(?:\.\d+)? m?s\b)"
    r"|(?P<other>\b[0-9a-f]{16}\b|\b\w+-\d+-[0-9a-f]{6}(?:\.\d)?\b)"  # fingerprints, workers
    r"|(?P<path>(?<=\")/[^\"]*(?=\"))"
    r"|(?P<any>…)"
)
MAY_BE = {"duration": r"(\d+(?:\.\d+)? m?s)", "path": r"(/[^\"]*)", "any": "(.*)"}
LOOKS = re.compile(r"penstock .*\b(list|show|groups|lag|status|workers)\b")
SHELL = {"echo", "cat"}
NOT_RUN = (
    "make",  # installs
    "penstock ingest",  # needs `penstock up` and files; see test_cli_ingest.py
    "penstock rag",
    "cp",
)


@dataclass
class Worker:
    """A worker in the background; what it prints is collected."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    seen: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self.lines.append(squeezed(as_at_home(line)))

    def printed(self, pattern: str) -> re.Match[str] | None:
        """Find what was not found before. Threads may print into one line."""
        for at, line in enumerate(self.lines):
            for found in re.finditer(pattern, line):
                if (at, found.start()) not in self.seen:
                    self.seen.add((at, found.start()))
                    return found
        return None

    def end(self, number: int) -> None:
        self.process.send_signal(number)
        self.process.wait(LONGEST_S)
        self._reader.join()


class Page:
    """One page, read from top to bottom."""

    def __init__(self, path: Path, folder: Path, *, again: bool = False) -> None:
        self.blocks: list[tuple[str, str]] = BLOCK.findall(path.read_text())
        self.folder, self.again = folder, again
        self.workers: list[Worker] = []
        self.ids: dict[str, str] = {}
        self.awaited: list[tuple[Worker, str]] = []

    def read(self) -> None:
        """Do all that the page says, except waiting for the last lines of workers."""
        previous = ""
        for number, (kind, text) in enumerate(self.blocks):
            if kind == "console first run" and self.again:
                continue
            if kind == "python":
                previous = self._python(text, self.blocks[number + 1 : number + 2])
            elif kind.startswith("console"):
                previous = self._console(text)
            elif kind.startswith("text") and previous == "console" and self.workers:
                self._await(text.splitlines())

    def close(self) -> None:
        """Wait for what workers are still to print, and end them."""
        try:
            self._catch_up()
        finally:
            for worker in self.workers:
                if worker.process.poll() is None:
                    worker.end(signal.SIGTERM)

    # ---- Python

    def _python(self, text: str, following: list[tuple[str, str]]) -> str:
        named = NAME.match(text)
        if named is None:
            compile(text, "fragment", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            return ""
        path = self.folder / named[1]
        path.write_text(text)
        assert import_does_nothing(path)
        shows = bool(following) and following[0][0].startswith("text")
        if not shows and self._runs_by_command(path.stem):
            return ""
        kind, shown = following[0] if shows else ("text", "")
        self._compare(kind, shown.splitlines(), lambda: run_program(path), path.name)
        return "python"

    def _runs_by_command(self, module: str) -> bool:
        command = re.compile(rf"^\$.*(python {module}\.py|worker {module}:)", re.MULTILINE)
        return any(command.search(text) for kind, text in self.blocks if kind == "console")

    # ---- commands

    def _console(self, text: str) -> str:
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, *shown = part.splitlines()
            for one in command.split(" && "):
                self._command(one, shown)
        return "console"

    def _command(self, command: str, shown: list[str]) -> None:
        self._catch_up()
        for there, here in self.ids.items():
            command = command.replace(there, here)
        words = shlex.split(command, comments=True)
        if command.startswith(NOT_RUN):
            return
        if words[0] in SHELL:
            subprocess.run(["/bin/sh", "-c", command], check=True, cwd=self.folder, timeout=60)
        elif words[0] == "sleep":
            time.sleep(float(words[1]))
        elif words[0] == "pkill":
            self._kill(words)
        elif words[:2] == ["penstock", "worker"]:
            self._start(words)
            self._await(shown)
        elif words[0] == "penstock":
            self._compare("text", shown, lambda: run_command(words), command)
        else:
            assert words[0] == "python", f"unknown command: {command}"
            program = self.folder / words[1]
            self._compare("text", shown, lambda: run_program(program), command)

    def _start(self, words: list[str]) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.workers.append(Worker(process))

    def _kill(self, words: list[str]) -> None:
        assert words[:3] == ["pkill", "-9", "-f"]
        assert words[3].startswith("penstock worker")
        running = [worker for worker in self.workers if worker.process.poll() is None]
        assert running, "no worker to kill"
        for worker in running:
            worker.end(signal.SIGKILL)

    # ---- comparing

    def _await(self, lines: list[str]) -> None:
        self.awaited += [(self.workers[-1], line) for line in lines if line != "…"]

    def _catch_up(self) -> None:
        for worker, line in self.awaited:
            pattern = pattern_of(line)
            found = wait_until(
                lambda worker=worker, pattern=pattern: worker.printed(pattern),
                what=f"{line!r} among {worker.lines}",
                timeout_s=LONGEST_S,
            )
            self._note_ids(line, found)
        self.awaited.clear()

    def _compare(self, kind: str, shown: list[str], run: Callable[[], str], what: str) -> None:
        printed = run()
        if not shown or (self.again and kind == "text first run"):
            return
        pattern = "\n".join(map(pattern_of, shown))
        deadline = time.monotonic() + LONGEST_S
        while not (found := re.fullmatch(pattern, squeezed_lines(printed), re.DOTALL)):
            # What a person sees who looks again, while a worker goes on.
            assert LOOKS.search(what), f"{what} printed\n{printed}and not\n" + "\n".join(shown)
            assert time.monotonic() < deadline, f"{what} still prints\n{printed}"
            time.sleep(0.05)
            printed = run()
        self._note_ids("\n".join(map(squeezed, shown)), found)

    def _note_ids(self, shown: str, found: re.Match[str]) -> None:
        names = list(VARIABLE.finditer(shown))
        for one, here in zip(names, found.groups(), strict=True):
            if one["id"]:
                self.ids[one[0]] = here


def squeezed(line: str) -> str:
    return " ".join(line.split())


def as_at_home(line: str) -> str:
    """Show commands in logs as they are for users with the usual data directory."""
    command = f"{shlex.quote(sys.executable)} -P -m penstock"
    return line.replace(command, "penstock").replace(f" --home {os.environ['PENSTOCK_HOME']}", "")


def squeezed_lines(text: str) -> str:
    return "\n".join(map(squeezed, text.splitlines()))


def pattern_of(line: str) -> str:
    """The line as a regular expression, with a group for all that may differ."""
    parts, end = [], 0
    line = squeezed(line)
    for one in VARIABLE.finditer(line):
        parts += [re.escape(line[end : one.start()]), MAY_BE.get(one.lastgroup or "", r"(\S+)")]
        end = one.end()
    return "".join(parts) + re.escape(line[end:])


def import_does_nothing(path: Path) -> bool:
    """Whether importing a program prints nothing and connects to nothing."""
    opened, printed = [], io.StringIO()

    async def refuse(self: Client) -> None:
        opened.append(self)
        raise AssertionError(f"importing {path.name} opens a connection")

    before, Client.open = Client.open, refuse
    try:
        with contextlib.redirect_stdout(printed), beside(path):
            runpy.run_path(str(path), run_name=path.stem)
    finally:
        Client.open = before
    assert not printed.getvalue(), f"importing {path.name} prints {printed.getvalue()!r}"
    return not opened


def run_program(path: Path) -> str:
    """Run a program in this process; what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), beside(path), within(LONGEST_S, path.name):
        names = runpy.run_path(str(path), run_name="__main__")
    for value in names.values():
        if isinstance(value, sync.Penstock):
            value.close()  # as the end of its process would
    return printed.getvalue()


def run_command(words: list[str]) -> str:
    """Run a `penstock` command in this process; what it printed."""
    printed, arguments, sys.argv = io.StringIO(), sys.argv, words
    with contextlib.ExitStack() as around:
        around.callback(setattr, sys, "argv", arguments)
        around.enter_context(contextlib.redirect_stdout(printed))
        around.enter_context(contextlib.redirect_stderr(printed))
        around.enter_context(within(LONGEST_S, " ".join(words)))
        ended = around.enter_context(pytest.raises(SystemExit))
        main()
    assert not ended.value.code, printed.getvalue()
    return printed.getvalue()


@contextlib.contextmanager
def beside(path: Path) -> Iterator[None]:
    """Let a program be the one that was started, in its own folder."""
    arguments, known = sys.argv, set(sys.modules)
    sys.argv = [path.name]
    sys.path.insert(0, str(path.parent))
    try:
        yield
    finally:
        sys.argv = arguments
        sys.path.remove(str(path.parent))
        for name in set(sys.modules) - known:
            if str(path.parent) in (getattr(sys.modules[name], "__file__", None) or ""):
                del sys.modules[name]


@contextlib.contextmanager
def within(seconds: float, what: str) -> Iterator[None]:
    """Raise TimeoutError in the main thread if the block takes longer."""

    def expire(*_: object) -> None:
        raise TimeoutError(f"{what} did not end within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
