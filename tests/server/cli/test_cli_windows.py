"""`penstock window`, as a person or a script meets it."""

import json

import pytest
from tests.kit.shell import all_refused, refused

from penstock.coordination.windows.keys import WindowIndexKeys, WindowKeys
from penstock.topics import JavaHash


async def gather(app, *keys, max_size=None, idle=60):
    queue = app.queue("analysis_queue", max_size=max_size)
    batches = app.window("batch", to=queue, max_age=90, idle=idle)
    return [(await batches.add(key, 17)).batch_id for key in keys]


def test_open_batches_are_listed_with_their_sizes_and_times(shell, valkey_server, in_code):
    assert shell.ok("window", "list") == "no windows\n"
    assert shell.json("window", "list") == []
    first, _, second = in_code(
        valkey_server, lambda app: gather(app, "front_door", "front_door", "garden\x1b[2J")
    )
    [view] = shell.json("window", "list")
    assert (view["name"], view["kind"], view["target"]) == ("batch", "queue", "analysis_queue")
    assert (view["max_age_ms"], view["idle_ms"], view["max_items"]) == (90_000, 60_000, 500)
    assert (view["open"], view["is_missing"]) == (2, False)
    front, garden = sorted(view["batches"], key=lambda batch: batch["key"])
    assert (front["batch_id"], front["key"], front["count"]) == (first, "front_door", 2)
    assert 4 <= front["bytes"] < 10
    assert garden["batch_id"] == second
    assert 0 <= front["age_ms"] < 60_000
    assert front["due_ms"] - front["last_ms"] == 60_000
    assert 0 < front["due_in_ms"] <= 60_000
    shown = shell.ok("window", "list", "--limit", "1")
    assert shown.splitlines()[:3] == [
        "batch: into queue analysis_queue",
        "  closes   after 1.5 min, 1.0 min idle, 500 items or 256.0 KiB",
        "  open     2 batches",
    ]
    assert first in shown
    assert shown.endswith("  and 1 more\n")
    assert "\x1b" not in shell.ok("window", "list")


def test_a_batch_that_nobody_closes_is_late(shell, valkey_server, in_code):
    in_code(valkey_server, lambda app: gather(app, "front_door", idle=0.001))
    assert shell.json("window", "list")[0]["batches"][0]["due_in_ms"] <= 0
    assert " late " in shell.ok("window", "list")


def test_a_batch_is_closed_by_its_key(shell, valkey_server, in_code):
    first, _ = in_code(valkey_server, lambda app: gather(app, "front_door", "garden"))
    assert shell.ok("window", "close", "batch", "front_door") == f"{first}\n"
    [job] = shell.json("queue", "peek", "analysis_queue")
    assert first in job["payload"]["text"]
    assert '"reason":"asked"' in job["payload"]["text"]
    done = shell("window", "close", "batch", "front_door")
    assert refused(done, 1, "window batch has no open batch of front_door")
    told = shell.json("window", "close", "batch", "garden")
    assert (told["window"], len(told["closed"])) == ("batch", 1)
    assert shell.json("window", "list")[0]["batches"] == []


def test_all_batches_are_closed(shell, valkey_server, in_code):
    ids = in_code(valkey_server, lambda app: gather(app, *map(str, range(30))))
    *closed, words = shell.ok("window", "close", "batch", "--all").splitlines()
    assert sorted(closed) == sorted(ids)
    assert words == "30 closed"
    assert shell.json("window", "close", "batch", "--all") == {
        "window": "batch",
        "closed": [],
        "refused": [],
    }
    assert shell.json("queue", "status", "analysis_queue")["queue_length"] == 30


def test_what_a_full_queue_does_not_take_stays_open(shell, valkey_server, in_code):
    in_code(valkey_server, lambda app: gather(app, "a", "b", "c", max_size=2))
    done = shell("window", "close", "batch", "--all")
    assert done.returncode == 1
    assert done.stdout.endswith("2 closed\n")
    assert "analysis_queue" in done.stderr
    assert shell.json("window", "list")[0]["open"] == 1
    [left] = shell.json("window", "list")[0]["batches"]
    assert refused(shell("window", "close", "batch", left["key"]), 1, "analysis_queue")
    assert shell.json("window", "list")[0]["open"] == 1


@pytest.mark.usefixtures("leaves_foreign_keys")
def test_batches_that_cannot_be_closed_are_named_and_the_rest_is_closed(
    shell, valkey_server, in_code
):
    async def spoil(app):
        ids = await gather(app, "a", "broken", "z")
        place = WindowKeys.of(app.redis.keys, "analysis_queue", "broken")
        await app.redis.call("UNLINK", place.current)
        await app.redis.call("RPUSH", place.current, "foreign")
        due = WindowIndexKeys.of(app.redis.keys, "analysis_queue", "batch").due
        await app.redis.call("ZADD", due, 5, "broken")
        return ids

    ids = in_code(valkey_server, spoil)
    done = shell("window", "close", "batch", "--all", "--json")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert sorted(told["closed"]) == sorted([ids[0], ids[2]])
    assert [one["key"] for one in told["refused"]] == ["broken"]
    assert "WRONGTYPE" in told["refused"][0]["problem"]
    assert "not closed: broken: " in done.stderr
    again = shell("window", "close", "batch", "--all")
    assert (again.returncode, again.stdout) == (1, "0 closed\n")
    assert "1 could not be closed" in again.stderr


async def gather_for_topic(app):
    # How the topic places keys is known to this program alone.
    topic = app.topic("batches", partitions=2, partitioner=JavaHash())
    window = app.window("hourly", to=topic, max_age=3600, idle=3600)
    return [(await window.add(key, {"n": 1})).batch_id for key in ("a", "b", "c")]


@pytest.mark.parametrize("where", ["valkey_server", "cluster"])
def test_windows_that_close_into_topics(request, where, open_shell, in_code):
    server = request.getfixturevalue(where)
    shell = open_shell(PENSTOCK_URL=server.url)
    ids = in_code(server, gather_for_topic)
    [view] = shell.json("window", "list")
    assert (view["kind"], view["target"], view["open"]) == ("topic", "batches", 3)
    assert shell.ok("window", "close", "hourly", "a") == f"{ids[0]}\n"
    assert sorted(shell.json("window", "close", "hourly", "--all")["closed"]) == sorted(ids[1:])
    messages = shell.objects("topic", "tail", "batches", "--from", "earliest", "--no-follow")
    assert len(messages) == 3


def test_a_topic_that_was_deleted_is_not_made_again_by_looking(shell, valkey_server, in_code):
    in_code(valkey_server, gather_for_topic)
    shell.ok("topic", "delete", "batches", "--yes")
    [view] = shell.json("window", "list")
    assert (view["is_missing"], view["open"]) == (True, 0)
    assert "its topic is gone" in shell.ok("window", "list")
    assert refused(shell("window", "close", "hourly", "a"), 1, "no open batch")
    assert shell.json("topic", "list") == []


def test_what_cannot_be_is_one_line_and_an_exit_code(shell, valkey_server, in_code):
    in_code(valkey_server, lambda app: gather(app, "a"))
    assert all_refused(
        shell,
        1,
        [
            (("window", "close", "other", "a"), "there is no window 'other'"),
            (("window", "close", "other", "--all"), "there is no window 'other'"),
        ],
    )
    assert all_refused(
        shell,
        2,
        [
            (("window", "close", "batch"), "which batch?"),
            (("window", "close", "batch", "a", "--all"), "which batch?"),
            (("window", "list", "--limit", "0"), "0 is not in the range"),
        ],
    )
    assert refused(shell("window", "list", PENSTOCK_URL="redis://127.0.0.1:1"), 4)
