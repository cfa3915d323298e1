"""Holders of slots that are killed with kill -9, again and again. It is a program.

One process with all imports done forks the holders, so that each costs some milliseconds, and kills
each of them after a random time. All write into one journal what they do, a line each:

    asks    pid, when
    enters  pid, fence, when it asked, when it entered, until when it may be inside
    renews  pid, fence, until when it may be inside by now
    refused pid, fence: a renewal was, although the holder may be inside by its own clock
    leaves  pid, fence, when, before it says so to the server
    killed  pid, when
    checks  how long it took to get all slots after a massacre, when no holder was left alive
    holds   how many ms the longest lease still had on the server after a massacre

Times are seconds of CLOCK_MONOTONIC, which all processes share.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import heapq
import json
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import redis.asyncio  # noqa: F401  what hints import when they are needed

from penstock.coordination.leases import Leases
from penstock.coordination.slots.slot import Slot
from penstock.coordination.slots.slots import Slots
from penstock.coordination.wakeups import Wakeups
from penstock.redis.client import Client
from penstock.redis.health import ProbeScripts
from penstock.redis.keys.probe import ProbeKeys
from penstock.settings import Settings
from penstock.settings.coordination import SlotSettings

PR_SET_PDEATHSIG = 1
NAME = "gpu"

prctl = ctypes.CDLL(None).prctl


class Nemesis:
    """Starts holders, kills them, and looks what is left when all are dead."""

    def __init__(self, told: dict) -> None:
        self.told = told
        self.chance = random.Random(told["seed"])  # noqa: S311  repeatable, not secret
        self.journal = os.open(told["journal"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.settings = Settings(
            url=told["url"],
            namespace=told["namespace"],
            slots=SlotSettings(lease_s=told["lease_s"], recheck_s=told["recheck_s"]),
        )

    def write(self, *words: object) -> None:
        os.write(self.journal, (" ".join(map(str, words)) + "\n").encode())

    def run(self) -> None:
        left = self.told["kills"]
        while left:
            some = min(left, self.told["between_checks"])
            self.storm(some)
            left -= some
            self.fork(self.check, wait=True)

    def storm(self, kills: int) -> None:
        """Kill so many: one after the other at their times, and those that are left at once."""
        due: list[tuple[float, int]] = []
        # Sometimes there is a line, sometimes a slot for everybody, who then takes it and gives it
        # back all the time.
        crowd = round(self.told["limit"] * self.chance.choice((0.75, 1, 1.5, 2.5)))
        for _ in range(kills):
            if len(due) == crowd:
                self.kill_next(due)
            heapq.heappush(due, (time.monotonic() + self.lifetime_s(), self.fork(self.live)))
        while len(due) > crowd // 2:
            self.kill_next(due)
        for _, pid in due:
            os.kill(pid, signal.SIGKILL)
        for _, pid in due:
            self.bury(pid)

    def lifetime_s(self) -> float:
        """Mostly less than it takes to get a slot; sometimes long enough to renew it."""
        longest = self.chance.choice((0.02, 0.05, 0.05, 0.1, 2 * self.told["lease_s"]))
        return self.chance.uniform(0, longest)

    def kill_next(self, due: list[tuple[float, int]]) -> None:
        when, pid = heapq.heappop(due)
        time.sleep(max(when - time.monotonic(), 0))
        os.kill(pid, signal.SIGKILL)
        self.bury(pid)

    def bury(self, pid: int) -> None:
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code != -signal.SIGKILL:
            raise SystemExit(f"a holder ended by itself, with {code}")
        self.write("killed", pid, time.monotonic())

    def fork(self, work: Callable[[int], Awaitable[None]], *, wait: bool = False) -> int:
        seed = self.chance.getrandbits(32)
        parent, pid = os.getpid(), os.fork()
        if not pid:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            try:
                asyncio.run(work(seed))
            except BaseException:  # noqa: BLE001  it must not go on as its parent
                sys.excepthook(*sys.exc_info())
                os._exit(2)
            os._exit(0)
        if wait and os.waitpid(pid, 0)[1]:
            raise SystemExit("the check failed")
        return pid

    # ---- what the processes do

    async def live(self, seed: int) -> None:
        """Take slots and give them back until the end."""
        chance = random.Random(seed)  # noqa: S311
        client = Client(self.settings)
        await client.open()
        wakeups = Wakeups(client) if chance.random() < 0.5 else None
        slots = Slots(client, NAME, self.told["limit"], leases=Leases(client), wakeups=wakeups)
        pid = os.getpid()
        while True:
            asked = time.monotonic()
            self.write("asks", pid, asked)
            slot = await slots.take(timeout_s=None)
            lease = self.watched(slot)
            self.write("enters", pid, slot.fence, asked, time.monotonic(), lease.until)
            longest = chance.choice((0.0, 0.0, 0.001, 0.01, 0.05, self.told["lease_s"]))
            await asyncio.sleep(chance.uniform(0, longest))
            self.write("leaves", pid, slot.fence, time.monotonic())
            await slot.release()

    def watched(self, slot: Slot):
        """The lease of a slot, which notes from now on how it goes on."""
        lease = slot._lease
        renew, renewed = lease.renew, lease.renewed

        async def asking() -> bool:
            goes_on = await renew()
            if not goes_on and not lease.lost:
                self.write("refused", os.getpid(), slot.fence)
            return goes_on

        def noted(asked: float) -> None:
            renewed(asked)
            self.write("renews", os.getpid(), slot.fence, lease.until)

        lease.renew, lease.renewed = asking, noted
        return lease

    async def check(self, _: int) -> None:
        """Take all slots: nobody is alive who could hold one."""
        began = time.monotonic()
        async with Client(self.settings) as client:
            leases = Leases(client)
            slots = Slots(client, NAME, self.told["limit"], leases=leases)
            now_ms = await ProbeScripts.of(client).probe(
                probe=ProbeKeys.of(client.keys, "slots").value, token="now", ttl_ms=1000
            )
            ends = [holder.until_ms - now_ms for holder in await slots.holders()]
            self.write("holds", max(ends, default=0))
            taken = []
            for _ in range(self.told["limit"]):
                asked = time.monotonic()
                # By a lease that does not end while a loaded machine lets us stand still.
                slot = await slots.take(timeout_s=20, lease=20)
                taken.append(slot)
                until = self.watched(slot).until
                self.write("enters", os.getpid(), slot.fence, asked, time.monotonic(), until)
            self.write("checks", time.monotonic() - began)
            state = await slots.state()
            assert state.taken == state.limit == self.told["limit"], state
            for slot in taken:
                self.write("leaves", os.getpid(), slot.fence, time.monotonic())
                await slot.release()
            assert (await slots.state()).taken == 0
            await leases.close()


if __name__ == "__main__":
    nemesis = Nemesis(json.loads(sys.argv[1]))
    gc.freeze()  # what is there now is shared by all, and never written to
    with suppress(KeyboardInterrupt):
        nemesis.run()
