"""A partition in use: pending, failed and delayed messages, large bodies, dead letters, members."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from tests.kit.scripts import scripts_of

from penstock.redis.client import Client
from penstock.redis.wire import Argument
from penstock.topics.storage.keys import PartitionKeys, TopicKeys, TopicsKeys
from penstock.topics.storage.scripts import CONSUMER, PartitionOwner, PublishKeys

from .kit import Case, Engine

__all__ = ["TOPICS"]

DAY_MS = 86_400_000
EPOCH = 5
PLACE = "g/0/1-0"


def part(client: Client) -> PartitionKeys:
    return PartitionKeys.of(client.keys, "t", 0)


def topic(client: Client) -> TopicKeys:
    return TopicKeys.of(client.keys, "t")


def delayed(body: str, number: int) -> bytes:
    return msgspec.msgpack.encode([body, "payload", f"MESSAGE-{number}"])


def populate(client: Client, now: int) -> list[tuple[Argument, ...]]:
    p, t = part(client), topic(client)
    letter = ("group", "g", "partitionId", "0", "originalMessageId", "1-0")
    return [
        *(("XADD", p.stream, f"{n}-0", "payload", f"MESSAGE-{n}") for n in range(1, 7)),
        ("XGROUP", "CREATE", p.stream, "g", "0"),
        ("XREADGROUP", "GROUP", "g", CONSUMER, "COUNT", 4, "STREAMS", p.stream, ">"),
        ("HSET", p.epochs, "g", EPOCH),
        ("SET", p.lease("g"), "owner", "PX", DAY_MS),
        ("XGROUP", "CREATE", p.fence("g", EPOCH), "g", "$", "MKSTREAM"),
        ("HSET", p.commit, "g", "0-1"),
        ("ZADD", p.retry("g"), 1, "1-0", now + DAY_MS, "2-0"),
        ("HSET", p.failures("g"), "1-0", "[]", "2-0", "[]"),
        ("HSET", p.counters, "lost", 1),
        ("SET", p.payload("b1"), "BODY-1"),
        ("SET", p.payload("b2"), "BODY-2"),
        ("SET", p.payload("b3"), "BODY-3"),
        ("ZADD", p.payloads, 2, "b1 2-0", "+inf", "b2", 0, "b3 0-9"),
        ("ZADD", p.delayed, 1, "d1", 2, "d2", 3, "d4", now + DAY_MS, "d3"),
        ("HSET", p.delayed_bodies, "d1", delayed("", 7), "d2", delayed("b2", 8)),
        ("HSET", p.delayed_bodies, "d3", delayed("", 9), "d4", "UNREADABLE-1"),
        ("HSET", p.dedup, "k1", "1-0", "old", "2-0"),
        ("ZADD", p.dedup_times, now + DAY_MS, "k1", 1, "old"),
        ("HSET", t.meta, "partitionCount", 1, "generation", 1, "life", "x", "createdAt", now),
        ("XADD", t.dlq, "1-0", *letter, "payload", "LETTER-1"),
        ("XADD", t.dlq, "2-0", *letter[:-1], "2-0", "payload", "LETTER-2"),
        ("HSET", t.dlq_index, PLACE, "1-0", "g/0/2-0", "2-0"),
        ("XADD", t.audit, "*", "who", "me", "what", "x", "count", 1, "detail", ""),
        ("ZADD", t.members("g"), now + DAY_MS // 2, "m", 1, "gone"),
        ("HSET", t.member_info("g"), "m", "{}", "gone", "{}"),
        ("XGROUP", "CREATE", f"{p.stream}:legacy", "g", "0", "MKSTREAM"),
        ("HSET", t.groups, "g", "{}"),
        ("SADD", TopicsKeys.of(client.keys).registry, "t"),
    ]


OWNED = ("epochs", "stream", "commit", "lease", "retry", "failures")
OF_TOPIC = ("dlq", "dlq_index", "audit", "meta", "groups")


def of(name: str) -> Callable[[Client], str]:
    """The key of the partition, the group or the topic that a typed call knows by this name."""

    def key(client: Client) -> str:
        p, t = part(client), topic(client)
        if name in ("lease", "retry", "failures"):
            return getattr(p, name)("g")
        if name == "fence":
            return p.fence("g", EPOCH)
        if name in ("members", "member_info"):
            return getattr(t, name)("g")
        return getattr(t if name in OF_TOPIC else p, name)

    return key


def call(
    script: str, keys: str, /, *, removes: Sequence[Callable[[Client], str]] = (), **values: object
) -> Case:
    """A script that gets these keys, by their names, and these values."""

    def make(client: Client) -> object:
        found = {name: of(name)(client) for name in keys.split()}
        told = {name: value(client) if callable(value) else value for name, value in values.items()}
        return getattr(scripts_of(client), script)(**found, **told)

    return Case(make, removes)  # type: ignore[arg-type]


def fences(client: Client) -> str:
    return part(client).fence("g", EPOCH).removesuffix(str(EPOCH))


def payload_prefix(client: Client) -> str:
    return part(client).payload("x").removesuffix("x")


def body(name: str) -> Callable[[Client], str]:
    return lambda client: part(client).payload(name)


DELAYED = "stream delayed delayed_bodies payloads counters"


def held(script: str, **values: object) -> Case:
    """A script that the owner of the partition calls."""

    def make(client: Client) -> object:
        owner = PartitionOwner.of(part(client), "g", "owner", EPOCH)
        return getattr(scripts_of(client), script)(owner, **values)

    return Case(make)  # type: ignore[arg-type]


LETTERS = "dlq dlq_index audit"


def publish(**values: object) -> Case:
    options: dict[str, object] = {
        "keys": lambda client: PublishKeys.of(part(client), "new"),
        "idempotency_key": "",
        "remember_ms": 1000,
        "fields": ("payload", "MESSAGE-50"),
        **values,
    }
    return call("publish_message", "", **options)


TOPICS = Engine(
    populate,
    {
        "create_topic": [call("create_topic", "meta", partitions=2, life="y", options="{}")],
        "open_partition": [
            call(
                "open_partition",
                "stream counters epochs commit payloads delayed delayed_bodies dedup dedup_times",
                life="y",
                payload_prefix=payload_prefix,
                count=2,
            ),
        ],
        "register_topic": [
            Case(
                lambda client, most=most: scripts_of(client).register_topic(
                    registry=TopicsKeys.of(client.keys).registry, topic="new", most=most
                )
            )
            for most in (0, 1)
        ],
        "note_group": [
            call("note_group", "groups", group=group, registration=b"{}", most=most)
            for group, most in (("g", 1), ("new", 1), ("new", 100))
        ],
        "register_group": [
            call("register_group", "stream epochs commit", group=group, start="0")
            for group in ("g", "new")
        ],
        "acquire_partition": [
            call(
                "acquire_partition",
                "lease epochs",
                group="g",
                owner="owner",
                ttl_ms=1000,
                fences=fences,
                dead_owner="",
            )
        ],
        "refence_partition": [held("refence_partition", number=EPOCH + 1, ttl_ms=1000)],
        "renew_partition": [held("renew_partition", ttl_ms=1000)],
        "release_partition": [held("release_partition", unbegun=["3-0", "4-0"])],
        "ack_messages": [
            held("ack_messages", failed_before=before, ids=["1-0", "3-0"]) for before in (0, 1)
        ],
        "retry_later": [held("retry_later", failed=["3-0", 1000, "[]"])],
        "begin_messages": [held("begin_messages", not_attempts=0, known=["1-0", 1, "3-0", 0])],
        "uncharge_messages": [held("uncharge_messages", ids=["1-0", "3-0"])],
        "park_messages": [held("park_messages", ids=["3-0", "4-0"])],
        "unpark_messages": [held("unpark_messages", ids=["3-0", "4-0"])],
        "pending_page": [held("pending_page", start="-", count=9)],
        "due_retries": [held("due_retries", count=9, ids=["2-0"])],
        "bury_message": [
            call(
                "bury_message",
                "dlq dlq_index meta",
                letter="g/0/3-0",
                fields=["payload", "MESSAGE-3"],
            )
        ],
        "publish_message": [
            publish(),
            publish(idempotency_key="k2"),
            publish(payload_name="new", body=b"BODY-50"),
            publish(idempotency_key="k2", waiting_id="d9", wait_ms=5000),
            publish(idempotency_key="k2", max_remembered=100, max_delayed=100),
            publish(payload_name="new", body=b"BODY-50", waiting_id="d9", wait_ms=5000),
        ],
        "move_due": [
            call("move_due", DELAYED, count=10, generation=1, ids=ids) for ids in ([], ["d2", "d4"])
        ],
        "read_due": [
            call("read_due", "stream delayed delayed_bodies counters", count=10, ahead_ms=1000)
        ],
        "adopt_delayed": [
            call(
                "adopt_delayed",
                "stream delayed delayed_bodies dedup dedup_times payloads counters",
                payload=body("new"),
                id_="d9",
                due="5",
                message=delayed(name, 60),
                remember_ms=1000,
                payload_name=name,
                body=b"BODY-60",
                old_payload="",
                partition=0,
                generation=2,
                markers_upto=2,
            )
            for name in ("", "new")
        ],
        "drop_delayed": [
            call(
                "drop_delayed",
                "delayed delayed_bodies payloads counters",
                payload_prefix=payload_prefix,
                markers_upto=2,
                gone=["d1", "", "d2", "b2"],
                removes=[body("b2")],  # it stands in another partition by now
            )
        ],
        "beat_member": [
            call("beat_member", "members member_info meta", member="m", about=b"{}", ttl_ms=DAY_MS)
        ],
        "stay_member": [call("stay_member", "members", member="m")],
        "leave_group": [call("leave_group", "members member_info", member="m")],
        "trim_partition": [
            call(
                "trim_partition",
                "stream counters payloads",
                max_length=3,
                max_age_ms=0,
                max_bytes=0,
                hard_length=hard,
                payload_prefix=payload_prefix,
                removes=[body("b1"), body("b3")],  # bodies of messages that are gone go as well
            )
            for hard in (0, 2)
        ],
        "remove_letters": [
            call("remove_letters", LETTERS, who="me", what="purge", detail="", ids=["1-0", "2-0"])
        ],
        "trim_letters": [
            call(
                "trim_letters", LETTERS, max_length=1, max_age_ms=-1, count=9, who="me", what="trim"
            )
        ],
        "edit_letter": [
            call(
                "edit_letter",
                LETTERS,
                id_="1-0",
                who="me",
                index_field=PLACE,
                fields=["payload", "LETTER-1"],
            )
        ],
        "reset_group": [
            call(
                "reset_group",
                "stream epochs commit lease retry failures",
                group="g",
                position="3-0",
                fences=fences,
            )
        ],
        "drop_group": [
            call(
                "drop_group",
                "stream epochs commit lease retry failures",
                group="g",
                fences=fences,
                # What belongs to the group alone goes with it, whatever it is.
                removes=[of("lease"), of("retry"), of("failures"), of("fence")],
            )
        ],
        "drop_partition": [
            Case(
                lambda client: scripts_of(client).drop_partition(
                    stream=f"{part(client).stream}:legacy",
                    epochs=f"{part(client).epochs}:none",
                    commit=part(client).commit,
                    payloads=part(client).payloads,
                    delayed=part(client).delayed,
                    delayed_bodies=part(client).delayed_bodies,
                    dedup=part(client).dedup,
                    dedup_times=part(client).dedup_times,
                    counters=part(client).counters,
                    payload_prefix=payload_prefix(client),
                    count=10,
                ),
                # A partition goes with all that it has, whatever it is.
                removes=[
                    lambda client: f"{part(client).stream}:legacy",
                    *(
                        of(name)
                        for name in (
                            *("commit", "delayed", "delayed_bodies", "dedup", "dedup_times"),
                            "counters",
                        )
                    ),
                    *(body("b1"), body("b2"), body("b3")),
                ],
            )
        ],
        "read_pending": [
            call(
                "read_pending",
                "stream retry failures lease",
                group="g",
                start="-",
                count=9,
            )
        ],
        "count_after": [call("count_after", "stream", id_="1-0", most=10)],
        "begin_growth": [call("begin_growth", "meta", partitions=4, hold_ms=1000)],
        "mark_barrier": [call("mark_barrier", "stream counters", generation=2)],
        "finish_growth": [
            call("finish_growth", "meta", partitions=1, generation=1, markers=[b"1-0"])
        ],
        "drop_legacy": [
            Case(
                lambda client: scripts_of(client).drop_legacy(
                    stream=f"{part(client).stream}:legacy"
                )
            )
        ],
    },
)
