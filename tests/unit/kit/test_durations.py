"""A run whose slowest test takes too long fails, and says which one it was."""

from __future__ import annotations

import pytest
from tests.kit.paths import ROOT

pytest_plugins = ["pytester"]

TESTS = """
import pytest

def test_quick(): pass

def test_slow(): pass

@pytest.mark.slow(30)
def test_may_be_slow(): pass
"""

TIMES = """
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    report.duration = 0.001 if item.name == "test_quick" or call.when != "setup" else 3.0
    return report
"""
"""Set, not measured: on a busy machine nothing is quick."""


@pytest.fixture
def run(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeini("[pytest]\nmarkers = slow(seconds)")
    pytester.makeconftest(TIMES)
    pytester.makepyfile(TESTS)

    def run(*options):
        plugins = ("-p", "tests.kit.durations", "-p", "no:penstock.testing.plugin")
        return pytester.runpytest_subprocess(*plugins, *options)

    return run


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_a_test_that_takes_longer_than_allowed_fails_the_run(run, workers):
    done = run("--slowest-allowed=0.1", *workers)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.assert_outcomes(passed=3)
    (line,) = [line for line in done.outlines if line.startswith("TOO SLOW")]
    assert "::test_slow: 3.0 s" in line


def test_a_run_within_its_bounds_passes_and_says_what_it_took(run):
    done = run("--slowest-allowed=30")
    assert done.ret == pytest.ExitCode.OK
    done.stdout.fnmatch_lines(["*slowest tests*", "*3.00 s  *::test_*", "3 tests took * s in all"])
