"""How much memory there is: the machine's, or that of the smallest control group."""

import os

import pytest

from penstock.processes.machine import memory_bytes

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("membership", "limits", "expected"),
    [
        ("0::/a/b", {}, MACHINE),
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "max"}, MACHINE),
        ("0::/a/b", {"a/b/memory.max": "2000", "a/memory.max": "1000"}, 1000),
        ("0::/a/b", {"a/b/memory.max": "1000", "a/memory.max": "2000"}, 1000),
        ("0::/", {"memory.max": "1000"}, 1000),
        ("0::/of/the/host", {"memory.max": "1000"}, 1000),
        ("9:memory:/a", {"memory/a/memory.limit_in_bytes": "1000"}, 1000),
        ("9:cpu,memory:/a", {"memory/memory.limit_in_bytes": "1000"}, 1000),
        ("9:cpu:/a\n1:name=systemd:/b", {"memory.max": "1000"}, MACHINE),
        ("9:memory:/a", {"memory/a/memory.limit_in_bytes": str(1 << 63)}, MACHINE),
        ("0::/a", {"a/memory.max": ""}, MACHINE),
        ("", {}, MACHINE),
    ],
)
def test_the_smallest_limit_counts(tmp_path, membership, limits, expected):
    for name, text in limits.items():
        place = tmp_path / "groups" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    (tmp_path / "cgroup").write_text(f"{membership}\n" if membership else "")
    assert memory_bytes(tmp_path / "groups", tmp_path / "cgroup") == expected


def test_without_control_groups_it_is_the_machine(tmp_path):
    assert memory_bytes(tmp_path, tmp_path / "none") == MACHINE
