"""The locks for deployments: the same versions as everywhere else, each with its hashes."""

from __future__ import annotations

import re
import runpy
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = {
    name: wanted
    for name, wanted in PROJECT["project"]["optional-dependencies"].items()
    if name != "dev"
}
CORE: list[str] = PROJECT["project"]["dependencies"]
PIN = re.compile(r"^([\w.-]+)==([^ ;]+)(?: ; [^\\]+)? \\$")
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}(?: \\)?$")


def pins_of(path: Path) -> set[tuple[str, str]]:
    return {
        (canonicalize_name(found[1]), found[2])
        for line in path.read_text().splitlines()
        if (found := PIN.match(line))
    }


CONSTRAINTS = {
    (canonicalize_name(name), version.partition(";")[0].strip())
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if not line.startswith("#")
    for name, _, version in [line.partition("==")]
}


@pytest.mark.parametrize("path", sorted((ROOT / "locks").iterdir()), ids=lambda path: path.stem)
def test_a_lock_has_versions_of_the_constraints_and_hashes_and_nothing_else(path: Path) -> None:
    first, *lines = path.read_text().splitlines()
    assert first.startswith("# Written by `make locks`")
    assert [line for line in lines if not PIN.match(line) and not HASH.match(line)] == []
    assert all(HASH.match(after) for line, after in pairwise(lines) if PIN.match(line))
    assert pins_of(path) - CONSTRAINTS == set()


@pytest.mark.parametrize("extra", ["core", *EXTRAS])
def test_a_lock_has_all_that_its_extra_wants(extra: str) -> None:
    locked = {name for name, _ in pins_of(ROOT / "locks" / f"{extra}.txt")}
    wanted = map(Requirement, [*CORE, *EXTRAS.get(extra, [])])
    assert {canonicalize_name(each.name) for each in wanted} - locked == set()


def test_there_is_a_lock_for_each_extra_for_all_and_for_the_tools_of_a_release() -> None:
    names = {path.stem for path in (ROOT / "locks").iterdir()}
    assert names == {"core", "all", "release", *EXTRAS}
    together = pins_of(ROOT / "locks" / "all.txt")
    assert set().union(*(pins_of(ROOT / "locks" / f"{extra}.txt") for extra in EXTRAS)) == together


def test_the_build_backend_is_pinned_to_the_locked_version() -> None:
    (backend,) = map(Requirement, PROJECT["build-system"]["requires"])
    (exact,) = backend.specifier
    assert exact.operator == "=="
    assert ("hatchling", exact.version) in pins_of(ROOT / "locks" / "release.txt")


@pytest.mark.parametrize("name", ["all", "release"])
def test_the_audit_asks_for_every_pin_whatever_python_runs_it(name: str) -> None:
    path = ROOT / "locks" / f"{name}.txt"
    parts = runpy.run_path(str(ROOT / "release" / "audit.py"))["without_markers"](path.read_text())
    asked = [line for part in parts for text in part.values() for line in text.splitlines()]
    found = {(canonicalize_name(pin[1]), pin[2]) for line in asked if (pin := PIN.match(line))}
    assert found == pins_of(path)
    assert [line for line in asked if ";" in line] == []
    assert sum("--hash" in line for line in asked) == path.read_text().count("--hash")


@pytest.mark.parametrize(
    ("licence", "accepted"),
    [
        ("MIT", True),
        ("MIT AND Apache-2.0", True),
        ("GPL-3.0-only OR MIT", True),
        ("(GPL-3.0-only OR MIT) AND ISC", True),
        ("(MIT OR GPL-3.0-only) AND Odd-1.0", False),
        ("Odd-1.0 AND (MIT OR ISC)", False),
        ("(Odd-1.0 AND (MIT OR ISC)) OR 0BSD", True),
        ("Some Licence (MIT)", False),
        ("", False),
    ],
)
def test_a_release_accepts_no_licence_beside_one_that_is_not_listed(licence: str, accepted: bool):
    dist = runpy.run_path(str(ROOT / "release" / "dist.py"))
    assert dist["is_accepted"](licence) is accepted


def test_licences_that_all_apply_are_not_taken_for_alternatives():
    dist = runpy.run_path(str(ROOT / "release" / "dist.py"))
    together = dist["all_of"]({"MIT OR GPL-3.0-only", "Odd-1.0"})
    assert together == "(MIT OR GPL-3.0-only) AND Odd-1.0"
    assert not dist["is_accepted"](together)
