"""Figures: their shape, their bars, and the exit code of whoever prints them."""

import json

import pytest
from bench.figures import Figure, ratio, table


@pytest.mark.parametrize(
    ("op", "value", "holds"), [(">=", 2.0, True), (">=", 0.5, False), ("<=", 0.5, True)]
)
def test_a_figure_knows_whether_it_clears_its_bar(op, value, holds):
    figure = Figure("core", "speed", value, "x", 1.0, op)
    assert figure.holds is holds
    line = json.loads(figure.as_json())
    assert list(line) == ["suite", "name", "value", "unit", "bar", "op", "holds"]
    assert line["holds"] is holds


def test_the_table_marks_what_missed_its_bar():
    shown = table([Figure("s", "fast", 2, "x", 1, ">="), Figure("s", "slow", 0.1, "x", 1, ">=")])
    assert "ok" in shown.splitlines()[1]
    assert "MISSED" in shown.splitlines()[2]


async def test_a_ratio_is_the_median_of_rounds_measured_in_turns():
    order = []

    def side(name, values):
        left = iter(values)

        async def measure():
            order.append(name)
            return next(left)

        return measure

    value = await ratio(side("ours", [2, 9, 4]), side("theirs", [1, 1, 1]), rounds=3)
    assert value == 4
    assert order == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
