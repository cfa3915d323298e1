"""Write `locks/`: for each extra the versions of constraints.txt with the hashes of their files.

    release/.venv/bin/python release/locks.py

`release.txt` is for the tools of this folder, `all.txt` for all extras together.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCKS = ROOT / "locks"
HEADER = "# Written by `make locks`. Install with pip's --require-hashes.\n"


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = sorted(set(project["optional-dependencies"]) - {"dev"})
    write("core")
    for extra in extras:
        write(extra, "--extra", extra)
    write("all", *(word for extra in extras for word in ("--extra", extra)))
    write("release", "--group", "release")


def write(name: str, *what: str) -> None:
    compiled = subprocess.run(
        [
            *(sys.executable, "-m", "uv", "pip", "compile", *what),
            *([] if "--group" in what else ["pyproject.toml"]),
            *("--constraint", "constraints.txt", "--universal", "--python-version", "3.11"),
            *("--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url"),
            *("--no-emit-find-links", "--quiet"),
        ],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    (LOCKS / f"{name}.txt").write_text(HEADER + compiled.stdout)


if __name__ == "__main__":
    main()
