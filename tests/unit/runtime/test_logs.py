from __future__ import annotations

import gc
import io
import json
import logging
import re
import sys
import threading
import time
import warnings

import pytest
from tests.kit.secret_spellings import CANARY, SPELLINGS, planted

from penstock.runtime.logs import SafeText, cleaned, configure, log_what_python_prints
from penstock.settings import LogSettings
from penstock.testing.clock import ManualClock
from penstock.throttled_log import MAX_CAUSES, RateLimitedLog

logger = logging.getLogger("penstock.some.module")

HOSTILE = [
    "plain\r\n2026-01-01 ERROR forged",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;owned\x07",
    "\x9b31m",
    "tab\tnul\x00del\x7f",
    "line\u2028separator\u2029",
    "\u202eright to left",
    "half \ud800 a pair",
]


@pytest.fixture(autouse=True)
def root_as_it_was():
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    filters = {handler: list(handler.filters) for handler in handlers}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for handler, before in filters.items():
        handler.filters[:] = before


@pytest.fixture
def as_json():
    stream = io.StringIO()
    configure(LogSettings(format="json", level="debug"), stream)

    def lines() -> list[dict[str, object]]:
        text = stream.getvalue()
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
        return [json.loads(line) for line in text.splitlines()]

    return lines


@pytest.fixture
def as_text():
    stream = io.StringIO()
    configure(LogSettings(level="debug"), stream)
    return stream.getvalue


def raised(error: Exception) -> Exception:
    """`error` with a traceback."""
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def test_a_json_line_has_time_level_logger_message_and_extras(as_json) -> None:
    logger.warning("queue %s is full", "mail", extra={"length": 7, "lanes": ["high", "low"]})
    (line,) = as_json()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("ts"))
    assert line == {
        "level": "warning",
        "logger": "penstock.some.module",
        "message": "queue mail is full",
        "length": 7,
        "lanes": ["high", "low"],
    }


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_one_harmless_json_line(as_json, text) -> None:
    extra = {"name_": text, "nested": {text: [text]}}
    logger.error("bad: %s", text, extra=extra, exc_info=raised(ValueError(text)))
    (line,) = as_json()
    for value in (line["message"], line["name_"], *line["nested"], line["nested"].popitem()[1][0]):
        assert value.isprintable(), value
    *frames, last = line["exception"].split("\n")
    assert frames[0] == "Traceback (most recent call last):"
    assert last.startswith("ValueError: ")
    assert all(part.isprintable() for part in (*frames, last))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_cannot_forge_a_line_for_people(as_text, text) -> None:
    logger.error("bad: %s", text, extra={"what": text}, exc_info=raised(ValueError(text)))
    first, *rest = as_text().removesuffix("\n").split("\n")
    assert re.match(r"\d\d:\d\d:\d\d\.\d{3} ERROR   some\.module: bad: ", first)
    assert all(line.startswith("    ") for line in rest)
    assert all(line.isprintable() for line in (first, *rest))


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_name_of_a_logger_is_one_of_a_harmless_line(as_json, text) -> None:
    logging.getLogger(text).error("bad")
    assert as_json()[0]["logger"].isprintable()


def test_what_python_prints_is_logged_without_its_secrets(as_json, monkeypatch) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)

    class Broken:
        def __del__(self) -> None:
            fail()

    def fail() -> None:
        raise RuntimeError(f"password={CANARY}\nforged")

    with warnings.catch_warnings():  # which puts back what Python has for warnings
        warnings.simplefilter("always")
        log_what_python_prints()
        warnings.warn(f"password={CANARY}\nforged", stacklevel=1)
    thread = threading.Thread(target=fail, name=f"password={CANARY}")
    thread.start()
    thread.join()
    Broken()
    gc.collect()
    warned, thread_failed, ignored = as_json()
    assert "UserWarning: password=…" in warned["message"]
    assert "thread password=… failed" in thread_failed["message"]
    assert "Broken.__del__" in ignored["message"]
    for line in (thread_failed, ignored):
        assert line["exception"].splitlines()[-1].startswith("RuntimeError: password=…")
    assert CANARY not in json.dumps([warned, thread_failed, ignored])


def test_chained_errors_and_groups_keep_their_shape(as_json) -> None:
    group = ExceptionGroup("outer\nforged", [ValueError("a\nb")])
    group.__cause__ = raised(KeyError("inner\nforged"))
    logger.error("both", exc_info=raised(group))
    text = as_json()[0]["exception"]
    assert "The above exception was the direct cause" in text
    assert r"ValueError: a\n" in text
    assert not any(line.strip(" |").startswith(("forged", "b")) for line in text.split("\n"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("redis://user:secret@host:6379/0", "redis://user:…@host:6379/0"),
        ("redis://:secret@host", "redis://:…@host"),
        ("rediss://u:p@ss/w:rd@host now", "rediss://u:…@host now"),
        ("redis+sentinel://u:12345@h1,h2/m", "redis+sentinel://u:…@h1,h2/m"),
        ("REDIS://u:secret@h", "REDIS://u:…@h"),
        ("two redis://a:x@h1 redis://b:y@h2", "two redis://a:…@h1 redis://b:…@h2"),
        ("http://h:80/x,redis://u:secret@h", "http://h:80/x,redis://u:…@h"),
        ("redis://u:sec\nret@h", "redis://u:…@h"),
        ("url='redis://u:s@h'", "url='redis://u:…@h'"),
        ("redis://h/0?password=secret&db=1", "redis://h/0?password=…&db=1"),
        ("http://host:8080/a@b", "http://host:8080/a@b"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("mail to a@b, see https://example.org", "mail to a@b, see https://example.org"),
    ],
)
def test_passwords_in_urls_are_hidden_and_nothing_else(text, expected) -> None:
    assert cleaned(text) == expected
    assert cleaned(cleaned(text)) == expected


def test_secrets_are_hidden_wherever_they_are_logged(as_json) -> None:
    url = "redis://user:hunter2@host"
    extra = {"url": url, "sentinel_password": "hunter2", "all": {"token": "hunter2", "u": [url]}}
    error = raised(ConnectionError(url))
    logger.error("no %s: %s", url, error, extra=extra, exc_info=error, stack_info=True)
    (line,) = as_json()
    assert "hunter2" not in json.dumps(line)
    assert line["url"] == "redis://user:…@host"


@pytest.mark.parametrize(
    "hostile",
    [
        lambda n: "a://:" * n,
        lambda n: "a" * n + "://",
        lambda n: "password=" * n,
        lambda n: "a://" + ":" * n,
        lambda n: "a://" + "u" * n + "\n",
    ],
    ids=["urls", "scheme", "passwords", "colons", "user"],
)
def test_long_hostile_text_is_cleaned_in_linear_time(hostile) -> None:
    def took_s(size: int) -> float:
        """Processor time, the best of some: what else the machine does only adds to it."""
        text, times = hostile(size), []
        for _ in range(5):
            began = time.process_time()
            cleaned(text)
            times.append(time.process_time() - began)
        return min(times)

    size = 2_000
    while (small := took_s(size)) < 0.005:  # so that the clock's resolution does not count
        size *= 2
    assert took_s(8 * size) < 24 * small  # 8 if linear, 64 if quadratic


def test_handlers_of_others_become_safe_too(as_json) -> None:
    other = logging.StreamHandler(stream := io.StringIO())
    root = logging.getLogger()
    root.addHandler(other)
    configure(LogSettings(), io.StringIO())
    configure(LogSettings(), io.StringIO())
    logger.error("redis://u:secret@h\nforged")
    assert stream.getvalue() == "redis://u:…@h\\nforged\n"
    assert sum(isinstance(known, SafeText) for known in other.filters) == 1


def test_configuring_again_replaces_the_first_handler(as_text) -> None:
    configure(LogSettings(format="json"), stream := io.StringIO())
    logger.info("once")
    assert as_text() == ""
    assert len(stream.getvalue().splitlines()) == 1


def test_the_level_is_kept() -> None:
    configure(LogSettings(level="error"), stream := io.StringIO())
    logger.warning("not shown")
    assert stream.getvalue() == ""


def test_a_log_call_with_wrong_arguments_does_not_break_its_caller(as_json) -> None:
    class Broken:
        def __str__(self) -> str:
            raise OSError("no text")

    logger.info("%d apples", "three")
    logger.info("%s", Broken(), extra={"thing": Broken(), "number": float("nan"), "raw": b"\x1b"})
    first, second = as_json()
    assert first["message"] == "%d apples (its arguments do not fit)"
    assert (second["thing"], second["number"]) == ("<unprintable Broken>", "nan")


def test_an_extra_named_like_a_standard_field_does_not_replace_it(as_json) -> None:
    logger.info("hello", extra={"level": "mine", "ts": 1})
    (line,) = as_json()
    assert (line["level"], line["level_"], line["ts_"]) == ("info", "mine", 1)


def test_a_value_that_holds_itself_can_be_logged(as_json) -> None:
    knot: list[object] = []
    knot.append(knot)
    logger.info("knot", extra={"knot": knot})
    assert as_json()[0]["message"] == "knot"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "coloured"),
    [
        (Terminal, {"TERM": "xterm"}, True),
        (Terminal, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (Terminal, {"TERM": "dumb"}, False),
        (io.StringIO, {"TERM": "xterm"}, False),
    ],
)
def test_colours_are_for_terminals_that_want_them(
    stream, environment, coloured, monkeypatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    configure(LogSettings(), target := stream())
    logger.warning("careful")
    assert ("\x1b[33m" in target.getvalue()) is coloured


def test_the_line_for_people_shows_extras(as_text) -> None:
    logger.info("sent", extra={"count": 3, "topic": "orders", "why": "two words"})
    assert as_text().endswith('INFO    some.module: sent count=3 topic=orders why="two words"\n')


async def test_one_line_per_ten_seconds_and_cause_with_the_count_of_the_rest(caplog) -> None:
    clock = ManualClock()
    quiet = RateLimitedLog(logger, clock=clock)
    for _ in range(100):  # a hundred tries, one every 0.25 s
        quiet.warning("connect", "cannot reach %s", "db")
        quiet.error("auth", "wrong password")
        await clock.advance(0.25)
    lines = [(r.getMessage(), getattr(r, "suppressed", 0)) for r in caplog.records]
    assert lines == [
        ("cannot reach db", 0),
        ("wrong password", 0),
        ("cannot reach db", 39),
        ("wrong password", 39),
        ("cannot reach db", 39),
        ("wrong password", 39),
    ]


def test_a_limited_line_names_the_place_that_wrote_it(caplog) -> None:
    RateLimitedLog(logger).warning("cause", "hello")
    assert caplog.records[0].filename == "test_logs.py"


def test_the_limiter_forgets_the_oldest_cause_instead_of_growing() -> None:
    quiet = RateLimitedLog(logging.getLogger("penstock.unheard"))
    assert quiet.warning("first", "…")
    for number in range(MAX_CAUSES):
        quiet.warning(f"cause {number}", "…")
    assert len(quiet._causes) == MAX_CAUSES
    assert quiet.warning("first", "…")


def test_the_limiter_writes_once_from_many_threads(caplog) -> None:
    quiet = RateLimitedLog(logger)
    barrier = threading.Barrier(8)

    def hammer() -> None:
        barrier.wait()
        for _ in range(200):
            quiet.warning("same", "hello")

    threads = [threading.Thread(target=hammer) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(caplog.records) == 1


# ---- secrets of all spellings


@pytest.mark.parametrize("form", ["human", "json"])
@pytest.mark.parametrize("text", planted(), ids=SPELLINGS)
def test_no_line_has_a_secret_however_it_is_spelled(form, text) -> None:
    stream = io.StringIO()
    configure(LogSettings(format=form), stream)
    extra = {"reply": text, "all": [{"body": text}]}
    logger.error("%s", text, exc_info=raised(RuntimeError(text)), extra=extra)
    assert CANARY not in stream.getvalue()


def test_secrets_stay_if_the_settings_say_so_and_controls_never_do() -> None:
    stream = io.StringIO()
    configure(LogSettings(redact=False), stream)
    logger.warning("password=%s\x1b", CANARY, extra={"token": CANARY})
    assert f"password={CANARY}\\x1b token={CANARY}" in stream.getvalue()


def test_http_clients_log_from_warnings_on_unless_they_have_a_level() -> None:
    client, below = logging.getLogger("httpx"), logging.getLogger("httpcore")
    levels = client.level, below.level
    try:
        client.setLevel(logging.NOTSET)
        below.setLevel(logging.DEBUG)
        configure(LogSettings(level="debug"), io.StringIO())
        assert (client.level, below.level) == (logging.WARNING, logging.DEBUG)
    finally:
        client.setLevel(levels[0])
        below.setLevel(levels[1])
