"""Hostile arguments for every public call of the coordination primitives.

Each is refused in clear words before anything is stored, or works and comes back as it was given.
"""

import asyncio
import math
import re
import unicodedata
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.keyspace import dumped

from penstock import LimitReached, Penstock, PenstockError, SlotsTaken
from penstock.coordination.cache.keys import CacheKeys
from penstock.coordination.feeds.keys import FeedKeys
from penstock.coordination.limits.keys import LimitKeys
from penstock.coordination.limits.result import Usage
from penstock.coordination.once.keys import DedupeKeys
from penstock.coordination.runs.keys import RunKeys
from penstock.coordination.slots.keys import SlotKeys
from penstock.coordination.windows.keys import BatchKeys, WindowKeys
from penstock.errors import ServerError
from penstock.redis.keys.space import KeySpace
from penstock.settings import CodecSettings, Settings

pytestmark = pytest.mark.one_server

LONG = "x" * 600
HUGE = 10**30
ENDLESS = 10**5000
"""Python itself refuses to spell this one."""

# ---- what can be said

TWINS = [unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")]
ODD_TEXTS = [
    *(" ", "   ", ":", "a:b", "{", "}", "{}", "{a}b", "*", "a*", "?", "[ab]", "%", "%3A", "%00"),
    *("a\nb", "a\r\nb", "\0", "a\0b", "\t", "..", "../x", "-", "--yes", ".", "\x7f", "\x1b[31m"),
    *("😀", "👩‍👩‍👧", "\u202eabc", "a\u200bb", "null", "NaN", "__proto__", "all", "registry"),
    *(*TWINS, "A", "a", "x" * 256),
]
NO_TEXTS = [None, 0, 7, True, b"bytes", 1.5, math.nan, [], {}, object()]
LONE = ["\ud800", "a\udfffb"]
NO_NUMBERS = [None, "1", "x", b"1", [], {}, object(), math.nan, math.inf, -math.inf, True, 1.5]
NO_COUNTS = [*NO_NUMBERS, 0, -1, -HUGE, HUGE, ENDLESS, -ENDLESS]
NO_TIMES = ["1", "x", b"1", [], object(), math.nan, math.inf, -math.inf, True, 1e308, HUGE, ENDLESS]
NO_LIFE = [*NO_TIMES, 0, -1, -0.0, 0.0001, timedelta(0), timedelta(seconds=-5), timedelta.max]
NO_JSON = [
    *(math.nan, math.inf, -math.inf, object(), {"a": math.nan}, [[math.inf]], {1, math.inf}),
    *("\ud800", {"\udfff": 1}, {"a": "\ud800"}, lambda: 0, Exception("x"), {object(): 1}),
]


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def circular():
    value = []
    value.append(value)
    return value


TOO_DEEP = [nested(200), nested(5_000), circular()]
ROUND = [
    *(None, True, False, 0, -1, 2**53 + 1, 2**63, 2**64 - 1, 1.5, 1e308, 5e-324, "", " ", "null"),
    *("\0", "a\r\nb", "😀", *TWINS, "Z:KLUv/", "(\xb5/\xfd", "x" * 100_000, [], {}, [[]]),
    *({"": ""}, {"a:{}*": [None]}, nested(100), {str(number): number for number in range(1_000)}),
]


# ---- the harness


@pytest.fixture
def stored(valkey_server, namespace):
    """What the server has of this test."""
    return partial(dumped, valkey_server, namespace)


# Waits are checked by `wait_s`, which documents its errors; the rest is in Python's own words.
_IS_CLEAR = re.compile(
    r"^(timeout|lease) = .*(expected|more than ten years)|unhashable type|object is not iterable"
)


def said(error):
    """The words of an error; even those of one about a number without end can be printed."""
    return f"{type(error).__name__}: {error}"[:300]


async def refusal(call, bad):
    """What a call says of an argument that it is to refuse; nothing if that is as it should be."""
    try:
        async with asyncio.timeout(60):
            answer = call(bad)
            if hasattr(answer, "__aenter__"):
                async with answer:
                    pass
            elif hasattr(answer, "__await__"):
                await answer
    except PenstockError as error:
        try:
            said(error)
        except Exception as unprintable:  # noqa: BLE001  that is what is looked for
            return f"cannot be printed: {unprintable}"
        return None if not isinstance(error, ServerError) else f"sent: {said(error)}"
    except Exception as error:  # noqa: BLE001  as above
        if isinstance(error, TypeError | ValueError) and _IS_CLEAR.search(str(error)):
            return None
        return f"raw: {said(error)}"
    return "accepted"


def shown(bad):
    try:
        return repr(bad)[:40]
    except (ValueError, RecursionError):
        return type(bad).__name__


CALLS = {
    "once key": (lambda app: app.once, ["", LONG, *NO_TEXTS]),
    "once scope": (lambda app: lambda x: app.once("k", scope=x), ["", LONG, *NO_TEXTS[1:]]),
    "once scope and key too long": (lambda app: lambda x: app.once(x, scope=x), ["x" * 300]),
    "once ttl": (lambda app: lambda x: app.once("k", ttl=x), NO_LIFE),
    "once value": (lambda app: lambda x: app.once("k", value=x), [*NO_TEXTS, *LONE[:1]]),
    "seen key": (lambda app: app.seen, ["", LONG, *NO_TEXTS]),
    "seen value": (lambda app: lambda x: app.seen("k", x), [*NO_TEXTS, *LONE[:1]]),
    "seen ttl": (lambda app: lambda x: app.seen("k", ttl=x), NO_LIFE),
    "seen scope": (lambda app: lambda x: app.seen("k", scope=x), ["", LONG, *NO_TEXTS[1:]]),
    "peek": (lambda app: app.marks.peek, ["", LONG, *NO_TEXTS]),
    "forget": (lambda app: app.marks.forget, ["", LONG, *NO_TEXTS]),
    "enqueue key": (
        lambda app: lambda x: app.marks.enqueue(x, app.queue("q"), 1),
        ["", LONG, *NO_TEXTS],
    ),
    "enqueue data": (
        lambda app: lambda x: app.marks.enqueue("k", app.queue("q"), x),
        [*NO_JSON, *TOO_DEEP],
    ),
    "enqueue ttl": (
        lambda app: lambda x: app.marks.enqueue("k", app.queue("q"), 1, ttl=x),
        NO_LIFE,
    ),
    "limit name": (
        lambda app: lambda x: app.limit(x, "5/min"),
        ["", *ODD_TEXTS[:20], LONG, *LONE, *NO_TEXTS],
    ),
    "limit windows": (
        lambda app: lambda x: app.limit("l", x),
        [
            *("", " ", "5", "5/", "/min", "0/min", "-5/min", "5/lightyear", "5.5/min", "5/min/min"),
            *("1__0/min", "5_/min", "_5/min", "५/min", "0x10/min", "1e3/min", "NaN/min", "inf/s"),
            *(f"{'9' * 5000}/min", f"5/{'9' * 400}s", "5/0s", "5/0.001s", "5/1000d", "5/..s"),
            *([], ["5/min"] * 9, ["5/min", "6/60s"], [None], [5], [b"5/min"], [["5/min"]]),
            *(None, 5, True, 1.5, b"5/min", {}, object(), [(5,)], [(5, 60, 1)], [("5", 60)]),
            *([(5, "60")], [(5, None)], [(5, math.nan)], [(5, math.inf)], [(5, -1)], [(5, 0)]),
            *([(0, 60)], [(-1, 60)], [(HUGE, 60)], [(5, HUGE)], [(5, timedelta(-1))], [(True, 60)]),
            [(5, ENDLESS)],
        ],
    ),
    "limit algorithm": (
        lambda app: lambda x: app.limit("l", "5/min", algorithm=x),
        ["", "Exact", "token", *NO_TEXTS[:7]],
    ),
    "limit burst": (
        lambda app: lambda x: app.limit("l", "5/min", algorithm="gcra", burst=x),
        [*NO_COUNTS[1:], 6],
    ),
    "limit buffer": (
        lambda app: lambda x: app.limit("l", "5/min", buffer=x),
        [None, "1", b"1", [], math.nan, math.inf, -math.inf, True, -1, 5, HUGE, ENDLESS],
    ),
    "limit margin": (
        lambda app: lambda x: app.limit("l", "5/min", margin=x),
        [None, "1", b"1", [], math.nan, math.inf, -math.inf, -1, 3601, HUGE, ENDLESS],
    ),
    "limit lease": (
        lambda app: lambda x: app.limit("l", "5/min", lease=x),
        [None, "1", [], math.nan, math.inf, True, 1.5, -1, HUGE, ENDLESS],
    ),
    "limit away": (
        lambda app: lambda x: app.limit("l", "5/min", away=x),
        ["", "open", None, 5, [], True],
    ),
    "limit share": (
        lambda app: lambda x: app.limit("l", "5/min", away="share", share=x),
        [math.nan, math.inf, 0, -1, 1.5, HUGE, ENDLESS],
    ),
    "limit key": (
        lambda app: lambda x: app.limit("l", "5/min").try_acquire(key=x),
        ["", LONG, *NO_TEXTS],
    ),
    "limit peek key": (
        lambda app: lambda x: app.limit("l", "5/min").peek(key=x),
        ["", LONG, *NO_TEXTS],
    ),
    "limit reset key": (
        lambda app: lambda x: app.limit("l", "5/min").reset(key=x),
        ["", LONG, *NO_TEXTS],
    ),
    "limit cost": (lambda app: lambda x: app.limit("l", "5/min").try_acquire(x), NO_COUNTS),
    "limit acquire cost": (
        lambda app: lambda x: app.limit("l", "5/min").acquire(x, timeout_s=0),
        NO_COUNTS,
    ),
    "limit reserve cost": (lambda app: lambda x: app.limit("l", "5/min").reserve(x), NO_COUNTS),
    "limit priority": (
        lambda app: lambda x: app.limit("l", "5/min").try_acquire(priority=x),
        [*NO_NUMBERS, HUGE, -HUGE, 1001, ENDLESS],
    ),
    "limit acquire timeout": (
        lambda app: lambda x: app.limit("l", "5/min").acquire(timeout_s=x),
        NO_TIMES,
    ),
    "limit reserve timeout": (
        lambda app: lambda x: app.limit("l", "5/min").reserve(1, timeout_s=x),
        NO_TIMES,
    ),
    "limit penalise": (
        lambda app: lambda x: app.limit("l", "5/min").penalise(x),
        [None, *NO_TIMES],
    ),
    "limit in advance": (
        lambda app: lambda x: app.limit("a", "99/min", lease=9).acquire(x),
        NO_COUNTS,
    ),
    "limit reconcile": (lambda app: lambda x: app.limit("l", "5/min").reconcile(x), [None, 5]),
    "limits edit name": (
        lambda app: lambda x: app.limits.edit(x, app.limit("l", "5/min").setting),
        ["", " ", "a:b", LONG, *LONE, *NO_TEXTS],
    ),
    "hourly increment": (lambda app: app.hourly_limit.increment, NO_COUNTS),
    "window name": (
        lambda app: lambda x: app.window(x, to=app.queue("q")),
        ["", *ODD_TEXTS[:20], LONG, *LONE, *NO_TEXTS],
    ),
    "window to": (lambda app: lambda x: app.window("w", to=x), ["q", None, 5, object()]),
    "window max_age": (
        lambda app: lambda x: app.window("w", to=app.queue("q"), max_age=x),
        NO_LIFE,
    ),
    "window idle": (lambda app: lambda x: app.window("w", to=app.queue("q"), idle=x), NO_LIFE),
    "window max_items": (
        lambda app: lambda x: app.window("w", to=app.queue("q"), max_items=x),
        NO_COUNTS[1:],
    ),
    "window max_bytes": (
        lambda app: lambda x: app.window("w", to=app.queue("q"), max_bytes=x),
        NO_COUNTS[1:],
    ),
    "window key_field": (
        lambda app: lambda x: app.window("w", to=app.queue("q"), key_field=x),
        ["batch_id", LONG, "é", 5, True, b"x", "items"],
    ),
    "window add key": (
        lambda app: lambda x: window(app).add(x, 1),
        ["", "a\x1fb", LONG, *LONE, *NO_TEXTS],
    ),
    "window add item": (
        lambda app: lambda x: window(app).add("k", x),
        [*NO_JSON, *TOO_DEEP, "x" * 300_000, nested(127)],
    ),
    "window add id": (
        lambda app: lambda x: window(app).add("k", 1, id=x),
        ["", LONG, *LONE, *NO_TEXTS[1:]],
    ),
    "window close key": (
        lambda app: lambda x: window(app).close(x),
        ["", "a\x1fb", LONG, *LONE, *NO_TEXTS],
    ),
    "window close reason": (
        lambda app: lambda x: window(app).close("k", x),
        ["", *ODD_TEXTS[:20], LONG, *LONE, *NO_TEXTS],
    ),
    "window batch": (
        lambda app: lambda x: window(app).batch(x),
        ["", "a\x1fb", LONG, *LONE, *NO_TEXTS],
    ),
    "window open_batches": (lambda app: lambda x: window(app).open_batches(x), NO_COUNTS),
    "runs start": (lambda app: app.runs.start, ["", LONG, *LONE, *NO_TEXTS]),
    "runs kind": (lambda app: lambda x: app.runs.start("r", kind=x), ["", *LONE, *NO_TEXTS]),
    "runs facts": (
        lambda app: lambda x: app.runs.start("r", facts=x),
        [
            *(5, "text", [("a", "b")], {"": "x"}, {"a": 1}, {1: "a"}, {"status": "x"}, {"a": None}),
            *({"a": "\ud800"}, {"\ud800": "a"}, {str(n): "" for n in range(501)}, {b"a": b"b"}),
        ],
    ),
    "runs open": (lambda app: app.runs.open, ["", LONG, *LONE, *NO_TEXTS]),
    "runs get": (lambda app: app.runs.get, ["", LONG, *LONE, *NO_TEXTS]),
    "runs list limit": (lambda app: app.runs.list, NO_COUNTS),
    "runs list before": (
        lambda app: lambda x: app.runs.list(before=x),
        ["", LONG, *LONE, "missing", *NO_TEXTS[1:]],
    ),
    "runs list status": (
        lambda app: lambda x: app.runs.list(status=x),
        ["", "done", "Running", *NO_TEXTS[1:]],
    ),
    "run move": (lambda app: lambda x: app.runs.open("run").move(x), ["", "done", *NO_TEXTS]),
    "run expect": (
        lambda app: lambda x: app.runs.open("run").move("running", expect=x),
        ["", "done", [], [None], [5], [[]], ["created", None], 5, True, object()],
    ),
    "run version": (
        lambda app: lambda x: app.runs.open("run").move("running", version=x),
        [*NO_NUMBERS[1:], -1, HUGE, ENDLESS],
    ),
    "run facts": (
        lambda app: lambda x: app.runs.open("run").note(x),
        [None, {}, 5, "text", [("a", "b")], {"a": 1}, {"version": "1"}],
    ),
    "run finish": (lambda app: lambda x: app.runs.open("run").finish(x), ["running", *NO_TEXTS]),
    "run checkpoint": (
        lambda app: lambda x: app.runs.open("run").checkpoint(x),
        [*NO_JSON, *TOO_DEEP],
    ),
    "run watermark": (
        lambda app: lambda x: app.runs.open("run").checkpoint(1, watermark=x),
        [
            *(math.nan, math.inf, -math.inf, HUGE, ENDLESS, 2**53 + 1, True, b"x", [], object()),
            *("\ud800", datetime(2024, 1, 1), timedelta(1)),  # noqa: DTZ001  that is the point
        ],
    ),
    "run task": (
        lambda app: lambda x: app.runs.open("run").note_task_start(x),
        ["", LONG, *LONE, *NO_TEXTS],
    ),
    "run attempt": (
        lambda app: lambda x: app.runs.open("run").note_task_start("t", attempt=x),
        NO_COUNTS,
    ),
    "run map_index": (
        lambda app: lambda x: app.runs.open("run").note_task_start("t", map_index=x),
        [*NO_NUMBERS[1:], -1, HUGE, ENDLESS],
    ),
    "run mark_processed": (
        lambda app: lambda x: app.runs.open("run").mark_processed("fine", x),
        ["", LONG, *LONE, ENDLESS, *(bad for bad in NO_TEXTS if type(bad) is not int)],
    ),
    "run processed": (
        lambda app: lambda x: app.runs.open("run").processed(x),
        [None, 5, [""], [None], [LONG], ["\ud800"], [ENDLESS]],
    ),
    "run fail item": (
        lambda app: lambda x: app.runs.open("run").fail(x, "error"),
        ["", LONG, *LONE, ENDLESS, *(bad for bad in NO_TEXTS if type(bad) is not int)],
    ),
    "run fail error": (lambda app: lambda x: app.runs.open("run").fail("i", x), NO_TEXTS),
    "run fail retry": (
        lambda app: lambda x: app.runs.open("run").fail("i", "e", retry_in_s=x),
        NO_TIMES,
    ),
    "run fail api_calls": (
        lambda app: lambda x: app.runs.open("run").fail("i", "e", api_calls=x),
        [*NO_NUMBERS, -1, HUGE, ENDLESS],
    ),
    "run resolve": (
        lambda app: lambda x: app.runs.open("run").resolve(x),
        ["", LONG, *LONE, ENDLESS, *(bad for bad in NO_TEXTS if type(bad) not in {int, bytes})],
    ),
    "run claim limit": (lambda app: lambda x: app.runs.open("run").claim_due(x), NO_COUNTS),
    "run claim lease": (
        lambda app: lambda x: app.runs.open("run").claim_due(1, x),
        [None, *NO_TIMES, 0, -1, timedelta(0)],
    ),
    "run failures limit": (lambda app: lambda x: app.runs.open("run").failures(x), NO_COUNTS),
    "run failures cursor": (
        lambda app: lambda x: app.runs.open("run").failures(cursor=x),
        ["x", "5", " ", "5 \\", " x", "१ x", "- x", "nan x", "5\0 x", "5 \ud800", 5, b"5 x", []],
    ),
    "run due_failures": (lambda app: lambda x: app.runs.open("run").due_failures(x), NO_COUNTS),
    "run events after": (
        lambda app: lambda x: app.runs.open("run").events(x),
        [*NO_NUMBERS, -1, HUGE, ENDLESS],
    ),
    "run events limit": (lambda app: lambda x: app.runs.open("run").events(0, x), NO_COUNTS),
    "run last_events": (lambda app: lambda x: app.runs.open("run").last_events(x), NO_COUNTS),
    "slots name": (lambda app: lambda x: app.slots(x, 1), ["", LONG, *LONE, *NO_TEXTS]),
    "slots limit": (lambda app: lambda x: app.slots("s", x), NO_COUNTS),
    "slots lease": (lambda app: lambda x: app.slots("s", 1, lease=x), NO_LIFE),
    "slots take timeout": (lambda app: lambda x: app.slots("s", 1).take(x), NO_TIMES),
    "slots take lease": (lambda app: lambda x: app.slots("s", 1).take(lease=x), NO_LIFE),
    "slots hold timeout": (lambda app: lambda x: app.slots("s", 1).hold(x), NO_TIMES),
    "slots hold lease": (lambda app: lambda x: app.slots("s", 1).hold(lease=x), NO_LIFE),
    "slots set_limit": (
        lambda app: lambda x: app.slots("s", 1).set_limit(x),
        [bad for bad in NO_COUNTS if bad != 0],
    ),
    "feed name": (lambda app: app.feed, ["", LONG, *NO_TEXTS]),
    "feed type": (lambda app: lambda x: app.feed("f").publish(x), ["", LONG, *LONE, *NO_TEXTS]),
    "feed data": (
        lambda app: lambda x: app.feed("f").publish("t", x),
        [*NO_JSON, *TOO_DEEP],
    ),
    "feed state": (
        lambda app: lambda x: app.feed("f").publish("t", state=x),
        [*NO_JSON, *TOO_DEEP],
    ),
    "feed mirrored data": (
        lambda app: lambda x: app.feed("f").publish("t", x, mirror="m"),
        [*NO_JSON, *TOO_DEEP],
    ),
    "feed mirror": (
        lambda app: lambda x: app.feed("f").publish("t", mirror=x),
        ["", LONG, *LONE, *NO_TEXTS[1:]],
    ),
    "feed mirror_as": (
        lambda app: lambda x: app.feed("f").publish("t", mirror="m", mirror_as=x),
        ["", "json", *NO_TEXTS],
    ),
    "feed event_id": (
        lambda app: lambda x: app.feed("f").publish("t", event_id=x),
        ["", LONG, *LONE, *NO_TEXTS[1:]],
    ),
    "feed after": (lambda app: lambda x: app.feed("f").read(x), [*NO_NUMBERS[1:], -1]),
    "cache space": (lambda app: app.cache, ["", LONG, *NO_TEXTS]),
    "cache ttl of all": (lambda app: lambda x: app.cache("c", ttl=x), NO_LIFE),
    "cache get": (lambda app: lambda x: app.cache("c").get(x), ["", LONG, *NO_TEXTS]),
    "cache get_many": (
        lambda app: lambda x: app.cache("c").get_many(x),
        [None, 5, [""], [None], [5], [LONG], [[]], [b"x"]],
    ),
    "cache set key": (lambda app: lambda x: app.cache("c").set(x, 1), ["", LONG, *NO_TEXTS]),
    "cache set value": (
        lambda app: lambda x: app.cache("c").set("k", x),
        [*NO_JSON, *TOO_DEEP],
    ),
    "cache set ttl": (lambda app: lambda x: app.cache("c").set("k", 1, ttl=x), NO_LIFE),
    "cache delete": (lambda app: lambda x: app.cache("c").delete("k", x), ["", LONG, *NO_TEXTS]),
    "cache exists": (lambda app: lambda x: app.cache("c").exists(x), ["", LONG, *NO_TEXTS]),
    "cache expire": (lambda app: lambda x: app.cache("c").expire("k", x), NO_LIFE),
    "cache ttl": (lambda app: lambda x: app.cache("c").ttl(x), ["", LONG, *NO_TEXTS]),
    "cache make": (
        lambda app: lambda x: app.cache("c").get_or_set("k", lambda: x),
        [*NO_JSON, *TOO_DEEP],
    ),
    "cache make ttl": (
        lambda app: lambda x: app.cache("c").get_or_set("k", lambda: 1, ttl=x),
        NO_LIFE,
    ),
    "cache zadd score": (
        lambda app: lambda x: app.cache("c").zadd("z", {"fine": 1, "a": x}),
        [None, "1", b"1", [], math.nan, True, ENDLESS],
    ),
    "cache zadd member": (
        lambda app: lambda x: app.cache("c").zadd("z", {"fine": 1, x: 1}),
        [None, 5, b"x", 1.5, "\ud800"],
    ),
    "cache zadd mapping": (lambda app: lambda x: app.cache("c").zadd("z", x), [None, 5, "x", [1]]),
    "cache zadd ttl": (lambda app: lambda x: app.cache("c").zadd("z", {"a": 1}, ttl=x), NO_LIFE),
    "cache zpopmax": (lambda app: lambda x: app.cache("c").zpopmax("z", x), NO_COUNTS),
    "cache zpopmin": (lambda app: lambda x: app.cache("c").zpopmin("z", x), NO_COUNTS),
    "cache zrange": (
        lambda app: lambda x: app.cache("c").zrangebyscore("z", x, "+inf"),
        [None, "", "x", "((5", "[5", "5)", "nan", "(nan", "१", [], True, math.nan, ENDLESS, b"5"],
    ),
    "cache zrange limit": (
        lambda app: lambda x: app.cache("c").zrangebyscore("z", 0, 1, limit=x),
        NO_COUNTS[1:],
    ),
    "cache zremrange": (
        lambda app: lambda x: app.cache("c").zremrangebyscore("z", "-inf", x),
        [None, "", "x", "((5", "nan", [], True, math.nan, ENDLESS],
    ),
}


def window(app):
    return app.window("w", to=app.queue("q"))


@pytest.mark.parametrize("name", CALLS)
async def test_what_cannot_be_is_refused_in_clear_words_and_nothing_is_stored(app, stored, name):
    make, values = CALLS[name]
    call = make(app)
    if name.startswith("run "):
        await app.runs.start("run")
    if name.startswith("limit "):
        await app.limit("l", "5/min").peek()  # which notes how it is set
        await app.limit("a", "99/min", lease=9).acquire()
    before = stored()
    wrong = []
    for bad in values:
        fault = await refusal(call, bad)
        if fault is None and stored() != before:
            fault = "refused, but something was stored"
        if fault is not None:
            wrong.append(f"{shown(bad)}: {fault}")
            before = stored()
    assert not wrong, "\n".join(wrong)


# ---- what works comes back as it was given, and nobody shares what another has

ANY_ID = [*ODD_TEXTS, *LONE, "x" * 512, "😀" * 512]
"""Names that are spelled in keys alone, where everything can be."""
ANY_TEXT = [*ODD_TEXTS, "x" * 512]
"""Names that are stored as they are as well: half a character is no text there."""


@pytest.fixture
async def anywhere(place, namespace):
    async with Penstock(settings=Settings(url=place.url, namespace=namespace)) as opened:
        yield opened


async def test_each_key_has_a_mark_of_its_own(anywhere):
    for key in ANY_ID:
        assert not await anywhere.seen(key, f"of {key!a}"), ascii(key)
    for key in ANY_ID:
        assert await anywhere.marks.peek(key) == f"of {key!a}"
        async with anywhere.once(key) as mark:
            assert not mark.first
        assert await anywhere.marks.forget(key)


async def test_each_scope_has_marks_of_its_own(anywhere):
    short = [text for text in ODD_TEXTS if len(text) < 20]
    pairs = [(scope, key) for scope in short[:14] for key in short[:14]]
    for scope, key in pairs:
        assert not await anywhere.seen(key, f"{scope!a} {key!a}", scope=scope), (scope, key)
    for scope, key in pairs:
        assert await anywhere.marks.peek(key, scope=scope) == f"{scope!a} {key!a}"


@pytest.mark.parametrize("value", [*ODD_TEXTS, "", "x" * 100_000, "file-\udcff"])
async def test_a_mark_says_what_it_was_told(app, value):
    async with app.once("key", value=value) as mark:
        assert mark.first
    assert await app.marks.peek("key") == value
    assert (await app.marks.enqueue("key", app.queue("q"), 1)).value == value


async def test_each_key_of_a_limit_is_counted_apart(anywhere):
    for algorithm in ("exact", "compact", "gcra"):
        limit = anywhere.limit(f"of-{algorithm}", "1/hour", algorithm=algorithm)
        for key in ANY_ID:
            assert await limit.try_acquire(key=key), ascii(key)
        for key in ANY_ID:
            assert not await limit.try_acquire(key=key), ascii(key)


async def test_each_key_of_a_window_has_batches_of_its_own(anywhere):
    names = [text for text in ODD_TEXTS if len(text) < 200]
    for name in ("batch", "w"):
        window = anywhere.window(name, to=anywhere.queue("q"))
        for key in names:
            added = await window.add(key, key, id=key)
            assert (added.size, added.is_new) == (1, True), ascii(key)
            assert not (await window.add(key, key, id=key)).is_new
        assert {batch.key: batch.count for batch in await window.open_batches()} == dict.fromkeys(
            names, 1
        )
        for key in names:
            assert (await window.batch(key)).key == key
            assert await window.close(key)
        closed = await anywhere.redis.call("LRANGE", anywhere.queue("q").keyring.waiting, 0, -1)
        told = [msgspec.json.decode(job) for job in closed[-len(names) :]]
        field, items = window.options.key_field, window.options.items_field
        assert [(job[field], job[items]) for job in told] == [(key, [key]) for key in names]


async def test_a_fast_item_has_its_id_in_its_job_whatever_that_is(app):
    window = app.window("w", to=app.queue("q"))
    ids = [text for text in ODD_TEXTS if len(text) < 200]
    for id_ in ids:
        assert (await window.add("k", id_, id=id_, fast=True)).batch_id == f"fast_path_{id_}"
    jobs = await app.redis.call("LRANGE", f"{app.queue('q').keyring.waiting}:high", 0, -1)
    told = [msgspec.json.decode(job) for job in jobs]
    assert [(job["batch_id"], job["items"]) for job in told] == [
        (f"fast_path_{id_}", [id_]) for id_ in ids
    ]


async def test_each_run_has_what_it_was_told(anywhere):
    for name in ANY_TEXT:
        run = await anywhere.runs.start(name, kind=name, facts={name: name})
        assert run.created, ascii(name)
        assert await run.mark_processed(name) == 1
        assert await run.fail("failed", name) == 1
        await run.checkpoint({name: name}, watermark=name)
        assert await run.note_task_start(name)
    for name in ANY_TEXT:
        record = await anywhere.runs.get(name)
        assert (record.id, record.kind, record.facts) == (name, name, {name: name})
        assert (record.checkpoint, record.watermark) == ({name: name}, name)
        assert (record.processed, record.failures) == (1, 1)
        run = anywhere.runs.open(name)
        assert await run.is_processed(name)
        assert [start.task for start in await run.task_starts()] == [name]
        assert [failure.error for failure in (await run.failures()).failures] == [name]
    assert {record.id for record in await anywhere.runs.list(500)} == set(ANY_TEXT)


async def test_each_item_and_task_of_a_run_is_one_of_its_own(app):
    run = await app.runs.start("run")
    assert await run.mark_processed(*ANY_TEXT) == len(ANY_TEXT)
    assert await run.processed([*ANY_TEXT, "another"]) == set(ANY_TEXT)
    assert {item async for item in run.iter_processed()} == set(ANY_TEXT)
    for task in ODD_TEXTS:
        assert await run.note_task_start(task), ascii(task)
        assert await run.note_task_start(task, map_index=0), ascii(task)
        assert not await run.note_task_start(task)
    starts = await run.task_starts()
    assert {(start.task, start.map_index) for start in starts} == {
        (task, index) for task in ODD_TEXTS for index in (None, 0)
    }


async def test_a_page_of_failures_goes_on_after_any_item(app):
    run = await app.runs.start("run")
    for item in ANY_TEXT:
        assert await run.fail(item, "error", retry_in_s=0) == 1
    found, cursor = [], None
    while True:
        page = await run.failures(3, cursor)
        found += [failure.item for failure in page.failures]
        if (cursor := page.cursor) is None:
            break
    assert sorted(found) == sorted(ANY_TEXT)
    assert {failure.item for failure in await run.claim_due()} == set(ANY_TEXT)
    for item in ANY_TEXT:
        assert await run.resolve(item), ascii(item)


async def test_each_name_has_slots_of_its_own(anywhere):
    held = {name: await anywhere.slots(name, 1).take() for name in ANY_TEXT}
    for name, slot in held.items():
        with pytest.raises(SlotsTaken):
            await anywhere.slots(name, 1).take()
        assert [holder.id for holder in await anywhere.slots(name, 1).holders()] == [slot.id]
        assert await slot.release()
    await anywhere.slots(" ", 1).set_limit(7)
    assert await anywhere.slots(" ", 1).limit() == 7
    assert await anywhere.slots("   ", 1).limit() == 1


async def test_each_feed_has_events_of_its_own(anywhere):
    for name in ANY_ID:
        assert await anywhere.feed(name).publish("event", ascii(name)) == 1, ascii(name)
    for name in ANY_ID:
        assert (await anext(anywhere.feed(name).read(after=0))).data == ascii(name)


async def test_an_event_says_what_it_was_told(app):
    feed = app.feed("f")
    words = [text for text in ODD_TEXTS if len(text) <= 200]
    for number, text in enumerate(words, 1):
        assert await feed.publish(text, {text: text}, event_id=text, mirror=text) == number
        assert await feed.publish(text, event_id=text) == number
    reader = feed.read(after=0)
    told = [await anext(reader) for _ in words]
    reader.stop()
    assert [(event.type, event.data) for event in told] == [(text, {text: text}) for text in words]


async def test_each_space_and_key_of_a_cache_has_a_value_of_its_own(anywhere):
    pairs = [(space, key) for space in ANY_ID[:16] for key in ANY_ID[:16]]
    pairs += [(text, text) for text in ANY_ID[16:]]
    for space, key in pairs:
        assert await anywhere.cache(space).set(key, [space == key, ascii(key)], nx=True)
        assert await anywhere.cache(space).zadd(key, {ascii(space + key): 1}) == 1
    for space, key in pairs:
        cache = anywhere.cache(space)
        assert await cache.get(key) == [space == key, ascii(key)]
        assert await cache.zpopmax(key) == [(ascii(space + key), 1.0)]
        assert await cache.delete(key) == 1


@pytest.mark.parametrize("value", ROUND, ids=shown)
async def test_a_value_comes_back_as_it_was_given(app, value):
    cache = app.cache("c")
    await cache.set("k", value)
    assert await cache.get("k", "missing") == value
    assert type(await cache.get("k", "missing")) is type(value)
    assert await cache.get_or_set("other", lambda: value) == value
    feed = app.feed("f")
    await feed.publish("t", value, state=value)
    assert (await anext(feed.read(after=0))).data == value
    assert (await feed.snapshot()).state == value
    run = await app.runs.start("run")
    await run.checkpoint(value)
    assert (await run.record()).checkpoint == value
    window = app.window("w", to=app.queue("q"))
    await window.add("k", value)
    await window.close("k")
    job = await app.redis.call("LPOP", app.queue("q").keyring.waiting)
    assert app.codec.decode(job, dict)["items"] == [value]


@pytest.mark.parametrize("member", [*ODD_TEXTS, "", "file-\udcff"])
async def test_a_member_of_a_sorted_set_comes_back_as_it_was_given(app, member):
    cache = app.cache("c")
    for score in (0.1, -1e308, 2**53, math.inf, -math.inf, 5e-324):
        await cache.zadd("z", {member: score}, ttl=60)
        assert await cache.zpopmin("z") == [(member, score)]


async def test_an_error_that_cannot_be_told_is_noted_all_the_same(app):
    class Silent(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    run = await app.runs.start("run")
    assert await run.fail("item", Silent()) == 1
    assert await run.fail("other", Exception("x" * 1_000_000 + "\ud800\0")) == 1
    told = {failure.item: failure for failure in (await run.failures()).failures}
    assert told["item"].error_type == "Silent"
    assert len(told["other"].error) < 3_000


async def test_what_waits_for_no_time_at_all_does_not_wait(app):
    slots, limit = app.slots("s", 1), app.limit("l", "1/hour")
    await slots.take()
    await limit.acquire()
    for wait in (0, -1, -1e308, timedelta(days=-1)):
        with pytest.raises(SlotsTaken):
            async with asyncio.timeout(60):
                await slots.take(wait)
    for wait in (0, -1):
        with pytest.raises(LimitReached):
            async with asyncio.timeout(60):
                await limit.acquire(timeout_s=wait)


async def test_a_time_to_live_may_be_a_timedelta_everywhere(app):
    minute = timedelta(minutes=1)
    cache = app.cache("c", ttl=minute)
    await cache.set("k", 1)
    assert 50 < await cache.ttl("k") <= 60
    await cache.expire("k", timedelta(seconds=5))
    assert 4 < await cache.ttl("k") <= 5
    assert not await app.seen("k", ttl=minute)
    async with app.slots("s", 1, lease=minute).hold(minute) as slot:
        assert slot.lease_s == 60
    watermark = datetime(2024, 1, 1, tzinfo=UTC)
    await (await app.runs.start("r")).checkpoint(1, watermark=watermark)


@pytest.mark.parametrize(
    "usage",
    [
        *(Usage(5, math.nan, used=1), Usage(5, math.inf, used=1), Usage(5, "60", used=1)),
        *(Usage(5, 60, used="1"), Usage(5, 60, used=math.nan), Usage(5, 60, used=math.inf)),
        *(Usage(5, 60, used=-(10**30)), Usage("5", 60, remaining=1), Usage(None, None)),
    ],
)
async def test_what_a_provider_says_and_makes_no_sense_is_passed_over(app, usage):
    limit = app.limit("l", "5/min")
    await limit.reconcile([usage])
    assert (await limit.peek()).remaining == 5


@pytest.mark.parametrize("reset_s", [math.nan, math.inf, -math.inf, "1", 1e308, -5, HUGE])
async def test_a_reset_that_makes_no_sense_does_not_stop_the_limit_for_ever(app, reset_s):
    limit = app.limit("l", "5/min")
    await limit.reconcile([Usage(5, 60, used=5, reset_s=reset_s)])
    assert (await limit.peek()).windows[0].reset_s <= 61


async def test_what_is_larger_than_can_be_read_again_is_refused(valkey_server, namespace, stored):
    codec = CodecSettings(max_inflated=100_000)
    told = Settings(url=valkey_server.url, namespace=namespace, codec=codec)
    large = "x" * 100_001
    async with Penstock(settings=told) as app:
        run = await app.runs.start("run")
        before = stored()
        for call in (
            app.cache("c").set("k", large),
            app.cache("c").get_or_set("k", lambda: large),
            app.feed("f").publish("t", large),
            app.feed("f").publish("t", state=large),
            app.window("w", to=app.queue("q")).add("k", large),
            run.checkpoint(large),
        ):
            with pytest.raises(PenstockError, match="bytes"):
                await call
        assert stored() == before
        await app.cache("c").set("k", large[:-3])
        assert await app.cache("c").get("k") == large[:-3]


# ---- names in keys

HARD = st.text(alphabet=":{}%*?[]\x1f\0\n aA0.é😀\ud800", min_size=1, max_size=6)
FAMILIES = {
    "mark": lambda keys, name: [DedupeKeys.of(keys, name).mark, DedupeKeys.of(keys, name).holder],
    "limit": lambda keys, name: _all(LimitKeys.of(keys, "l", name), "log state waiting tickets"),
    "slots": lambda keys, name: _all(SlotKeys.of(keys, name), "holders waiting tickets state"),
    "feed": lambda keys, name: _all(FeedKeys.of(keys, name), "events state"),
    "cache": lambda keys, name: _all(CacheKeys.of(keys, "c", name), "value sorted flight"),
    "space": lambda keys, name: _all(CacheKeys.of(keys, name, "k"), "value sorted flight"),
    "run": lambda keys, name: _all(
        RunKeys.of(keys, name), "record processed failures failure_info starts events feed"
    ),
    "window": lambda keys, name: _all(WindowKeys.of(keys, "q", name), "current seen"),
    "batch": lambda keys, name: _all(BatchKeys.of(keys, "q", name), "key items bytes"),
}


def _all(keys, fields):
    return [getattr(keys, field) for field in fields.split()]


@pytest.mark.parametrize("cluster", [False, True])
@settings(max_examples=300, deadline=None)
@given(one=HARD, other=HARD)
def test_two_names_have_no_key_in_common(cluster, one, other):
    keys = KeySpace("n", cluster=cluster)
    found = {
        (family, name): set(make(keys, name))
        for family, make in FAMILIES.items()
        for name in {one, other}
    }
    every = [key for names in found.values() for key in names]
    assert len(set(every)) == len(every)
