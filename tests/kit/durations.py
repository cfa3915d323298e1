"""Bounds how long a single test may take, and says how long all took: `--slowest-allowed=30`.

A test that needs longer is marked `@pytest.mark.slow(seconds)`. On a machine that is busy with more
than the run itself the bounds grow with its load.
"""

from __future__ import annotations

import os
from collections import defaultdict

import pytest

__all__ = ["Durations", "pytest_addoption", "pytest_configure", "pytest_runtest_setup"]

_SHOWN = 10
_OWN_LOAD = 3.0
"""What a run by several processes asks of each processor, with its servers."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slowest-allowed",
        type=float,
        metavar="SECONDS",
        help="fail the run if the setup and call of a test take longer",
    )


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")  # of xdist, whose controller gets all reports
    if not is_worker and (allowed_s := config.getoption("slowest_allowed")) is not None:
        config.pluginmanager.register(Durations(allowed_s), "durations")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tell the controller what a marked test is allowed: properties travel with its reports."""
    if mark := item.get_closest_marker("slow"):
        item.user_properties.append(("allowed_s", mark.args[0]))


class Durations:
    """Adds up reports, and fails the run if a test took longer than it may."""

    def __init__(self, allowed_s: float) -> None:
        self.allowed_s = allowed_s
        self.took_s: dict[str, float] = defaultdict(float)
        self._exceptions: dict[str, float] = {}
        self._slowed = 1.0

    @property
    def too_slow(self) -> list[str]:
        return sorted(
            (test for test, took_s in self.took_s.items() if took_s > self.allowed(test)),
            key=self.took_s.__getitem__,
            reverse=True,
        )

    def allowed(self, test: str) -> float:
        return self._slowed * max(self.allowed_s, self._exceptions.get(test, 0.0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
        self._slowed = max(self._slowed, load / _OWN_LOAD)
        if report.when != "teardown":
            self.took_s[report.nodeid] += report.duration
        for name, value in report.user_properties:
            if name == "allowed_s":
                self._exceptions[report.nodeid] = float(str(value))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.too_slow and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        ranked = sorted(self.took_s, key=self.took_s.__getitem__, reverse=True)
        terminalreporter.section("slowest tests")
        for test in ranked[:_SHOWN]:
            terminalreporter.write_line(f"{self.took_s[test]:6.2f} s  {test}")
        terminalreporter.write_line(
            f"{len(ranked)} tests took {sum(self.took_s.values()):,.0f} s in all"
        )
        for test in self.too_slow:
            terminalreporter.write_line(
                f"TOO SLOW {test}: {self.took_s[test]:.1f} s, allowed {self.allowed(test):g} s",
                red=True,
            )
