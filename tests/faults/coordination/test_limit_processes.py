"""Processes that share a limit: wrong clocks, kill -9 at any moment, and no window is exceeded."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
from tests.kit.crews.limit_journal import Journal, server_ahead_ns
from tests.kit.paths import PROGRAMS

CALLERS = PROGRAMS / "limit_callers.py"
CALLERS_AT_ONCE = 4
SHORT = {"100/500ms": (100, 500), "250/1500ms": (250, 1_500)}
LONG = {"200/s": (200, 1_000), "500/3s": (500, 3_000)}
# A machine that computes something else meanwhile may let some ms pass unused.
USED_AT_LEAST = 0.98
# GCRA trades this part of the quota for its burst of a tenth.
SPREAD = 0.9


@pytest.fixture
def call(valkey_server, namespace, tmp_path):
    """`await call(rates, seconds, …)` lets callers use a limit and gives their journal."""

    async def run(
        rates, seconds, *, algorithm="exact", lease=0, heaviest=1, kill_every_s=0.3, seed=1
    ):
        told = {
            "url": valkey_server.url,
            "namespace": namespace,
            "rates": list(rates),
            "algorithm": algorithm,
            "lease": lease,
            "heaviest": heaviest,
            "callers": CALLERS_AT_ONCE,
            "seconds": seconds,
            "kill_every_s": kill_every_s,
            "journal": str(tmp_path / "journal"),
            "seed": seed,
        }
        program = await asyncio.create_subprocess_exec(sys.executable, CALLERS, json.dumps(told))
        assert await asyncio.wait_for(program.wait(), seconds + 60) == 0
        ahead_ns = server_ahead_ns(valkey_server)
        return Journal.read((tmp_path / "journal").read_text(), ahead_ns)

    return run


WAYS = {
    "plain": {},
    "heavy": {"heaviest": 3},
    "leased": {"lease": 20},
    "compact": {"algorithm": "compact"},
    "compact and leased": {"algorithm": "compact", "lease": 20},
    "gcra": {"algorithm": "gcra"},
    "gcra and leased": {"algorithm": "gcra", "lease": 20},
}


def least_used(way: str) -> float:
    return USED_AT_LEAST * (SPREAD if "gcra" in way else 1)


@pytest.mark.parametrize("way", ["plain", "leased", "compact and leased"])
async def test_processes_with_wrong_clocks_exceed_no_window_and_use_it_up(call, way):
    journal = await call(SHORT, 3.3, **WAYS[way])
    assert journal.kills >= CALLERS_AT_ONCE
    for limit, period_ms in SHORT.values():
        assert journal.most_in(period_ms) <= limit
    assert max(journal.late_ms, default=0) <= 0
    assert bool(journal.late_ms) == ("leased" in way)
    # A kill at the end of a short window costs a few per cent; the long run has the whole bar.
    assert journal.utilisation(*SHORT["250/1500ms"]) >= 0.9 * least_used(way)


@pytest.mark.torture
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", WAYS)
async def test_processes_exceed_no_window_for_long(call, way, figure):
    journal = await call(LONG, 30.5, **WAYS[way])
    for name, (limit, period_ms) in LONG.items():
        most = journal.most_in(period_ms)
        figure("torture-limits", f"{way}: most in any window of {name}", most, "", "<=", limit)
    used = journal.utilisation(*LONG["500/3s"])
    figure("torture-limits", f"{way}: part of the quota used", used, "", ">=", least_used(way))
    figure("torture-limits", f"{way}: callers killed", journal.kills, "", ">=", 50)
