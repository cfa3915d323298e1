"""Callers that share a limit, each with a wrong wall clock, killed with kill -9. It is a program.

One process with all imports done forks the callers. All write into one journal what they do, a line
each; what a caller was granted and did not write down before it died, it did not use:

    granted  pid, weight, permits in all, the server's ms that was logged, how long they may be used
    used     pid, the server's ms that was logged for it, when: of the permits in hand
    refused  pid, why, when
    killed   pid, when

Times are nanoseconds of CLOCK_MONOTONIC, which all processes share.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import random
import signal
import sys
import time

import redis.asyncio  # noqa: F401  what wakeups import when they are needed

from penstock.coordination.limits import prefetched
from penstock.coordination.limits.limit import EVERYONE, Limit
from penstock.coordination.limits.result import LimitResult
from penstock.coordination.limits.setting import setting_of
from penstock.coordination.wakeups import Wakeups
from penstock.redis.client import Client
from penstock.settings import Settings

PR_SET_PDEATHSIG = 1
NAME = "provider"
LONGEST_PAUSE_S = 0.05

prctl = ctypes.CDLL(None).prctl


class NotedClock:
    """Clock of prefetched permits: what they read is when they were used."""

    seen = 0.0

    def monotonic(self) -> float:
        self.seen = time.monotonic()
        return self.seen


class Callers:
    """Forks callers and kills them."""

    def __init__(self, told: dict) -> None:
        self.told = told
        self.chance = random.Random(told["seed"])  # noqa: S311  repeatable, not secret
        self.journal = os.open(told["journal"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, *words: object) -> None:
        os.write(self.journal, (" ".join(map(str, words)) + "\n").encode())

    def run(self) -> None:
        alive = [self.fork() for _ in range(self.told["callers"])]
        until = time.monotonic() + self.told["seconds"]
        while (left_s := until - time.monotonic()) > 0:
            time.sleep(min(left_s, self.chance.uniform(0, 2 * self.told["kill_every_s"])))
            self.kill(alive.pop(self.chance.randrange(len(alive))))
            alive.append(self.fork())
        for pid in alive:
            self.kill(pid)

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            raise SystemExit("a caller ended by itself")
        self.write("killed", pid, time.monotonic_ns())

    def fork(self) -> int:
        seed = self.chance.getrandbits(32)
        parent, pid = os.getpid(), os.fork()
        if pid:
            return pid
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        try:
            asyncio.run(self.call(seed))
        except BaseException:  # noqa: BLE001  it must not go on as its parent
            sys.excepthook(*sys.exc_info())
        os._exit(2)

    async def call(self, seed: int) -> None:
        """Use all there is, until the end."""
        chance = random.Random(seed)  # noqa: S311
        _set_wall_clock_wrong(chance.uniform(-7_200, 7_200), chance.uniform(0.5, 2))
        told, pid = self.told, os.getpid()
        client = Client(Settings(url=told["url"], namespace=told["namespace"]))
        await client.open()
        setting = setting_of(told["rates"], algorithm=told["algorithm"])
        wakeups = Wakeups(client) if told["lease"] else None
        limit = Limit(client, NAME, setting, lease=told["lease"], wakeups=wakeups)
        clock = prefetched.time = NotedClock()
        while True:
            hand = limit._prefetched
            if hand is not None and (answer := hand.take(EVERYONE, 1)) is not None:
                self.write("used", pid, answer.permit[1], int(clock.seen * 1e9))
                if chance.random() < 0.02:
                    await asyncio.sleep(chance.uniform(0, 0.03))
                continue
            weight = chance.randint(1, told["heaviest"])
            answer = await limit.try_acquire(weight)
            if answer:
                self.note(limit, answer, weight)
            else:
                self.write("refused", pid, answer.reason, time.monotonic_ns())
                await asyncio.sleep(min(answer.retry_after_s, LONGEST_PAUSE_S))

    def note(self, limit: Limit, answer: LimitResult, weight: int) -> None:
        hand, size, hold_ms = limit._prefetched, weight, 0
        if hand is not None:
            size, hold_ms = hand._held[EVERYONE].size, round(hand._hold_s() * 1000)
        self.write("granted", os.getpid(), weight, size, answer.permit[1], hold_ms)


def _set_wall_clock_wrong(by_s: float, pace: float) -> None:
    """Let the clock of this process be wrong, and too slow or too fast."""
    now, began = time.time, time.time()
    time.time = lambda: now() + by_s + (now() - began) * (pace - 1)
    time.time_ns = lambda: int(time.time() * 1e9)


if __name__ == "__main__":
    Callers(json.loads(sys.argv[1])).run()
