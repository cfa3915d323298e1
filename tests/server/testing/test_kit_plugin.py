"""The fixtures skip, fail and clean up as promised, and the guide's examples run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import BinaryMissing
from penstock.testing import plugin
from penstock.testing.binaries import Binary, find_binary

GUIDE = Path(__file__).parents[3] / "docs" / "how-to" / "test-your-code.md"


def run_pytest(folder: Path) -> subprocess.CompletedProcess[str]:
    # A run of its own, with a server of its own.
    environ = {name: value for name, value in os.environ.items() if name != "PENSTOCK_HOME"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_the_examples_of_the_guide_run(tmp_path):
    text = GUIDE.read_text(encoding="utf-8")
    examples = re.findall(r'```python title="(\S+)"\n(.*?)```', text, re.DOTALL)
    assert len(examples) == text.count("```python")
    for name, body in examples:
        (tmp_path / name).write_text(body)
    result = run_pytest(tmp_path)
    assert result.returncode == 0, result.stdout
    assert "failed" not in result.stdout


def test_a_failing_test_leaves_no_server_behind(tmp_path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["penstock.testing.plugin"]\n')
    (tmp_path / "test_it.py").write_text(
        "from pathlib import Path\n"
        "def test_it(start_server, fault_proxy):\n"
        "    server = start_server()\n"
        "    proxy = fault_proxy(server, unix=True)\n"
        "    Path('folders').write_text(f'{server.folder}\\n{Path(proxy.address).parent}')\n"
        "    assert False\n"
    )
    assert "1 failed" in run_pytest(tmp_path).stdout
    folders = (tmp_path / "folders").read_text().splitlines()
    assert not any(Path(folder).exists() for folder in folders)


def test_a_missing_server_is_a_skip_unless_it_is_required(monkeypatch):
    def missing(name: str) -> Binary:
        raise BinaryMissing(f"{name} is not here")

    monkeypatch.setattr(plugin, "find_binary", missing)
    with pytest.raises(pytest.skip.Exception, match="redis7 is not here"):
        plugin._found("redis7", frozenset())
    with pytest.raises(pytest.fail.Exception, match="redis7 is not here"):
        plugin._found("redis7", frozenset({"redis7"}))
    with pytest.raises(pytest.fail.Exception, match="redis1 is not here"):
        plugin._found("redis1", frozenset())


def test_a_missing_server_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BinaryMissing, match="redis-server on PATH is missing; install Redis 7"):
        find_binary.__wrapped__("redis7")


@pytest.mark.parametrize(("version", "problem"), [("v=8.0.2", "version 8"), ("?", "no Redis")])
def test_another_program_is_not_taken_for_redis_7(monkeypatch, tmp_path, version, problem):
    program = tmp_path / "redis-server"
    program.write_text(f"#!/bin/sh\necho 'Redis server {version}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(BinaryMissing, match=problem):
        find_binary.__wrapped__("redis7")


@pytest.mark.parametrize("_", range(3))
def test_each_test_has_a_namespace_of_its_own(namespace, seen_namespaces, _):
    assert namespace not in seen_namespaces
    seen_namespaces.add(namespace)


@pytest.fixture(scope="module")
def seen_namespaces() -> set[str]:
    return set()
