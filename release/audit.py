"""Look for known vulnerabilities of the locked packages.

    make audit

Fails if one is known. Where no source of advisories can be reached, it says so and which packages
were not checked, and does not fail: that is no finding, and no all-clear either. What is locked for
other systems and versions of Python is checked as well.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

LOCKS = Path(__file__).parent.parent / "locks"
SOURCES = ("pypi", "osv")


def main() -> None:
    unchecked: list[str] = []
    known: list[str] = []
    for name in ("all.txt", "release.txt"):
        packages = [
            package
            for pins in without_markers((LOCKS / name).read_text())
            for package in audited(pins)
        ]
        skipped = [package["name"] for package in packages if "skip_reason" in package]
        print(f"locks/{name}: {len(packages) - len(skipped)} of {len(packages)} packages checked")
        unchecked += skipped
        for package in packages:
            ids = ", ".join(entry["id"] for entry in package.get("vulns", []))
            known += [f"{package['name']} {package['version']}: {ids}"] if ids else []
    if unchecked:
        print("no advisories could be had for:", ", ".join(sorted(set(unchecked))))
        print(
            "This is no all-clear. Run `make audit` where PyPI's or OSV's advisories are in reach."
        )
    if known:
        sys.exit("\n".join(known))


def without_markers(lock: str) -> list[dict[str, str]]:
    """The pins of a lock by name, one more dictionary for each further version of a package.

    pip-audit leaves out, without a word, what a marker keeps from the Python that runs it.
    """
    pins: list[dict[str, str]] = []
    times: defaultdict[str, int] = defaultdict(int)
    for block in re.split(r"\n(?=[\w])", lock)[1:]:  # the first is the comment
        requirement, hashes = block.split(" \\\n", 1)
        pin = requirement.partition(" ; ")[0]
        name = pin.partition("==")[0]
        if times[name] == len(pins):
            pins.append({})
        pins[times[name]][name] = f"{pin} \\\n{hashes.rstrip()}\n"
        times[name] += 1
    return pins


def audited(pins: dict[str, str]) -> list[dict[str, Any]]:
    """The report of the first source that knows any of the packages."""
    packages: list[dict[str, Any]] = [{"name": name, "skip_reason": "not asked"} for name in pins]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as lock:
        lock.write("".join(pins.values()))
        lock.flush()
        for source in SOURCES:
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "pip_audit", "--requirement", lock.name),
                    *("--disable-pip", "--require-hashes", "--format", "json"),
                    *("--progress-spinner", "off", "--vulnerability-service", source),
                ],
                capture_output=True,
                text=True,
                check=False,
            )
            if not done.stdout.strip():
                print(f"{source}: {(done.stderr.strip() or 'no answer').splitlines()[-1]}")
                continue
            packages = json.loads(done.stdout)["dependencies"]
            if any("skip_reason" not in package for package in packages):
                break
    return packages


if __name__ == "__main__":
    main()
