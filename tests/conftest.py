"""Servers for all tests; see docs/how-to/test-your-code.md for the fixtures."""

from __future__ import annotations

import pytest

from penstock.errors import BinaryMissing
from penstock.testing.binaries import SERVER_NAMES, find_binary

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
