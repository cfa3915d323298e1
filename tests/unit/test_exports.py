"""One way in: every public name is exported, importable, documented; importing costs little."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import penstock
from penstock import errors

DOCS = Path(__file__).parents[2] / "docs"


def test_all_names_exist_and_none_is_exported_twice():
    assert len(penstock.__all__) == len(set(penstock.__all__))
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None


def test_every_imported_public_name_is_in_all():
    imported = {
        name
        for name, value in vars(penstock).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    } - {"TYPE_CHECKING", "Any", "import_module"}
    lazy = [name for names in penstock._LAZY.values() for name in names]
    assert len(lazy) == len(set(lazy))
    assert imported | set(lazy) == set(penstock.__all__)


def test_every_error_is_exported():
    assert set(errors.__all__) <= set(penstock.__all__)


def test_every_public_name_is_documented():
    pages = (DOCS / "reference" / "python.md").read_text()
    pages += (DOCS / "reference" / "errors.md").read_text()
    missing = [name for name in penstock.__all__ if not re.search(rf"\b{name}\b", pages)]
    assert missing == []


def test_everything_an_application_can_do_is_documented():
    page = (DOCS / "reference" / "python.md").read_text()
    members = [name for name in dir(penstock.Penstock) if not name.startswith("_")]
    assert [name for name in members if not re.search(rf"`{name}`|\bapp\.{name}\b", page)] == []


def test_every_public_class_and_function_has_a_docstring():
    for name in penstock.__all__:
        assert inspect.getdoc(getattr(penstock, name)), name


def imported_by(statement):
    program = f"{statement}\nimport sys\nprint(*sorted(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return {module.partition(".")[0] for module in run.stdout.split()}


def test_importing_penstock_pulls_in_no_more_than_the_core():
    foreign = imported_by("import penstock") - imported_by("pass") - set(sys.stdlib_module_names)
    allowed = {"hiredis", "msgspec", "penstock", "typing_extensions"}  # the last: if it is there
    assert foreign <= allowed


def importing(modules):
    """Processor time of a new process that imports them, in seconds."""
    program = (
        f"import time; began = time.process_time(); import {modules}; "
        "print(time.process_time() - began)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return float(run.stdout)


def test_importing_penstock_costs_less_than_four_times_what_asyncio_costs():
    assert any(importing("penstock") < 4 * importing("asyncio, ssl, logging") for _ in range(10))
