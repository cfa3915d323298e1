"""The stored contract of the coordination primitives: every kind of key they have."""

from __future__ import annotations

from typing import Final

from penstock.coordination.stored_names import AREA, BATCH_ITEMS, BATCH_KEY, RUN_RECORD
from penstock.redis.keys.family import Family, RedisType, Ttl

__all__ = ["COORDINATION_FAMILIES"]

STRING, LIST, SET = RedisType.STRING, RedisType.LIST, RedisType.SET
ZSET, HASH, STREAM = RedisType.ZSET, RedisType.HASH, RedisType.STREAM
NEVER, ALWAYS, TERMINAL, WRITER = Ttl.NEVER, Ttl.ALWAYS, Ttl.TERMINAL, Ttl.WRITER

OURS = "Penstock"
OTHERS_SET = "Penstock; other programs may SET it with a TTL, and DEL it"
WITH_RUN = "25 hours from the final state, and not before its failures are resolved"
WITH_BATCH = "until the batch is closed"

_ONCE = (
    Family(
        "dedupe.mark", "dedupe:<key>", "dedupe:{<key>}",
        STRING, ALWAYS, "5 minutes by default", "once", OTHERS_SET,
    ),
    Family(
        "dedupe.holder", "penstock:once:<key>", "penstock:once:{<key>}",
        STRING, ALWAYS,
        "a minute, renewed while the work goes on; half a minute after it", "once", OURS,
    ),
)  # fmt: skip

_LIMITS = (
    Family(
        "limits.registry", "penstock:limits:registry", "penstock:{limits}:registry",
        HASH, NEVER, "kept; a limit leaves it when removed", "limits", OURS,
    ),
    Family(
        "limit.log", "ratelimit:<endpoint>:<client>", "ratelimit:{<endpoint>:<client>}",
        ZSET, ALWAYS, "twice the limit's longest window", "limits", OURS,
    ),
    Family(
        "limit.state",
        "penstock:limit:<endpoint>:<client>", "penstock:limit:{<endpoint>:<client>}",
        STRING, ALWAYS, "twice the limit's longest window, or its penalty", "limits", OURS,
    ),
    Family(
        "limit.waiting",
        "penstock:limit:<endpoint>:<client>:waiting",
        "penstock:limit:{<endpoint>:<client>}:waiting",
        ZSET, ALWAYS, "seconds after the last caller waited", "limits", OURS,
    ),
    Family(
        "limit.tickets",
        "penstock:limit:<endpoint>:<client>:tickets",
        "penstock:limit:{<endpoint>:<client>}:tickets",
        HASH, ALWAYS, "seconds after the last caller waited", "limits", OURS,
    ),
    Family(
        "limit.penalty",
        "penstock:limit:<endpoint>:<client>:penalty",
        "penstock:limit:{<endpoint>:<client>}:penalty",
        STRING, ALWAYS, "as long as the penalty", "limits", OURS,
    ),
    Family(
        "hourly_limit.count",
        f"{AREA}:rate_limit:<hour>", f"{AREA}:{{rate_limit}}:<hour>",
        STRING, ALWAYS, "2 hours", "limits", "Penstock; other programs may INCRBY",
    ),
)  # fmt: skip

_WINDOWS = (
    Family(
        "windows.registry", "penstock:windows:registry", "penstock:{windows}:registry",
        HASH, NEVER, "kept; a window leaves it when removed", "windows", OURS,
    ),
    Family(
        "window.current", "batch:<window>:current", "batch:{<beside>}:<window>:current",
        STRING, NEVER, WITH_BATCH, "windows", OURS,
    ),
    Family(
        "window.seen", "batch:<window>:seen", "batch:{<beside>}:<window>:seen",
        ZSET, ALWAYS, "as long as a repeat is recognised", "windows", OURS,
    ),
    *(
        Family(
            f"batch.{name}", f"batch:<batch>:{field}", f"batch:{{<beside>}}:<batch>:{field}",
            redis_type, NEVER, WITH_BATCH, "windows", OURS,
        )
        for name, field, redis_type in (
            ("key", BATCH_KEY, STRING), ("items", BATCH_ITEMS, LIST),
            ("started_at", "started_at", STRING), ("last_activity", "last_activity", STRING),
            ("bytes", "bytes", STRING),
        )
    ),
    Family(
        "window_index.due",
        "penstock:window:<beside>:<name>:due", "penstock:window:{<beside>}:<name>:due",
        ZSET, NEVER, "a batch leaves it when closed", "windows", OURS,
    ),
    Family(
        "window_index.events",
        "penstock:window:<beside>:<name>:events", "penstock:window:{<beside>}:<name>:events",
        STREAM, NEVER, "capped", "windows", OURS,
    ),
    Family(
        "window_index.state",
        "penstock:window:<beside>:<name>:state", "penstock:window:{<beside>}:<name>:state",
        HASH, NEVER, "kept", "windows", OURS,
    ),
)  # fmt: skip

_RUNS = (
    Family(
        "runs.registry", "penstock:runs:registry", "penstock:{runs}:registry",
        ZSET, NEVER, "kept; a run leaves it after its record", "runs", OURS,
    ),
    Family(
        "run.record", f"{AREA}:{RUN_RECORD}:<run>", f"{AREA}:{RUN_RECORD}:{{<run>}}",
        HASH, TERMINAL, WITH_RUN, "runs", OURS,
    ),
    Family(
        "run.task_start",
        f"{AREA}:task_start:<run>:<task>", f"{AREA}:task_start:{{<run>}}:<task>",
        STRING, ALWAYS, "25 hours", "runs", OURS,
    ),
    Family(
        "run.failed", f"{AREA}:failed:<hour>", f"{AREA}:failed:{{<run>}}:<hour>",
        LIST, ALWAYS, "2 hours; a view, the failures themselves are kept", "runs", OURS,
    ),
    *(
        Family(
            f"run.{field}", f"penstock:run:<run>:{field}", f"penstock:run:{{<run>}}:{field}",
            redis_type, TERMINAL, WITH_RUN, "runs", OURS,
        )
        for field, redis_type in (
            ("processed", SET), ("failures", ZSET), ("failure_info", HASH),
            ("starts", HASH), ("events", STREAM), ("feed", HASH),
        )
    ),
)  # fmt: skip

_SLOTS = (
    Family(
        "slots.registry", "penstock:slots:registry", "penstock:{slots}:registry",
        HASH, NEVER, "kept; a name leaves it when removed", "slots", OURS,
    ),
    Family(
        "slot.holders", "penstock:slot:<slot>", "penstock:slot:{<slot>}",
        ZSET, ALWAYS, "the longest lease in it", "slots", OURS,
    ),
    Family(
        "slot.waiting", "penstock:slot:<slot>:waiting", "penstock:slot:{<slot>}:waiting",
        ZSET, ALWAYS, "seconds after the last caller waited", "slots", OURS,
    ),
    Family(
        "slot.tickets", "penstock:slot:<slot>:tickets", "penstock:slot:{<slot>}:tickets",
        HASH, ALWAYS, "seconds after the last caller waited", "slots", OURS,
    ),
    Family(
        "slot.state", "penstock:slot:<slot>:state", "penstock:slot:{<slot>}:state",
        HASH, ALWAYS, "a week after its last use", "slots", OURS,
    ),
)  # fmt: skip

_FEEDS = (
    Family(
        "feeds.registry", "penstock:feeds:registry", "penstock:{feeds}:registry",
        ZSET, NEVER, "kept; a feed leaves it after its state", "feeds", OURS,
    ),
    Family(
        "feed.events", "penstock:feed:<feed>", "penstock:feed:{<feed>}",
        STREAM, TERMINAL, "capped; a day after its final event, if it has one", "feeds", OURS,
    ),
    Family(
        "feed.state", "penstock:feed:<feed>:state", "penstock:feed:{<feed>}:state",
        HASH, TERMINAL, "as its events", "feeds", OURS,
    ),
)  # fmt: skip

_CACHE = (
    Family(
        "cache.value", "cache:<space>:<key>", "cache:{<space>:<key>}",
        STRING, ALWAYS, "as its writer says", "cache", OTHERS_SET,
    ),
    Family(
        "cache.sorted", "cache:<space>:sorted:<key>", "cache:{<space>:<key>}:sorted",
        ZSET, WRITER, "as its writer says", "cache", OURS,
    ),
    Family(
        "cache.flight", "penstock:flight:<space>:<key>", "penstock:flight:{<space>:<key>}",
        STRING, ALWAYS, "while one process makes the value; seconds, renewed", "cache", OURS,
    ),
)  # fmt: skip

COORDINATION_FAMILIES: Final[tuple[Family, ...]] = (
    *(*_ONCE, *_LIMITS, *_WINDOWS, *_RUNS, *_SLOTS, *_FEEDS, *_CACHE),
)
