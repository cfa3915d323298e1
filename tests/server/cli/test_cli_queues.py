"""`penstock queue`, `job` and `dlq` of queues, as a person or a script meets them."""

import base64
import json
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
from tests.kit.shell import MODULE, all_refused, refused

from penstock.queues.storage.keys import JobKeys, QueueKeys
from penstock.redis.keys.space import KeySpace
from penstock.testing.resp import RespClient
from penstock.testing.servers import wait_until


@pytest.fixture
def server(valkey_server):
    with RespClient(valkey_server.address) as client:
        yield client


@pytest.fixture
def keys(namespace):
    return QueueKeys.of(KeySpace(namespace), "mail")


def payloads(jobs):
    return [job["payload"]["text"] for job in jobs]


def letter(job, **fields):
    """A letter as the security pipeline writes it."""
    told = {
        "original_job": job,
        "error": "boom",
        "attempt_count": 3,
        "first_failed_at": "2026-07-01T08:00:00Z",
        "last_failed_at": "2026-07-01T08:01:00Z",
        "queue_name": "mail",
    }
    return json.dumps(told | fields)


# Looking


def test_a_queue_from_its_first_job_to_its_end(shell):
    assert shell.ok("queue", "list") == "no queues\n"
    assert shell.ok("queue", "status") == "no queues\n"
    shell.ok("queue", "push", "mail", "-", stdin='{"job_id": "a"}\n2\n3\n')
    shell.ok("queue", "push", "mail", "4", "--priority", "high")
    [line] = shell.json("queue", "list")
    assert (line["name"], line["waiting"], line["paused"]) == ("mail", 4, False)
    assert shell.ok("queue", "list").splitlines()[1].split() == ["4", "0", "0", "0", "0", "mail"]
    jobs = shell.json("queue", "peek", "mail", "--start", "1", "--limit", "1")
    assert payloads(jobs) == ["2"]
    assert payloads(shell.json("queue", "peek", "mail", "--lane", "high")) == ["4"]
    assert '{"job_id": "a"}' in shell.ok("queue", "peek", "mail")
    assert shell.ok("queue", "peek", "mail", "--lane", "low") == "no job waits here\n"

    assert shell.ok("queue", "pause", "mail") == "queue mail is paused\n"
    assert shell.ok("queue", "pause", "mail") == "queue mail was paused\n"
    assert shell.json("queue", "list")[0]["paused"] is True
    assert shell.json("queue", "resume", "mail")["changed"] is True
    assert shell.ok("queue", "pause", "mail", "--lane", "high") == (
        "lane high of queue mail is paused\n"
    )
    assert "paused" in shell.ok("queue", "status", "mail")
    assert shell.ok("queue", "resume", "mail", "--lane", "high") == (
        "lane high of queue mail is resumed\n"
    )

    assert shell.ok("queue", "move", "mail", "other", "--limit", "1") == (
        "1 job moved from queue mail to other\n"
    )
    assert shell.json("queue", "peek", "other")[0]["id"] == "a"
    assert shell.json("queue", "purge", "mail", "--lane", "high", "--yes")["purged"] == 1
    assert shell.ok("queue", "purge", "mail", "--yes") == "2 jobs of queue mail deleted\n"
    assert shell.json("queue", "drain", "mail") == {"queue": "mail", "drained": True}
    done = shell("queue", "drain", "other", "--timeout", "100ms")
    assert refused(done, 5, "queue other is not empty after 100 ms")
    assert "purge" in shell.ok("dlq", "audit", "mail", "--queue")
    assert shell.json("queue", "delete", "other", "--yes")["deleted"] is True
    assert [line["name"] for line in shell.json("queue", "list")] == ["mail"]


def test_the_status_says_how_many_fair_lanes_there_are_of_how_many(shell):
    for group in ("ann", "bob"):
        shell.ok("queue", "push", "mail", "{}", "--group", group)
    assert "Fair lanes: 2 of 100,000" in shell.ok("queue", "status", "mail").splitlines()
    found = shell.json("queue", "status", "mail")
    assert (found["fair_lanes"], found["max_lanes"]) == (2, 100_000)


def test_the_health_check_of_a_queue(shell, valkey_server):
    shell.ok("queue", "push", "rag:ingest:queue", '{"job_id": "a"}', "--side", "left")
    shell.ok("job", "send", "later", "--queue", "rag:ingest:queue", "--delay", "1h")
    found = shell.json("queue", "status", "rag:ingest:queue")
    assert found["queue_name"] == "rag:ingest:queue"
    assert found["connection"] == f"redis://127.0.0.1:{valkey_server.port}"
    figures = ("queue_length", "processing", "queued", "workers", "delayed", "dead_letters")
    assert [found[name] for name in figures] == [1, 0, 1, 0, 1, 0]
    assert (found["worker_connected"], found["paused"], found["overflow"]) == (False, False, 0)
    assert found["counters"]["added"] == 2
    shown = shell.ok("queue", "status", "rag:ingest:queue").splitlines()
    assert shown[:6] == [
        "Queue name: rag:ingest:queue",
        f"Connection: {found['connection']}",
        "Queue length: 1",
        "Processing: 0",
        "Queued: 1",
        "Worker connected: no",
    ]
    [all_of_them] = shell.json("queue", "status")
    assert all_of_them["queue_name"] == "rag:ingest:queue"
    assert "no worker" in shell.ok("queue", "status")


def test_a_password_is_not_shown(start_server, open_shell, namespace):
    server = start_server(password="s3cr3t")
    shell = open_shell(namespace, PENSTOCK_URL=server.url, PENSTOCK_PASSWORD="s3cr3t")
    shell.ok("queue", "push", "mail", "1")
    assert "s3cr3t" not in shell.ok("queue", "status", "mail", "--json")
    assert "s3cr3t" not in shell.ok("queue", "status", "mail")


def test_watching_shows_it_again_until_ctrl_c(shell):
    shell.ok("queue", "push", "mail", "1")
    with shell.begin("queue", "status", "mail", "--watch", "--json") as process:
        first = json.loads(process.stdout.readline())
        shell.ok("queue", "push", "mail", "2")
        second = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert process.stderr.read().strip() == ""
    assert (first["queue_length"], first["rates"]) == (1, None)
    assert second["queue_length"] == 2
    assert second["rates"]["added"] > 0
    with shell.begin("queue", "status", "--watch") as process:
        assert process.stdout.readline().startswith("WAITING")
        process.stdout.close()
        assert process.wait(10) == 0


# Jobs


def test_a_job_with_a_record_is_shown_found_and_cancelled(shell):
    sent = ["job", "send", "mail.welcome", "[1]", "--queue", "mail", "--idempotency-key"]
    shell.ok(*sent, "a")
    shell.ok(*sent, "b", "--delay", "1h")
    record = shell.json("job", "show", "mail", "a")
    assert (record["status"], record["task"], record["result"]) == ("queued", "mail.welcome", None)
    assert "job b of queue mail: submitted\n" in shell.ok("job", "show", "mail", "b")

    found = shell.json("job", "search", "mail")["jobs"]
    assert {job["job_id"]: job["status"] for job in found} == {"a": "queued", "b": "submitted"}
    for options in (
        ["--state", "queued"],
        ["--state", "queued", "--name", "WELCOME", "--since", "1h"],
        ["--until", "2999-01-01T00:00:00Z", "--state", "queued"],
    ):
        [job] = shell.json("job", "search", "mail", *options)["jobs"]
        assert job["job_id"] == "a"
    for options in (["--error", "boom"], ["--until", "1h"], ["--since", "2999-01-01T00:00:00Z"]):
        assert shell.ok("job", "search", "mail", *options) == "no such jobs\n"
    first = shell.json("job", "search", "mail", "--limit", "1")
    second = shell.json("job", "search", "mail", "--limit", "1", "--cursor", first["cursor"])
    assert {first["jobs"][0]["job_id"], second["jobs"][0]["job_id"]} == {"a", "b"}
    assert f"more: --cursor {first['cursor']}" in shell.ok("job", "search", "mail", "--limit", "1")

    assert shell.ok("job", "cancel", "mail", "b") == "job b is cancelled\n"
    assert refused(shell("job", "cancel", "mail", "b"), 1, "job b of queue mail had ended")
    told = shell("job", "cancel", "mail", "b", "--json")
    assert (told.returncode, json.loads(told.stdout)["outcome"]) == (1, "ended")
    assert shell.json("job", "show", "mail", "b")["status"] == "cancelled"


def test_a_failed_job_is_queued_again(shell, server, keys):
    server.call("RPUSH", keys.dead_letters, letter({"job_id": "j"}))
    assert shell.ok("job", "replay", "mail", "j") == "job j is queued again\n"
    assert [job["id"] for job in shell.json("queue", "peek", "mail")] == ["j"]
    assert refused(shell("job", "replay", "mail", "j"), 1, "'j'")


def test_records_and_jobs_are_shown_and_not_obeyed(shell, server, keys, namespace):
    evil = "\x1b]0;owned\x07\x1b[2J"
    shell.ok("queue", "push", "mail", evil, "--text", "--group", evil)
    shell.ok("queue", "push", "mail", "-", "--text", stdin=b"\xff\x1b\xfe")
    record = JobKeys.of(KeySpace(namespace), "mail", "j").status
    server.call("HSET", record, "status", "failed", "error", evil, "traceback", evil, evil, evil)
    server.call("ZADD", keys.jobs("failed"), 1, "j")
    commands = [
        ["queue", "peek", "mail"],
        ["queue", "peek", "mail", "--lane", evil],
        ["queue", "status", "mail"],
        ["job", "show", "mail", "j"],
        ["job", "search", "mail"],
    ]
    for command in commands:
        assert not {"\x1b", "\x07"} & set(shell.ok(*command)), command
        assert shell.json(*command), command
    [odd] = shell.json("queue", "peek", "mail")
    assert base64.b64decode(odd["payload"]["base64"]) == b"\xff\x1b\xfe"


# Workers


SHOP = """
import asyncio
from pathlib import Path
from penstock import Penstock, RetryPolicy

app = Penstock()

@app.task(queue="mail", status=True)
async def welcome(name: str) -> str:
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    return f"hello {name}"

@app.task(queue="mail", status=True, retry=RetryPolicy(max_attempts=1))
async def refuse() -> None:
    raise ValueError("not today")

@app.task(queue="other")
async def count() -> None:
    Path("counted").touch()
"""


def test_a_worker_serves_the_queues_it_is_told_to(shell, tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    shell.env |= {"PENSTOCK_WORKER_HEARTBEAT_S": "0.1"}
    options = ["--queues", "mail", "--concurrency", "2"]
    with shell.begin("worker", "shop:app", *options) as worker:
        shell.ok("job", "send", "shop.count", "--queue", "other")
        named = ["job", "send", "shop.welcome", "--queue", "mail", "--idempotency-key"]
        for name in ("ann", "bob", "eve"):
            shell.ok(*named, name, json.dumps([name]))

        def load():
            found = [view["about"] for view in shell.json("workers") if view["about"]]
            return found[0]["load"] if found and found[0]["load"]["running"] == 2 else None

        at_work = wait_until(load, what="two jobs under way", timeout_s=60)
        assert at_work["queues"] == ["mail"]
        shown = shell.ok("workers")
        assert "mail: 2 running, 0 done, 0 failed, 0.0 per second" in shown
        assert sorted(at_work["jobs"]) == ["mail/ann", "mail/bob"]
        assert " at mail/" in shown
        assert "MiB of memory" in shown
        status = shell.json("queue", "status", "mail")
        assert (status["workers"], status["worker_connected"]) == (1, True)
        assert status["processing"] + status["queued"] == 3
        assert "Worker connected: yes, 1\n" in shell.ok("queue", "status", "mail")
        (tmp_path / "go").touch()
        assert shell.json("queue", "drain", "mail", "--timeout", "20s")["drained"] is True
        assert shell.json("job", "show", "mail", "eve")["result"] == "hello eve"
        shown = shell.ok("job", "show", "mail", "eve")
        assert "job eve of queue mail: done\n" in shown
        assert '  result      "hello eve"\n' in shown

        shell.ok("job", "send", "shop.refuse", "--queue", "mail", "--idempotency-key", "no")
        shell.ok("queue", "drain", "mail", "--timeout", "20s")
        [failed] = shell.json("job", "search", "mail", "--error", "today")["jobs"]
        assert (failed["job_id"], failed["status"]) == ("no", "failed")
        assert "ValueError: not today" in shell.ok("job", "show", "mail", "no")
        assert "ValueError: not today" in shell.ok("dlq", "list", "mail")
        assert shell.ok("job", "replay", "mail", "no") == "job no is queued again\n"
        shell.ok("queue", "drain", "mail", "--timeout", "20s")
        assert refused(shell("queue", "delete", "mail", "--yes"), 1, "worker")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(15) == 0
    assert not (tmp_path / "counted").exists()
    assert shell.json("queue", "status", "other")["queued"] == 1
    assert shell.json("dlq", "list", "mail")["total"] == 1


def test_a_queue_that_the_application_does_not_have(shell, tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "bare.py").write_text("from penstock import Penstock\napp = Penstock()\n")
    cases = [
        (["worker", "shop:app", "--queues", "mail,gone"], "no queue 'gone' in this application"),
        (["worker", "bare:app", "--queues", "gone"], "no queue 'gone' in this application"),
    ]
    assert all_refused(shell, 3, cases)


# What cannot be


def test_what_is_not_there(shell):
    shell.ok("queue", "push", "mail", "1")
    gone = "there is no queue 'gone'"
    cases = [
        (["queue", "status", "gone"], gone),
        (["queue", "status", "gone", "--watch"], gone),
        (["queue", "peek", "gone"], gone),
        (["queue", "pause", "gone"], gone),
        (["queue", "resume", "gone"], gone),
        (["queue", "purge", "gone", "--yes"], gone),
        (["queue", "drain", "gone"], gone),
        (["queue", "move", "gone", "mail"], gone),
        (["queue", "delete", "gone", "--yes"], gone),
        (["job", "search", "gone"], gone),
        (["job", "show", "mail", "j"], "no record of job 'j'"),
        (["job", "cancel", "mail", "j"], "no record of job 'j'"),
        (["queue", "push", "a*b", "1"], "name"),
        (["queue", "status", ""], "name"),
        (["queue", "move", "mail", "mail"], "already"),
        (["job", "search", "mail", "--cursor", "x"], "cursor"),
        (["queue", "peek", "mail", "--lane", "x" * 2_000], "lane"),
    ]
    assert all_refused(shell, 1, cases)


def test_wrong_usage(shell):
    cases = [
        (["queue", "push", "mail"], "JOB"),
        (["queue", "push", "mail", "1", "--delay", "soon"], "expected seconds, or as in"),
        (["queue", "push", "mail", "1", "--unique-for", "1h"], "--unique-for needs --unique"),
        (["queue", "push", "mail", "-", "--unique", "u"], "are for one job, not for lines"),
        (["queue", "push", "mail", "1", "--priority", "urgent"], "--priority"),
        (["queue", "peek", "mail", "--limit", "1001"], "--limit"),
        (["queue", "purge", "mail"], "--yes"),
        (["queue", "delete", "mail"], "--yes"),
        (["queue", "drain", "mail", "--timeout", "-1"], "--timeout"),
        (["queue", "move", "mail"], "TO"),
        (["job", "search", "mail", "--since", "yesterday"], "a time such as"),
        (["job", "search", "mail", "--since", "2026-07-01T08:00:00"], "a time such as"),
        (["job", "search", "mail", "--state", "odd"], "--state"),
        (["job", "send", "t", "--header", "x"], "expected NAME=VALUE"),
        (["job", "send", "t", "--max-attempts", "0"], "--max-attempts"),
    ]
    assert all_refused(shell, 2, cases)


def test_a_person_is_asked_before_something_is_lost(shell):
    shell.ok("queue", "push", "mail", "-", stdin="1\n2\n")
    done = shell.on_a_terminal("n\n", "queue", "purge", "mail", "--delayed")
    assert (done.returncode, done.stdout) == (1, "")
    question = "Delete 2 waiting jobs and those not yet due of queue mail for good?"
    assert question in done.stderr
    done = shell.on_a_terminal("\x04", "queue", "purge", "mail", "--lane", "high")
    assert (done.returncode, done.stdout) == (130, "")
    assert "Delete 0 waiting jobs in lane high of queue mail" in done.stderr
    done = shell.on_a_terminal("n\n", "queue", "delete", "mail")
    assert "Delete queue mail with 2 waiting jobs, 0 not yet due and 0 dead letters?" in done.stderr
    assert shell.json("queue", "list")[0]["waiting"] == 2
    done = shell.on_a_terminal("y\n", "queue", "purge", "mail")
    assert done.stdout == "2 jobs of queue mail deleted\n"


def test_a_queue_on_a_cluster(cluster, open_shell, namespace):
    shell = open_shell(namespace, PENSTOCK_URL=cluster.url)
    shell.ok("queue", "push", "mail", "-", stdin="1\n2\n")
    shell.ok("queue", "push", "mail", "3", "--group", "g")
    assert shell.json("queue", "status", "mail")["queue_length"] == 3
    assert shell.ok("dlq", "list", "mail") == "no dead letters\n"
    assert shell.json("queue", "move", "mail", "other")["moved"] == 2
    assert len(shell.json("queue", "list")) == 2
    assert shell.json("queue", "purge", "mail", "--yes")["purged"] == 1


def test_ctrl_c_leaves_what_was_added(shell, server, keys):
    with shell.begin("queue", "push", "mail", "-", stdin=subprocess.PIPE) as process:
        process.stdin.write("1\n")
        process.stdin.flush()
        wait_until(lambda: server.call("LLEN", keys.waiting), what="the first job")
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert process.stderr.read().strip() == ""
    with shell.begin("queue", "drain", "mail") as process:
        wait_until(lambda: connects(process.pid), what="its connection")
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    assert server.call("LLEN", keys.waiting) == 1


def connects(pid):
    """Whether a process has a socket open, apart from its loop's own pair."""
    links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir() if link.exists()]
    return sum(link.startswith("socket:") for link in links) > 2


def test_standard_input_that_is_closed_is_empty(shell, server, keys):
    server.call("RPUSH", keys.dead_letters, letter({"job_id": "j"}))
    for command, code, words in (
        ("queue push mail -", 0, "0 jobs added"),
        ("dlq edit mail j --payload -", 1, "not JSON"),
        ("queue purge mail", 2, "--yes"),
    ):
        done = subprocess.run(
            ["sh", "-c", f"{shlex.join(MODULE)} {command} <&-"],
            cwd=shell.folder,
            env=shell.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        assert words in done.stdout + done.stderr


# Adding


def test_a_job_is_stored_as_it_is_given(shell, server, keys):
    assert shell.ok("queue", "push", "mail", '{"total": 1.50}') == "1 job added, 1 job waits\n"
    done = shell.json("queue", "push", "mail", "plain", "--text")
    assert (done["success"], done["queue_length"], done["warning"]) == (True, 2, None)
    assert server.call("LRANGE", keys.waiting, 0, -1) == ['{"total": 1.50}', "plain"]
    assert refused(shell("queue", "push", "mail", "{"), 1, "not JSON", "--text")


def test_the_options_of_a_job(shell, server, keys):
    assert "waits" in shell.ok("queue", "push", "mail", "1", "--priority", "high")
    shell.ok("queue", "push", "mail", "2", "--group", "ann")
    assert server.call("LLEN", keys.priority("high")) == 1
    assert server.call("LLEN", keys.lane("ann")) == 1
    once = ["queue", "push", "mail", '{"job_id": "j"}', "--delay", "1h", "--unique", "u"]
    assert shell.ok(*once) == "job j added, 1 job not yet due\n"
    assert shell.ok(*once) == "job j was there\n"
    assert server.call("ZRANGE", keys.delayed, 0, -1) == ["j"]
    shell.ok("queue", "push", "other", "1", "--side", "left")
    wrong = shell("queue", "push", "other", "1", "--side", "right")
    assert refused(wrong, 1, "are pushed to its left, not to its right")


def test_lines_are_jobs_and_a_bad_one_is_named(shell, server, keys):
    done = shell("queue", "push", "mail", "-", stdin="1\nnope\n\n3\n" + "4\n" * 1_200)
    assert done.returncode == 1
    assert done.stdout == "1,202 jobs added, 1 not\n"
    assert done.stderr.startswith("penstock: line 2: not JSON")
    assert done.stderr.count("\n") == 1
    assert server.call("LLEN", keys.waiting) == 1_202
    told = shell.json("queue", "push", "mail", "-", "--text", stdin="a\nb\n")
    assert (told["pushed"], told["failed"], told["queue_length"]) == (2, 0, 1_204)


def test_lines_go_until_the_queue_is_full(shell, server, keys):
    narrow = {"PENSTOCK_QUEUES_MAX_SIZE": "700"}
    done = shell("queue", "push", "mail", "-", stdin="1\n" * 900, **narrow)
    assert done.returncode == 1
    assert done.stdout == "700 jobs added, 1 not; nothing after line 701 was tried\n"
    assert "queue 'mail' is full" in done.stderr
    assert server.call("LLEN", keys.waiting) == 700
    assert refused(shell("queue", "push", "mail", "1", **narrow), 1, "is full")
    done = shell("queue", "push", "mail", "1", PENSTOCK_QUEUES_MAX_SIZE="701")
    assert (done.returncode, done.stdout) == (0, "1 job added, 701 jobs wait\n")
    assert "701 jobs of 701" in done.stderr


def test_a_job_that_is_too_large_holds_up_no_other(shell):
    small = {"PENSTOCK_QUEUES_MAX_JOB_BYTES": "100"}
    lines = f'1\n"{"x" * 200}"\n3\n'
    done = shell("queue", "push", "mail", "-", stdin=lines, **small)
    assert (done.returncode, done.stdout) == (1, "2 jobs added, 1 not\n")
    assert "line 2: a job of 202 bytes" in done.stderr


def test_tasks_are_sent_by_their_names(shell, server, keys):
    id_ = shell.ok(
        "job", "send", "welcome", "[42]", "--kwargs", '{"lang": "de"}', "--queue", "mail"
    )
    [stored] = server.call("LRANGE", keys.waiting, 0, -1)
    job = json.loads(stored)
    assert job == {"id": id_.strip(), "task": "welcome", "args": [42], "kwargs": {"lang": "de"}}
    sent = ["job", "send", "welcome", '{"user_id": 1}', "--queue", "mail", "--idempotency-key", "k"]
    assert shell.json(*sent) == {"id": "k", "queue": "mail", "created": True}
    assert shell.ok(*sent) == "k was there\n"
    shell.ok("job", "send", "welcome")
    cases = [
        (["job", "send", "welcome", "7"], "expected a JSON array"),
        (["job", "send", "welcome", "{}", "--kwargs", "{}"], "expected a JSON array"),
        (["job", "send", "welcome", "[]", "--kwargs", "[]"], "expected a JSON object"),
        (["job", "send", "welcome", "[nope]"], "not JSON"),
        (["job", "send", "two words"], "task 'two words'"),
        (["job", "send", "welcome", "--queue", "a*"], "name"),
        (["job", "send", "welcome", "--priority", "low", "--group", "g"], "exclude each other"),
    ]
    assert all_refused(shell, 1, cases)


# Dead letters


def test_dead_letters_of_a_queue_are_looked_at_mended_sent_again_and_thrown_away(
    shell, server, keys
):
    jobs = [{"job_id": f"j{number}", "to": "ann"} for number in range(4)]
    server.call("RPUSH", keys.dead_letters, *map(letter, jobs))
    page = shell.json("dlq", "list", "mail")
    assert [one["id"] for one in page["letters"]] == ["j0", "j1", "j2", "j3"]
    assert (page["total"], page["next"]) == (4, None)
    shown = shell.ok("dlq", "list", "mail", "--limit", "1")
    assert shown.splitlines()[-1] == "more: --cursor 1"
    page = shell.json("dlq", "list", "mail", "--newest", "--limit", "1", "--error", "BOOM")
    assert [one["id"] for one in page["letters"]] == ["j3"]
    assert shell.ok("dlq", "list", "mail", "--task", "other") == "no such dead letters\n"
    shown = shell.ok("dlq", "show", "mail", "j1")
    assert "dead letter j1 of queue mail\n" in shown
    assert '  job          {"job_id": "j1", "to": "ann"}\n' in shown
    [kind] = shell.json("dlq", "groups", "mail")["kinds"]
    assert kind["count"] == 4
    assert "boom" in shell.ok("dlq", "groups", "mail")

    assert refused(shell("dlq", "edit", "mail", "j0", "--payload", "x"), 1, "not JSON")
    mended = shell.ok("dlq", "edit", "mail", "j0", "--payload", "-", stdin='{"job_id":"new"}')
    assert mended == "new\n"
    assert shell.json("dlq", "show", "mail", "new")["job"]["text"] == '{"job_id":"new"}'
    tried = shell.json("dlq", "replay", "mail", "--all", "--dry-run")
    assert (tried["matched"], tried["replayed"]) == (4, 0)
    done = shell("dlq", "replay", "mail", "new", "gone")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == "1 dead letter sent\n1 not there (any more)\n"
    [job] = server.call("LRANGE", keys.waiting, 0, -1)
    assert json.loads(job)["job_id"] == "new"

    would = shell.ok("dlq", "purge", "mail", "--older-than", "1h", "--dry-run")
    assert would == "3 dead letters would be deleted\n"
    assert shell.json("dlq", "purge", "mail", "j1", "--yes")["purged"] == 1
    asked = shell.on_a_terminal("y\n", "dlq", "replay", "mail", "--all", "--limit", "1")
    assert asked.stdout.startswith("1 dead letter sent\n")
    assert "Send 1 dead letter of mail again?" in asked.stderr
    assert shell.ok("dlq", "purge", "mail", "--all", "--yes") == "1 dead letter deleted\n"
    assert "requeue" in shell.ok("dlq", "audit", "mail")


def test_jobs_moved_aside_are_letters_as_well(shell, server, keys):
    server.call("RPUSH", keys.overflow, letter({"job_id": "aside"}))
    assert shell.ok("dlq", "list", "mail") == "no dead letters\n"
    [one] = shell.json("dlq", "list", "mail", "--overflow")["letters"]
    assert one["id"] == "aside"
    assert shell.ok("dlq", "replay", "mail", "aside", "--overflow") == "1 dead letter sent\n"
    assert server.call("LLEN", keys.waiting) == 1


def test_a_name_that_is_a_topic_and_a_queue_has_to_be_told_apart(shell, server, keys):
    shell.ok("topic", "create", "mail")
    assert shell.json("dlq", "list", "mail") == {"letters": [], "cursor": None}
    server.call("RPUSH", keys.dead_letters, letter({"job_id": "j"}))
    assert refused(shell("dlq", "list", "mail"), 2, "is a topic and a queue: say --topic")
    assert shell.json("dlq", "list", "mail", "--topic")["letters"] == []
    assert len(shell.json("dlq", "list", "mail", "--queue")["letters"]) == 1
    cases = [
        (["dlq", "list", "mail", "--topic", "--queue"], "--topic excludes"),
        (["dlq", "list", "mail", "--topic", "--overflow"], "--topic excludes"),
        (["dlq", "list", "mail", "--topic", "--task", "x"], "--task is for the letters of queues"),
        (["dlq", "list", "mail", "--queue", "--cursor", "-1"], "expected a place"),
        (["dlq", "edit", "mail", "j", "--queue", "--header", "a=b"], "by --payload alone"),
    ]
    assert all_refused(shell, 2, cases)
    cases = [
        (["dlq", "list", "gone"], "there is no topic 'gone', and no such queue"),
        (["dlq", "list", "two words"], "name"),
        (["dlq", "show", "mail", "gone", "--queue"], "has no dead letter 'gone'"),
    ]
    assert all_refused(shell, 1, cases)


def test_letters_of_any_kind_are_shown_and_not_obeyed(shell, server, keys):
    server.call("RPUSH", keys.dead_letters, "\x1b]0;owned\x07", letter("\x1b[2J", error="\x1b[31m"))
    server.call("RPUSH", keys.dead_letters, b"\xff\xfe")
    for verb in (["list"], ["groups"]):
        shown = shell.ok("dlq", *verb, "mail")
        assert not {"\x1b", "\x07"} & set(shown)
    ids = [one["id"] for one in shell.json("dlq", "list", "mail")["letters"]]
    for id_ in ids:
        shown = shell.ok("dlq", "show", "mail", id_)
        assert not {"\x1b", "\x07"} & set(shown)
