"""The documentation is true: examples run as shown, tables match the code, links lead somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import errors, settings
from penstock.settings_coordination import FOREIGN_VARIABLES
from penstock.settings_reading import names_of, variable_of

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page_id(page):
    return str(page.relative_to(ROOT))


def programs():
    """Each python block with the output that the page shows right after it, if it shows any."""
    for page in PAGES:
        blocks = BLOCK.findall(page.read_text())
        for number, (kind, code) in enumerate(blocks):
            if kind == "python" and "import" in code:
                follower = blocks[number + 1] if number + 1 < len(blocks) else ("", "")
                shown = follower[1] if follower[0] == "text" else None
                yield pytest.param(code, shown, id=f"{page_id(page)}-{number}")


@pytest.mark.parametrize(("code", "shown"), list(programs()))
def test_examples_run_and_print_what_the_page_shows(code, shown, tmp_path):
    environ = {
        **os.environ,
        "PENSTOCK_HOME": str(tmp_path),
        "PENSTOCK_EMBEDDED_LINGER_S": "0",
        "PENSTOCK_VECTORS_LINGER_S": "1",
    }
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        env=environ,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert run.stderr == ""
    assert run.returncode == 0
    if shown is not None:
        assert run.stdout == shown


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_page_can_be_reached_from_the_readme():
    text = (ROOT / "README.md").read_text()
    for page in PAGES[1:]:
        assert page_id(page) in text or page.name == "README.md"


def test_the_settings_page_lists_every_setting_with_its_variable_and_default():
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    rows = dict(re.findall(r"^\| `([\w.]+)` \| `(PENSTOCK_\w+)`", page, re.MULTILINE))
    assert rows == {name: variable_of(name) for name in names_of(settings.Settings)}
    defaults = dict(re.findall(r"^\| `([\w.]+)` \| `\w+` \| `?([^|`]+)`? \|", page, re.MULTILINE))
    made = settings.Settings()
    for name, shown in defaults.items():
        section, _, key = name.rpartition(".")
        value = getattr(getattr(made, section) if section else made, key)
        expected = "–" if value in {None, ""} else str(value)
        assert shown.strip().lower() == expected.lower(), name


def test_the_settings_page_lists_the_variables_of_other_programs():
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    rows = re.findall(r"^\| `([A-Z_]+)` \| `([\w.]+)` \|$", page, re.MULTILINE)
    assert dict(rows) == FOREIGN_VARIABLES


def test_the_errors_page_shows_the_tree_of_the_module():
    page = (ROOT / "docs" / "reference" / "errors.md").read_text()
    assert (errors.__doc__ or "").split("\n\n")[1] in page


def test_the_guarantees_name_tests_that_exist():
    page = (ROOT / "docs" / "guarantees.md").read_text()
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", page))
    assert named
    assert [test for test in sorted(named) if not (ROOT / test).is_file()] == []
