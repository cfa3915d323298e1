"""What the pages on documents say is what the code does."""

import re
from pathlib import Path

import pytest
import yaml

from penstock.pipelines.documents import Documents
from penstock.pipelines.documents.config.validation import check_rag

ROOT = Path(__file__).parents[3]
HOW_TO = ROOT / "docs" / "how-to" / "documents.md"
CODE = re.compile(r"""["'](ERR_[A-Z_]+)["']""")
YAML = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def codes_in_the_table():
    for line in HOW_TO.read_text().splitlines():
        if line.startswith("| `ERR_"):
            yield from re.findall(r"`(ERR_[A-Z_]+)`", line.split("|")[1])


def test_every_error_code_has_its_meaning_and_its_cure():
    sources = (ROOT / "src").rglob("*.py")
    used = {code for source in sources for code in CODE.findall(source.read_text())}
    listed = list(codes_in_the_table())
    assert set(listed) == used
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("text", YAML.findall(HOW_TO.read_text()))
def test_the_files_of_rags_that_are_shown_can_be_used(text, tmp_path):
    _, mistakes = check_rag(yaml.safe_load(text), tmp_path)
    assert mistakes == []


def test_the_python_page_names_every_method_of_documents():
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    section = page.partition("## `penstock.pipelines.documents`\n")[2].partition("\n## ")[0]
    public = {name for name in vars(Documents) if not name.startswith("_")}
    named = set(re.findall(r"\bdocuments\.(\w+)", section))
    assert public - named - {"open", "close"} == set()
