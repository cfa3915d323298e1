"""Servers for all tests; see docs/how-to/test-your-code.md for the fixtures."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.errors import BinaryMissing
from penstock.testing.binaries import SERVER_NAMES, find_binary
from penstock.testing.figures import Figure

pytest_plugins = ["penstock.testing.plugin"]


@pytest.fixture(scope="session")
def required_servers() -> frozenset[str]:
    """Both come with the development dependencies, so here their absence is a failure."""
    return frozenset({"valkey", "redis62"})


def pytest_report_header() -> list[str]:
    """Say which servers the tests run against."""
    lines: list[str] = []
    for name in SERVER_NAMES:
        try:
            version = ".".join(map(str, find_binary(name).version))
        except BinaryMissing as missing:
            version = f"missing ({missing})"
        lines.append(f"{name}: {version}")
    return lines


_figures: list[Figure] = []


@pytest.fixture
def figure() -> Callable[..., None]:
    """Hold a measured number against its bar; it is printed as a line of JSON when the run ends."""

    def hold(suite: str, name: str, value: float, unit: str, op: str, bar: float) -> None:
        measured = Figure(suite, name, value, unit, bar, op)
        _figures.append(measured)
        assert measured.holds, measured.as_json()

    return hold


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures of a long run."""
    for measured in _figures:
        terminalreporter.write_line(measured.as_json())
