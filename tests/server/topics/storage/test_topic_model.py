"""Whatever happens to a topic, each of its messages is in exactly one place."""

from __future__ import annotations

import pytest
from tests.kit.model.machine import TopicMachine
from tests.kit.model.playing import plant_mistake, run_for_long, run_quickly

from penstock.errors import CommandRefused
from penstock.testing.servers import ServerProcess

QUICK = {"max_examples": 100, "stateful_step_count": 40}
LONGER = {"max_examples": 600, "stateful_step_count": 40}
"""To find a mistake, which ends the search."""


@pytest.fixture(scope="module")
def machine():
    """A machine on a server of its own, which it empties for each run."""
    with ServerProcess("valkey") as server:
        yield type("Machine", (TopicMachine,), {"url": server.url})


def test_every_message_is_in_exactly_one_place(machine):
    run_quickly(machine, **QUICK)


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_every_message_is_in_exactly_one_place_in_the_long_run(machine):
    run_for_long(machine, max_examples=2_000, stateful_step_count=80)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("name", "text", "instead"),
    [
        ("ack_messages", "~= ARGV[2] then return -1 end", "== '' then return -1 end"),
        ("ack_messages", "if lowest then", "if false then"),
        ("trim_partition", "redis.call('XPENDING', KEYS[1], facts['name'])[2]", "nil"),
        ("move_due", "redis.call('ZREM', KEYS[2], unpack(moved))", ""),
        ("reset_group", "next_number(epoch or 0, number)", "epoch or 0"),
        ("publish_message", "if known and not is_over then", "if false then"),
    ],
    ids=[
        "anybody settles",
        "the commit passes what is pending",
        "trimming takes what is pending",
        "due messages are moved again and again",
        "a reset leaves the owner in place",
        "a repeat is stored again",
    ],
)
def test_a_script_that_breaks_a_promise_is_found(machine, monkeypatch, name, text, instead):
    plant_mistake(monkeypatch, name, text, instead)
    with pytest.raises((AssertionError, CommandRefused)):
        run_quickly(machine, **LONGER, shrink=False)
