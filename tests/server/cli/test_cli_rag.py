"""`penstock rag`, as a person or a script meets it."""

import json

import pytest
from tests.kit.ingest_shell import Office
from tests.kit.shell import all_refused, refused


@pytest.fixture
def office(nursery, tmp_path, valkey_server):
    return Office(nursery, tmp_path, valkey_server)


@pytest.fixture
def rags(office):
    return office.home / "documents" / "rags"


def test_a_first_rag_is_there_without_asking(office):
    assert [one["rag_id"] for one in office.json("rag", "list")["rags"]] == ["default"]
    titles, line = office.ok("rag", "list").splitlines()
    assert titles.split() == ["DOCUMENTS", "CHUNKS", "MODEL", "STATE", "RAG"]
    assert line.split()[0] == "0"
    assert line.split()[-1] == "default"


def test_a_rag_is_made_as_it_was_asked_for(office, rags):
    told = office.json(
        *("rag", "create", "faq", "--description", "What people ask: all of it"),
        *("--size", "256", "--overlap", "32", "--extension", ".md", "--extension", ".pdf"),
        *("--max-mb", "5", "--strategy", "recursive", "--collection", "questions", "--no-ocr"),
    )
    assert told["file"] == str(rags / "faq.yaml")
    assert sorted(path.name for path in office.sources("faq", "").iterdir()) == [
        "failed",
        "incoming",
        "processed",
    ]
    view = office.json("rag", "show", "faq")
    assert view["description"] == "What people ask: all of it"
    assert view["collection"] == "questions"
    assert view["folder"] == told["folder"]
    text = (rags / "faq.yaml").read_text()
    for line in ("size: 256", "overlap: 32", '".md", ".pdf"', "max_mb: 5.0", '"recursive"'):
        assert line in text
    assert "What people ask" in office.ok("rag", "show", "faq")


def test_a_rag_that_could_not_be_used_is_not_made(office, rags):
    office.ok("rag", "create", "faq")
    before = (rags / "faq.yaml").read_text()
    assert all_refused(
        office,
        3,
        [
            (("rag", "create", "faq", "--size", "200"), "faq.yaml has it"),
            (("rag", "create", "a b"), "rag_id"),
            (("rag", "create", "high"), "rag_id"),
            (("rag", "create", "x", "--size", "100", "--overlap", "100"), "overlap"),
            (("rag", "create", "x", "--provider", "nope"), "sentence-transformers"),
            (("rag", "create", "x", "--provider", "http"), "url"),
            (("rag", "create", "x", "--extension", "md"), "extensions"),
            (("rag", "create", "x", "--collection", "faq"), "collection"),
        ],
    )
    done = office("rag", "create", "x", "--size", "1", "--max-mb", "0")
    assert refused(done, 3, "chunking.size", "sources.max_mb")
    assert [path.name for path in rags.iterdir()] == ["faq.yaml"]
    assert (rags / "faq.yaml").read_text() == before


def test_check_finds_every_mistake_and_list_goes_on(office, rags):
    office.ok("rag", "create", "faq")
    assert office.ok("rag", "check", "--probe") == "ok       faq\n"
    (rags / "bad.yaml").write_text("rag_id: bad\nchunking: {size: 3}\nretrival: {}\n")
    done = office("rag", "check")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["FAILURE", "bad.yaml"]
    assert len(lines) == 4
    assert "chunking.size" in done.stdout
    assert "did you mean retrieval?" in done.stdout
    assert lines[-1].split() == ["ok", "faq"]
    told = json.loads(office("rag", "check", "--json").stdout)
    assert told["ok"] is False
    assert len(told["problems"]["bad.yaml"]) == 2
    done = office("rag", "list")
    assert done.returncode == 0
    assert "faq" in done.stdout
    assert "bad.yaml" in done.stderr
    assert refused(office("rag", "show", "bad"), 3, "chunking.size")
    assert office("rag", "check", "bad").returncode == 1
    assert office("rag", "check", "faq").returncode == 0


def test_a_rag_whose_embedder_cannot_be_opened_hides_no_other(office, rags):
    office.ok("rag", "create", "faq")
    (rags / "bad.yaml").write_text(
        "rag_id: bad\nembeddings: {provider: python, model: 'no_such_module:make'}\n"
    )
    done = office("rag", "list")
    assert done.returncode == 0, done
    states = {line.split()[-1]: line for line in done.stdout.splitlines()[1:]}
    assert " ok " in states["faq"]
    assert "cannot be used" in states["bad"]
    assert "penstock: bad: embedder: " in done.stderr
    assert "no_such_module" in done.stderr
    assert "no_such_module" in office.ok("rag", "show", "bad")


def test_check_finds_mistakes_in_client_yaml(office):
    wrong = office.file("client.yaml", "qdrant: {urll: x}\nredis: {db: -1}\n")
    done = office("rag", "--client", wrong, "check")
    assert done.returncode == 1
    assert "urll" in done.stdout
    assert "redis.db" in done.stdout


def test_check_finds_what_is_indexed_otherwise_than_its_file_says(office, rags):
    office.ok("rag", "create", "faq")
    assert office.ok("ingest", "search", "--rag", "faq", "anything") == "nothing was found\n"
    assert office("rag", "check").returncode == 0
    text = (rags / "faq.yaml").read_text()
    other = 'provider: "http"\n  model: "m"\n  url: "http://127.0.0.1:1/v1"\n  dimension: 8'
    (rags / "faq.yaml").write_text(text.replace('provider: "builtin"', other, 1))
    done = office("rag", "check")
    assert done.returncode == 1, done
    assert "penstock ingest reindex --rag faq" in done.stdout
    assert "needs reindex" in office.ok("rag", "show", "faq")
    done = office("rag", "check", "--probe")
    assert done.returncode == 1
    assert "embedder: " in done.stdout


@pytest.mark.faults
def test_a_rebuild_that_is_not_complete_takes_over_only_by_force(office):
    office.ok("rag", "create", "faq")
    file = office.file("a.md", "a lake")
    with office.worker():
        assert office("ingest", "submit", "--rag", "faq", file, "--wait").returncode == 0
    told = office.json("ingest", "reindex", "--rag", "faq")
    assert (told["jobs"], told["swapped"]) == (1, False)
    assert "being rebuilt" in office.ok("rag", "list")
    assert refused(office("rag", "swap", "faq"), 1, "not in the new collection yet: a.md")
    assert len(office.json("ingest", "search", "--rag", "faq", "lake")) == 1
    swapped = office.json("rag", "swap", "faq", "--force")
    assert swapped == {"rag_id": "faq", "collection": "faq--v2"}
    assert office.json("ingest", "search", "--rag", "faq", "lake") == []


def test_what_is_not_there_is_code_1(office):
    office.ok("rag", "create", "faq")
    assert all_refused(
        office,
        1,
        [
            (("rag", "show", "nope"), "there are faq"),
            (("rag", "swap", "nope"), "there are faq"),
            (("rag", "check", "nope"), "there are faq"),
            (("rag", "swap", "faq"), "not being rebuilt"),
        ],
    )
