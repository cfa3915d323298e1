"""`penstock queue`, `job` and `dlq` of queues, as a person or a script meets them."""

import json

import pytest

from penstock.redis.keys import Keys
from penstock.testing.resp import RespClient

from .shell import Shell, all_refused, refused


@pytest.fixture
def open_shell(tmp_path):
    opened = []

    def open_one(namespace, **place):
        opened.append(Shell(tmp_path, namespace, **place))
        return opened[-1]

    yield open_one
    for shell in opened:
        shell.close()


@pytest.fixture
def shell(valkey_server, namespace, open_shell):
    return open_shell(namespace, PENSTOCK_URL=valkey_server.url)


@pytest.fixture
def server(valkey_server):
    with RespClient(valkey_server.address) as client:
        yield client


@pytest.fixture
def keys(namespace):
    return Keys(namespace).queue("mail")


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


# Dead letters


def test_dead_letters_of_a_queue_are_looked_at_mended_sent_again_and_thrown_away(
    shell, server, keys
):
    jobs = [{"job_id": f"j{number}", "to": "ann"} for number in range(4)]
    server.call("RPUSH", keys.dead_letters, *map(letter, jobs))
    page = shell.json("dlq", "list", "mail")
    assert [one["id"] for one in page["letters"]] == ["j0", "j1", "j2", "j3"]
    assert (page["total"], page["next"]) == (4, None)
    shown = shell.ok("dlq", "list", "mail", "--count", "1")
    assert shown.splitlines()[-1] == "more: --cursor 1"
    page = shell.json("dlq", "list", "mail", "--newest", "--count", "1", "--error", "BOOM")
    assert [one["id"] for one in page["letters"]] == ["j3"]
    assert shell.ok("dlq", "list", "mail", "--task", "other") == "no such dead letters\n"
    shown = shell.ok("dlq", "show", "mail", "j1")
    assert "dead letter j1 of queue mail\n" in shown
    assert '  job          {"job_id": "j1", "to": "ann"}\n' in shown
    for words in ("groups", "kinds"):
        [kind] = shell.json("dlq", words, "mail")["kinds"]
        assert kind["count"] == 4
    assert "boom" in shell.ok("dlq", "kinds", "mail")

    assert refused(shell("dlq", "edit", "mail", "j0", "--payload", "x"), 1, "not JSON")
    mended = shell.ok("dlq", "edit", "mail", "j0", "--payload", "-", stdin='{"job_id":"new"}')
    assert mended == "new\n"
    assert shell.json("dlq", "show", "mail", "new")["job"]["text"] == '{"job_id":"new"}'
    tried = shell.json("dlq", "replay", "mail", "--all", "--dry-run")
    assert (tried["matched"], tried["requeued"]) == (4, 0)
    done = shell("dlq", "requeue", "mail", "new", "gone")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == "1 dead letter sent\n1 not there (any more)\n"
    [job] = server.call("LRANGE", keys.waiting, 0, -1)
    assert json.loads(job)["job_id"] == "new"

    would = shell.ok("dlq", "purge", "mail", "--older-than", "1h", "--dry-run")
    assert would == "3 dead letters would be thrown away\n"
    assert shell.json("dlq", "purge", "mail", "j1", "--yes")["purged"] == 1
    asked = shell.on_a_terminal("y\n", "dlq", "replay", "mail", "--all", "--limit", "1")
    assert asked.stdout.startswith("1 dead letter sent\n")
    assert "Send 1 dead letter of mail again?" in asked.stderr
    assert shell.ok("dlq", "purge", "mail", "--all", "--yes") == "1 dead letter thrown away\n"
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
    for verb in (["list"], ["kinds"]):
        shown = shell.ok("dlq", *verb, "mail")
        assert not {"\x1b", "\x07"} & set(shown)
    ids = [one["id"] for one in shell.json("dlq", "list", "mail")["letters"]]
    for id_ in ids:
        shown = shell.ok("dlq", "show", "mail", id_)
        assert not {"\x1b", "\x07"} & set(shown)
