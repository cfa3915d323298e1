"""The documentation is true: examples run as shown, tables match the code, links lead somewhere."""

import re
from pathlib import Path

import pytest
from tests.kit.docs_examples import BLOCK, NAME, Page

from penstock import errors, settings, sync
from penstock.settings.coordination import FOREIGN_VARIABLES
from penstock.settings.reading import names_of, variable_of

ROOT = Path(__file__).parents[3]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
TESTED_BY_PYTEST = ROOT / "docs" / "how-to" / "test-your-code.md"  # see test_kit_plugin.py
NAMED = re.compile(r"""(?:app\.(topic|queue|limit|slots|window|feed|cache)\(|\bqueue=)"([^"]+)\"""")
ENVIRON = {
    "PENSTOCK_QUEUES_BEAT_S": "0.2",
    "PENSTOCK_QUEUES_SILENCE_S": "2",  # how soon a killed worker's jobs go on
    "PENSTOCK_VECTORS_LINGER_S": "1",
    "PYTHONUNBUFFERED": "1",
}


def page_id(page):
    return str(page.relative_to(ROOT))


def reading_order():
    """Every page in the order in which the README links to them at its end."""
    contents = (ROOT / "README.md").read_text().partition("## Documentation")[2]
    linked = [ROOT / path for path in re.findall(r"\]\((docs/[^)#]+\.md)\)", contents)]
    return [page for page in (ROOT / "README.md", *linked) if page != TESTED_BY_PYTEST]


@pytest.mark.timeout(900)
@pytest.mark.slow(100)
def test_all_examples_run_as_written_on_one_server_and_again(tmp_path, monkeypatch):
    """Every program and command, page by page; then everything once more on the same server."""
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    with sync.Penstock():  # so that the server stays
        for again in (False, True):
            pages = []
            try:
                for number, path in enumerate(reading_order()):
                    folder = tmp_path / f"{number}-{path.stem}-{again:d}"
                    folder.mkdir()
                    monkeypatch.chdir(folder)
                    pages.append(Page(path, folder, again=again))
                    pages[-1].read()
            finally:
                for page in pages:
                    page.close()


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_programs_have_a_name_and_can_be_imported(page):
    """Fragments import nothing; what does is a file, whose main part is guarded."""
    for kind, text in BLOCK.findall(page.read_text()):
        if kind == "python" and re.search(r"^(import|from) ", text, re.MULTILINE):
            assert NAME.match(text), f"begin the program with a line such as # shop.py:\n{text}"
            assert "asyncio.run(" not in text or '\nif __name__ == "__main__":\n' in text, text


def test_programs_share_no_names_on_the_server():
    """Two programs that use one queue or topic would take each other's work."""
    used: dict[tuple[str, str], set[str]] = {}
    for page in reading_order():
        for kind, text in BLOCK.findall(page.read_text()):
            if kind == "python" and (program := NAME.match(text)):
                for call, name in NAMED.findall(text):
                    used.setdefault((call or "queue", name), set()).add(
                        f"{page_id(page)} {program[1]}"
                    )
    assert {name: where for name, where in used.items() if len(where) > 1} == {}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_page_is_in_the_contents_of_the_readme():
    assert {*reading_order(), TESTED_BY_PYTEST} == set(PAGES)


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


SOURCE = ROOT / "src" / "penstock"
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


def mapped():
    """Every path on the map of the architecture page, below the package."""
    lines = re.search(
        r"^```text\nsrc/penstock/\n(.*?)^```$", ARCHITECTURE, re.MULTILINE | re.DOTALL
    )[1]
    parents = []
    for line in lines.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        if depth:
            parents[depth - 1 :] = [line.split()[0]]
            yield "".join(parents)


def test_the_map_shows_every_package_and_none_that_is_gone():
    paths = set(mapped())
    assert [path for path in sorted(paths) if not (SOURCE / path).exists()] == []
    packages = {f"{one.parent.relative_to(SOURCE)}/" for one in SOURCE.glob("*/**/__init__.py")}
    commands = {path for path in packages if re.match("interfaces/cli/.", path)}
    assert packages - commands == {path for path in paths if path.endswith("/")}


def test_diagrams_and_decisions_name_modules_that_exist():
    shown = re.findall(r"<br>([\w/]+)\"\]", ARCHITECTURE)
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", ARCHITECTURE)
    places = [SOURCE / f"{path}.py" for path in shown if not (SOURCE / path).is_dir()]
    places += [
        ROOT / path if path.startswith(("bench", "tests")) else SOURCE / path for path in named
    ]
    assert shown
    assert [str(place) for place in places if not place.is_file()] == []


def test_the_glossary_explains_no_term_twice():
    page = (ROOT / "docs" / "glossary.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", page, re.MULTILINE)
    terms = [
        term for row in rows for term in row.strip().split(", ") if term not in {"term", "---"}
    ]
    assert len(terms) > 100
    assert sorted(set(terms)) == sorted(terms)
