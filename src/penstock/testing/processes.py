"""Which processes live. For tests on Linux: it reads /proc."""

from __future__ import annotations

from pathlib import Path

__all__ = ["is_alive", "processes_in"]


def is_alive(pid: int) -> bool:
    """Whether a process runs. A dead one that nobody has waited for is dead all the same."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}


def processes_in(folder: Path, program: str = "") -> set[int]:
    """Ids of the living processes whose working directory is `folder`.

    With `program`, only those whose executable's name begins so: `valkey-server`, `python`.
    """
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            place = str((entry / "cwd").readlink()).removesuffix(" (deleted)")
            name = (entry / "exe").readlink().name
        except OSError:
            continue  # it is gone, or not ours to look at
        if place == str(folder.resolve()) and name.startswith(program):
            found.add(int(entry.name))
    return found
