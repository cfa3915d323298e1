"""Some hundred hostile files through real parsers: each is read or refused."""

# ruff: noqa: T201  the figures are printed

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.kit.programs.hostile_corpus import Figures

from penstock.settings.documents import DocumentSettings

ROOT = Path(__file__).parents[3]
WORKER_MB = 300
"""Of the worker: a document of `largest_text` characters, several times."""


def judged(folder: Path, scale: float, **settings: float) -> tuple[Figures, DocumentSettings]:
    before = sorted(folder.iterdir())
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.kit.programs.hostile_corpus",
            str(folder),
            str(scale),
            json.dumps(settings),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    print(values)
    figures = Figures(**values)
    made = DocumentSettings(**settings)
    assert figures.files >= 200
    assert figures.read + sum(figures.refused.values()) == figures.files
    assert 0 < figures.parser_mb <= made.parse_memory_mb
    assert figures.worker_mb <= WORKER_MB
    assert not figures.launched
    assert sorted(folder.iterdir()) == before
    return figures, made


def test_small_hostile_files_are_all_read_or_refused(tmp_path: Path) -> None:
    figures, settings = judged(
        tmp_path,
        0.02,
        parsers=2,
        parse_memory_mb=512,
        parse_cpu_s=20,
        parse_wall_s=120.0,
        largest_text=4 << 20,
    )

    assert figures.slowest_s < settings.parse_wall_s
    assert figures.deaths == []


@pytest.mark.torture
@pytest.mark.slow(3_600)
@pytest.mark.timeout(3_600)
def test_large_hostile_files_end_no_more_than_their_parser(tmp_path: Path) -> None:
    figures, settings = judged(tmp_path, 1.0, parsers=2)

    assert figures.slowest_s <= settings.parse_wall_s + 5
