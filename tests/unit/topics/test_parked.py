"""Ids of parked messages, in the order of their key."""

import tracemalloc

from penstock.topics.consumer.parking import ParkedIds


def ids_of(*numbers):
    return [b"1700000000000-%d" % number for number in numbers]


def fill(parked, numbers):
    for id_ in ids_of(*numbers):
        parked.append(id_)


def test_ids_come_back_in_their_order():
    parked = ParkedIds()
    fill(parked, range(5))
    assert len(parked) == 5
    assert parked.next_ids(3) == ids_of(0, 1, 2)
    parked.remove_first(3)
    fill(parked, [5])
    assert list(parked) == ids_of(3, 4, 5)


def test_what_was_put_back_comes_first():
    parked = ParkedIds()
    fill(parked, range(4))
    taken = parked.next_ids(2)
    parked.remove_first(2)
    parked.put_back(taken)
    assert list(parked) == ids_of(0, 1, 2, 3)
    assert len(parked) == 4
    parked.remove_first(3)
    assert list(parked) == ids_of(3)


def test_one_that_was_attempted_before_comes_alone():
    parked = ParkedIds()
    fill(parked, range(5))
    parked.charged.update(ids_of(0, 3))
    seen = []
    while parked:
        ids = parked.next_ids(10)
        seen.append(len(ids))
        parked.remove_first(len(ids))
    assert seen == [1, 2, 1, 1]
    assert not parked.charged


def test_a_copy_does_not_change():
    parked = ParkedIds()
    fill(parked, range(3))
    copied = parked.copy()
    parked.remove_first(2)
    assert list(copied) == ids_of(0, 1, 2)


def test_a_hundred_thousand_ids_take_less_than_three_megabytes():
    tracemalloc.start()
    parked = ParkedIds()
    fill(parked, range(100_000))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(parked) == 100_000
    assert size < 3_000_000
    while parked:
        parked.remove_first(len(parked.next_ids(16)))
    assert len(parked._numbers) <= 2 * 1_024
