"""One way in: every public name is exported, importable, documented; importing costs little."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

DOCS = Path(__file__).parents[3] / "docs"
PACKAGES = [
    "penstock",
    "penstock.topics",
    "penstock.queues",
    "penstock.coordination",
    "penstock.inspector",
    "penstock.redis",
    "penstock.runtime",
    "penstock.errors",
    "penstock.settings",
    "penstock.pipelines.documents",
]
"""Where users import from; `penstock` has the names that most programs need."""


def public_names(package):
    return importlib.import_module(package).__all__


def test_penstock_itself_exports_about_forty_names():
    assert len(penstock.__all__) <= 42


@pytest.mark.parametrize("package", PACKAGES)
def test_all_names_exist_and_none_is_exported_twice(package):
    module = importlib.import_module(package)
    assert len(module.__all__) == len(set(module.__all__))
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        module.nothing_of_the_kind  # noqa: B018


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_see_the_names_that_programs_can_import(package):
    """A name is listed for type checkers, for the loader and in `__all__`; here they meet."""
    source = Path(importlib.import_module(package).__file__).read_text()
    seen = {
        exported
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package)
        for name in node.names
        for exported in (public_names(node.module) if name.name == "*" else [name.name])
    }
    defined = {
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    assert set(public_names(package)) <= seen | defined
    if "lazy_exports(" in source:
        assert seen - {"lazy_exports"} == set(public_names(package))


def test_one_name_means_one_thing_in_all_packages():
    meanings = {}
    for package in PACKAGES:
        for name in public_names(package):
            meanings.setdefault(name, set()).add(getattr(importlib.import_module(package), name))
    assert {name for name, values in meanings.items() if len(values) > 1} == set()


def section_of(package):
    """The part of the reference that is about a package, which its heading names."""
    page = (DOCS / "reference" / "python.md").read_text()
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    found = [text for text in sections if f"`{package}`" in text.partition("\n")[0]]
    assert len(found) == 1, f"give {package} one section"
    return found[0]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_documented_with_its_package(package):
    text = section_of(package)
    if package == "penstock.errors":
        text += (DOCS / "reference" / "errors.md").read_text()
    if package == "penstock.settings":
        text += (DOCS / "reference" / "settings.md").read_text()
    missing = [name for name in public_names(package) if not re.search(rf"\b{name}\b", text)]
    assert missing == []


WORDS = {"subscribe", "doctor", "ok", "warning", "failure", "degraded", "unhealthy", "period_s"}
WORDS |= {"limit", "reset_s"}
"""Names in descriptions of classes that are no attributes of them."""


def attributes_of(kind):
    made = {name for one in kind.__mro__ for name in getattr(one, "__annotations__", ())}
    made |= set(getattr(kind.__init__, "__code__", imported_by.__code__).co_names)
    return made | set(dir(kind))


@pytest.mark.parametrize("package", [one for one in PACKAGES if one != "penstock.settings"])
def test_attributes_that_the_reference_lists_exist(package):
    public = {
        name: getattr(importlib.import_module(package), name) for name in public_names(package)
    }
    missing = []
    for names, text in re.findall(r"^\| (`[^|]+) \| (.+) \|$", section_of(package), re.MULTILINE):
        kind = public.get((re.findall(r"`(\w+)", names) or [""])[0])
        if inspect.isclass(kind):
            listed = set(re.findall(r"`(\w+)`", text)) - set(penstock.__all__) - set(public) - WORDS
            missing += sorted(f"{kind.__name__}.{name}" for name in listed - attributes_of(kind))
    assert missing == []


def test_everything_an_application_can_do_is_documented():
    page = (DOCS / "reference" / "python.md").read_text()
    members = [name for name in dir(penstock.Penstock) if not name.startswith("_")]
    assert [name for name in members if not re.search(rf"`{name}`|\bapp\.{name}\b", page)] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_class_and_function_has_a_docstring(package):
    module = importlib.import_module(package)
    for name in module.__all__:
        assert inspect.getdoc(getattr(module, name)), name


def imported_by(statement):
    program = f"{statement}\nimport sys\nprint(*sorted(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return {module.partition(".")[0] for module in run.stdout.split()}


def test_importing_the_application_pulls_in_no_more_than_the_core():
    foreign = (
        imported_by("from penstock import Penstock")
        - imported_by("pass")
        - set(sys.stdlib_module_names)
    )
    allowed = {"hiredis", "msgspec", "penstock", "typing_extensions"}  # the last: if it is there
    assert foreign <= allowed


def test_importing_penstock_imports_none_of_its_parts():
    assert imported_by("import penstock") & {"asyncio", "hiredis", "msgspec", "ssl"} == set()


def importing(statement):
    """Processor time of a new process that imports it, in seconds."""
    program = (
        f"import time; began = time.process_time(); {statement}; print(time.process_time() - began)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return float(run.stdout)


def test_importing_the_application_costs_less_than_four_times_what_asyncio_costs():
    ours, theirs = "from penstock import Penstock", "import asyncio, ssl, logging"
    assert any(importing(ours) < 4 * importing(theirs) for _ in range(10))
