"""Runs, slots, feeds, marks, cached values, limits and workers in use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from tests.kit.scripts import scripts_of

from penstock.coordination.cache.keys import CacheKeys
from penstock.coordination.feeds.keys import FeedKeys, FeedsKeys
from penstock.coordination.limits.keys import HourlyLimitKeys, LimitKeys, LimitsKeys
from penstock.coordination.once.keys import DedupeKeys
from penstock.coordination.runs.keys import RunKeys, RunsKeys
from penstock.coordination.slots.keys import SlotKeys, SlotsKeys
from penstock.errors import ServerError
from penstock.redis.client import Client
from penstock.redis.keys.probe import ProbeKeys
from penstock.redis.node import Role
from penstock.redis.prepared_call import SharedLink
from penstock.redis.wire import Argument
from penstock.runtime.keys import WorkersKeys

from .kit import Case, Engine

__all__ = ["COORDINATION", "RUNS"]

DAY_MS = 86_400_000
HOUR = "2024-09-17_14"


def case(call: Callable[[Client], Any]) -> Case:
    return Case(call)


# ---- runs


def a_run(client: Client, now: int) -> list[tuple[Argument, ...]]:
    k, runs = RunKeys.of(client.keys, "r"), RunsKeys.of(client.keys)
    return [
        ("ZADD", runs.registry, 1, "r", 1, "gone"),
        ("HSET", k.record, "status", "running", "version", 3, "kind", "x", "updated_ms", now),
        ("HSET", k.record, "checkpoint", '"CURSOR-1"', "watermark", "1"),
        ("XADD", k.events, "1-0", "type", "started", "data", '"EVENT-1"', "ms", now),
        ("HSET", k.feed, "seq", 1, "calls", 1, "call:old", 1, "called:1", "1 old"),
        ("SADD", k.processed, "ITEM-1", "ITEM-2"),
        ("ZADD", k.failures, 1, "ITEM-3", now + DAY_MS, "ITEM-4"),
        ("HSET", k.failure_info, "ITEM-3", '{"attempts":1,"last_ms":1}', "ITEM-4", "{}"),
        ("HSET", k.starts, "{}", now),
    ]


def of_run(script: str, /, **values: object) -> Case:
    return case(
        lambda client: getattr(scripts_of(client), script)(
            keys=RunKeys.of(client.keys, "r"), **values
        )
    )


def of_new_run(client: Client) -> Any:
    return scripts_of(client).start_run(
        keys=RunKeys.of(client.keys, "new"),
        token="t",
        run="new",
        kind="x",
        cap=9,
        id_field="dag_run_id",
        facts=("a", "b"),
    )


CALL: dict[str, object] = {"token": "t", "keep_ms": 1000, "cap": 9}

RUNS = Engine(
    a_run,
    {
        "register_run": [
            case(
                lambda client: scripts_of(client).register_run(
                    registry=RunsKeys.of(client.keys).registry, run="new", max_runs=9
                )
            )
        ],
        "forget_runs": [
            case(
                lambda client: scripts_of(client).forget_runs(
                    registry=RunsKeys.of(client.keys).registry, grace_ms=1, runs=["gone"]
                )
            )
        ],
        "remove_member": [
            case(
                lambda client: scripts_of(client).remove_member(
                    registry=RunsKeys.of(client.keys).registry, entry=b"gone", score=b"1"
                )
            )
        ],
        "remove_field": [
            case(
                lambda client: scripts_of(client).remove_field(
                    registry=LimitsKeys.of(client.keys).registry, entry=b"odd", value=b"{"
                )
            )
        ],
        "start_run": [case(of_new_run)],
        "change_run": [
            of_run(
                "change_run", **CALL, to=to, expect="", version="", reopen=False, facts=("a", "b")
            )
            for to in ("", "paused", "completed")
        ],
        "save_checkpoint": [
            of_run(
                "save_checkpoint",
                token="t",
                cursor=b'"CURSOR-2"',
                watermark=b"2",
                force=False,
                version="",
                cap=9,
                largest_shown=100,
            )
        ],
        "note_start": [
            case(
                lambda client: scripts_of(client).note_start(
                    keys=RunKeys.of(client.keys, "r"),
                    task_start=RunKeys.of(client.keys, "r").task_start("task"),
                    token="t",
                    task=b'["task",0]',
                    start=b'["task",0,1]',
                    keep_ms=1000,
                )
            )
        ],
        "mark_processed": [of_run("mark_processed", **CALL, ids=["ITEM-3", "ITEM-5"])],
        "fail_item": [
            case(
                lambda client: scripts_of(client).fail_item(
                    keys=RunKeys.of(client.keys, "r"),
                    failed=RunKeys.of(client.keys, "r").failed_prefix,
                    token="t",
                    item="ITEM-4",
                    error_type="E",
                    error="boom",
                    retry="",
                    base_ms=10,
                    max_ms=100,
                    api_calls=1,
                    keep_ms=1000,
                    cap=9,
                    failed_ms=1000,
                )
            )
        ],
        "resolve_failure": [of_run("resolve_failure", **CALL, item="ITEM-3")],
        "claim_failures": [of_run("claim_failures", token="claim", most=5, lease_ms=1000)],
        "look_at_failures": [of_run("look_at_failures", most=5, due_only=False, score="", item="")],
    },
)

# ---- slots, feeds, marks, cached values, limits, workers

SETTING = (0, 3, 60_000, 3)


def waiting(cost: int) -> bytes:
    """One caller in line, whose ticket outlives the test."""
    return msgspec.msgpack.encode((1, 5, 5, 1, cost, 500_000, 1_000_000, [cost], []))


def others(client: Client, now: int) -> list[tuple[Argument, ...]]:
    keys = client.keys
    slot, feed, mark, cache = (
        SlotKeys.of(keys, "s"),
        FeedKeys.of(keys, "f"),
        DedupeKeys.of(keys, "k"),
        CacheKeys.of(keys, "c", "k"),
    )
    return [
        ("ZADD", slot.holders, now + DAY_MS, "1:HOLDER-1", 1, "2:old"),
        ("ZADD", slot.waiting, 1, "dead", 2, "WAITER-1"),
        ("HSET", slot.tickets, "dead", 1, "WAITER-1", now + DAY_MS),
        ("HSET", slot.state, "fence", 5, "number", 2),
        ("HSET", SlotsKeys.of(keys).registry, "s", "{}"),
        ("XADD", feed.events, "1-0", "type", "x", "data", "EVENT-1", "ms", now),
        ("HSET", feed.state, "seq", 1, "state", "STATE-1", "state_seq", 1),
        ("ZADD", FeedsKeys.of(keys).registry, 1, "gone", now, "f"),
        ("SET", mark.mark, "MARK-1"),
        ("SET", mark.holder, "t"),
        ("SET", cache.value, "VALUE-1"),
        ("SET", cache.flight, "t"),
        ("ZADD", cache.sorted, 1, "MEMBER-1"),
        ("HSET", LimitsKeys.of(keys).registry, "l", "{}"),
        ("ZADD", WorkersKeys.of(keys).heartbeats, now, "w", 1, "old"),
        ("HSET", WorkersKeys.of(keys).info("w"), "about", "{}", "beat_ms", now),
    ]


async def with_limits(client: Client) -> None:
    """Permits that are taken, and a ticket in the line."""
    for _ in range(2):
        await ask(client)
    await ask(client, wanted=3, fewest=3, ticket="TICKET-1", waiting=waiting(3))
    await ask(client, "gcra", key="g")


def ask(client: Client, algorithm: str = "exact", key: str = "k", **values: Any) -> Any:
    told: dict[str, Any] = {
        "wanted": 1, "fewest": 1, "share": 1, "hold_ms": 0, "ticket": "", "priority": 0,
        "waiting": b"", "setting": SETTING, **values,
    }  # fmt: skip
    call = scripts_of(client).acquire_limit(
        link=SharedLink(client, role=Role.RATELIMIT),
        keys=LimitKeys.of(client.keys, "l", key),
        algorithm=algorithm,
        **told,
    )
    return call.send()


def of_limit(script: str, /, **values: object) -> Case:
    return case(
        lambda client: getattr(scripts_of(client), script)(
            keys=LimitKeys.of(client.keys, "l", "k"), algorithm="exact", setting=SETTING, **values
        )
    )


def of_slot(script: str, /, **values: object) -> Case:
    return case(
        lambda client: getattr(scripts_of(client), script)(
            keys=SlotKeys.of(client.keys, "s"), **values
        )
    )


def of_mark(script: str, /, **values: object) -> Case:
    def make(client: Client) -> Any:
        keys = DedupeKeys.of(client.keys, "k")
        return getattr(scripts_of(client), script)(mark=keys.mark, holder=keys.holder, **values)

    return case(make)


def of_value(script: str, /, **values: object) -> Case:
    def make(client: Client) -> Any:
        keys = CacheKeys.of(client.keys, "c", "k")
        return getattr(scripts_of(client), script)(value=keys.value, flight=keys.flight, **values)

    return case(make)


def of_flight(script: str, /, **values: object) -> Case:
    async def call(client: Client) -> object:
        keys = [CacheKeys.of(client.keys, "c", "k")]
        (reply,) = await getattr(scripts_of(client), script)(keys=keys, **values)
        if isinstance(reply, ServerError):
            raise reply
        return reply

    return case(call)


def of_feed(script: str, /, **values: object) -> Case:
    def make(client: Client) -> Any:
        keys = FeedKeys.of(client.keys, "f")
        return getattr(scripts_of(client), script)(events=keys.events, state=keys.state, **values)

    return case(make)


COORDINATION = Engine(
    others,
    {
        "take_slot": [
            of_slot(
                "take_slot",
                ticket="TICKET-1",
                limit=limit,
                ticket_ms=1000,
                again=again,
                keep_ms=1000,
                waiting=2,
                next_came="0",
                callers=[(token, 1000, "-5"), ("next", 1000, "-1")],
            )
            for token, limit, again in (
                *(("new", 9, False), ("new", 1, False), ("HOLDER-1", 1, True)),
                ("new", 10**9, False),
            )
        ],
        "renew_slot": [
            case(
                lambda client: scripts_of(client).renew_slot(
                    holders=SlotKeys.of(client.keys, "s").holders,
                    holder="1:HOLDER-1",
                    lease_ms=1000,
                )
            )
        ],
        "release_slot": [
            of_slot("release_slot", holder="1:HOLDER-1", token="HOLDER-1"),
            of_slot("release_slot", holder="", token="HOLDER-1"),
        ],
        "look_at_slots": [
            case(
                lambda client: scripts_of(client).look_at_slots(
                    holders=SlotKeys.of(client.keys, "s").holders,
                    tickets=SlotKeys.of(client.keys, "s").tickets,
                )
            )
        ],
        "note_slots": [
            case(
                lambda client: scripts_of(client).note_slots(
                    registry=SlotsKeys.of(client.keys).registry, name="s", declared=b'{"limit":1}'
                )
            )
        ],
        "publish_event": [
            of_feed(
                "publish_event",
                kind="x",
                data=b"EVENT-2",
                snapshot=b"STATE-2",
                final=final,
                cap=9,
                keep_ms=1000,
                event_id="e",
                channel="",
                copy=b"",
                may_make=True,
            )
            for final in (False, True)
        ],
        "look_at_feed": [of_feed("look_at_feed")],
        "note_feed": [
            case(
                lambda client: scripts_of(client).note_feed(
                    registry=FeedsKeys.of(client.keys).registry, feed="new", max_feeds=9
                )
            )
        ],
        "forget_feeds": [
            case(
                lambda client: scripts_of(client).forget_feeds(
                    registry=FeedsKeys.of(client.keys).registry, grace_ms=1, feeds=[b"gone"]
                )
            )
        ],
        "reserve_once": [
            of_mark("reserve_once", token=token, value="MARK-2", hold_ms=1000)
            for token in ("t", "other")
        ],
        "renew_once": [of_mark("renew_once", token="t", hold_ms=1000)],
        "commit_once": [
            of_mark(
                "commit_once",
                token="t",
                value="MARK-2",
                ttl_ms=1000,
                remember_ms=1000,
                regardless=regardless,
            )
            for regardless in (False, True)
        ],
        "release_once": [of_mark("release_once", token="t")],
        "forget_once": [of_mark("forget_once")],
        "take_flight": [
            of_flight("take_flight", token="t", flight_ms=1000, useless=[useless])
            for useless in ("", "VALUE-1")
        ],
        "renew_flight": [of_flight("renew_flight", token="t", flight_ms=1000)],
        "land_flight": [of_flight("land_flight", token="t", data=["VALUE-2"], ttl_ms=1000)],
        "set_cached": [of_value("set_cached", data="VALUE-2", ttl_ms=1000, nx=nx) for nx in (0, 1)],
        "add_sorted": [
            case(
                lambda client: scripts_of(client).add_sorted(
                    sorted_set=CacheKeys.of(client.keys, "c", "k").sorted,
                    ttl_ms=1000,
                    pairs=(2, "MEMBER-2"),
                )
            )
        ],
        "count_hour": [
            case(
                lambda client: scripts_of(client).count_hour(
                    counters=HourlyLimitKeys.of(client.keys).prefix,
                    calls=1,
                    limit=10,
                    buffer=0,
                    keep_ms=1000,
                )
            )
        ],
        "probe": [
            case(
                lambda client: scripts_of(client).probe(
                    probe=ProbeKeys.of(client.keys).value, token="t", ttl_ms=1000
                )
            )
        ],
        "beat_worker": [
            case(
                lambda client: scripts_of(client).beat_worker(
                    workers=WorkersKeys.of(client.keys).heartbeats,
                    worker=WorkersKeys.of(client.keys).info("w"),
                    worker_id="w",
                    about=b"{}",
                    ttl_ms=1000,
                )
            )
        ],
        "remove_worker": [
            case(
                lambda client: scripts_of(client).remove_worker(
                    workers=WorkersKeys.of(client.keys).heartbeats,
                    worker=WorkersKeys.of(client.keys).info("w"),
                    worker_id="w",
                )
            )
        ],
        "acquire_limit": [
            case(ask),
            case(lambda client: ask(client, "gcra", key="g")),
            case(lambda client: ask(client, "compact", key="c", setting=(4, 3, 60_000, 3))),
            case(lambda client: ask(client, ticket="TICKET-2", waiting=waiting(1))),
        ],
        "settle_limit": [of_limit("settle_limit", permits=("1", 1, 0, 1), as_of_now=False)],
        "penalise_limit": [of_limit("penalise_limit", penalty_ms=1000)],
        "reconcile_limit": [of_limit("reconcile_limit", counted=b"[[2,1000]]")],
        "leave_limit": [
            case(
                lambda client: scripts_of(client).leave_limit(
                    keys=LimitKeys.of(client.keys, "l", "k"), ticket="TICKET-1"
                )
            )
        ],
        "declare_limit": [
            case(
                lambda client: scripts_of(client).declare_limit(
                    registry=LimitsKeys.of(client.keys).registry, name="l", text=b'{"a":1}'
                )
            )
        ],
    },
    with_limits,
)
