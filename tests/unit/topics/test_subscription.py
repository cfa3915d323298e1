"""Options of a subscription: what they mean, and which cannot be meant."""

import pytest

from penstock.errors import ConfigError, InvalidName
from penstock.topics.subscription import Subscription


@pytest.mark.parametrize(
    ("ordering", "asked", "kept"),
    [
        ("partition", None, False),
        ("partition", True, True),
        ("partition", False, False),
        ("key", None, True),
        ("key", False, False),
        ("none", None, False),
    ],
)
def test_retries_keep_their_order_by_key_and_where_asked(ordering, asked, kept):
    told = Subscription(group="g", ordering=ordering, ordered_retries=asked)
    assert told.keeps_retries_in_order is kept


@pytest.mark.parametrize(
    ("start", "id_"), [("earliest", "0"), ("latest", "$"), ("170-3", "170-3"), ("170", "170")]
)
def test_a_new_group_starts_where_it_is_told(start, id_):
    assert Subscription(group="g", start=start).start_id == id_


@pytest.mark.parametrize(
    "wrong",
    [
        {"ordering": "keys"},
        {"ordering": None},
        {"concurrency": 0},
        {"concurrency": True},
        {"concurrency": 2.5},
        {"batch": 0},
        {"batch": "10"},
        {"batch": 10, "ordering": "key"},
        {"batch": 10, "ordering": "none"},
        {"max_inflight": -1},
        {"max_partitions": 0},
        {"timeout_s": 0},
        {"timeout_s": -1},
        {"timeout_s": float("nan")},
        {"timeout_s": "5"},
        {"start": ""},
        {"start": "yesterday"},
        {"start": "5-"},
        {"start": "5-1 "},
        {"start": 5},
        {"pin": (0, 0)},
        {"pin": (2, 2)},
        {"pin": (2, -1)},
        {"pin": (2,)},
        {"pin": 2},
        {"pin": (2.5, 1)},
        {"pin": ("2", "1")},
        {"retry": None},
        {"retry": 3},
        {"ordered_retries": True, "ordering": "none"},
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused_by_name(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Subscription(group="g", **wrong)


@pytest.mark.parametrize("name", ["", "a b", "a{b}", "g" * 300, "a:b"])
def test_a_group_has_a_name_that_a_key_can_hold(name):
    with pytest.raises(InvalidName):
        Subscription(group=name)
