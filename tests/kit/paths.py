"""Where the repository is, and the programs that tests start."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "kit" / "programs"


def program_environ() -> dict[str, str]:
    """The environment of a program that imports `tests.kit`."""
    searched = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(searched)}
