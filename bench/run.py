"""Measure, and hold the numbers against their bars.

python bench/run.py --suite core [--quick] [--json | --markdown]

Exits 1 if any figure misses its bar. With --json each figure is one JSON object on a line of its
own, with --markdown figures of sizes are tables; --quick takes less than 90 s for each suite.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
from pathlib import Path

import size_tables
from figures import Figure, table

SUITES = ("core", "topics", "queues", "limits", "documents", "sizes")
PARTS = ("idle_queues",)
"""Parts of other suites that can be run alone."""


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
    parser.add_argument("--suite", action="append", choices=SUITES + PARTS, help="default: all")
    parser.add_argument("--quick", action="store_true")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", dest="as_json")
    shape.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    figures: list[Figure] = []
    for suite in options.suite or SUITES:
        figures += asyncio.run(measure(suite, quick=options.quick, as_json=options.as_json))
    if options.markdown:
        print(size_tables.tables(figures))
    elif not options.as_json:
        print(table(figures))
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
