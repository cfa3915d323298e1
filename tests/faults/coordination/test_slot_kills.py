"""Holders of slots are killed at random points: capacity returns, and is never exceeded."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from dataclasses import dataclass, field

import pytest
from tests.kit.paths import PROGRAMS

NEMESIS = PROGRAMS / "slot_holders.py"
LIMIT = 4
LEASE_S, RECHECK_S = 0.2, 0.03
# What a loaded machine may need to start a process and to let it ask, besides the lease.
SLACK_S = 1.0


@dataclass
class Stay:
    """One holder's stay in a slot, by its own words."""

    fence: int
    asked: float
    entered: float
    until: float
    left: float | None = None

    @property
    def ended(self) -> float:
        """When it left; or when it would have known, had it lived, that it must not be inside."""
        return self.until if self.left is None else min(self.left, self.until)


@dataclass
class Journal:
    """What happened, from the lines of all processes."""

    stays: dict[int, Stay] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)
    """How many were killed, by what they were about."""
    checks: list[float] = field(default_factory=list)
    leases_ms: list[int] = field(default_factory=list)
    renewals: int = 0
    refused: int = 0
    """Renewals that were refused too early."""
    twice: int = 0

    @classmethod
    def read(cls, text: str) -> Journal:
        journal, about = cls(), {}
        for line in text.splitlines():
            what, *words = line.split()
            if what == "checks":
                journal.checks.append(float(words[0]))
            elif what == "holds":
                journal.leases_ms.append(int(words[0]))
            elif what == "refused":
                journal.refused += 1
            elif what == "killed":
                journal.kills[about.pop(words[0], "starts")] += 1
            else:
                about[words[0]] = what
                journal.note(what, *map(float, words[1:]))
        return journal

    def note(self, what: str, *words: float) -> None:
        if what == "enters":
            fence, asked, entered, until = words
            self.twice += fence in self.stays
            self.stays[int(fence)] = Stay(int(fence), asked, entered, until)
        elif what == "renews":
            self.renewals += 1
            self.stays[int(words[0])].until = words[1]
        elif what == "leaves":
            self.stays[int(words[0])].left = words[1]

    def most_inside(self) -> int:
        """Largest number of holders that were inside at the same time."""
        steps = []
        for stay in self.stays.values():
            if stay.entered < stay.ended:  # else it knew that it came too late
                steps += [(stay.entered, 1), (stay.ended, -1)]
        inside = most = 0
        for _, step in sorted(steps):
            inside += step
            most = max(most, inside)
        return most

    def falling_fences(self) -> int:
        """How many had a smaller fence than one who had left before they asked."""
        ended = sorted(self.stays.values(), key=lambda stay: stay.entered)
        asked = sorted(self.stays.values(), key=lambda stay: stay.asked)
        place = highest = falling = 0
        for stay in asked:
            while place < len(ended) and ended[place].entered < stay.asked:
                highest = max(highest, ended[place].fence)
                place += 1
            falling += stay.fence <= highest
        return falling


async def storm(server, namespace, folder, *, kills, seed, between_checks=25) -> Journal:
    journal = folder / "journal"
    told = {
        "url": server.url,
        "namespace": namespace,
        "journal": str(journal),
        "kills": kills,
        "between_checks": between_checks,
        "limit": LIMIT,
        "lease_s": LEASE_S,
        "recheck_s": RECHECK_S,
        "seed": seed,
    }
    process = await asyncio.create_subprocess_exec(sys.executable, NEMESIS, json.dumps(told))
    try:
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Journal.read(journal.read_text())


def judge(journal: Journal, kills: int) -> None:
    assert journal.kills.total() == kills
    assert journal.most_inside() == LIMIT  # all of them, and never one more
    assert journal.twice == 0
    assert journal.refused == 0
    assert journal.falling_fences() == 0
    assert max(journal.leases_ms) <= LEASE_S * 1000
    assert max(journal.checks) < LEASE_S + SLACK_S
    assert inside(journal) > kills // 20  # else the test tests nothing
    assert journal.kills["asks"] > kills // 20


async def test_slots_of_killed_holders_return_and_are_never_held_by_more_than_the_limit(
    valkey_server, namespace, tmp_path
):
    judge(await storm(valkey_server, namespace, tmp_path, kills=150, seed=1), 150)


async def test_the_same_on_a_cluster(cluster, namespace, tmp_path):
    judge(await storm(cluster, namespace, tmp_path, kills=50, seed=2), 50)


@pytest.mark.torture
@pytest.mark.timeout(1_500)
async def test_ten_thousand_kills(valkey_server, namespace, tmp_path, figure):
    kills = 10_000
    journal = await storm(valkey_server, namespace, tmp_path, kills=kills, seed=3)
    judge(journal, kills)
    suite, name = "slot faults", "10,000 kills"
    figure(suite, f"{name}: killed", journal.kills.total(), "processes", ">=", kills)
    figure(suite, f"{name}: killed while inside", inside(journal), "processes", ">=", 1_000)
    figure(suite, f"{name}: slots taken", len(journal.stays), "slots", ">=", 10_000)
    figure(suite, f"{name}: most inside at once", journal.most_inside(), "holders", "<=", LIMIT)
    figure(suite, f"{name}: fences that fell", journal.falling_fences(), "fences", "<=", 0)
    slowest = max(journal.checks)
    figure(suite, f"{name}: all slots back after", slowest, "s", "<=", LEASE_S + SLACK_S)


def inside(journal: Journal) -> int:
    return journal.kills["enters"] + journal.kills["renews"]


def test_the_judge_sees_one_holder_too_many_and_a_fence_that_falls():
    lines = [f"enters {pid} {pid} 1.0 {1 + pid / 10} 3.0" for pid in range(1, 6)]
    assert Journal.read("\n".join(lines)).most_inside() == 5
    lines[1:1] = ["leaves 1 1 1.15"]
    assert Journal.read("\n".join(lines)).most_inside() == 4
    assert (
        Journal.read("enters 1 7 1 2 3\nleaves 1 7 2.5\nenters 2 6 2.6 3 4").falling_fences() == 1
    )
    assert (
        Journal.read("enters 1 7 1 2 3\nleaves 1 7 2.5\nenters 2 8 2.6 3 4").falling_fences() == 0
    )
