"""Whatever happens to a topic, each of its messages is in exactly one place."""

from __future__ import annotations

from hashlib import sha1

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from penstock.errors import CommandRefused
from penstock.redis import script
from penstock.testing.servers import ServerProcess

from .model.machine import TopicMachine


@pytest.fixture(scope="module")
def machine():
    """A machine on a server of its own, which it empties for each run."""
    with ServerProcess("valkey") as server:
        yield type("Machine", (TopicMachine,), {"url": server.url})


def run(machine, *phases, **limits):
    run_state_machine_as_test(
        machine,
        settings=settings(
            deadline=None,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            phases=phases,  # to explain a failure takes minutes; its steps say enough
            **limits,
        ),
    )


QUICK = {
    "max_examples": 100,
    "stateful_step_count": 40,
    "derandomize": True,
    "database": None,
}


def test_every_message_is_in_exactly_one_place(machine):
    run(machine, Phase.generate, Phase.shrink, **QUICK)


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_every_message_is_in_exactly_one_place_in_the_long_run(machine):
    phases = (Phase.reuse, Phase.generate, Phase.shrink)
    run(machine, *phases, max_examples=2_000, stateful_step_count=80, print_blob=True)


@pytest.mark.parametrize(
    ("name", "text", "instead"),
    [
        ("settle", "~= ARGV[2] then return -1 end", "== '' then return -1 end"),
        ("settle", "if lowest then", "if false then"),
        ("trim", "redis.call('XPENDING', KEYS[1], facts['name'])[2]", "nil"),
        ("move_due", "redis.call('ZREM', KEYS[2], unpack(moved))", ""),
        ("reset_group", "redis.call('HINCRBY', KEYS[2], ARGV[1], 1)", ""),
        ("publish", "if known then", "if false then"),
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
    load, whole = script.load_script, script.load_script(name).text
    assert whole.count(text) == 1
    broken_text = whole.replace(text, instead)
    digest = sha1(broken_text.encode(), usedforsecurity=False).hexdigest()
    broken = script.Script(name, broken_text, digest, broken_text, digest)
    monkeypatch.setattr(script, "load_script", lambda one: broken if one == name else load(one))
    with pytest.raises((AssertionError, CommandRefused)):
        run(machine, Phase.generate, **QUICK)
