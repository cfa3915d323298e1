"""Whatever happens to a queue, each of its jobs is in exactly one place."""

from __future__ import annotations

import pytest
from tests.kit.model.playing import plant_mistake, run_for_long, run_quickly
from tests.kit.model.queue_machine import QueueMachine

from penstock.errors import CommandRefused
from penstock.testing.servers import ServerProcess

QUICK = {"max_examples": 40, "stateful_step_count": 40}
PLANTED = {**QUICK, "max_examples": 200}
"""A mistake ends the search; some need a rare row of steps."""


@pytest.fixture(scope="module")
def machine():
    """A machine on a server of its own, which it empties for each run."""
    with ServerProcess("valkey") as server:
        yield type("Machine", (QueueMachine,), {"url": server.url})


@pytest.mark.parametrize("binary", ["valkey", "redis62"])
def test_jobs_are_in_one_place_and_indexes_and_counters_agree(binary):
    with ServerProcess(binary) as server:
        machine = type("Machine", (QueueMachine,), {"url": server.url})
        run_quickly(machine, **QUICK)


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_jobs_are_in_one_place_however_long_one_looks(machine):
    run_for_long(machine, max_examples=3_000, stateful_step_count=120)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("name", "text", "instead"),
    [
        ("retry_job", "redis.call('HDEL', KEYS[2], ARGV[5])", ""),
        (
            "reap_claims",
            "redis.call('HDEL', KEYS[2], claim)\n      if verdict == 'suspect'",
            "if verdict == 'suspect'",
        ),
        (
            "claim_jobs",
            "redis.call('SADD', ARGV[6] .. lane",
            "redis.call('SISMEMBER', ARGV[6] .. lane",
        ),
        (
            "give_back",
            "item ~= '' and item or stored, true)",
            "item ~= '' and item or stored, false)",
        ),
        ("set_aside", "redis.call('HDEL', KEYS[2], unpack(moved))", ""),
        ("bury_job", "forget(ARGV[8], ARGV[7])", ""),
        ("cancel_job", "redis.call('HDEL', KEYS[3], ARGV[1])", ""),
        ("finish_jobs", "redis.call('PEXPIRE', record, ARGV[5])", ""),
        ("purge_jobs", "redis.pcall('SREM', cancelled_beside(ARGV[3]), id)", ""),
        (
            "cancel_job",
            "redis.call('PERSIST', KEYS[5])",
            "redis.call('PEXPIRE', KEYS[5], ARGV[3])",
        ),
        ("submit_jobs", "redis.call('SET', job.unique, job.id)", "redis.call('GET', job.unique)"),
    ],
    ids=[
        "a retry stays in hand",
        "the dead keep what was returned",
        "places of lanes are not counted",
        "what is given back goes to the end",
        "what is set aside stays in hand",
        "a buried job keeps its unique key",
        "a cancelled job leaves its body behind",
        "a job that is done keeps its record for ever",
        "a purged job leaves its mark behind",
        "a cancelled job runs when its mark has run out",
        "a unique key is not taken",
    ],
)
def test_a_script_that_breaks_a_promise_is_found(machine, monkeypatch, name, text, instead):
    plant_mistake(monkeypatch, name, text, instead)
    with pytest.raises((AssertionError, CommandRefused)):
        run_quickly(machine, **PLANTED, shrink=False)
