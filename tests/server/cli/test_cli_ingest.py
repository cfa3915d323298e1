"""`penstock ingest`, as a person or a script meets it."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.kit.ingest_shell import Office, processes_of
from tests.kit.pdf_files import written
from tests.kit.shell import MODULE, all_refused, refused

from penstock.testing.servers import wait_until

WITHOUT_YAML = (
    "import sys; sys.modules['yaml'] = None; "
    "from penstock.interfaces.cli.main import main; sys.argv[0] = 'penstock'; main()"
)


@pytest.fixture
def idle(nursery, tmp_path, valkey_server):
    """Where nobody works."""
    return Office(nursery, tmp_path, valkey_server)


@pytest.fixture(scope="module")
def office(nursery, tmp_path_factory, valkey_server):
    """Where a worker works, for all tests; each has a RAG of its own."""
    made = Office(nursery, tmp_path_factory.mktemp("office"), valkey_server)
    made.rag()
    with made.worker():
        yield made


def test_files_of_one_call_are_one_batch_and_are_found_when_it_has_ended(office):
    rag = office.rag()
    office.file("leave/days.md", "# Leave\n\nEverybody has 31 days of leave a year.\n")
    office.file("leave/pets.txt", "Dogs may come to the office on Fridays.\n")
    office.file("leave/ignored.xyz", "nobody reads this")
    done = office(
        *("ingest", "submit", "--rag", rag, "--path", str(office.folder / "leave")),
        *(office.file("pay.pdf", written(["Salaries are paid on the 25th."])), "--wait"),
    )
    assert done.returncode == 0, done
    first, *jobs, last = done.stdout.splitlines()
    assert first.startswith(f"batch-{rag}-")
    assert first.endswith("  3 files")
    assert [line.split()[1] for line in jobs] == ["days.md", "pets.txt", "pay.pdf"]
    assert last == "done: 3 of 3 files"
    [best, text] = office.ok(
        "ingest", "search", "--rag", rag, "how many days of leave?", "-k", "1"
    ).splitlines()
    assert best.split()[1:] == ["days.md", "Leave"]
    assert text.strip() == "# Leave Everybody has 31 days of leave a year."
    [paid] = office.json("ingest", "search", "--rag", rag, "when are salaries paid", "-k", "1")
    assert (paid["document"], paid["page"]) == ("pay.pdf", 1)
    listed = office.ok("ingest", "list", "--rag", rag).splitlines()
    assert [line.split()[0] for line in listed[1:]] == ["indexed"] * 3
    assert not list(office.sources(rag, "incoming").glob("[!.]*"))


def test_the_json_of_a_batch_has_every_file_and_totals(office):
    rag = office.rag()
    told = office.json(
        "ingest", "submit", "--rag", rag, office.file("a.md", "# One\n\ntext"), "--wait"
    )
    assert told["batch"]["counts"] == {"done": 1}
    view = office.json("ingest", "status", "--batch", told["batch_id"])
    assert view == told["batch"] | {"estimated_remaining_seconds": 0.0}
    assert (view["status"], view["total"], view["ended"]) == ("done", 1, 1)
    assert view["chunks_created"] == view["files"][0]["chunks_created"] == 1
    assert view["embeddings_generated"] == 1
    [job] = told["jobs"]
    status = json.loads(office.ok("ingest", "status", "--job", job["job_id"], "--output", "json"))
    assert status["status"] == "done"
    assert (status["filename"], status["rag_id"], status["chunks_created"]) == ("a.md", rag, 1)
    lines = office.objects("ingest", "status", "--batch", told["batch_id"], "--follow")
    assert [line["status"] for line in lines] == ["done"]
    lines = office.objects("ingest", "status", "--job", job["job_id"], "--follow")
    assert [line["status"] for line in lines] == ["done"]
    shown = office.ok("ingest", "status", "--batch", told["batch_id"], "--verbose")
    assert job["job_id"] in shown
    shown = office.ok("ingest", "status", "--job", job["job_id"], "--verbose")
    assert "digest" in shown
    assert "digest" not in office.ok("ingest", "status", "--job", job["job_id"])


def test_a_file_that_is_refused_does_not_keep_the_others_out(office):
    rag = office.rag()
    good, bad = office.file("good.md", "well"), office.file("bad.exe", "MZ")
    done = office("ingest", "submit", "--rag", rag, good, bad, "nowhere.md", "--wait")
    assert done.returncode == 1
    assert done.stdout.endswith("done: 1 of 1 file\n")
    assert "bad.exe" in done.stderr
    assert "nowhere.md" in done.stderr
    assert [one["doc_id"] for one in office.json("ingest", "list", "--rag", rag)] == ["good.md"]
    none = office("ingest", "submit", "--rag", rag, bad, "--wait", "--quiet")
    assert (none.returncode, none.stdout) == (1, "")


def test_a_document_that_fails_says_why_and_can_be_retried(office):
    rag = office.rag()
    broken = office.file("broken.pdf", b"%PDF-1.7\nnothing of the kind")
    done = office("ingest", "submit", "--rag", rag, broken, "--wait")
    assert done.returncode == 1
    assert "failed  broken.pdf: " in done.stderr
    assert done.stdout.splitlines()[-1] == "failed: 1 of 1 file, 1 failed"
    job = done.stdout.splitlines()[1].split()[0]
    status = office.json("ingest", "status", "--job", job)
    assert status["status"] == "failed"
    assert status["error_code"].startswith("ERR_")
    assert "error" in office.ok("ingest", "status", "--job", job)
    assert office("ingest", "status", "--job", job, "--follow").returncode == 1
    told = office.ok("ingest", "explain", job)
    assert "failed, attempt 1 of 4" in told
    assert office.json("ingest", "explain", job)["job_id"] == job
    assert office.sources(rag, "failed").joinpath("broken.pdf.error.json").exists()
    assert job in office.ok("ingest", "replay", job)

    def failed_again():
        told = office.json("ingest", "status", "--job", job)
        return told["status"] == "failed" and told["failed_at"] > status["failed_at"]

    wait_until(failed_again, what="the second failure", timeout_s=60)
    assert office.json("ingest", "replay", "--rag", rag, "--failed") == {"queued": [job]}
    assert office.json("ingest", "list", "--rag", rag, "--state", "indexed") == []


def test_quiet_prints_the_ids_of_jobs_alone(office):
    rag = office.rag()
    files = [office.file(f"quiet/{number}.md", f"number {number}") for number in range(2)]
    told = office.ok("ingest", "submit", "--rag", rag, *files, "--quiet", "--wait").splitlines()
    assert [office.json("ingest", "status", "--job", job)["document"] for job in told] == [
        "0.md",
        "1.md",
    ]


def test_metadata_comes_back_with_what_is_found(office):
    rag = office.rag()
    file = office.file("meta.md", "the answer is a river")
    office("ingest", "submit", "--rag", rag, file, "--meta", "author=Ann=A", "--wait")
    [found] = office.json("ingest", "search", "--rag", rag, "river")
    assert found["metadata"]["author"] == "Ann=A"
    wrong = office("ingest", "submit", "--rag", rag, file, "--meta", "author")
    assert refused(wrong, 2, "NAME=VALUE")


def test_a_folder_is_kept_in_step(office):
    rag = office.rag()
    folder = str(office.folder / "synced")
    office.file("synced/one.md", "one river")
    two = office.file("synced/two.md", "two mountains")
    told = office.ok("ingest", "sync", folder, "--rag", rag, "--dry-run")
    assert "2 new, 0 changed, 0 unchanged" in told
    assert "  new         one.md" in told
    assert office.json("ingest", "list", "--rag", rag) == []
    assert office("ingest", "sync", folder, "--rag", rag, "--wait").returncode == 0
    Path(two).unlink()
    office.file("synced/one.md", "one river, and a bridge")
    told = office.json("ingest", "sync", folder, "--rag", rag, "--wait")
    assert (told["changed"], told["gone"], told["forgotten"]) == (["one.md"], ["two.md"], 0)
    assert told["batch"]["status"] == "done"
    assert "1 document forgotten" in office.ok("ingest", "sync", folder, "--rag", rag, "--delete")
    assert [one["doc_id"] for one in office.json("ingest", "list", "--rag", rag)] == ["one.md"]
    assert refused(office("ingest", "sync", "nowhere", "--rag", rag), 1, "not a folder")


def test_what_is_forgotten_is_found_no_longer(office):
    rag = office.rag()
    office("ingest", "submit", "--rag", rag, office.file("gone.md", "a secret lake"), "--wait")
    assert refused(office("ingest", "forget", "--rag", rag, "gone.md"), 2, "--yes")
    done = office.on_a_terminal("n\n", "ingest", "forget", "--rag", rag, "gone.md")
    assert done.returncode == 1
    assert len(office.json("ingest", "search", "--rag", rag, "lake")) == 1
    done = office("ingest", "forget", "--rag", rag, "gone.md", "other.md", "--files", "--yes")
    assert (done.returncode, done.stdout) == (1, "gone.md is forgotten\n")
    assert "no document 'other.md'" in done.stderr
    assert office.ok("ingest", "search", "--rag", rag, "lake") == "nothing was found\n"
    assert office.ok("ingest", "list", "--rag", rag) == "no documents\n"
    assert not list(office.sources(rag, "processed").iterdir())


def test_a_rebuild_takes_over_when_it_is_complete(office):
    rag = office.rag()
    office("ingest", "submit", "--rag", rag, office.file("re.md", "a green hill"), "--wait")
    told = office("ingest", "reindex", "--rag", rag, "--wait", "--timeout", "60")
    assert told.returncode == 0, told
    assert told.stdout.endswith(f"collection {rag}--v2 has taken over\n")
    assert office.json("ingest", "reindex", "--rag", rag, "--wait")["swapped"] is True
    assert len(office.json("ingest", "search", "--rag", rag, "hill")) == 1
    assert refused(office("rag", "swap", rag), 1, "not being rebuilt")


def test_names_that_no_terminal_should_obey_are_shown_escaped(office):
    rag = office.rag()
    nasty = office.file("evil\x1b[2J\nname.md", "an odd island")
    done = office("ingest", "submit", "--rag", rag, nasty, "--wait")
    assert done.returncode == 0, done
    for words in (["list"], ["search", "island"]):
        shown = office.ok("ingest", words[0], "--rag", rag, *words[1:])
        assert "\x1b" not in shown
        assert "evil\\x1b[2J\\nname.md" in shown
    raw = os.fsdecode(b"bytes\xff.md")
    office.file(raw, "a broken name")
    office.file("undecodable\udcff.exe", "a broken name")
    told = office(
        "ingest", "submit", "--rag", rag, "--path", str(office.folder / raw), "--wait", "--json"
    )
    assert told.returncode == 0, told
    assert json.loads(told.stdout)["batch"]["files"][0]["document"] == "bytes\\xff.md"
    told = office("ingest", "submit", "--rag", rag, "undecodable\udcff.exe", "--json")
    assert told.returncode == 1
    assert json.loads(told.stdout)["refused"][0]["path"] == "undecodable\\xff.exe"


def test_words_that_are_no_text_are_refused_in_one_line(office):
    rag = office.rag()
    for words in (
        ["search", "--rag", rag, "what\udcff"],
        ["status", "--job", "j\udcff"],
        ["status", "--batch", "b\udcff"],
        ["cancel", "j\udcff"],
        ["forget", "--rag", rag, "d\udcff", "--yes"],
        ["list", "--rag", rag, "--after", "d\udcff"],
        ["search", "--rag", "r\udcff", "x"],
    ):
        done = office("ingest", *words)
        assert done.returncode in {0, 1, 2}, done
        assert done.stderr.count("\n") <= 1, done


def test_what_is_dropped_into_incoming_is_found(office):
    rag = office.rag()
    office.sources(rag, "incoming").joinpath("dropped.md").write_text("a falling star")
    found = wait_until(
        lambda: office.json("ingest", "search", "--rag", rag, "star"),
        what="the document",
        timeout_s=60,
    )
    assert found[0]["document"] == "dropped.md"


def test_a_terminal_gets_a_bar(office):
    rag = office.rag()
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [*MODULE, "ingest", "submit", "--rag", rag, office.file("bar.md", "bar"), "--wait"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        cwd=office.folder,
        env=office.env | {"TERM": "xterm"},
        timeout=60,
        check=False,
    )
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert done.returncode == 0
    assert "100%" in shown
    assert "1 of 1 file" in shown


@pytest.mark.faults
def test_a_worker_ends_by_signal_and_leaves_nothing_behind(idle):
    rag = idle.rag()
    with idle.begin("ingest", "work", "--no-watch", "--json") as process:
        wait_until(lambda: idle("ingest", "health").returncode == 0, what="it", timeout_s=60)
        file = idle.file("a.md", "text")
        assert idle("ingest", "submit", "--rag", rag, file, "--wait").returncode == 0
        idle.sources(rag, "incoming").joinpath("left.md").write_text("for others")
        process.send_signal(signal.SIGTERM)
        _, logged = process.communicate(timeout=60)
        assert process.returncode == 0
    assert all(json.loads(line)["level"] for line in logged.splitlines())
    assert idle.sources(rag, "incoming").joinpath("left.md").exists()
    wait_until(lambda: not processes_of(idle.home), what="the end of all", timeout_s=60)


# ---- where nobody works


def test_who_waits_too_long_is_told_so_and_the_job_goes_on(idle):
    rag = idle.rag()
    done = idle(
        *("ingest", "submit", "--rag", rag, idle.file("a.md", "text")),
        *("--wait", "--timeout", "300ms"),
    )
    assert done.returncode == 5
    assert done.stderr.splitlines()[-1].endswith("goes on: 0 of 1 file")
    batch = done.stdout.split()[0]
    assert idle.json("ingest", "status", "--batch", batch)["status"] == "queued"


def test_waiting_jobs_can_be_cancelled(idle):
    rag = idle.rag()
    files = [idle.file(f"{number}.md", f"text {number}") for number in range(3)]
    told = idle.json("ingest", "submit", "--rag", rag, *files, "--priority", "low")
    first, *others = [job["job_id"] for job in told["jobs"]]
    assert first in idle.ok("ingest", "cancel", first)
    assert refused(idle("ingest", "cancel", first), 1, "had ended")
    assert sorted(idle.json("ingest", "cancel", told["batch_id"])["cancelled"]) == sorted(others)
    assert idle.json("ingest", "status", "--batch", told["batch_id"])["counts"] == {"cancelled": 3}
    follow = idle("ingest", "status", "--batch", told["batch_id"], "--follow")
    assert follow.returncode == 1
    assert follow.stdout.splitlines()[0] == f"{told['batch_id']} of RAG {rag}: cancelled"


def test_a_dry_run_changes_nothing(idle):
    rag = idle.rag()
    told = idle.ok("ingest", "submit", "--rag", rag, idle.file("a.md", "text"), "--dry-run")
    assert told == f"1 file would be submitted to RAG {rag}\n  a.md\n"
    assert json.loads(idle("ingest", "health", "--json").stdout)["queued"] == 0
    assert not any(idle.sources(rag, "incoming").iterdir())
    bad = idle.file("b.exe", "MZ")
    assert idle("ingest", "submit", "--rag", rag, bad, "--dry-run").returncode == 1
    empty = idle.folder / "nothing"
    empty.mkdir()
    assert refused(idle("ingest", "submit", "--rag", rag, str(empty)), 1, "no file")


def test_wrong_usage_is_code_2(idle):
    assert all_refused(
        idle,
        2,
        [
            (("ingest", "submit", "--rag", "r"), "which files?"),
            (("ingest", "submit", "--path", "x"), "--rag"),
            (("ingest", "submit", "--rag", "r", "x", "--timeout", "3"), "--wait"),
            (("ingest", "submit", "--rag", "r", "x", "--wait", "--timeout", "x"), "500ms"),
            (("ingest", "status"), "--job or --batch"),
            (("ingest", "status", "--job", "a", "--batch", "b"), "--job or --batch"),
            (("ingest", "replay"), "which?"),
            (("ingest", "replay", "x", "--failed"), "which?"),
            (("ingest", "replay", "--failed"), "which?"),
            (("ingest", "search", "--rag", "r", "x", "-k", "0"), "-k"),
        ],
    )


def test_what_is_not_there_is_code_1(idle):
    idle.rag()
    assert all_refused(
        idle,
        1,
        [
            (("ingest", "submit", "--rag", "nope", "x"), "no RAG 'nope'"),
            (("ingest", "search", "--rag", "nope", "x"), "no RAG 'nope'"),
            (("ingest", "status", "--job", "nope"), "nope"),
            (("ingest", "status", "--batch", "nope"), "nope"),
            (("ingest", "status", "--batch", "nope", "--follow"), "nope"),
            (("ingest", "explain", "nope"), "nope"),
            (("ingest", "cancel", "nope"), "nope"),
            (("ingest", "replay", "nope"), "nope"),
        ],
    )


def test_wrong_configuration_is_code_3(idle):
    idle.rag()
    folder = idle.home / "documents"
    (folder / "rags" / "bad.yaml").write_text("rag_id: bad\nchunking: {size: 100, overlap: 100}\n")
    assert refused(idle("ingest", "search", "--rag", "bad", "x"), 3, "overlap")
    assert refused(idle("ingest", "--client", "none.yaml", "health"), 3, "no such file")
    wrong = idle.file("wrong.yaml", "qdrant: {urll: x}\n")
    assert refused(idle("ingest", "--client", wrong, "health"), 3, "urll")


@pytest.mark.faults
def test_a_store_or_server_that_is_away_is_code_4(idle):
    rag = idle.rag()
    away = idle.file("away.yaml", "qdrant: {url: 'http://127.0.0.1:1', timeout: 1}\n")
    assert refused(idle("ingest", "--client", away, "search", "--rag", rag, "x"), 4, "127.0.0.1:1")
    done = idle("ingest", "list", "--rag", rag, PENSTOCK_URL="redis://127.0.0.1:1")
    assert refused(done, 4, "127.0.0.1:1")


def test_health_tells_of_each_part_whichever_is_away(idle):
    done = idle("ingest", "health", PENSTOCK_URL="redis://127.0.0.1:1")
    assert (done.returncode, done.stderr) == (4, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0][:2] == ["NOT", "OK"]
    assert lines[0][-1] == "redis://127.0.0.1:1"
    assert lines[1:4] == [["redis", "away"], ["vectors", "ok"], ["ledger", "ok"]]
    away = idle.file("away.yaml", "qdrant: {url: 'http://127.0.0.1:1', timeout: 1}\n")
    done = idle("ingest", "--client", away, "health", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (4, "")
    assert (told["redis_ok"], told["qdrant_ok"], told["ledger_ok"]) == (True, False, True)
    done = idle("ingest", "health", "--json", PENSTOCK_TABLES_URL="postgresql://127.0.0.1:1/x")
    told = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (4, "")
    assert (told["redis_ok"], told["qdrant_ok"], told["ledger_ok"]) == (True, True, False)


def test_health_warns_of_keys_and_databases_that_others_could_read(idle):
    rags = Path(idle.home) / "documents" / "rags"
    rags.mkdir(parents=True)
    (rags / "far.yaml").write_text(
        "rag_id: far\n"
        "embeddings: {provider: http, model: m, url: 'http://embedder.invalid', api_key_env: KEY}\n"
    )
    far = idle.file(
        "far.yaml", "qdrant: {url: 'http://qdrant.invalid', api_key: CANARY, timeout: 1}\n"
    )
    done = idle("ingest", "--client", far, "health", "--json")
    warnings = json.loads(done.stdout)["warnings"]
    assert [warning.partition(" ")[0] for warning in warnings] == ["vectors.url:", "RAG"]
    assert "CANARY" not in done.stdout
    done = idle("ingest", "health")
    [warning] = [line for line in done.stdout.splitlines() if "warning" in line]
    assert "RAG far: embeddings.url: the key for http://embedder.invalid leaves" in warning
    done = idle("ingest", "health", "--json", PENSTOCK_OUTBOUND_PLAIN_HTTP="allow")
    assert json.loads(done.stdout)["warnings"] == []


def test_health_tells_that_nobody_works(idle):
    idle.rag()
    done = idle("ingest", "health")
    assert done.returncode == 1
    assert done.stdout.startswith("NOT OK  rag:ingest:queue on ")
    assert "no worker" in done.stdout
    told = json.loads(idle("ingest", "health", "--json").stdout)
    assert (told["ok"], told["redis_ok"], told["qdrant_ok"]) == (False, True, True)


def test_client_yaml_names_the_server(idle, start_server):
    del idle.env["PENSTOCK_URL"]
    rag = idle.rag()
    other = start_server()
    sources = idle.home / "documents"
    client = idle.file(
        "client.yaml",
        f"redis: {{url: '{other.url}'}}\n"
        f"paths: {{rags_config_dir: '{sources}/rags', sources_root: '{sources}/sources'}}\n",
    )
    file = idle.file("a.md", "text")
    [job] = idle.json("ingest", "--client", client, "submit", "--rag", rag, file)["jobs"]
    shown = idle.json("job", "show", "rag:ingest:queue", job["job_id"], PENSTOCK_URL=other.url)
    assert shown["status"] == "queued"


def test_without_the_extra_it_says_how_to_get_it(idle):
    for arguments in (["ingest", "health"], ["ingest", "work"], ["rag", "create", "x"]):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_YAML, *arguments],
            capture_output=True,
            env=idle.env,
            cwd=idle.folder,
            text=True,
            timeout=60,
            check=False,
        )
        assert refused(done, 3, "pip install 'penstock[documents]'")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_YAML, "ingest", "submit", "--help"],
        capture_output=True,
        env=idle.env,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert "--skip-validation" in done.stdout
