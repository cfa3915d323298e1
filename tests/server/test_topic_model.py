"""Whatever happens to a topic, each of its messages is in exactly one place."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from penstock.testing.servers import ServerProcess

from .model.machine import TopicMachine


@pytest.fixture(scope="module")
def machine():
    """A machine on a server of its own, which it empties for each run."""
    with ServerProcess("valkey") as server:
        yield type("Machine", (TopicMachine,), {"url": server.url})


def run(machine, **limits):
    run_state_machine_as_test(
        machine,
        settings=settings(
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.reuse, Phase.generate, Phase.shrink),  # explaining takes minutes
            report_multiple_bugs=False,
            **limits,
        ),
    )


def test_every_message_is_in_exactly_one_place(machine):
    run(machine, max_examples=80, stateful_step_count=40, derandomize=True, database=None)


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_every_message_is_in_exactly_one_place_in_the_long_run(machine):
    run(machine, max_examples=2_000, stateful_step_count=80)
