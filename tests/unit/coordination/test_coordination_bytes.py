"""Whatever bytes stand where coordination stores its own: read, skipped, or a `DecodeError`.

Function by function, with thousands of odd values each, up to the lines of the command line. Odd
values among good ones on a server: `tests/server/coordination/test_coordination_odd_bytes.py`.
"""

import contextlib
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.odd.odd_bytes import odd, odd_number, odd_pairs, odd_score
from tests.kit.odd.odd_jobs import dice

from penstock.coordination.feeds.events import event_of, snapshot_of
from penstock.coordination.runs.records import RunRecord, read_events, read_failures, read_starts
from penstock.coordination.runs.validation import check_cursor
from penstock.coordination.slots.slots import holder_of, limit_in
from penstock.coordination.values import to_text
from penstock.coordination.windows.admin import WindowView, batch_view
from penstock.coordination.windows.batches import batch_facts
from penstock.coordination.windows.records import read_record
from penstock.coordination.windows.window import Window
from penstock.errors import DecodeError, PenstockError
from penstock.inspector.runs import RunView
from penstock.inspector.workers import worker_view
from penstock.interfaces.cli.coordination import feed, run, window
from penstock.interfaces.cli.output import say_json
from penstock.interfaces.cli.worker import command as worker
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.keys.names import decode_id
from penstock.settings import CodecSettings, Settings

CASES = 1_000
"""Of each reader in every run; the torture run has a hundred times as many."""

NOW_MS = 1_700_000_000_000
CODEC, CLIENT = Codec(CodecSettings()), Client(Settings())
decode = CODEC.decoder(Any)

FAILURE = b'{"attempts":1,"error_type":"E","error":"x","first_ms":1,"last_ms":2,"api_calls":0}'
RECORD = (
    b'{"name":"w","kind":"queue","target":"q","max_age_ms":10,"idle_ms":10,"max_items":5,'
    b'"max_bytes":1000,"key_field":"key","items_field":"items"}'
)
ABOUT = b'{"host":"h","pid":1,"started_ms":1,"ready":true,"load":{"running":1,"per_s":1.5}}'
RUN_FIELDS = (
    *("dag_run_id", "kind", "status", "version", "started_ms", "updated_ms", "ended_ms"),
    *("ends_ms", "start_time", "checkpoint", "watermark"),
)


def record_of_run(rng):
    record = RunRecord.of("r", odd_pairs(rng, RUN_FIELDS), 0, 0, odd(rng))
    run._show_record(record)
    say_json(record)


def failures_of_run(rng):
    rows = [(odd(rng), odd_score(rng), odd(rng, FAILURE)) for _ in range(rng.randrange(4))]
    failures = read_failures([part for row in rows for part in row])
    assert [one.raw or one.item.encode() for one in failures] == [row[0] for row in rows]
    view = RunView(run=RunRecord(id="r"), failures=failures, starts=[], events=[], at_ms=NOW_MS)
    run._show_failures(view)
    say_json(view)


def starts_of_run(rng):
    names = ('["t",null,1]', '["t",0,2]', '["t",99999999999999999999999,2]')
    stored = odd_pairs(rng, names)
    stored[::2] = [odd(rng, b'["t",null,1]') if rng.random() < 0.5 else one for one in stored[::2]]
    starts = read_starts(stored)
    run._show_starts(starts)
    say_json(starts)


def entry(rng):
    id_ = b"%d-%d" % (rng.getrandbits(rng.randint(1, 64)), rng.getrandbits(rng.randint(1, 64)))
    return id_, odd_pairs(rng, ("type", "data", "ms", "final"))


def events_of_run(rng):
    events = read_events([entry(rng) for _ in range(rng.randrange(4))])
    run._show_events(events)
    say_json(events)


def event_of_feed(rng):
    event = event_of(entry(rng), decode)
    feed._show(event, as_json=False)
    feed._show(event, as_json=True)


def state_of_feed(rng):
    numbers = [rng.getrandbits(rng.randint(1, 63)) for _ in range(4)]
    last = entry(rng) if rng.random() < 0.5 else None
    snapshot_of((*numbers[:3], odd(rng), numbers[3], last), decode)


def cursor_of_failures(rng):
    with contextlib.suppress(PenstockError):
        check_cursor(odd(rng, b"1700000000000 item").decode(errors="replace"))


def holder_of_slot(rng):
    member = odd(rng, b"5:token:host:1").decode(errors="replace")
    say_json(holder_of(member, odd_score(rng)))


def number_of_slots(rng):
    assert limit_in(odd(rng, b'{"limit":3}'), 7) >= 0


def record_of_window(rng):
    try:
        record = read_record(odd(rng, RECORD))
    except DecodeError:
        return
    with contextlib.suppress(PenstockError):
        Window.registered(CLIENT, CODEC, record)


def open_batch(rng):
    facts = [rng.choice((None, odd(rng), odd_number(rng))) for _ in range(3)]
    key = decode_id(odd(rng).decode(errors="replace"))
    batch = batch_facts("b", key, facts, rng.randrange(3), odd_score(rng))
    view = WindowView(
        name="w", kind="queue", target="q", max_age_ms=1, idle_ms=1, max_items=1, max_bytes=1,
        open=1, batches=[] if batch is None else [batch_view(batch, NOW_MS)],
    )  # fmt: skip
    window._show(view)
    say_json(view)


def worker_of_list(rng):
    about = rng.choice((None, odd(rng, ABOUT), odd(rng, ABOUT)))
    view = worker_view(odd(rng), odd_score(rng), about, now_ms=NOW_MS)
    worker.show_workers([view])
    say_json([view])


def cached_value(rng):
    data = odd(rng)
    for kind in (Any, int, str, bytes, list[int], dict[str, int]):
        with contextlib.suppress(DecodeError):
            CODEC.decoder(kind)(data)


def mark(rng):
    data = odd(rng)
    assert to_text(data).encode(errors="surrogateescape") == data


READERS = (
    *(record_of_run, failures_of_run, starts_of_run, events_of_run, event_of_feed, state_of_feed),
    *(cursor_of_failures, holder_of_slot, number_of_slots, record_of_window, open_batch),
    *(worker_of_list, cached_value, mark),
)


def check(reader, first, count):
    for number, rng in enumerate(dice(first, count), first):
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                reader(rng)
        except Exception as error:
            raise AssertionError(f"{reader.__name__}, case {number}: {error!r}") from error


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_odd_bytes_are_read_or_refused_and_can_be_shown(reader):
    check(reader, 0, CASES)


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_a_hundred_times_as_many_odd_bytes_are_read_or_refused(reader):
    check(reader, CASES, 100 * CASES)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data):
    read_failures([data, b"1", data])
    read_starts([data, data])
    holder_of(data.decode(errors="replace"), b"1")
    limit_in(data, 7)
    event_of((b"1-0", [b"ms", data, b"data", data, b"type", data]), decode)
    RunRecord.of("r", [b"version", data, b"checkpoint", data], 0, 0, data)
    worker_view(data, b"1", data, now_ms=1)
    with contextlib.suppress(DecodeError):
        read_record(data)
