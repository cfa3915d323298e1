"""`penstock topic`, `group` and `dlq` as a person or a script meets them: real processes."""

import base64
import json
import os
import signal
import subprocess
import sys

import pytest
from tests.kit.shell import all_refused, refused

from penstock.redis.keys.space import KeySpace
from penstock.testing.resp import RespClient
from penstock.testing.servers import wait_until
from penstock.topics.storage.keys import PartitionKeys, TopicKeys


def payloads(views):
    return [view["payload"]["text"] for view in views]


# Topics


def test_a_topic_from_its_making_to_its_end(shell):
    assert shell.ok("topic", "list") == "no topics\n"
    made = shell.json("topic", "create", "orders", "--partitions", "2", "--max-age", "7d")
    assert made == {"topic": "orders", "partitions": 2, "created": True}
    assert shell.ok("topic", "create", "orders") == "topic orders was there, with 2 partitions\n"
    shell.ok("topic", "send", "orders", "--quiet", stdin="1\n2\n3\n")
    shown = shell.ok("topic", "show", "orders")
    assert "  retention     7.0 d per partition, what groups need stays\n" in shown
    assert "  messages      3 (" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert shell.ok("topic", "grow", "orders", "3") == "topic orders has 3 partitions now\n"
    assert shell.json("topic", "show", "orders")["generation"] == 2
    assert shell.json("topic", "trim", "orders", "--max-length", "1")["dropped"] >= 1
    [line] = shell.json("topic", "list")
    assert (line["name"], line["partitions"]) == ("orders", 3)
    assert shell.json("topic", "delete", "orders", "--yes") == {"topic": "orders", "deleted": True}
    assert shell.json("topic", "list") == []
    assert refused(shell("topic", "delete", "orders", "--yes"), 1, "no topic 'orders'")


def test_a_topic_on_the_embedded_server(home, open_shell):
    shell = open_shell("", PENSTOCK_HOME=str(home))
    shell.ok("server", "start")
    shell.ok("topic", "create", "orders")
    id_ = shell.ok("topic", "send", "orders", '{"total": 1.50}', "--durability", "synced").strip()
    [view] = shell.objects("topic", "tail", "orders", "--from", "earliest", "--no-follow")
    assert (view["id"], view["payload"]["text"]) == (id_, '{"total": 1.50}')
    shell.ok("topic", "consume", "orders", "--group", "g", "--limit", "1")
    assert shell.json("group", "lag", "orders", "g")["lag"] == 0
    shell.ok("server", "stop")


def test_an_old_stream_is_adopted(shell, valkey_server, namespace):
    assert refused(shell("topic", "adopt", "orders"), 1, "there is no stream")
    with RespClient(valkey_server.address) as client:
        client.call(
            "XADD", TopicKeys.of(KeySpace(namespace), "orders").root + "orders", "*", "payload", "1"
        )
    done = shell.ok("topic", "adopt", "orders", "--partitioner", "java")
    assert done.startswith("1 message moved, 0 dropped")
    assert payloads(shell.objects("topic", "tail", "orders", "--from", "0", "--no-follow")) == ["1"]


# Bad input


def test_names_and_numbers_that_cannot_be(shell):
    long = "x" * 300
    names = ["a:b", "a{b}", "two words", "glob*", "", long, "\x1b[31m"]
    cases = [(["topic", "create", name], "topic name") for name in names]
    cases += [(["group", "lag", "orders", name], "'") for name in ("a:b", "")]
    cases += [
        (["topic", "create", "orders", "--partitions", number], "from 1 to 4096")
        for number in ("0", "-1", "1000000")
    ]
    assert all_refused(shell, 1, cases)


def test_what_is_not_there(shell):
    shell.ok("topic", "create", "here", "--partitions", "2")
    gone = "there is no topic 'gone'"
    cases = [
        (["topic", "show", "gone"], gone),
        (["topic", "send", "gone", "1"], gone),
        (["topic", "tail", "gone"], gone),
        (["topic", "consume", "gone", "--group", "g"], gone),
        (["topic", "grow", "gone", "2"], gone),
        (["topic", "trim", "gone"], gone),
        (["group", "list", "gone"], gone),
        (["group", "reset", "gone", "g", "--to", "0", "--yes"], gone),
        (["dlq", "list", "gone"], gone),
        (["dlq", "groups", "gone"], gone),
        (["dlq", "audit", "gone"], gone),
        (["dlq", "replay", "gone", "--all", "--yes"], gone),
        (["dlq", "purge", "gone", "--all", "--yes"], gone),
        (["group", "lag", "here", "g"], "has no group 'g'"),
        (["group", "pending", "here", "g"], "has no group 'g'"),
        (["group", "delete", "here", "g", "--yes"], "has no group 'g'"),
        (["dlq", "show", "here", "1-1"], "has no dead letter '1-1'"),
        (["dlq", "show", "here", "nonsense"], "expected an id"),
        (["dlq", "edit", "here", "1-1", "--payload", "1"], "has no dead letter '1-1'"),
        (["topic", "tail", "here", "--partition", "2"], "partitions 0 to 1"),
        (["topic", "create", "here", "--partitions", "3"], "has 2 partitions, not 3"),
        (["topic", "grow", "here", "2"], "it grows to more"),
        (["group", "pending", "here", "g", "--cursor", "x"], "cursor"),
    ]
    assert all_refused(shell, 1, cases)


def test_wrong_usage(shell):
    cases = [
        (["topic", "send", "orders", "--delay", "soon"], "expected seconds, or as in"),
        (["topic", "send", "orders", "--delay", "99999d"], "at most ten years"),
        (["topic", "send", "orders", "--durability", "replicated:0"], "replicated:N"),
        (["topic", "send", "orders", "--idempotency-key", "k"], "needs PAYLOAD"),
        (["topic", "send", "orders", "1", "--header", "x"], "expected NAME=VALUE"),
        (["topic", "send", "orders", "--text", "--envelope"], "exclude each other"),
        (["topic", "create", "orders", "--max-bytes", "lots"], "as in 64k"),
        (
            ["topic", "create", "orders", "--max-length", "5", "--hard-length", "1"],
            "at most hard_length",
        ),
        (["topic", "tail", "orders", "--from", "yesterday"], "position 'yesterday'"),
        (["topic", "tail", "orders", "--limit", "0"], "--limit"),
        (["topic", "consume", "orders"], "--group"),
        (["topic", "consume", "orders", "--group", "g", "--exec", "no-such"], "no such command"),
        (["topic", "consume", "orders", "--group", "g", "--exec", "'"], "No closing quotation"),
        (["topic", "trim", "orders", "--hard"], "--hard needs --max-length"),
        (["topic", "delete", "orders"], "--yes"),
        (["group", "reset", "orders", "g", "--to", "0"], "--yes"),
        (["group", "delete", "orders", "g"], "--yes"),
        (["dlq", "replay", "orders"], "or --all"),
        (["dlq", "replay", "orders", "--all"], "--yes"),
        (["dlq", "purge", "orders", "--all"], "--yes"),
        (["dlq", "purge", "orders", "--all", "--older-than", "1d"], "--older-than or --all"),
        (["dlq", "edit", "orders", "1-1"], "nothing to change"),
    ]
    assert all_refused(shell, 2, cases)


def test_a_person_is_asked_before_something_is_lost(shell):
    shell.ok("topic", "create", "orders")
    shell.ok("topic", "send", "orders", "1")
    question = "Delete topic orders with 1 message, 0 groups and 0 dead letters?"
    done = shell.on_a_terminal("n\n", "topic", "delete", "orders")
    assert (done.returncode, done.stdout) == (1, "")
    assert question in done.stderr
    assert "nothing was changed" in done.stderr
    done = shell.on_a_terminal("\x04", "topic", "delete", "orders")
    assert (done.returncode, done.stdout) == (130, "")
    assert len(shell.json("topic", "list")) == 1
    done = shell.on_a_terminal("y\n", "topic", "delete", "orders", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["deleted"] is True


# Sending


def test_the_options_of_a_message(shell):
    shell.ok("topic", "create", "orders", "--partitions", "4")
    sent = ["topic", "send", "orders", '"x"', "--idempotency-key", "once"]
    first = shell.ok(*sent, "--key", "alice", "--header", "a=1", "--header", "b==")
    assert shell.ok(*sent, "--key", "alice") == first
    shell.ok("topic", "send", "orders", "plain text", "--text")
    shell.ok("topic", "send", "orders", "later", "--text", "--delay", "1h")
    views = shell.objects("topic", "tail", "orders", "--from", "earliest", "--no-follow")
    assert payloads(views) == ['"x"', "plain text"]
    assert (views[0]["key"], views[0]["headers"]) == ("alice", {"a": "1", "b": "="})
    assert shell.json("topic", "show", "orders")["delayed"] == 1
    done = shell("topic", "send", "orders", "plain text")
    assert refused(done, 1, "not JSON", "--text sends it as it is")


def test_a_bad_line_is_named_and_the_others_are_sent(shell):
    shell.ok("topic", "create", "orders")
    done = shell("topic", "send", "orders", stdin='{"a":1}\nnope\n\n[2]\r\n{"b":\n"last"')
    assert done.returncode == 1
    assert done.stdout.count("\n") == 3
    complaints = done.stderr.splitlines()
    assert [line[: line.index(": not")] for line in complaints[:2]] == [
        "penstock: line 2",
        "penstock: line 5",
    ]
    assert complaints[2:] == ["3 messages sent, 2 not"]
    views = shell.objects("topic", "tail", "orders", "--from", "earliest", "--no-follow")
    assert payloads(views) == ['{"a":1}', "[2]", '"last"']
    done = shell("topic", "send", "orders", "--quiet", "--json", stdin=b"\xff\xfe\n1\n")
    assert done.returncode == 1
    assert json.loads(done.stdout) == {"sent": 1, "failed": 1, "stopped": 0}


def test_lines_in_envelopes(shell):
    shell.ok("topic", "create", "orders", "--partitions", "4")
    lines = [
        {"payload": {"n": 1}, "key": "k", "headers": {"a": "1"}},
        {"payload": 2, "kee": "k"},
        {"key": "k"},
        {"payload": 3, "key": "k", "idempotency_key": "once"},
        {"payload": 3, "key": "k", "idempotency_key": "once"},
        {"payload": 4, "delay": 3600},
        {"payload": 5, "key": "x" * 2000},
        {"payload": 6, "delay": -1e300},
        {"payload": 7, "headers": {"x-force-partition-id": "first"}},
        {"payload": 8, "key": "k"},
    ]
    stdin = "\n".join(map(json.dumps, lines))
    done = shell("topic", "send", "orders", "--envelope", "--json", stdin=stdin)
    assert done.returncode == 1
    ends = {end["line"]: end for end in map(json.loads, done.stdout.splitlines())}
    assert sorted(ends) == list(range(1, 11))
    assert [line for line in sorted(ends) if "error" in ends[line]] == [2, 3, 7, 9]
    assert ends[4]["id"] == ends[5]["id"]
    views = shell.objects("topic", "tail", "orders", "--from", "earliest", "--no-follow")
    assert payloads([view for view in views if view["key"] == "k"]) == ['{"n": 1}', "3", "8"]


def test_many_lines_go_as_they_come(shell):
    shell.ok("topic", "create", "orders", "--partitions", "3")
    lines = "".join(f'{{"n":{number}}}\n' for number in range(50_000))
    assert shell.ok("topic", "send", "orders", "--quiet", stdin=lines) == "50,000 messages sent\n"
    assert shell.json("topic", "show", "orders")["length"] == 50_000


def test_a_line_that_is_far_too_long_is_read_over(shell):
    shell.ok("topic", "create", "orders")
    lines = f'1\n"{"x" * 3_000_000}"\n2\n'
    done = shell("topic", "send", "orders", stdin=lines, PENSTOCK_CODEC_MAX_INFLATED="1000000")
    assert done.returncode == 1
    assert done.stdout.count("\n") == 2
    assert "penstock: line 2: longer than codec.max_inflated allows" in done.stderr


def test_lines_are_sent_while_more_are_to_come_and_a_lost_server_is_told(
    start_server, namespace, open_shell
):
    server = start_server()
    shell = open_shell(namespace, PENSTOCK_URL=server.url)
    shell.ok("topic", "create", "orders")
    with shell.begin("topic", "send", "orders", stdin=subprocess.PIPE) as process:
        process.stdin.write("1\n")
        process.stdin.flush()
        assert process.stdout.readline().strip()
        server.kill()
        process.stdin.write("2\n3\n")
        process.stdin.flush()
        _, complaint = process.communicate(timeout=60)
    assert process.returncode == 4
    assert complaint.startswith("penstock: line")
    assert complaint.endswith("1 message sent, 2 not; nothing after line 3 was tried\n")


# Following


@pytest.mark.parametrize("server", ["valkey_server", "cluster"])
def test_following_shows_what_comes_until_ctrl_c(request, server, namespace, open_shell):
    shell = open_shell(namespace, PENSTOCK_URL=request.getfixturevalue(server).url)
    shell.ok("topic", "create", "orders", "--partitions", "3")
    shell.ok("topic", "send", "orders", '"before"')
    with shell.begin("topic", "tail", "orders", "--from", "earliest") as process:
        assert process.stdout.readline().endswith('  "before"\n')
        shell.ok("topic", "send", "orders", '"after"', "--key", "k", "--header", "h=1")
        assert process.stdout.readline().endswith('  key=k  h=1  "after"\n')
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "".join(rest).strip() == ""
    assert shell.json("group", "list", "orders") == []


def test_following_ends_after_so_many_and_when_its_reader_leaves(shell):
    shell.ok("topic", "create", "orders")
    shell.ok("topic", "send", "orders", stdin="1\n2\n3\n")
    views = shell.objects("topic", "tail", "orders", "--from", "earliest", "--limit", "2")
    assert payloads(views) == ["1", "2"]
    after = ["--from", views[1]["id"]]
    assert payloads(shell.objects("topic", "tail", "orders", *after, "--limit", "1")) == ["3"]
    with shell.begin("topic", "tail", "orders", "--from", "earliest") as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=10) == 0
        assert process.stderr.read() == ""


def test_payloads_of_any_kind_can_be_looked_at(shell, valkey_server, namespace):
    shell.ok("topic", "create", "orders")
    shell.ok("topic", "send", "orders", "--text", stdin=b"\x1b]0;owned\x07\n\xff\x00\n")
    large = '"' + "x" * 100_000 + '"'
    shell.ok("topic", "send", "orders", stdin=large)
    with RespClient(valkey_server.address) as client:
        client.call(
            "XADD", PartitionKeys.of(KeySpace(namespace), "orders", 0).stream, "*", "other", "field"
        )
    follow = ["topic", "tail", "orders", "--from", "earliest", "--no-follow"]
    shown = shell.ok(*follow)
    assert not {"\x1b", "\x07", "\x00"} & set(shown)
    lines = shown.splitlines()
    assert lines[0].endswith(r"  \x1b]0;owned\x07")
    assert lines[1].endswith(r"  \xff\x00")
    assert lines[2].endswith("x… (97.7 KiB)")
    assert lines[3].endswith("  (no payload) other=field")
    views = shell.objects(*follow)
    assert base64.b64decode(views[1]["payload"]["base64"]) == b"\xff\x00"
    assert views[2]["payload"]["text"] == large
    assert views[0]["payload"]["text"] == "\x1b]0;owned\x07"


# Consuming


def test_consuming_prints_each_message_once(shell):
    shell.ok("topic", "create", "orders", "--partitions", "2")
    shell.ok("topic", "send", "orders", stdin="".join(f"{number}\n" for number in range(10)))
    consume = ["topic", "consume", "orders", "--group", "g"]
    first = shell.objects(*consume, "--limit", "4")
    assert {view["attempt"] for view in first} == {1}
    assert shell.json("group", "lag", "orders", "g")["members"] == []
    rest = shell.objects(*consume, "--limit", "6")
    assert sorted(map(int, payloads(first + rest))) == list(range(10))
    view = shell.json("group", "lag", "orders", "g")
    assert (view["lag"], view["pending"]) == (0, 0)


def test_ctrl_c_lets_the_command_under_way_finish(shell, tmp_path):
    shell.ok("topic", "create", "orders")
    shell.ok("topic", "send", "orders", '{"n":1}', "--key", "k")
    (tmp_path / "work.sh").write_text(
        'touch began; while [ ! -e go ]; do sleep 0.02; done; cat > "$MESSAGE_KEY.$MESSAGE_ATTEMPT"'
    )
    consume = ["topic", "consume", "orders", "--group", "g", "--exec", "sh work.sh"]
    with shell.begin(*consume, start_new_session=True) as process:
        wait_until((tmp_path / "began").exists, what="the command")
        os.killpg(process.pid, signal.SIGINT)
        (tmp_path / "go").touch()
        rest = process.communicate(timeout=60)
    assert (process.returncode, *rest) == (0, "", "")
    assert (tmp_path / "k.1").read_text() == '{"n":1}'
    assert shell.json("group", "lag", "orders", "g")["pending"] == 0


SHOW = """
import json, os, sys
def is_shown(name):
    return name.startswith("MESSAGE_") or "evil" in name + os.environ[name]
shown = {name: value for name, value in os.environ.items() if is_shown(name)}
json.dump([sys.argv[1:], sys.stdin.read(), shown], open("shown", "w"))
"""
HOSTILE = (
    "$(touch run)`touch run`;touch run|touch run&touch run\ntouch run\n'\"\\ -rf %s {0} \u009b*"
)


def test_what_a_message_says_is_no_command_and_no_variable_of_its_own(
    shell, tmp_path, in_code, valkey_server
):
    (tmp_path / "show.py").write_text(SHOW)
    headers = {
        HOSTILE: HOSTILE,
        "LD_PRELOAD": "evil.so",
        "evil=": "x",
        "PATH": "evil",
        "a\0b": "\0",
    }

    async def send(app):
        await app.topic("orders", type=str).send(HOSTILE, key=HOSTILE, headers=headers)

    shell.ok("topic", "create", "orders")
    in_code(valkey_server, send)
    consume = ["topic", "consume", "orders", "--group", "g", "--limit", "1"]
    shell.ok(*consume, "--exec", f"{sys.executable} show.py '$(touch run)' ;touch run")
    arguments, payload, environ = json.loads((tmp_path / "shown").read_text())
    assert arguments == ["$(touch run)", ";touch", "run"]
    assert payload == HOSTILE
    assert environ.pop("MESSAGE_KEY") == HOSTILE
    assert json.loads(environ.pop("MESSAGE_HEADERS")) == headers
    assert {*environ} == {f"MESSAGE_{name}" for name in ("TOPIC", "PARTITION", "ID", "ATTEMPT")}
    assert not (tmp_path / "run").exists()


def test_a_message_too_large_for_the_environment_of_a_command_holds_up_no_other(
    shell, tmp_path, in_code, valkey_server
):
    async def send(app):
        orders = app.topic("orders", type=str)
        await orders.send("large", headers={str(number): "x" * 8_000 for number in range(100)})
        await orders.send("small")

    shell.ok("topic", "create", "orders")
    in_code(valkey_server, send)
    consume = ["topic", "consume", "orders", "--group", "g", "--limit", "2", "--max-attempts", "1"]
    done = shell(*consume, "--exec", "sh -c 'cat > shown'")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    [letter] = shell.json("dlq", "list", "orders")["letters"]
    assert "Argument list too long" in letter["error_message"]
    assert (tmp_path / "shown").read_text() == "small"


def test_a_message_that_nobody_read_is_not_done(shell):
    shell.ok("topic", "create", "orders")
    shell.ok("topic", "send", "orders", "1")
    with shell.begin("topic", "consume", "orders", "--group", "g") as process:
        assert process.stdout.readline()
        process.stdout.close()
        shell.ok("topic", "send", "orders", "2")
        assert process.wait(timeout=20) == 0
    assert shell.json("group", "lag", "orders", "g")["pending"] == 1
    [again] = shell.objects("topic", "consume", "orders", "--group", "g", "--limit", "1")
    assert (again["payload"]["text"], again["attempt"]) == ("2", 2)


def test_a_command_that_fails_or_hangs_leads_to_the_dead_letters(shell):
    shell.ok("topic", "create", "orders")
    shell.ok("topic", "send", "orders", "1")
    consume = ["topic", "consume", "orders", "--group", "g", "--max-attempts", "2"]
    done = shell(*consume, "--limit", "2", "--exec", "sh -c 'exit 3'", "--json")
    ends = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(end["attempt"], end["exit_code"]) for end in ends] == [(1, 3), (2, 3)]
    [buried] = map(json.loads, done.stderr.splitlines())
    [letter] = shell.json("dlq", "list", "orders")["letters"]
    assert (buried["level"], buried["failure"]["letter"]) == ("error", letter["id"])
    assert (letter["reason"], letter["error_message"]) == ("exhausted", "sh ended with 3")
    shell.ok("topic", "send", "orders", "2")
    shell.ok(*consume[:5], "--max-attempts", "1", "--limit", "1")
    shell.ok("topic", "send", "orders", "3")
    hanging = ["--max-attempts", "1", "--limit", "1", "--timeout", "200ms", "--exec", "sleep 60"]
    assert shell("topic", "consume", "orders", "--group", "g", *hanging).returncode == 0
    assert len(shell.json("dlq", "list", "orders")["letters"]) == 2


def test_a_partition_that_is_something_else_is_one_line_and_no_traceback(
    shell, valkey_server, namespace
):
    shell.ok("topic", "create", "orders")
    with RespClient(valkey_server.address) as client:
        client.call("SET", PartitionKeys.of(KeySpace(namespace), "orders", 0).stream, "x")
    cases = [
        (["topic", "consume", "orders", "--group", "g"], "WRONGTYPE"),
        (["topic", "tail", "orders"], "WRONGTYPE"),
        (["topic", "show", "orders"], "WRONGTYPE"),
        (["topic", "send", "orders", "1"], "WRONGTYPE"),
        (["group", "list", "orders"], "WRONGTYPE"),
    ]
    assert all_refused(shell, 2, cases)


# Groups


def test_a_group_is_looked_at_moved_and_deleted(shell):
    shell.ok("topic", "create", "orders", "--partitions", "2")
    assert shell.ok("group", "list", "orders") == "topic orders has no groups\n"
    shell.ok("topic", "send", "orders", stdin="1\n2\n3\n4\n")
    done = shell("topic", "consume", "orders", "--group", "g", "--limit", "1", "--exec", "false")
    assert done.returncode == 0
    assert done.stderr.endswith(", attempt 1: false ended with 1\n")
    [view] = shell.json("group", "list", "orders")
    assert view["name"] == "g"
    for table in (["group", "list", "orders"], ["group", "lag", "orders", "g"]):
        assert max(map(len, shell.ok(*table).splitlines())) <= 80
    pending = shell.json("group", "pending", "orders", "g", "--limit", "1")
    assert pending["pending"][0]["attempts"] == 1
    assert "CommandFailed: false ended with 1" in shell.ok("group", "pending", "orders", "g")
    done = shell.ok("group", "reset", "orders", "g", "--to", "latest", "--yes")
    assert done == "group g of topic orders continues from its end\n"
    assert shell.ok("group", "pending", "orders", "g") == "nothing is pending\n"
    assert shell.json("group", "lag", "orders", "g")["lag"] == 0
    shell.ok("group", "reset", "orders", "g", "--to", "2020-01-01T00:00:00Z", "--yes")
    assert shell.json("group", "lag", "orders", "g")["lag"] == 4
    with shell.begin("topic", "consume", "orders", "--group", "g") as process:
        assert process.stdout.readline()
        done = shell("group", "delete", "orders", "g", "--yes")
        assert refused(done, 1, "living consumers")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    shell.ok("group", "delete", "orders", "g", "--yes")
    assert shell.json("group", "list", "orders") == []
    acts = shell.json("dlq", "audit", "orders")
    assert [act["what"] for act in acts] == ["delete group", "reset group", "reset group"]


# Dead letters


def test_dead_letters_are_looked_at_mended_replayed_and_thrown_away(shell):
    shell.ok("topic", "create", "orders")
    assert shell.ok("dlq", "list", "orders") == "no dead letters\n"
    shell.ok("topic", "send", "orders", stdin="1\n2\n3\n4\n")
    dying = ["--group", "g", "--max-attempts", "1", "--limit", "4", "--exec", "false"]
    assert shell("topic", "consume", "orders", *dying).returncode == 0
    letters = shell.json("dlq", "list", "orders")["letters"]
    ids = [letter["id"] for letter in letters]
    assert payloads(letters) == ["1", "2", "3", "4"]
    assert max(map(len, shell.ok("dlq", "list", "orders").splitlines())) <= 80
    page = shell.json("dlq", "list", "orders", "--newest", "--limit", "1", "--group", "g")
    assert [letter["id"] for letter in page["letters"]] == ids[-1:]
    assert page["cursor"] == ids[-1]
    assert shell.ok("dlq", "list", "orders", "--group", "other") == "no such dead letters\n"
    [kind] = shell.json("dlq", "groups", "orders")["kinds"]
    assert kind["count"] == 4
    assert max(map(len, shell.ok("dlq", "groups", "orders").splitlines())) <= 80
    shown = shell.ok("dlq", "show", "orders", ids[0])
    assert "  payload      1\n" in shown
    assert "CommandFailed: false ended with 1" in shown

    assert refused(shell("dlq", "edit", "orders", ids[0], "--payload", "x"), 1, "not JSON")
    mended = shell.json(
        *("dlq", "edit", "orders", ids[0], "--payload", "-", "--header", "by=ann"),
        stdin='{"mended":1}',
    )["id"]
    assert shell.json("dlq", "show", "orders", mended)["headers"] == {"by": "ann"}
    tried = shell.json("dlq", "replay", "orders", "--all", "--dry-run")
    assert (tried["matched"], tried["replayed"]) == (4, 0)
    done = shell("dlq", "replay", "orders", mended, "1-1")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == "1 dead letter sent\n1 not there (any more)\n"
    [again] = shell.objects("topic", "consume", "orders", "--group", "g", "--limit", "1")
    assert again["payload"]["text"] == '{"mended":1}'

    would = shell.ok("dlq", "purge", "orders", "--older-than", "0", "--dry-run")
    assert would == "3 dead letters would be deleted\n"
    assert shell.json("dlq", "purge", "orders", ids[1], "--yes")["purged"] == 1
    asked = shell.on_a_terminal("y\n", "dlq", "replay", "orders", "--all", "--limit", "1")
    assert asked.stdout == "1 dead letter sent\n"
    assert "Send 1 dead letter of orders again?" in asked.stderr
    assert shell.ok("dlq", "purge", "orders", "--all", "--yes") == "1 dead letter deleted\n"
    assert "replay" in shell.ok("dlq", "audit", "orders")
