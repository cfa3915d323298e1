"""The server that all contenders share, and how their rates are taken.

Every contender is a process of its own. Producers time themselves; how fast a consumer drains is
seen from outside, by what the server says is not acknowledged yet, so that its handler can be
empty and a message counts when it is handled *and* settled.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from penstock import Settings
from penstock.errors import CommandRefused
from penstock.redis import Client

FOLDER = Path(__file__).parent
_LOOK_EVERY_S = 0.01
_PATIENCE_S = 60.0
_LONGEST_S = 600.0
_KEYS_AT_MOST = 1_000

Backlog = Callable[[], Awaitable[int]]
"""Says how many messages are not settled yet."""


class Failed(Exception):
    """A program ended badly or stood still; its last words are the text."""


class Program:
    """A process with its children, and all it says."""

    def __init__(self, command: Sequence[object], variables: Mapping[str, str]) -> None:
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  closed by `end`
        self._process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=self._words,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
            cwd=FOLDER / "peers",
            start_new_session=True,
        )

    @property
    def has_failed(self) -> bool:
        return self._process.poll() not in {None, 0}

    @property
    def resident_mb(self) -> float:
        """What it holds in memory now, without its children."""
        command = ["ps", "-o", "rss=", "-p", str(self._process.pid)]
        return int(subprocess.run(command, capture_output=True, check=True).stdout) / 1024

    def words(self) -> str:
        """What it said last."""
        self._words.seek(0)
        return self._words.read().decode(errors="replace")[-2_000:]

    def result(self) -> dict[str, Any]:
        """Wait for its end; what it told, empty if nothing."""
        try:
            code = self._process.wait(_LONGEST_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"it did not end within {_LONGEST_S:g} s. {self.words()}") from None
        if code:
            raise Failed(self.words())
        return self._told()

    async def tells(self) -> dict[str, Any]:
        """Wait for what it has to tell while it runs."""
        deadline = time.monotonic() + _PATIENCE_S
        while not (told := self._told()):
            if self.has_failed or time.monotonic() > deadline:
                raise Failed(f"it told nothing. {self.words()}")
            await asyncio.sleep(_LOOK_EVERY_S)
        return told

    def _told(self) -> dict[str, Any]:
        """Its last line that is JSON."""
        lines = [line for line in self.words().splitlines() if line.startswith("{")]
        return json.loads(lines[-1]) if lines else {}

    def end(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._words.close()


class Arena:
    """One embedded server, as the product runs it, and programs on it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.url = f"unix://{client.address.endpoints[0].path}"

    async def clean(self) -> None:
        """Forget everything, so that nobody inherits memory or a long file."""
        await self.client.call("FLUSHALL", "SYNC")
        await self.rest()

    async def rest(self) -> None:
        """Let the server finish what it does in the background, before others are timed."""
        with suppress(CommandRefused):  # it does so already
            await self.client.call("BGREWRITEAOF")
        deadline = time.monotonic() + _PATIENCE_S
        while await self._rewrites():
            if time.monotonic() > deadline:
                raise Failed("the server did not finish rewriting its file")
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _rewrites(self) -> bool:
        info: bytes = await self.client.call("INFO", "persistence")
        return b"aof_rewrite_in_progress:1" in info or b"aof_rewrite_scheduled:1" in info

    @contextmanager
    def started(self, command: Sequence[object], **variables: str) -> Generator[Program]:
        """Run a program meanwhile, in the folder of the peers."""
        program = Program(command, {"BENCH_URL": self.url, **variables})
        try:
            yield program
        finally:
            program.end()

    async def run(self, command: Sequence[object], **variables: str) -> dict[str, Any]:
        """Run a program to its end and return what it told."""
        with self.started(command, **variables) as program:
            return await asyncio.to_thread(program.result)

    async def drain(
        self, command: Sequence[object], backlog: Backlog | None = None, **variables: str
    ) -> float:
        """Run a consumer until all is settled; messages a second, from the first one on."""
        backlog = backlog or await self.groups()
        whole = await backlog()
        if not whole:
            raise Failed("there is nothing to drain")
        with self.started(command, **variables) as program:
            seen = [(time.monotonic(), left) async for left in self.watch(program, backlog)]
        begun = next(place for place, (_, left) in enumerate(seen) if left < whole)
        (first_at, first_left), (last_at, _) = seen[begun], seen[-1]
        if first_at == last_at:
            raise Failed(f"{whole} messages are too few to be timed")
        return first_left / (last_at - first_at)

    async def watch(self, program: Program, backlog: Backlog) -> AsyncIterator[int]:
        """Look at the backlog until there is none."""
        before, deadline = -1, 0.0
        while left := await backlog():
            if left != before:
                before, deadline = left, time.monotonic() + _PATIENCE_S
            if program.has_failed or time.monotonic() > deadline:
                raise Failed(f"{left} messages are left. {program.words()}")
            yield left
            await asyncio.sleep(_LOOK_EVERY_S)
        yield 0

    async def trim(self) -> None:
        """Forget the messages of all streams; whoever reads them reads on."""
        for key in await self._streams():
            await self.client.call("XTRIM", key, "MAXLEN", 0)
        await self.rest()

    async def groups(self) -> Backlog:
        """The backlog of all groups of all streams there are now."""
        asks = [(("XINFO", "GROUPS", key), ("XLEN", key)) for key in await self._streams()]

        async def backlog() -> int:
            replies = await self.client.pipeline([ask for pair in asks for ask in pair])
            pairs = zip(replies[::2], replies[1::2], strict=True)
            return sum(_unsettled(groups, length) for groups, length in pairs)

        return backlog

    async def _streams(self) -> list[bytes]:
        found = await self.client.call("SCAN", 0, "COUNT", _KEYS_AT_MOST, "TYPE", "stream")
        return found[1]

    def counted(self, *asks: tuple[str, str]) -> Backlog:
        """The sum of what the server answers to these commands."""

        async def backlog() -> int:
            return sum(await self.client.pipeline(asks))

        return backlog


@asynccontextmanager
async def open_arena() -> AsyncIterator[Arena]:
    with tempfile.TemporaryDirectory(prefix="bench") as home:
        async with Client(Settings(home=home)) as client:
            # It rewrites its file between the turns, not within those that happen to be long.
            await client.call("CONFIG", "SET", "auto-aof-rewrite-percentage", 0)
            yield Arena(client)


def _unsettled(groups: list[list[Any]], length: int) -> int:
    """A group that is not there yet has everything before it, as has one that cannot tell."""
    facts = [dict(zip(group[::2], group[1::2], strict=True)) for group in groups]
    lags = [length if fact[b"lag"] is None else fact[b"lag"] + fact[b"pending"] for fact in facts]
    return sum(lags) if lags else length
