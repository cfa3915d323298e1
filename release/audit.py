"""Look for known vulnerabilities of the locked packages.

    make audit

Fails if one is known. Where no source of advisories can be reached, it says so and which packages
were not checked, and does not fail: that is no finding, and no all-clear either.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

LOCKS = Path(__file__).parent.parent / "locks"
SOURCES = ("pypi", "osv")


def main() -> None:
    unchecked: list[str] = []
    known: list[str] = []
    for name in ("all.txt", "release.txt"):
        packages = audited(LOCKS / name)
        skipped = [package["name"] for package in packages if "skip_reason" in package]
        print(f"locks/{name}: {len(packages) - len(skipped)} of {len(packages)} packages checked")
        unchecked += skipped if packages else [f"all of locks/{name}"]
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


def audited(lock: Path) -> list[dict[str, Any]]:
    """The report of the first source that knows any of a lock's packages."""
    packages: list[dict[str, Any]] = []
    for source in SOURCES:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pip_audit", "--requirement", str(lock), "--disable-pip"),
                *("--require-hashes", "--format", "json", "--progress-spinner", "off"),
                *("--vulnerability-service", source),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if not done.stdout.strip():  # it could not ask
            continue
        packages = json.loads(done.stdout)["dependencies"]
        if any("skip_reason" not in package for package in packages):
            return packages
    return packages


if __name__ == "__main__":
    main()
