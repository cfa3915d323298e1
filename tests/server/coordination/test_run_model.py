"""Whatever happens to a run, in any order and however often: its record tells what was done."""

from __future__ import annotations

import pytest
from tests.kit.model.playing import plant_mistake, run_for_long, run_quickly
from tests.kit.model.run_machine import RunMachine

from penstock.errors import CommandRefused
from penstock.testing.servers import ServerProcess

QUICK = {"max_examples": 25, "stateful_step_count": 50}


@pytest.fixture(scope="module", params=["valkey", "redis62"])
def machine(request):
    with ServerProcess(request.param) as server:
        yield type("Machine", (RunMachine,), {"url": server.url})


def test_a_run_is_what_was_done_to_it(machine):
    run_quickly(machine, **QUICK)


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_a_run_is_what_was_done_to_it_however_long_one_looks(machine):
    run_for_long(machine, max_examples=2_000, stateful_step_count=100)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("name", "text", "instead"),
    [
        ("change_run", "remember(ARGV[1], next_version)", ""),
        ("change_run", "if not fits then return {0, version, status} end", ""),
        ("mark_processed", "redis.call('ZREM', KEYS[5], ARGV[i]) == 1", "false"),
        ("fail_item", "if redis.call('SISMEMBER', KEYS[4], id) == 1 then return 0 end", ""),
        ("fail_item", "see_to_end(ARGV[9])", ""),
        ("fail_item", "remember(ARGV[1], info.attempts)", ""),
        ("claim_failures", "redis.call('ZADD', KEYS[5], now + ARGV[3], id)", ""),
        ("resolve_failure", "redis.call('HDEL', KEYS[6], ARGV[2])", ""),
        ("save_checkpoint", "if is_before(new, old) then mark = '' end", ""),
        ("note_start", "redis.call('HSETNX', KEYS[7], ARGV[2], now)", "1"),
    ],
    ids=[
        "a repeated step is not recognised",
        "any step is taken",
        "what is processed stays a failure",
        "what is processed fails",
        "a late failure goes with the run",
        "a repeated failure counts twice",
        "a claim keeps nobody out",
        "what is known of a failure stays",
        "the watermark goes back",
        "every start is the first",
    ],
)
def test_a_script_that_breaks_a_promise_is_found(machine, monkeypatch, name, text, instead):
    plant_mistake(monkeypatch, name, text, instead)
    with pytest.raises((AssertionError, CommandRefused)):
        run_quickly(machine, **QUICK, shrink=False)
