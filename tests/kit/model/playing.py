"""How the machines of this folder are run: quickly, for long, and with a mistake in a script."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from tests.kit.scripts import load_script

from penstock.redis.script import LuaFolder, Script, script_of

__all__ = ["plant_mistake", "run_for_long", "run_quickly"]


def run_quickly(
    machine: type[RuleBasedStateMachine],
    *,
    max_examples: int,
    stateful_step_count: int,
    shrink: bool = True,
) -> None:
    """Run the same examples each time."""
    _run(
        machine,
        (Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        max_examples=max_examples,
        stateful_step_count=stateful_step_count,
        derandomize=True,
        database=None,
    )


def run_for_long(
    machine: type[RuleBasedStateMachine], *, max_examples: int, stateful_step_count: int
) -> None:
    """Run other examples each time, those first that have failed before."""
    _run(
        machine,
        (Phase.reuse, Phase.generate, Phase.shrink),
        max_examples=max_examples,
        stateful_step_count=stateful_step_count,
        print_blob=True,
    )


def _run(machine: type[RuleBasedStateMachine], phases: tuple[Phase, ...], **limits: Any) -> None:
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


def plant_mistake(monkeypatch: pytest.MonkeyPatch, name: str, text: str, instead: str) -> None:
    """Let the script of this name have `instead` where it has `text`, once."""
    load, whole = LuaFolder.load, load_script(name)
    assert whole.plain_text.count(text) == 1
    broken = script_of(
        name, whole.text.replace(text, instead), whole.plain_text.replace(text, instead)
    )

    def load_broken(folder: LuaFolder, one: str) -> Script:
        return broken if one == name else load(folder, one)

    monkeypatch.setattr(LuaFolder, "load", load_broken)
