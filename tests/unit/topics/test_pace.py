"""How much is fetched at once: learnt from how long it takes."""

from itertools import pairwise

import pytest

from penstock.topics.consumer.fetch_budget import FetchPacing


def test_a_quick_handler_gets_more_step_by_step_up_to_the_most():
    pace = FetchPacing(1_000)
    counts = [pace.count]
    while pace.count < 1_000:
        pace.note(pace.count, 0.0001)
        counts.append(pace.count)
    assert all(after <= 2 * before for before, after in pairwise(counts))
    pace.note(1_000, 0.0)
    assert pace.count == 1_000


def test_a_slow_handler_gets_one_at_a_time_and_recovers():
    pace = FetchPacing(1_000)
    pace.note(1, 5.0)
    assert pace.count == 1
    pace.note(1, 0.001)
    assert pace.count == 2


def test_a_batch_is_the_least():
    pace = FetchPacing(1_000, least=100)
    assert pace.count == 100
    pace.note(100, 60.0)
    assert pace.count == 100


@pytest.mark.parametrize("took_s", [0.0, 1.0])
def test_nothing_handled_teaches_nothing(took_s):
    pace = FetchPacing(1_000)
    before = pace.count, pace.hop
    pace.note(0, took_s)
    pace.note_hop(0, took_s)
    assert (pace.count, pace.hop) == before


def test_hops_to_a_thread_grow_for_a_quick_function_and_shrink_for_a_slow_one():
    pace = FetchPacing(1_000)
    assert pace.hop == 1
    for _ in range(12):
        pace.note_hop(pace.hop, pace.hop * 0.00001)
    assert pace.hop == 1_000
    pace.note_hop(10, 10.0)
    assert pace.hop == 1
