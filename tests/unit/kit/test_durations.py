"""A run whose slowest test takes too long fails, and says which one it was."""

from __future__ import annotations

import pytest
from tests.kit.paths import ROOT

pytest_plugins = ["pytester"]

TESTS = """
import time
import pytest

@pytest.fixture
def prepared():
    time.sleep(0.2)

def test_quick(): pass

def test_sleeps(prepared): pass

@pytest.mark.slow(30)
def test_may_sleep(prepared): pass
"""


@pytest.fixture
def run(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeini("[pytest]\nmarkers = slow(seconds)")
    pytester.makepyfile(TESTS)

    def run(*options):
        plugins = ("-p", "tests.kit.durations", "-p", "no:penstock.testing.plugin")
        return pytester.runpytest_subprocess(*plugins, *options)

    return run


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_a_test_that_takes_longer_than_allowed_fails_the_run(run, workers):
    done = run("--slowest-allowed=0.01", *workers)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.assert_outcomes(passed=3)
    (line,) = [line for line in done.outlines if line.startswith("TOO SLOW")]
    assert "::test_sleeps: 0." in line


def test_a_run_within_its_bounds_passes_and_says_what_it_took(run):
    done = run("--slowest-allowed=30")
    assert done.ret == pytest.ExitCode.OK
    done.stdout.fnmatch_lines(["*slowest tests*", "* s  *::test_*", "3 tests took * s in all"])
