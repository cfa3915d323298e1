"""A queue in use: lanes, claims of a live and a dead worker, delayed jobs, letters, schedules."""

from __future__ import annotations

from functools import partial

from tests.kit.scripts import scripts_of

from penstock.errors import ServerError
from penstock.queues.storage.keys import QueueKeyring, QueuesKeys
from penstock.redis.client import Client
from penstock.redis.wire import Argument

from .kit import Case, Engine

__all__ = ["QUEUES"]

DAY_MS = 86_400_000
STATES = (
    *("submitted", "queued", "processing", "retrying", "done", "failed", "cancelled", "expired"),
)
ROOM: dict[str, object] = {
    "side": "right", "policy": "reject", "max_size": 0, "max_bytes": 0, "max_overflow": 100,
    "max_lanes": 0,
}  # fmt: skip
FULL: dict[str, object] = {**ROOM, "max_size": 3}


def ring(client: Client) -> QueueKeyring:
    return QueueKeyring.of(client.keys, "q")


def job(number: int) -> str:
    """A job with a record and a unique key."""
    return (
        f'{{"task":"t","id":"j{number}","_penstock":{{"unique":"u{number}"}},"x":"JOB-{number}"}}'
    )


def populate(client: Client, now: int) -> list[tuple[Argument, ...]]:
    k = ring(client)
    done: list[tuple[Argument, ...]] = [
        ("RPUSH", k.waiting, job(1), job(2), job(3)),
        ("RPUSH", k.list_of("high"), job(4)),
        ("RPUSH", k.list_of("low"), job(5)),
        ("RPUSH", k.list_of("normal"), job(6)),
        ("RPUSH", k.list_of("a"), job(7), job(8)),
        ("RPUSH", k.list_of("b"), job(9)),
        ("RPUSH", k.ring, "a"),
        ("ZADD", k.parked, 1, "b"),
        ("HSET", k.weights, "a", 2),
        ("HSET", k.state, "side", "right", "lanes", 1, "bytes", 900, "lane_limit", 5, "limit", 50),
        ("HSET", k.state, "levels", "6,3,1", "cron:s", "every", "cron_seen:s", 1, "credit", 0),
        ("HSET", k.state, "tender", "p", "tended_until", now + DAY_MS),
        ("HSET", k.counters, "added", 20, "dead", 2),
        ("ZADD", k.delayed, 1, "j10", now + DAY_MS, "j11"),
        ("HSET", k.delayed_bodies, "j10", "ba\n" + job(10), "j11", "b\n" + job(11)),
        ("ZADD", k.aside, 1, "j10", now + DAY_MS, "j11"),
        ("ZADD", k.workers, now + DAY_MS, "w"),
        ("ZADD", k.dead_workers, now, "z"),
        ("HSET", k.suspects, "w", "z", "!z", 1, "?w", "2:a", "?z", "1"),
        ("HSET", k.claimed("w"), "1", job(12), "2:a", job(13), "3", job(14)),
        ("HSET", k.claimed("z"), "1", job(15), "2:a", job(16)),
        ("SADD", f"{k.runnings}a", "w 2:a", "z 2:a"),
        ("SADD", k.cancelled, "j2"),
        ("RPUSH", k.overflow, job(17)),
        ("RPUSH", k.dead_letters, job(18), job(19), job(20)),
        ("XADD", k.audit, "*", "who", "me", "what", "pause", "count", 1, "detail", ""),
        ("ZADD", k.schedule, 1000, "s"),
        ("SADD", k.lanes, "a", "b"),
        ("SADD", QueuesKeys.of(client.keys).registry, "q"),
    ]
    done += [("ZADD", k.jobs(state), now, f"of-{state}") for state in STATES]
    for number in range(1, 21):
        state = "processing" if 12 <= number <= 16 else "failed" if number >= 18 else "queued"
        state = {10: "retrying", 11: "submitted"}.get(number, state)
        done += [
            ("HSET", k.record(f"j{number}"), "status", state, "job_id", f"j{number}"),
            ("ZADD", k.jobs(state), now, f"j{number}"),
            ("SET", k.unique(f"u{number}"), f"j{number}", "PX", DAY_MS),
        ]
    return done


async def submit(client: Client, *, options: str = "", said: str = "", **values: object) -> None:
    """One job with a record; `options` are what it says after its id."""
    k = ring(client)
    keys = {"UNIQUE": k.unique("new"), "BY": k.unique("new by")}
    head = " ".join(["new", *(keys.get(word, word) for word in options.split())])
    told = {
        "lane": "a", "max_delayed": 0, "fields": b'["task","t"]',
        "jobs": [f"{head}\n{said}{job(99)}"],
        **ROOM, **values,
    }  # fmt: skip
    *_, answer = await scripts_of(client).submit_jobs(keys=k, **told)  # type: ignore[arg-type]
    if isinstance(answer, ServerError):
        raise answer


def fire(client: Client, **options: object) -> object:
    k = ring(client)
    values = {
        "unique": k.unique("tick"), "name": "s", "text": "every", "found": "1000", "due": 1,
        "next_tick": 2000, "lane": "a", "policy": "drop_oldest", "max_size": 0, "max_bytes": 0,
        "max_overflow": 9, "keep_ms": 1000, "is_unique": True, "fields": ("task", "t"),
        "jobs": ("t1", "t1", job(98)), **options,
    }  # fmt: skip
    return scripts_of(client).fire_tick(keys=k, **values)  # type: ignore[arg-type]


def push(client: Client, lane: str = "", **options: object) -> object:
    values = {**ROOM, **options}
    return scripts_of(client).push_jobs(
        keys=ring(client),
        lane=lane,
        items=[job(97)],
        **values,  # type: ignore[arg-type]
    )


def call(name: str, /, **values: object) -> Case:
    """A script that gets the queue's keys, and these."""
    return Case(lambda client: getattr(scripts_of(client), name)(keys=ring(client), **values))


def unique(number: int) -> str:
    return f"TAG:u{number}"


def with_unique(name: str, jobs: list[object], /, **values: object) -> Case:
    """The same, with the keys in `jobs` that begin with `TAG:` spelled out."""

    def make(client: Client) -> object:
        k = ring(client)
        spelled = [
            k.unique(one[4:]) if isinstance(one, str) and one.startswith("TAG:") else one
            for one in jobs
        ]
        return getattr(scripts_of(client), name)(keys=k, jobs=spelled, **values)

    return Case(make)  # type: ignore[arg-type]


def on_letters(name: str, jobs_as: str, jobs: list[object], /, **values: object) -> Case:
    def make(client: Client) -> object:
        k = ring(client)
        spelled = [
            k.unique(one[4:]) if isinstance(one, str) and one.startswith("TAG:") else one
            for one in jobs
        ]
        extra = {jobs_as: spelled} if jobs_as else {}
        return getattr(scripts_of(client), name)(keys=k, letters=k.dead_letters, **values, **extra)

    return Case(make)  # type: ignore[arg-type]


HAND = {"worker": "w"}
FAILED = ("error", "boom", "error_type", "ValueError")

QUEUES = Engine(
    populate,
    {
        "push_jobs": [
            Case(push),
            Case(partial(push, lane="a")),
            Case(partial(push, policy="dlq", max_size=3)),
            Case(partial(push, policy="drop_oldest", max_bytes=950)),
            Case(partial(push, max_size=3)),
            Case(partial(push, lane="new", max_lanes=100)),
            Case(partial(push, lane="new", max_lanes=1)),
        ],
        "submit_jobs": [
            Case(submit),  # type: ignore[arg-type]
            Case(partial(submit, lane="", policy="dlq", max_size=3)),  # type: ignore[arg-type]
            Case(partial(submit, options="5000 - 0 - 0 0 0")),  # type: ignore[arg-type]
            Case(partial(submit, options="5000 - 0 - 0 0 0", max_delayed=1)),  # type: ignore[arg-type]
            Case(partial(submit, lane="new", max_lanes=1)),  # type: ignore[arg-type]
            Case(partial(submit, options="- UNIQUE 0 - 0 0 0")),  # type: ignore[arg-type]
            Case(
                partial(  # type: ignore[arg-type]
                    submit, options="- UNIQUE 1000 BY 1000 37 0", said="=" + "t" * 32 + "said"
                )
            ),
        ],
        "await_jobs": [call("await_jobs", names=["j1", "j12", "j20", "none"])],
        "register_queue": [
            Case(
                lambda client, most=most: scripts_of(client).register_queue(
                    registry=QueuesKeys.of(client.keys).registry, queue="new", most=most
                )
            )
            for most in (0, 1)
        ],
        "declare_queue": [
            call("declare_queue", side="right", levels="5,3,1", limit="9", lane_limit="0")
        ],
        "note_losses": [with_unique("note_losses", ["j1", unique(1), "j2", unique(2)])],
        "claim_jobs": [
            call("claim_jobs", **HAND, first=10, most=9, done=["1", "2:a"]),
            call("claim_jobs", **HAND, first=10, most=1, done=[]),
        ],
        "take_items": [
            call(
                "take_items", **HAND, lane="a", first=10, items=[job(7), 0, "j7", job(8), 1, "j8"]
            ),
            call("take_items", **HAND, lane="", first=10, items=[job(2), 1, "j2"]),
        ],
        "begin_jobs": [
            call(
                "begin_jobs",
                **HAND,
                jobs=["1", "j12", 1, "", "", "2:a", "new", 1, '["a","b"]', job(13)],
            )
        ],
        "finish_jobs": [
            with_unique(
                "finish_jobs",
                ["1", "j12", unique(12), 0, "0.1", "", "2:a", "j13", unique(13), 0, "0.1", "{}"],
                **HAND,
                keep_ms=1000,
                state="done",
            )
        ],
        "retry_job": [
            call(
                "retry_job",
                **HAND,
                claim=claim,
                job_id=job_id,
                item=job(number),
                wait_ms=5000,
                counted_as="retried",
                fields=FAILED,
            )
            for claim, job_id, number in (("1", "j12", 12), ("2:a", "j13", 13))
        ],
        "bury_job": [
            Case(
                lambda client, claim=claim, number=number: scripts_of(client).bury_job(
                    keys=ring(client),
                    worker="w",
                    keep_ms=1000,
                    claim=claim,
                    job_id=f"j{number}",
                    unique=ring(client).unique(f"u{number}"),
                    letter=job(number),
                    fields=FAILED,
                )
            )
            for claim, number in (("1", 12), ("2:a", 13))
        ],
        "give_back": [
            call("give_back", **HAND, jobs=["1", "j12", "", "2:a", "j13", job(13)]),
        ],
        "set_aside": [
            call(
                "set_aside",
                **HAND,
                wait_ms=1000,
                step_ms=4,
                jobs=["1", "j12", "1", "2:a", "j13", ""],
            ),
        ],
        "recall_jobs": [call("recall_jobs", most=2)],
        "reap_claims": [
            with_unique(
                "reap_claims",
                [
                    *("1", "j15", unique(15), "back", job(15), ""),
                    *("2:a", "j16", unique(16), verdict, job(16), '["error","gone"]'),
                ],
                worker="z",
                keep_ms=1000,
            )
            for verdict in ("back", "suspect", "bury", "unread")
        ],
        "hand_over": [
            with_unique(
                "hand_over",
                ["1", "j12", unique(12), "2:a", "j13", unique(13)],
                **HAND,
                who="me",
                to="other",
                keep_ms=1000,
            )
        ],
        "receive_jobs": [
            with_unique(
                "receive_jobs",
                [
                    *(job(90), "new", "new", "t", "1", unique(90)),
                    *(job(91), "j18", "j18", "t", "1", unique(18)),
                ],
                who="me",
                source="other",
                lane="a",
            )
        ],
        "replay_letters": [
            on_letters(
                "replay_letters",
                "jobs",
                [
                    *(job(18), 0, job(18), "a", "j18", "j18", "t", "1", unique(18)),
                    *(job(19), 1, job(19), "", "j19", "j19", "t", "1", unique(19)),
                ],
                who="me",
                detail="",
            )
        ],
        "remove_queue_letters": [
            on_letters(
                "remove_queue_letters",
                "exactly",
                [job(19), 0],
                who="me",
                detail="",
                oldest=1,
            )
        ],
        "edit_queue_letter": [
            on_letters(
                "edit_queue_letter",
                "",
                [],
                who="me",
                detail="",
                letter=job(18),
                place=0,
                new=job(18),
            )
        ],
        "find_letters": [
            Case(
                lambda client: scripts_of(client).find_letters(
                    letters=ring(client).dead_letters, first=0, count=1000, ids=["j19"]
                )
            )
        ],
        "note_queue_act": [call("note_queue_act", who="me", what="x", count=1, detail="")],
        "pause_lane": [
            call("pause_lane", who="me", kind=kind, lane=lane)
            for kind, lane in (("queue", ""), ("priority", "high"), ("fair", "a"))
        ],
        "resume_lane": [
            call("resume_lane", who="me", kind=kind, lane=lane)
            for kind, lane in (("queue", ""), ("priority", "high"), ("fair", "b"))
        ],
        "relist_lane": [
            call("relist_lane", lane=lane, is_listed=is_listed)
            for lane, is_listed in ((b"a", False), (b"c", False), (b"a", True))
        ],
        "park_lane": [call("park_lane", who="me", lane="a", for_ms=1000)],
        "weigh_lane": [call("weigh_lane", who="me", lane="a", weight=3)],
        "purge_jobs": [
            with_unique(
                "purge_jobs",
                [job(7), 0, "j7", unique(7), job(8), 1, "j8", unique(8)],
                lane="a",
                keep_ms=1000,
            )
        ],
        "purge_delayed": [
            with_unique("purge_delayed", ["j10", unique(10), "j11", unique(11)], keep_ms=1000)
        ],
        "cancel_job": [
            Case(
                lambda client, number=number: scripts_of(client).cancel_job(
                    keys=ring(client),
                    record=ring(client).record(f"j{number}"),
                    job_id=f"j{number}",
                    keep_ms=1000,
                )
            )
            for number in (1, 11, 12)
        ],
        "note_progress": [
            Case(
                lambda client: scripts_of(client).note_progress(
                    keys=ring(client),
                    worker="w",
                    record=ring(client).record("j12"),
                    claim="1",
                    fields=("progress_done", 3),
                )
            )
        ],
        "sweep_records": [call("sweep_records")],
        "join_queue": [call("join_queue", worker="v")],
        "beat_queue": [call("beat_queue", **HAND)],
        "beat_queues": [
            Case(
                lambda client: scripts_of(client).beat_queues(
                    keys=[ring(client)] * 2, signs=[("w", 0), ("z", 0)]
                )
            )
        ],
        "leave_queue": [call("leave_queue", **HAND)],
        "tend_queues": [
            Case(
                lambda client: scripts_of(client).tend_queues(
                    keys=[ring(client)], tender="p", lease_ms=1000, with_workers=True
                )
            )
        ],
        "stop_tending": [
            Case(lambda client: scripts_of(client).stop_tending(keys=[ring(client)], tender="p"))
        ],
        "find_dead": [call("find_dead", silence_ms=1000, worker="")],
        "open_claims": [call("open_claims", reader="w", worker="z")],
        "watch_schedule": [call("watch_schedule", names=["s"])],
        "declare_schedule": [
            call("declare_schedule", name="s", found="every", text="daily", tick=3000)
        ],
        "move_tick": [call("move_tick", name="s", text="every", found="1000", tick="inf")],
        "remove_schedule": [call("remove_schedule", name="s")],
        "read_schedule": [call("read_schedule", name="s")],
        "list_schedules": [call("list_schedules", cursor="0", count=10)],
        "upcoming_ticks": [call("upcoming_ticks", start_ms=0, ahead_ms=1000, offset=0, count=10)],
        "fire_tick": [
            Case(fire),  # type: ignore[arg-type]
            Case(partial(fire, lane="", max_size=3, policy="dlq")),  # type: ignore[arg-type]
        ],
    },
)
