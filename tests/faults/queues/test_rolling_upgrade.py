"""Two versions of one program at once: while workers are replaced one by one, nothing is lost."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.kit.paths import PROGRAMS

from penstock import Penstock
from penstock.inspector.workers import list_workers
from penstock.settings import Settings
from penstock.testing.eventually import eventually
from penstock.topics.storage.keys import PartitionKeys

VERSIONS = PROGRAMS / "upgrade"
CALLS = (
    ("charge", {}),
    ("charge", {"currency": "USD"}),
    ("refund", {"reason": "broken"}),
    ("refund", {}),
    ("invoice", {}),
)
"""Calls of tasks as both versions make them: the old program can run two of the five."""
TICK_MS = 200
"""How often both versions have `report` run, and the new one `audit`."""


class Deployment:
    """Workers of either version as processes of their own, and their traffic."""

    def __init__(self, url: str, namespace: str, folder: Path) -> None:
        self._folder = folder
        self._environ = os.environ | {
            "PENSTOCK_URL": url,
            "PENSTOCK_NAMESPACE": namespace,
            "PENSTOCK_QUEUES_BEAT_S": "0.2",
            "PENSTOCK_TOPICS_LEASE_TTL_S": "3",
            "PENSTOCK_TOPICS_BALANCE_S": "0.1",
            "PENSTOCK_WORKER_HEARTBEAT_S": "0.1",
            "PROGRAM_NOTES": str(folder),
        }
        self.app = Penstock(settings=Settings(url=url, namespace=namespace))
        self.orders = self.app.topic("orders", partitions=4)
        self.processes: list[asyncio.subprocess.Process] = []
        self.sent: Counter[tuple[str, int]] = Counter()
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> Self:
        await self.app.open()
        await self.orders.metadata()  # with its partitions, before a worker makes it with others
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self.processes:
            if process.returncode is None:
                process.kill()
            await process.wait()
        await self.app.close()

    async def start(self, version: str) -> asyncio.subprocess.Process:
        """Start a worker; returns when it is ready."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "penstock", "worker", f"{version}:app"),
            cwd=VERSIONS,
            env=self._environ | {"PROGRAM_VERSION": version},
            stderr=asyncio.subprocess.DEVNULL,
        )
        self.processes.append(process)

        async def is_ready():
            assert process.returncode is None, f"{version} has ended"
            found = [one.about for one in await list_workers(self.app.redis) if one.about]
            return any(one.pid == process.pid and one.ready for one in found)

        await eventually(is_ready)
        return process

    async def stop(self, process: asyncio.subprocess.Process) -> None:
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 20) == 0

    async def send_for_ever(self) -> None:
        """Producers of both versions send what they know."""
        for number in self._numbers:
            task, named = CALLS[number % len(CALLS)]
            await self.app.send(task, (number,), named, queue="shop")
            self.sent[task, number] += 1
            order = {"number": number, "item": "tea"}
            if number % 3 == 0:
                await self._send_as_a_later_penstock(order)
            else:
                await self.orders.send(order if number % 2 else {**order, "coupon": "spring"})
            self.sent["bill", number] += 1
            await asyncio.sleep(0.005)

    async def _send_as_a_later_penstock(self, order: dict[str, object]) -> None:
        """With a field beside the payload that this version does not know."""
        stream = PartitionKeys.of(self.app.redis.keys, "orders", 0).stream
        fields = ("payload", json.dumps(order), "traceId", "4bf9")
        await self.app.redis.call("XADD", stream, "*", *fields)

    async def has_sent(self, more: int) -> None:
        """Wait for so much more traffic."""
        enough = sum(self.sent.values()) + more
        await eventually(lambda: sum(self.sent.values()) >= enough)

    def handled(self) -> dict[str, Counter[tuple[str, int]]]:
        """What each version has done."""
        done: dict[str, Counter[tuple[str, int]]] = {"old": Counter(), "new": Counter()}
        for file in self._folder.glob("*.notes"):
            for line in file.read_text().splitlines():
                version, what, number = json.loads(line)
                done[version][what, number] += 1
        return done


async def test_a_rolling_upgrade_buries_and_loses_nothing(valkey_server, namespace, tmp_path):
    async with Deployment(valkey_server.url, namespace, tmp_path) as site:
        olds = [await site.start("old") for _ in range(2)]
        traffic = asyncio.create_task(site.send_for_ever())
        for old in olds:
            await site.start("new")
            await site.has_sent(100)
            await site.stop(old)
        traffic.cancel()
        with suppress(asyncio.CancelledError):
            await traffic

        def everything():
            done = site.handled()
            return site.sent.keys() <= (done["old"] | done["new"]).keys()

        await eventually(everything)
        facts = await site.app.queues.facts("shop")
        assert facts.dead_letters == 0
        assert (await site.app.topics.describe("orders")).dead_letters == 0
        await eventually(lambda: _nothing_left(site))
        done = site.handled()
        for version in ("old", "new"):
            assert {what for what, _ in done[version]} >= {"charge", "refund", "bill"}, version
        assert facts.counters.get("parked", 0) > 0
        twice = {what: n for what, n in (done["old"] + done["new"]).items() if n > 1}
        assert not twice, "nothing crashed, so nothing was handled twice"
        assert "report" in {what for what, _ in done["old"]}
        await eventually(lambda: _no_tick_is_missing(site, "report"))
        await eventually(lambda: _no_tick_is_missing(site, "audit"))
        assert (await site.app.queues.facts("reports")).dead_letters == 0


async def _nothing_left(site: Deployment) -> bool:
    facts = await site.app.queues.facts("shop")
    return (facts.waiting, facts.delayed, facts.claimed) == (0, 0, 0)


def _no_tick_is_missing(site: Deployment, name: str) -> bool:
    """Whether every tick of a schedule was run, from the first to one after this was asked."""
    done = site.handled()
    ticks = sorted(tick for what, tick in done["old"] + done["new"] if what == name)
    whole = list(range(ticks[0], ticks[-1] + 1, TICK_MS)) if ticks else []
    return ticks == whole and len(ticks) > 5
