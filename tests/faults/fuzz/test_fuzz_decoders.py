"""Every decoder of what comes from outside, under inputs that nothing but a fuzzer writes.

In `make test-faults` a second each, by chance; in `make torture` ten minutes each, guided by
coverage where atheris is installed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.kit.fuzz import changed_by_chance, targets

ROOT = Path(__file__).parents[3]
LONG_S = 600


@pytest.mark.parametrize("name", targets())
def test_a_decoder_reads_any_input_or_refuses_it_as_documented(name: str) -> None:
    assert changed_by_chance(targets()[name](), seconds=1, seed=1) > 10


@pytest.mark.torture
@pytest.mark.timeout(LONG_S + 300)
@pytest.mark.slow(LONG_S + 300)
@pytest.mark.parametrize("name", targets())
def test_a_decoder_survives_ten_minutes_of_fuzzing(name: str) -> None:
    command = [sys.executable, "-m", "tests.kit.fuzz", name, str(LONG_S)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-4_000:]
