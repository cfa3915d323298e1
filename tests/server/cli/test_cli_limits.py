"""`penstock limit`, as a person or a script meets it."""

import asyncio
from datetime import UTC, datetime

import pytest
from tests.kit.shell import all_refused, refused

from penstock.coordination.limits.penalty import obey


async def use(app, times=1, key="all"):
    limit = app.limit("api", ["5/min", "50/hour"])
    return [(await limit.try_acquire(key=key)).allowed for _ in range(times)]


def test_limits_are_listed_and_shown_with_what_is_left(shell, valkey_server, in_code):
    assert shell.ok("limit", "show") == "no limits\n"
    assert shell.json("limit", "show") == []
    in_code(valkey_server, lambda app: use(app, 2))
    [line] = shell.json("limit", "show")
    assert line == {
        "name": "api",
        "rates": ["5/min", "50/hour"],
        "algorithm": "exact",
        "burst": None,
        "buffer": 0.0,
        "margin_s": 0.0,
        "edited": False,
    }
    assert shell.ok("limit", "show").splitlines()[1].split() == (
        ["5/min", "50/hour", "exact", "code", "api"]
    )
    view = shell.json("limit", "show", "api")
    assert [window["remaining"] for window in view["windows"]] == [3, 48]
    assert [window["limit"] for window in view["windows"]] == [5, 50]
    assert 0 < view["windows"][0]["reset_s"] <= 60
    assert (view["key"], view["penalty_s"], view["waiting"]) == ("all", 0.0, 0)
    shown = shell.ok("limit", "show", "api").splitlines()
    assert shown[0] == "api: 5/min, 50/hour"
    assert "  penalty    none" in shown
    assert shown[-2].split()[:2] == ["3", "5"]
    other = shell.json("limit", "show", "api", "--key", "10.0.0.7")
    assert [window["remaining"] for window in other["windows"]] == [5, 50]


def test_the_answer_that_asked_for_a_penalty_is_shown(shell, valkey_server, in_code):
    async def stop(app):
        await use(app)
        limit = app.limit("api", ["5/min", "50/hour"])
        await obey(limit, 86_400.0, host="api.example", status=429)
        await obey(limit, 5.0, host="other.example", status=503)

    in_code(valkey_server, stop)
    view = shell.json("limit", "show", "api")
    assert view["penalty_for"] == {"host": "api.example", "status": 429, "asked_s": 86_400.0}
    assert 3_500 < view["penalty_s"] <= 3_600
    assert "api.example answered 429 and asked for 1.0 d" in shell.ok("limit", "show", "api")

    async def by_hand(app):  # as an older version would, which leaves the note
        await app.limit("api", ["5/min", "50/hour"]).penalise(7_200)

    in_code(valkey_server, by_hand)
    assert shell.json("limit", "show", "api")["penalty_for"] is None


def test_a_penalty_and_those_who_wait_are_shown(shell, valkey_server, in_code):
    async def stop(app):
        await use(app)
        await app.limit("api", ["5/min", "50/hour"]).penalise(300)

    in_code(valkey_server, stop)
    assert 290 < shell.json("limit", "show", "api")["penalty_s"] <= 300
    assert "more" in shell.ok("limit", "show", "api")

    view = shell.json("limit", "show", "api")
    assert view["penalty_for"] is None
    ends = datetime.fromisoformat(view["penalty_until"])
    assert 280 < (ends - datetime.now(UTC)).total_seconds() <= 301

    async def look_while_waiting(app):
        limit = app.limit("api", ["5/min", "50/hour"])
        waiting = asyncio.create_task(limit.acquire())
        try:
            while True:
                view = await asyncio.to_thread(shell.json, "limit", "show", "api")
                if view["waiting"]:
                    return view["waiting"]
        finally:
            waiting.cancel()

    assert in_code(valkey_server, look_while_waiting) == 1


def test_an_edit_holds_for_everybody_until_it_is_released(shell, valkey_server, in_code):
    in_code(valkey_server, use)
    assert shell.ok("limit", "set", "api", "100/hour", "20/min", "--buffer", "2") == (
        "limit api is 20/min, 100/hour (exact, 2 never used) for all processes\n"
    )
    assert in_code(valkey_server, lambda app: use(app, 18)) == [True] * 17 + [False]
    [line] = shell.json("limit", "show")
    assert (line["rates"], line["buffer"], line["edited"]) == (["20/min", "100/hour"], 2.0, True)
    assert "an edit" in shell.ok("limit", "show")
    # What is not said stays as it is.
    assert shell.json("limit", "set", "api", "30/min", "--margin", "2s")["buffer"] == 2.0
    assert "(exact, 2 never used, margin 2.0 s)" in shell.ok("limit", "set", "api", "30/min")
    told = shell.json("limit", "set", "api", "30/min", "--algorithm", "gcra", "--burst", "3")
    assert (told["algorithm"], told["burst"]) == ("gcra", 3)
    assert shell.json("limit", "set", "api", "40/min")["burst"] == 3
    assert shell.json("limit", "set", "api", "40/min", "--algorithm", "exact")["burst"] is None

    assert shell.ok("limit", "set", "api", "--release") == (
        "limit api is set by code again, with its next use\n"
    )
    in_code(valkey_server, use)
    assert shell.json("limit", "show")[0]["rates"] == ["5/min", "50/hour"]
    assert shell.ok("limit", "set", "api", "--release") == "limit api was set by code\n"
    assert shell.json("limit", "set", "api", "--release")["released"] is False


def test_a_limit_can_be_set_before_anybody_uses_it(shell, valkey_server, in_code):
    assert shell.ok("limit", "set", "api", "1/hour") == (
        "limit api is 1/hour (exact) for all processes; not used yet\n"
    )
    assert in_code(valkey_server, lambda app: use(app, 2)) == [True, False]


def test_a_reset_forgets_what_was_counted(shell, valkey_server, in_code):
    async def spend(app):
        await use(app, 5)
        await use(app, 5, key="10.0.0.7")
        await app.limit("api", ["5/min", "50/hour"]).penalise(300)

    in_code(valkey_server, spend)
    assert shell.ok("limit", "reset", "api") == "limit api is reset\n"
    view = shell.json("limit", "show", "api")
    assert [window["remaining"] for window in view["windows"]] == [5, 50]
    assert view["penalty_s"] == 0
    other = shell.json("limit", "show", "api", "--key", "10.0.0.7")
    assert other["windows"][0]["remaining"] == 0
    done = shell.json("limit", "reset", "api", "--key", "10.0.0.7")
    assert done == {"name": "api", "key": "10.0.0.7", "reset": True}


@pytest.mark.parametrize("algorithm", ["exact", "compact", "gcra"])
def test_a_released_limit_is_reset_before_its_next_use(shell, valkey_server, in_code, algorithm):
    shell.ok("limit", "set", "api", "2/hour", "--algorithm", algorithm)
    shell.ok("limit", "test", "api", "--count", "2", "--use")
    shell.ok("limit", "set", "api", "--release")
    assert shell.ok("limit", "reset", "api") == "limit api is reset\n"
    assert refused(shell("limit", "reset", "api"), 1)
    assert in_code(valkey_server, lambda app: use(app, 6)) == [True] * 5 + [False]


@pytest.mark.parametrize("algorithm", ["exact", "compact", "gcra"])
def test_a_try_gives_back_what_it_took(shell, algorithm):
    shell.ok("limit", "set", "api", "4/hour", "--algorithm", algorithm)
    left = shell.json("limit", "show", "api")["windows"][0]["remaining"]
    answers = shell.json("limit", "test", "api", "--count", str(left + 1))
    assert [answer["allowed"] for answer in answers] == [True] * left + [False]
    assert [answer["remaining"] for answer in answers] == [*range(left - 1, -1, -1), 0]
    assert (answers[-1]["reason"], answers[-1]["granted"]) == ("limit", 0)
    assert 0 < answers[-1]["retry_after_s"] <= 3700
    assert shell.json("limit", "show", "api")["windows"][0]["remaining"] == left
    shown = shell.ok("limit", "test", "api", "--cost", str(left)).splitlines()
    assert shown[1].split() == ["1", "allowed", "0"]
    assert shown[-1] == f"{left} permit{'' if left == 1 else 's'} given back"


def test_what_a_try_uses_stays_used(shell):
    shell.ok("limit", "set", "api", "4/hour")
    shown = shell.ok("limit", "test", "api", "--count", "2", "--cost", "3", "--use")
    assert "refused" in shown
    assert "the limit is reached; again in" in shown
    assert shown.endswith("3 permits used\n")
    assert shell.json("limit", "show", "api")["windows"][0]["remaining"] == 1
    [answer] = shell.json("limit", "test", "api", "--cost", "5")
    assert answer["retry_after_s"] is None
    assert "the cost is above the limit" in shell.ok("limit", "test", "api", "--cost", "5")
    assert shell.ok("limit", "test", "api", "--key", "10.0.0.7").endswith(
        "1 permit given back for 10.0.0.7\n"
    )


def test_what_cannot_be_is_one_line_and_an_exit_code(shell):
    shell.ok("limit", "set", "api", "4/hour")
    missing = "there is no limit 'other'"
    assert all_refused(
        shell,
        1,
        [
            (("limit", "show", "other"), missing),
            (("limit", "reset", "other"), missing),
            (("limit", "test", "other"), missing),
            (("limit", "set", "other", "--release"), missing),
            (("limit", "set", "a b", "1/s"), "limit name 'a b'"),
        ],
    )
    assert all_refused(
        shell,
        2,
        [
            (("limit", "show", "--key", "a"), "--key needs the name of a limit"),
            (("limit", "set", "api"), "which rates?"),
            (("limit", "set", "api", "often"), "'often': expected like '5/min'"),
            (("limit", "set", "api", "5/min", "6/min"), "each period once"),
            (("limit", "set", "api", "5/min", "--burst", "2"), "for gcra alone"),
            (("limit", "set", "api", "5/min", "--buffer", "5"), "less than the smallest limit"),
            (("limit", "set", "api", "5/min", "--release"), "--release takes nothing else"),
            (("limit", "test", "api", "--count", "0"), "0 is not in the range"),
        ],
    )
    assert refused(shell("limit", "show", PENSTOCK_URL="redis://127.0.0.1:1"), 4)


def test_limits_of_a_cluster(cluster, open_shell):
    shell = open_shell(PENSTOCK_URL=cluster.url)
    shell.ok("limit", "set", "api", "4/hour")
    shell.ok("limit", "test", "api", "--use")
    assert shell.json("limit", "show", "api")["windows"][0]["remaining"] == 3
    shell.ok("limit", "reset", "api")
    assert shell.json("limit", "show", "api")["windows"][0]["remaining"] == 4
    assert shell.json("limit", "set", "api", "--release")["released"] is True
