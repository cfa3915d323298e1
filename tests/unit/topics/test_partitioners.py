"""Where messages go: the published vectors, even load, and few keys moved by growth.

The vectors were computed a second time in other languages: CRC-32 and the Java hash in Java, the
ring in JavaScript.
"""

import os
import random
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError, EncodeError, SettingError
from penstock.topics.partitioners import (
    ConsistentRing,
    Crc32,
    JavaHash,
    Random,
    RoundRobin,
    check_partition,
)

COUNTS = (1, 2, 3, 8, 16, 1000)
LONG = "x" * 1000
VECTORS = {  # key: partitions among COUNTS by CRC-32, by the ring and by the Java hash
    "": ((0, 0, 0, 0, 0, 0), (0, 0, 2, 2, 2, 671), (0, 0, 0, 0, 0, 0)),
    "a": ((0, 1, 0, 3, 3, 907), (0, 1, 1, 4, 4, 557), (0, 1, 1, 1, 1, 97)),
    "order-42": ((0, 0, 1, 6, 14, 942), (0, 1, 1, 4, 4, 748), (0, 1, 0, 5, 13, 197)),
    "polygenelubricants": ((0, 1, 1, 5, 13, 381), (0, 0, 0, 5, 8, 568), (0, 0, 1, 0, 0, 352)),
    "Grüße": ((0, 1, 0, 1, 1, 97), (0, 1, 1, 3, 3, 155), (0, 1, 2, 7, 7, 351)),
    "日本": ((0, 0, 2, 4, 12, 756), (0, 0, 0, 0, 0, 683), (0, 1, 0, 7, 7, 47)),
    "🚰": ((0, 0, 0, 2, 10, 746), (0, 0, 2, 2, 2, 724), (0, 1, 0, 3, 3, 75)),
    "🚰 penstock": ((0, 1, 2, 3, 3, 531), (0, 1, 1, 4, 9, 9), (0, 0, 1, 2, 10, 50)),
    LONG: ((0, 0, 0, 6, 6, 270), (0, 0, 0, 0, 8, 509), (0, 0, 2, 0, 0, 888)),
}
KEYED = [Crc32, ConsistentRing, JavaHash]
KINDS = [*KEYED, RoundRobin, Random]
KEYS = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize("key", VECTORS, ids=lambda key: key[:20] or "empty")
@pytest.mark.parametrize(("kind", "column"), list(zip(KEYED, range(3), strict=True)))
def test_keys_go_where_the_published_vectors_say(kind, column, key):
    assert tuple(kind().partition(key, count) for count in COUNTS) == VECTORS[key][column]


@pytest.mark.parametrize("kind", KINDS)
@given(key=st.none() | KEYS, partitions=st.integers(1, 100))
@settings(deadline=None)  # the first call for a number of partitions builds the ring
def test_every_answer_is_one_of_the_partitions(kind, key, partitions):
    answer = kind().partition(key, partitions)
    assert check_partition(answer, partitions) == answer


@pytest.mark.parametrize("kind", KEYED)
@given(key=KEYS, partitions=st.integers(1, 50))
@settings(deadline=None)  # as above
def test_a_key_has_one_place_whoever_asks(kind, key, partitions):
    assert kind().partition(key, partitions) == kind().partition(key, partitions)


def test_places_are_the_same_in_a_process_with_another_hash_seed():
    program = (
        "from penstock.topics.partitioners import *\n"
        "kinds = [Crc32(), ConsistentRing(), JavaHash()]\n"
        "print([kind.partition(f'user-{n}', 7) for kind in kinds for n in range(50)])"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1


@given(text=st.text(st.characters(max_codepoint=127), max_size=20))
def test_the_java_hash_is_the_polynomial_of_the_java_documentation(text):
    total = sum(ord(sign) * 31 ** (len(text) - 1 - place) for place, sign in enumerate(text))
    signed = (total + 2**31) % 2**32 - 2**31
    assert JavaHash().partition(text, 1000) == signed % 1000


@pytest.mark.parametrize("kind", KEYED)
def test_keys_spread_over_all_partitions(kind):
    partitioner = kind()
    load = Counter(partitioner.partition(f"user-{n}", 8) for n in range(8000))
    assert set(load) == set(range(8))
    assert max(load.values()) < 1.5 * 1000
    assert min(load.values()) > 0.5 * 1000


@pytest.mark.parametrize("kind", [Crc32, ConsistentRing, RoundRobin])
def test_messages_without_a_key_take_turns(kind):
    partitioner = kind()
    turns = [partitioner.partition(None, 5) for _ in range(50)]
    assert Counter(turns) == dict.fromkeys(range(5), 10)
    assert all((turn + 1) % 5 == following for turn, following in pairwise(turns))


@pytest.mark.parametrize("kind", [Crc32, ConsistentRing, RoundRobin])
def test_programs_that_send_one_message_do_not_all_choose_the_same_partition(kind):
    assert len({kind().partition(None, 8) for _ in range(100)}) > 4


@pytest.mark.parametrize("kind", [JavaHash, Random])
def test_messages_without_a_key_may_go_anywhere(kind):
    partitioner = kind()
    load = Counter(partitioner.partition(None, 4) for _ in range(4000))
    assert set(load) == set(range(4))
    assert min(load.values()) > 700


@pytest.mark.parametrize("kind", [RoundRobin, Random])
def test_what_ignores_keys_spreads_one_key_over_all_partitions(kind):
    partitioner = kind()
    assert {partitioner.partition("same", 4) for _ in range(200)} == set(range(4))


def test_keys_with_one_take_no_turn_of_those_without():
    partitioner = Crc32()
    first = partitioner.partition(None, 100)
    partitioner.partition("key", 100)
    assert partitioner.partition(None, 100) == (first + 1) % 100


def test_random_places_can_be_repeated():
    one, other = (Random(random.Random(7)) for _ in range(2))  # noqa: S311  repeatable on purpose
    draws = [one.partition("key", 16) for _ in range(20)]
    assert draws == [other.partition("key", 16) for _ in range(20)]
    assert len(set(draws)) > 5


@pytest.mark.parametrize(("before", "after"), [(1, 2), (3, 4), (8, 9), (8, 16), (99, 100)])
def test_growing_a_ring_moves_only_its_share_of_the_keys_and_only_to_new_partitions(before, after):
    ring = ConsistentRing()
    keys = [f"user-{n}" for n in range(10_000)]
    moved = [key for key in keys if ring.partition(key, before) != ring.partition(key, after)]
    assert all(ring.partition(key, after) >= before for key in moved)
    share = (after - before) / after
    assert 0.6 * share < len(moved) / len(keys) < 1.4 * share


def test_more_virtual_nodes_even_out_the_load():
    keys = [f"user-{n}" for n in range(10_000)]

    def largest(ring):
        return max(Counter(ring.partition(key, 8) for key in keys).values())

    assert largest(ConsistentRing(1024)) < largest(ConsistentRing(1))


@pytest.mark.parametrize("nodes", [0, -1, 4097, 1.5, "128", True])
def test_a_ring_needs_a_sensible_number_of_virtual_nodes(nodes):
    with pytest.raises(SettingError, match="expected a whole number from 1 to 4096"):
        ConsistentRing(nodes)


@pytest.mark.parametrize("kind", KEYED)
def test_a_key_that_cannot_be_stored_is_refused(kind):
    with pytest.raises(EncodeError, match="surrogate"):
        kind().partition("\ud83d", 8)


@pytest.mark.parametrize("answer", [-1, 8, 10**30, 1.0, True, False, "3", None, [1]])
def test_a_partitioner_that_names_no_partition_is_refused(answer):
    with pytest.raises(ConfigError, match="expected a whole number from 0 to 7"):
        check_partition(answer, 8)


@pytest.mark.parametrize("kind", KINDS)
def test_a_partitioner_says_what_it_is(kind):
    assert repr(kind()).startswith(f"{kind.__name__}(")
