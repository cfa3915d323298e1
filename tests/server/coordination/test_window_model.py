"""Whatever happens to a window, each of its items is in one place, and batches end in time."""

from __future__ import annotations

import pytest
from tests.kit.model.playing import plant_mistake, run_for_long, run_quickly
from tests.kit.model.window_machine import WindowMachine

from penstock.errors import CommandRefused
from penstock.testing.servers import ServerProcess

DELETED = "\n  redis.call('DEL', unpack(names))"
FORGOTTEN = "\n  redis.call('ZREM', KEYS[1], window)"
QUICK = {"max_examples": 40, "stateful_step_count": 40}


@pytest.fixture(scope="module")
def machine():
    """A machine on a server of its own, which it empties for each run."""
    with ServerProcess("valkey") as server:
        yield type("Machine", (WindowMachine,), {"url": server.unix_url})


@pytest.mark.parametrize("binary", ["valkey", "redis62"])
def test_items_are_in_one_place_and_batches_end_in_time(binary):
    with ServerProcess(binary) as server:
        machine = type("Machine", (WindowMachine,), {"url": server.unix_url})
        run_quickly(machine, **QUICK)


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_items_are_in_one_place_however_long_one_looks(machine):
    run_for_long(machine, max_examples=3_000, stateful_step_count=100)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("name", "text", "instead"),
    [
        ("add_to_window", "since > micros - ARGV[21] * 1000", "since > micros"),
        ("add_to_window", "why_due(started, last) or over", "over"),
        ("add_to_window", "math.min(started + ARGV[13], now + ARGV[14])", "now + ARGV[14]"),
        ("add_to_window", "bytes + weight > most_bytes", "bytes > most_bytes"),
        ("add_to_window", "elseif over then", "elseif false then"),
        ("add_to_window", "if now >= started + ARGV[13]", "if now > started + ARGV[13]"),
        ("close_windows", "return 'max_age'", "return 'idle'"),
        ("close_windows", "'-inf', text_of(now)", "'-inf', text_of(now - 1)"),
        ("close_windows", f"{DELETED}{FORGOTTEN}", FORGOTTEN),
        ("close_windows", "if not room then return 0, waiting, nil, wrong end", ""),
    ],
    ids=[
        "an id is forgotten at once",
        "a late batch takes more items",
        "activity prolongs a batch beyond its age",
        "a batch outgrows its bytes",
        "a full batch takes more items while the queue is full",
        "a batch lives a millisecond too long",
        "the reason is wrong",
        "the closer comes a millisecond late",
        "a closed batch stays",
        "a batch enters a full queue",
    ],
)  # fmt: skip
def test_a_script_that_breaks_a_promise_is_found(machine, monkeypatch, name, text, instead):
    plant_mistake(monkeypatch, name, text, instead)
    with pytest.raises((AssertionError, CommandRefused)):
        run_quickly(machine, **QUICK, shrink=False)
