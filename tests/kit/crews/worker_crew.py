"""Worker processes of fault tests: how they are started, hurt and ended."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

from tests.kit.history import Event, Recorder, Verdict, read_history
from tests.kit.paths import PROGRAMS, program_environ

from penstock.app import Penstock
from penstock.errors import OutcomeUnknown, PenstockError
from penstock.testing.eventually import eventually
from penstock.testing.proxy import FaultProxy
from penstock.testing.servers import ServerProcess

__all__ = ["Launcher", "Load", "RecordedCrew", "WorkerCrew", "WorkerProcess"]

_SENDERS = 8


class Launcher:
    """The process that forks workers: they start in milliseconds, with all imports done.

    `program` is the name of a file in tests/kit/programs that calls `serve`.
    """

    def __init__(self, program: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / f"{program}.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=program_environ(),
        )
        self._started: list[int] = []
        self.codes: dict[int, int] = {}
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            report = json.loads(line)
            with self._changed:
                if "started" in report:
                    self._started.append(report["started"])
                else:
                    self.codes[report["ended"]] = report["code"]
                self._changed.notify_all()

    def start(self, orders: dict) -> int:
        """Start a worker; its process id."""
        self._process.stdin.write(json.dumps(orders).encode() + b"\n")
        self._process.stdin.flush()
        with self._changed:
            assert self._changed.wait_for(lambda: self._started, timeout=20)
            return self._started.pop()

    def close(self) -> None:
        self._process.stdin.close()  # its children die with it
        self._process.wait(10)
        self._reader.join(10)
        self._process.stdout.close()


class WorkerProcess:
    """One worker process of a crew."""

    def __init__(self, crew: WorkerCrew, actor: str, pid: int) -> None:
        self._crew, self.actor, self.pid = crew, actor, pid
        self._counts = crew.folder / f"{actor}.counts"

    @property
    def code(self) -> int | None:
        """How it has ended: an exit code, or a signal's number below zero."""
        return self._crew.launcher.codes.get(self.pid)

    @property
    def log(self) -> str:
        return (self._crew.folder / f"{self.actor}.log").read_text()

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def kill(self) -> None:
        self._crew.note_loss(self)
        self.signal(signal.SIGKILL)
        await self.ended()

    def freeze(self) -> None:
        self._crew.note_loss(self)
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    async def ended(self, within_s: float = 60.0) -> int:
        """Wait for its end; how it ended."""
        await eventually(lambda: self.code is not None, within_s, what=f"the end of {self.actor}")
        return self.code

    async def up(self) -> None:
        """Wait until it handles signals, or has ended."""
        sign = self._crew.folder / f"{self.actor}.up"
        await eventually(lambda: sign.exists() or self.code is not None, what=self.actor)

    async def stop(self) -> None:
        """Let it end in good order."""
        await self.up()
        self._crew.note_stop(self)
        self.signal(signal.SIGTERM)
        code = await self.ended()
        assert code == 0, f"{self.actor} ended with {code}:\n{self.log[-5000:]}"

    def last_counts(self) -> dict:
        """What it had counted when it ended."""
        return json.loads(self._counts.read_text())

    async def counts(self) -> dict:
        """What it has counted by now."""
        self._counts.unlink(missing_ok=True)
        self.signal(signal.SIGUSR1)
        await eventually(self._counts.exists, what=f"counts of {self.actor}")
        return self.last_counts()


class WorkerCrew:
    """Workers around one application; all are dead when the block ends.

    `orders` are what every worker gets as JSON; `app` is the test's own side.
    """

    def __init__(self, launcher: Launcher, folder: Path, app: Penstock, orders: dict) -> None:
        self.launcher, self.folder, self.app = launcher, folder, app
        self.orders = {"folder": str(folder), **orders}
        self.workers: list[WorkerProcess] = []
        self._names = itertools.count(1)

    async def __aenter__(self) -> Self:
        await self.app.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self.living:
            self.note_stop(worker)
            worker.signal(signal.SIGKILL)
            worker.signal(signal.SIGCONT)
        for worker in self.workers:
            await worker.ended()
        await self.close()

    async def close(self) -> None:
        """Called when all workers have ended."""
        await self.app.close()

    @property
    def living(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker.code is None]

    async def hire(self, count: int = 1, **overrides: Any) -> list[WorkerProcess]:
        """Start workers, whose orders differ by `overrides`."""
        hired = []
        for _ in range(count):
            actor = f"worker-{next(self._names)}"
            orders = {**self.orders, "actor": actor, **overrides}
            pid = await asyncio.to_thread(self.launcher.start, orders)
            hired.append(WorkerProcess(self, actor, pid))
        self.workers += hired
        return hired

    async def dismiss(self) -> None:
        """Let all workers end in good order."""
        for worker in self.living:
            await worker.stop()

    def note_loss(self, worker: WorkerProcess) -> None:
        """Called before a worker is killed or frozen."""
        self.note_stop(worker)

    def note_stop(self, worker: WorkerProcess) -> None:
        """Called before a worker ends in any way."""

    def log_tails(self, length: int = 1_500) -> str:
        """The ends of the latest workers' logs, for a failed test."""
        return "\n".join(
            f"--- {worker.actor} ({worker.code}):\n{worker.log[-length:]}"
            for worker in self.workers[-4:]
        )


class RecordedCrew(WorkerCrew):
    """Workers, a producer and a nemesis; all of them record what they do."""

    def __init__(self, launcher: Launcher, folder: Path, app: Penstock, orders: dict) -> None:
        super().__init__(launcher, folder, app, orders)
        self.nemesis = Recorder(folder, "nemesis")
        self.recorder = Recorder(folder, "producer")
        self._numbers = itertools.count(1)

    async def close(self) -> None:
        await super().close()
        self.nemesis.close()
        self.recorder.close()

    def note_loss(self, worker: WorkerProcess) -> None:
        self.nemesis.write("lose", victim=worker.actor)

    async def dismiss(self) -> Counter[str]:
        """Let all workers end in good order; the sum of what they have counted."""
        living, total = self.living, Counter()
        await super().dismiss()
        for worker in living:
            counts = worker.last_counts()
            total.update({name: value for name, value in counts.items() if type(value) is int})
        return total

    # ---- what was recorded

    def events(self, op: str, phase: str = "", actor: str = "") -> list[Event]:
        """What all actors, or one, have recorded by now."""
        return [
            event
            for event in read_history(self.folder)
            if event.op == op
            and (not phase or event.phase == phase)
            and (not actor or event.actor == actor)
        ]

    async def handled_some(self, count: int) -> None:
        """Wait until so many runs have ended well."""
        await eventually(lambda: len(self.events("finish", "ok")) >= count, what=f"{count} handled")

    @staticmethod
    def nothing_is_both_handled_and_dead(history: list[Event]) -> None:
        """A dead letter and an accepted acknowledgement would be two fates of one message."""
        dead = {
            (event.partition, event.msg)
            for event in history
            if event.op == "final" and event.place == "dlq"
        }
        calls = {
            (event.pid, event.seq): event
            for event in history
            if event.op == "ack" and event.phase == "invoke"
        }
        for event in history:
            if event.op == "ack" and event.phase == "accepted":
                acked = calls[event.pid, event.call]
                assert (acked.partition, acked.msg) not in dead, f"handled and dead: {acked}"

    # ---- the producer

    async def record_send(
        self, send: Callable[[], Awaitable[Any]], stored: Callable[[Any], dict], **about: object
    ) -> Any:
        """Send and record the outcome; what `send` returned, or None if it is not known.

        `stored` says of that where it is.
        """
        call = self.recorder.write("send", "invoke", **about)
        try:
            sent = await send()
        except PenstockError as error:
            phase = "unknown" if isinstance(error, OutcomeUnknown) else "fail"
            self.recorder.write("send", phase, call=call, detail=type(error).__name__)
            if phase == "fail":
                raise
            return None
        self.recorder.write("send", "ok", call=call, **stored(sent))
        return sent

    async def send_at_once(
        self, count: int, send: Callable[[int, dict], Awaitable[object]], **options: Any
    ) -> None:
        """Call `send(place, orders)` `count` times, eight at a time, each eighth in order.

        Some of the orders are to fail at first (`failing=0.02`) or for good (`dying=0.0`); other
        options are in all of them, but for the `seed` of the choice and a `pace_s` between sends.
        """
        pace_s = options.pop("pace_s", 0.0)
        chance = random.Random(options.pop("seed", 0))  # noqa: S311  repeatable, not secret
        failing, dying = options.pop("failing", 0.02), options.pop("dying", 0.0)
        drawn = [chance.random() for _ in range(count)]

        def orders(draw: float) -> dict:
            if draw < failing:
                return {"fail": True, "attempts": 1, **options}
            return {"dead": True, **options} if draw < failing + dying else options

        async def sender(first: int) -> None:
            for place in range(first, count, _SENDERS):
                await send(place, orders(drawn[place]))
                if pace_s:
                    await asyncio.sleep(pace_s)

        await asyncio.gather(*(sender(first) for first in range(_SENDERS)))

    async def send_until(self, ended: asyncio.Event, least: int, **orders: Any) -> int:
        """Send in waves until `ended` is set, and `least` at least; how many were sent."""
        sent, wave = 0, 200
        while sent < least or not ended.is_set():
            await self.send_many(wave, seed=sent, failing=0, **orders)
            sent += wave
        return sent

    # ---- faults

    async def supervise(self) -> None:
        """Hire another worker for each that dies, for ever."""

        def dead() -> WorkerProcess | None:
            return next((worker for worker in living if worker.code is not None), None)

        living = list(self.workers)
        while True:
            victim = await eventually(dead, 600)
            self.nemesis.write("lose", victim=victim.actor)
            living.remove(victim)
            living += await self.hire()

    async def survive_kills(self, server: ServerProcess, kills: int, between: int) -> Verdict:
        """Kill the server under load, each time after so many confirmed sends; the verdict."""
        workers = await self.hire(2)
        await self.at_work(*workers)
        async with Load(self) as load:
            for _ in range(kills):
                await load.confirms(between)
                with self.nemesis.losing():
                    server.kill()
                await asyncio.to_thread(server.restart)
            await load.confirms(between)
        # Those that were there at the beginning have recovered by themselves.
        assert [worker.code for worker in workers] == [None, None]
        return await self.hold()

    async def survive_network(self, proxy: FaultProxy, *commands: str) -> Verdict:
        """Sixty faults of the network in a minute, under load; the verdict.

        Replies to `commands` get lost, too.
        """
        faults: list[Callable[[], object]] = [
            *(partial(proxy.swallow, command) for command in commands),
            lambda: proxy.cut_before("EVALSHA"),
            lambda: proxy.cut(reset=True),
            proxy.cut,
            lambda: proxy.blackhole(way="to_client"),
            proxy.blackhole,
        ]
        await self.at_work(*await self.hire(3))
        async with asyncio.TaskGroup() as group:
            group.create_task(self.send_many(20_000, pace_s=0.024))
            for number in range(60):
                with self.nemesis.losing():
                    faults[number % len(faults)]()
                    await asyncio.sleep(0.7)
                    proxy.heal()
                await asyncio.sleep(0.3)
        return await self.hold()

    # ---- the end

    async def drained(self, within_s: float = 60.0) -> None:
        """Wait until all that was sent has come to its end."""

        async def nothing_left() -> bool:
            try:
                # Twice: a job may move to where was looked already.
                return await self.left() == 0 == await self.left()
            except PenstockError:
                return False

        try:
            await eventually(nothing_left, within_s, what="all to be handled")
        except AssertionError:
            raise AssertionError(
                f"left after {within_s:g} s: {await self.state()}\n{self.log_tails()}"
            ) from None

    async def deaths_noticed(self) -> None:
        """Wait until it is known which workers have died."""

    async def hold(self, within_s: float = 60.0, **rules: Any) -> Verdict:
        """Wait for the end, dismiss the workers, and check that every promise was kept."""
        await self.drained(within_s)
        await self.deaths_noticed()
        self.counted = await self.dismiss()
        verdict = await self.verdict(**rules)
        assert verdict.ok, str(verdict)
        assert verdict.counts.lost == 0
        return verdict


class Load:
    """Senders that go on whatever happens; a send that fails is left to its fate."""

    def __init__(self, crew: RecordedCrew, senders: int = 8, pace_s: float = 0.005) -> None:
        self._crew, self._senders, self._pace_s = crew, senders, pace_s
        self._ending = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._send(number)) for number in range(self._senders)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ending.set()
        await asyncio.gather(*self._tasks)

    async def _send(self, number: int) -> None:
        while not self._ending.is_set():
            with suppress(PenstockError):
                await self._crew.send_one(number)
            await asyncio.sleep(self._pace_s)

    async def confirms(self, count: int) -> None:
        """Wait until so many more are confirmed."""
        wanted = len(self._crew.confirmed) + count
        await eventually(
            lambda: len(self._crew.confirmed) >= wanted, what=f"{count} more to be confirmed"
        )
