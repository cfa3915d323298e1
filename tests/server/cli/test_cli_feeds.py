"""`penstock feed`, as a person or a script meets it."""

import json
import signal

import pytest
from tests.kit.shell import all_refused, refused


async def publish(app, *numbers, final=False):
    feed = app.feed("upload-abc")
    for number in numbers:
        await feed.publish(
            "progress",
            {"percent": number},
            state={"at": number},
            final=final and number == numbers[-1],
        )


def test_a_feed_is_shown_as_it_stands_and_from_any_event_on(shell, valkey_server, in_code):
    in_code(valkey_server, lambda app: publish(app, 10, 20, 30))
    [snapshot] = shell.objects("feed", "tail", "upload-abc", "--no-follow")
    assert (snapshot["number"], snapshot["data"]) == (3, {"at": 30})
    assert snapshot["is_snapshot"] is True
    events = shell.objects("feed", "tail", "upload-abc", "--after", "1", "--no-follow")
    assert [(event["number"], event["data"]) for event in events] == [
        (2, {"percent": 20}),
        (3, {"percent": 30}),
    ]
    shown = shell.ok("feed", "tail", "upload-abc", "--after", "2", "--no-follow")
    assert shown.endswith('  3  progress  {"percent":30}\n')
    assert shell.ok("feed", "tail", "upload-abc", "--no-follow") == '-  3  snapshot  {"at":30}\n'
    assert shell.ok("feed", "tail", "upload-abc", "--after", "3", "--no-follow") == ""


def test_a_feed_that_has_ended_is_not_followed_for_ever(shell, valkey_server, in_code):
    in_code(valkey_server, lambda app: publish(app, 10, 100, final=True))
    assert shell.ok("feed", "tail", "upload-abc") == '-  2  snapshot (final)  {"at":100}\n'
    events = shell.objects("feed", "tail", "upload-abc", "--after", "0")
    assert [event["final"] for event in events] == [False, True]


def test_events_are_shown_as_they_come_until_ctrl_c(shell, valkey_server, in_code):
    with shell.begin("feed", "tail", "upload-abc", "--json") as process:
        in_code(valkey_server, lambda app: publish(app, 10))
        assert json.loads(process.stdout.readline())["number"] == 1
        in_code(valkey_server, lambda app: publish(app, 20, 30))
        assert [json.loads(process.stdout.readline())["number"] for _ in range(2)] == [2, 3]
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert process.stderr.read().strip() == ""


def test_it_ends_with_the_final_event(shell, valkey_server, in_code):
    with shell.begin("feed", "tail", "upload-abc", "--after", "0") as process:
        in_code(valkey_server, lambda app: publish(app, 10, 100, final=True))
        assert process.wait(10) == 0
        assert (
            process.stdout.read()
            .splitlines()[-1]
            .endswith('  2  progress (final)  {"percent":100}')
        )


def test_it_ends_when_its_reader_leaves(shell, valkey_server, in_code):
    with shell.begin("feed", "tail", "upload-abc") as process:
        in_code(valkey_server, lambda app: publish(app, 10))
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(10) == 0


def test_the_events_of_a_run(shell, valkey_server, in_code):
    async def work(app):
        run = await app.runs.start("manual:2024-09-17T14:30")
        await run.move("running")
        await run.finish()

    in_code(valkey_server, work)
    events = shell.objects("feed", "tail", "--run", "manual:2024-09-17T14:30", "--after", "0")
    assert [event["number"] for event in events] == [1, 2, 3]
    assert events[-1]["final"] is True
    assert refused(shell("feed", "tail", "--run", "other"), 1, "there is no run 'other'")


@pytest.mark.parametrize("where", ["valkey_server", "cluster"])
def test_the_events_of_a_window(request, where, open_shell, in_code):
    server = request.getfixturevalue(where)
    shell = open_shell(PENSTOCK_URL=server.url)

    async def gather(app):
        batches = app.window("batch", to=app.queue("analysis_queue"))
        await batches.add("front_door", 17)
        await batches.close("front_door")
        topic = app.topic("batches", partitions=2)
        hourly = app.window("hourly", to=topic, max_age=3600, idle=3600)
        for key in "abcdefgh":
            await hourly.add(key, 1)

    in_code(server, gather)
    events = shell.objects("feed", "tail", "--window", "batch", "--after", "0", "--no-follow")
    assert [event["type"] for event in events] == ["open", "closed"]
    assert refused(
        shell("feed", "tail", "--window", "hourly"), 1, "has 2 feeds", "give the partition"
    )
    words = ("feed", "tail", "--window", "hourly", "--after", "0", "--no-follow", "--partition")
    both = [event["data"]["key"] for part in "01" for event in shell.objects(*words, part)]
    assert sorted(both) == list("abcdefgh")
    assert refused(shell(*words, "2"), 1, "has no partition 2")


def test_what_cannot_be_is_one_line_and_an_exit_code(shell):
    assert all_refused(
        shell,
        1,
        [
            (("feed", "tail", "other", "--no-follow"), "feed 'other' has no events"),
            (("feed", "tail", "--window", "other"), "there is no window 'other'"),
        ],
    )
    assert all_refused(
        shell,
        2,
        [
            (("feed", "tail"), "which feed?"),
            (("feed", "tail", "a", "--run", "b"), "which feed?"),
            (("feed", "tail", "a", "--partition", "1"), "--partition is for --window"),
            (("feed", "tail", "a", "--after", "-1"), "-1 is not in the range"),
        ],
    )
    assert refused(shell("feed", "tail", "a", PENSTOCK_URL="redis://127.0.0.1:1"), 4)
