"""What the worker programs of fault tests share. One process forks many, so a start costs little.

A line of JSON on the standard input of such a program starts a worker; lines on its standard output
say which process that is, and how each of them has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any

from penstock import Penstock
from penstock.clock import SYSTEM_CLOCK
from penstock.runtime.process import run_process

PR_SET_PDEATHSIG = 1
MANY = 1_000_000

Work = Callable[[dict], Coroutine[None, None, int]]


def run_worker(work: Work, orders: dict) -> None:
    log = os.open(
        f"{orders['folder']}/{orders['actor']}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND
    )
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    os._exit(run_process(lambda: work(orders)))


def serve(work: Work) -> None:
    """Start workers as they are asked for, until standard input ends."""
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()
    lines = os.fdopen(0, "rb", buffering=0)  # what select sees is all there is
    while True:
        readable, _, _ = select.select([0], [], [], 0.02)
        if readable:
            line = lines.readline()
            if not line:
                return
            pid = os.fork()
            if not pid:
                prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != parent:
                    os._exit(1)
                run_worker(work, json.loads(line))
            report(started=pid)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                report(ended=ended[0], code=os.waitstatus_to_exitcode(ended[1]))


def report(**facts: int) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


async def run_counted(app: Penstock, orders: dict, counts: Callable[[Any], dict]) -> int:
    """Run a worker with one consumer, of which `counts` says what is to be written."""
    worker = app.worker()
    (consumer,) = worker._work
    file = CountsFile(orders, lambda: {**asdict(consumer.counts), **counts(consumer)})
    tell_when_up(orders)
    try:
        return await worker.run(handle_signals=True)
    finally:
        file.write()


def tell_when_up(orders: dict) -> None:
    """After the first steps of the worker, which takes over the signals then."""
    up = Path(orders["folder"]) / f"{orders['actor']}.up"
    asyncio.get_running_loop().call_soon(up.touch)


class CountsFile:
    """Writes what a consumer has counted, and what troubles it, where the test can read it.

    When the test asks for it by SIGUSR1, and at the end.
    """

    def __init__(self, orders: dict, counts: Callable[[], dict]) -> None:
        self._path = Path(orders["folder"]) / f"{orders['actor']}.counts"
        self._counts = counts
        signal.signal(signal.SIGUSR1, lambda *_: self.write())

    def write(self) -> None:
        scratch = self._path.with_suffix(".new")
        scratch.write_text(json.dumps({**self._counts(), "cpu_s": time.process_time()}))
        scratch.rename(self._path)


def die(orders: dict) -> None:
    """End the process, or freeze it until it is continued, as a message or job orders."""
    if orders.get("exit"):
        os._exit(3)
    if orders.get("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    if orders.get("segfault"):
        ctypes.string_at(0)
    if orders.get("stop"):
        os.kill(os.getpid(), signal.SIGSTOP)


def compute(seconds: float) -> None:
    """Keep the event loop busy without a pause, as a long computation does."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1_000))


def shift_clock(offset_s: float) -> None:
    """Let this process's wall clock be wrong; nothing may depend on it."""
    if offset_s:
        right, right_ms = time.time, type(SYSTEM_CLOCK).wall_ms
        time.time = lambda: right() + offset_s
        type(SYSTEM_CLOCK).wall_ms = lambda clock: right_ms(clock) + round(offset_s * 1000)
