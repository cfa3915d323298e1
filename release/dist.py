"""Build what is released into `dist/`: wheel, sdist, bill of materials and list of licences.

    make dist

The wheel is installed with the hashes of `locks/all.txt` into an environment of its own, which is
what the bill of materials (CycloneDX) and the licences are read from. Fails if that does not
install, if its command does not run, or if a licence is not on the list below.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"

ACCEPTED = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "PSF-2.0"),
    *("MPL-2.0", "Zlib"),
    "LGPL-3.0-only",  # psycopg, of the extra `postgres`: imported, not part of our distribution
}
# In words, as older packages have them.
SPDX = {
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: BSD License": "BSD-3-Clause",
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
# Their metadata has no name that tools know; read from the licence files in their wheels.
READ_BY_HAND = {
    "protobuf": "BSD-3-Clause",
    "pypdfium2": "BSD-3-Clause AND Apache-2.0",  # and, with pdfium, those of its own parts
    "wordllama": "MIT",
}
OURS = {"penstock", "pip", "setuptools"}  # the last two are those of the environment


def main() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    wheel = build()
    with tempfile.TemporaryDirectory() as folder:
        python = installed(Path(folder), wheel)
        bill = DIST / f"{wheel.name.split('-py3')[0]}.cdx.json"
        write_bill(python, bill)
    licences = sorted(licences_of(json.loads(bill.read_text())))
    (DIST / "licences.md").write_text(table(licences))
    for path in sorted(DIST.iterdir()):
        print(path.relative_to(ROOT), path.stat().st_size)
    if refused := [line for line in licences if not is_accepted(line[2])]:
        sys.exit(f"licences to be looked at (release/dist.py): {refused}")


def build() -> Path:
    """Build wheel and sdist with the locked backend; equal sources give equal files."""
    committed = run("git", "log", "-1", "--format=%ct").strip()
    run(
        *(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST),
        env=os.environ | {"SOURCE_DATE_EPOCH": committed},
    )
    (wheel,) = DIST.glob("*.whl")
    return wheel


def installed(folder: Path, wheel: Path) -> Path:
    """Make an environment with the wheel and the locked packages; its Python."""
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--require-hashes", "--requirement", ROOT / "locks" / "all.txt")
    run(*pip, "--no-deps", wheel)
    run(python, "-m", "pip", "check")
    run(folder / "bin" / "penstock", "--version")
    return python


def write_bill(python: Path, path: Path) -> None:
    run(
        *(sys.executable, "-m", "cyclonedx_py", "environment", python),
        *("--pyproject", ROOT / "pyproject.toml", "--output-reproducible", "--output-file", path),
    )


def licences_of(bill: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Name, version and licence of each package."""
    for package in bill["components"]:
        name = package["name"]
        if name in OURS:
            continue
        words = [
            entry.get("expression") or entry["license"].get("id") or entry["license"]["name"]
            for entry in package.get("licenses", [])
        ]
        known = {SPDX.get(word, word) for word in words}
        yield name, package["version"], READ_BY_HAND.get(name) or all_of(known)


def all_of(licences: set[str]) -> str:
    return " AND ".join(f"({one})" if " OR " in one else one for one in sorted(licences))


def is_accepted(licence: str) -> bool:
    """Whether all parts of an expression are accepted, or one of its alternatives."""
    while inner := re.search(r"\(([^()]*)\)", licence):
        licence = licence.replace(inner[0], "MIT" if is_accepted(inner[1]) else "refused")
    return any(
        all(part.strip() in ACCEPTED for part in alternative.split(" AND "))
        for alternative in licence.split(" OR ")
    )


def table(licences: list[tuple[str, str, str]]) -> str:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    head = (
        f"# Licences of the packages of Penstock {version}\n\n"
        f"All extras, as installed by Python {python} on {sys.platform}.\n\n"
    )
    rows = "".join(f"| {' | '.join(line)} |\n" for line in licences)
    return f"{head}| package | version | licence |\n|---|---|---|\n{rows}"


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(
        list(map(str, command)), cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed ({done.returncode}):\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    main()
