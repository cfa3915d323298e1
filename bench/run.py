"""Measure, and hold the numbers against their bars.

python bench/run.py --suite core [--quick] [--json]

Exits 1 if any figure misses its bar. With --json each figure is one JSON object on a line of its
own; --quick takes less than 90 s for each suite.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
from pathlib import Path

from penstock.testing.figures import Figure, table

SUITES = ("core", "topics", "queues", "idle_queues", "limits", "documents")


async def measure(suite: str, *, quick: bool, as_json: bool) -> list[Figure]:
    figures: list[Figure] = []
    async for figure in importlib.import_module(suite).figures(quick=quick):
        figures.append(figure)
        if as_json:
            print(figure.as_json(), flush=True)
        else:
            print(f"  {figure.name}", file=sys.stderr, flush=True)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", action="append", choices=SUITES, help="default: all")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    figures: list[Figure] = []
    for suite in options.suite or SUITES:
        figures += asyncio.run(measure(suite, quick=options.quick, as_json=options.as_json))
    if not options.as_json:
        print(table(figures))
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
