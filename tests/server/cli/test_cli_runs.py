"""`penstock run`, as a person or a script meets it."""

import json

import pytest
from tests.kit.shell import refused

from penstock.coordination.runs.keys import RunsKeys
from penstock.coordination.runs.runs import Runs
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.codec.escaping import escaped
from penstock.settings import Settings

RUN = "manual_2024-09-17T14:30:00+00:00"


@pytest.fixture
def shell(place, open_shell):
    return open_shell(PENSTOCK_URL=place.url)


@pytest.fixture
async def runs(place, namespace):
    async with Client(Settings(url=place.url, namespace=namespace)) as client:
        yield Runs(client, Codec(client.settings.codec))


async def test_without_any_run_there_is_nothing_to_see(shell, runs):
    assert shell.ok("run", "list") == "no runs\n"
    assert shell.ok("run", "list", "--status", "failed") == "no such runs\n"
    assert shell.json("run", "list") == []
    assert refused(shell("run", "show", "nobody"), 1, "no run 'nobody'")
    assert refused(shell("run", "list", "--before", "nobody"), 1, "no run 'nobody'")
    assert refused(shell("run", "show", ""), 1, "is empty")
    assert refused(shell("run", "list", "--status", "asleep"), 2, "asleep")


async def test_runs_are_listed_by_status_and_in_pages(shell, runs):
    for number in range(4):
        run = await runs.start(f"run:{number}", kind="nightly")
        await run.client.call("ZADD", RunsKeys.of(run.client.keys).registry, number, run.id)
        await run.mark_processed(*range(number * 1_000))
        if number % 2:
            await run.finish("failed")
    lines = shell.ok("run", "list").splitlines()
    assert lines[0].split() == ["STATUS", "PROCESSED", "FAILED", "STARTED", "KIND", "ID"]
    assert [line.split()[-1] for line in lines[1:]] == ["run:3", "run:2", "run:1", "run:0"]
    assert lines[1].split()[:3] == ["failed", "3,000", "0"]
    assert [one["id"] for one in shell.json("run", "list", "--status", "failed")] == [
        "run:3",
        "run:1",
    ]
    page = shell.ok("run", "list", "--limit", "3")
    assert page.splitlines()[-1] == "more: --before run:1"
    assert [one["id"] for one in shell.json("run", "list", "--before", "run:1")] == ["run:0"]


async def test_a_run_is_shown_with_all_that_matters(shell, runs):
    run = await runs.start(RUN, facts={"court": "scotus"})
    await run.move("running")
    await run.note_task_start("fetch_dockets")
    await run.note_task_start("process", map_index=3, attempt=2)
    await run.mark_processed("12345", "12347")
    await run.fail("12346", TimeoutError("no\nanswer"), retry_in_s=97_200, api_calls=3)
    await run.fail("12346", TimeoutError("no\nanswer"), retry_in_s=97_200, api_calls=4)
    await run.fail("12348", "late", retry_in_s=0)
    await run.fail("12399", LookupError("x" * 500), final=True)
    await run.checkpoint({"page": 7}, watermark="2024-09-17T14:00:00Z")
    text = shell.ok("run", "show", RUN)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == f"run {RUN}: running"
    for line in (
        "kind harvest",
        "version 3",
        "processed 2 items",
        "failed 3 open failures",
        'checkpoint {"page":7}',
        "watermark 2024-09-17T14:00:00Z",
        "facts court=scotus",
        "1 0 now 12348 late",
    ):
        assert line in lines
    assert any(line.startswith("2 7 in 1.1 d 12346 TimeoutError: no") for line in lines)
    assert any(line.startswith("1 0 never 12399 LookupError: xxx") for line in lines)
    assert any(line.endswith("1 fetch_dockets") for line in lines)
    assert any(line.endswith("2 process[3]") for line in lines)
    assert 'checkpoint {"version":3,"cursor":{"page":7}' in lines[-1]
    assert max(map(len, lines)) < 160


async def test_the_end_of_a_run_is_shown(shell, runs):
    run = await runs.start("r")
    await run.finish("cancelled")
    text = shell.ok("run", "show", "r")
    assert text.startswith("run r: cancelled\n")
    assert "  ended       20" in text
    assert "  kept until  20" in text
    assert "ATTEMPT" not in text


async def test_a_program_gets_everything_as_json(shell, runs):
    run = await runs.start(RUN)
    for number in range(5):
        await run.fail(number, "no", retry_in_s=number)
    await run.note_task_start("load")
    view = shell.json("run", "show", RUN, "--failures", "2", "--events", "3")
    record = json.loads(json.dumps(view["run"]))
    assert (record["id"], record["status"], record["failures"]) == (RUN, "created", 5)
    assert [one["item"] for one in view["failures"]] == ["0", "1"]
    assert [one["number"] for one in view["events"]] == [4, 5, 6]
    assert [(one["task"], one["attempt"]) for one in view["starts"]] == [("load", 1)]
    assert view["at_ms"] > record["started_ms"] - 1_000
    text = shell.ok("run", "show", RUN, "--failures", "2")
    assert "and 3 failures more" in text


async def test_failures_are_paged_and_settled_whatever_the_bytes_of_their_items(shell, runs):
    run = await runs.start("r")
    items = [b"a b", b"\xff\xfe", b"\xff", b"back\\slash", "é".encode(), b"\x1b[31m\n", b"\\xff"]
    for item in items:
        await run.client.call("ZADD", run.keys.failures, 5, item)
    seen, page = [], shell.json("run", "failures", "r", "--limit", "2")
    while True:
        seen += [one["item"] for one in page["failures"]]
        if page["cursor"] is None:
            break
        page = shell.json("run", "failures", "r", "--limit", "2", "--after", page["cursor"])
    assert len(seen) == len(items)
    text = shell.ok("run", "failures", "r", "--limit", "6")
    assert text.splitlines()[-1].startswith("more: --after '5 ")
    assert "\x1b" not in text
    for item in items:
        shown = escaped(item)
        assert f"the failure of {shown} is settled" in shell.ok("run", "resolve", "r", shown)
    assert shell.ok("run", "failures", "r") == "no open failures\n"
    assert refused(shell("run", "resolve", "r", "a b"), 1, "no open failure of a b")
    assert refused(shell("run", "resolve", "r", "\\q"), 2, "expected \\xHH")
    assert refused(shell("run", "failures", "nobody"), 1, "no run 'nobody'")
    assert refused(shell("run", "failures", "r", "--after", "x"), 1, "that of an earlier page")
