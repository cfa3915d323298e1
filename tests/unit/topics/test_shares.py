"""Fair shares: they add up, whatever members come, whatever caps and pins they have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.topics.consumer.fair_share import GroupMember, candidates, quota, read_member

NAMES = ["ann", "bob", "cid", "dan", "eve", "fay"]


def shares(partitions, members):
    return {
        name: quota(name, candidates(partitions, member, members), members)
        for name, member in members.items()
    }


@pytest.mark.parametrize(
    ("partitions", "count", "expected"),
    [
        (8, 1, [8]),
        (8, 2, [4, 4]),
        (8, 3, [3, 3, 2]),
        (2, 3, [1, 1, 0]),
        (1, 4, [1, 0, 0, 0]),
    ],
)
def test_equal_members_get_equal_shares(partitions, count, expected):
    members = dict.fromkeys(NAMES[:count], GroupMember())
    assert list(shares(partitions, members).values()) == expected


def test_what_a_cap_leaves_over_goes_to_the_others():
    members = {"ann": GroupMember(cap=1), "bob": GroupMember(), "cid": GroupMember()}
    assert shares(9, members) == {"ann": 1, "bob": 4, "cid": 4}


def test_caps_may_leave_partitions_to_nobody():
    assert shares(9, {"ann": GroupMember(cap=2), "bob": GroupMember(cap=3)}) == {"ann": 2, "bob": 3}


def test_a_pin_takes_its_partitions_and_no_others():
    members = {"ann": GroupMember(pin=(4, 1)), "bob": GroupMember(), "cid": GroupMember()}
    assert candidates(8, members["ann"], members) == [1, 5]
    assert candidates(8, members["bob"], members) == [0, 2, 3, 4, 6, 7]
    assert shares(8, members) == {"ann": 2, "bob": 3, "cid": 3}


def test_a_pin_beyond_the_partitions_owns_nothing():
    members = {"ann": GroupMember(pin=(16, 12)), "bob": GroupMember()}
    assert shares(8, members) == {"ann": 0, "bob": 8}


def test_what_another_version_says_of_itself_is_read_as_far_as_it_can_be():
    assert read_member(b'{"host":"h","pid":1,"colour":"red"}') == GroupMember(host="h", pid=1)
    assert read_member(b"") == GroupMember()
    assert read_member(b"\xff{") == GroupMember()
    assert read_member(b'{"cap":"many"}') == GroupMember()


caps = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 5), min_size=1)


@given(st.integers(1, 40), caps)
def test_shares_add_up_and_differ_by_one_where_no_cap_forbids_it(partitions, capped):
    members = {name: GroupMember(cap=cap) for name, cap in capped.items()}
    given = shares(partitions, members)
    room = sum(member.cap or partitions for member in members.values())
    assert sum(given.values()) == min(partitions, room)
    for name, member in members.items():
        assert not member.cap or given[name] <= member.cap
    free = [given[name] for name, member in members.items() if given[name] != member.cap]
    assert not free or max(given.values()) - min(free) <= 1


@given(st.integers(1, 40), st.sets(st.sampled_from(NAMES), min_size=2), st.data())
def test_a_member_more_makes_no_share_larger_and_takes_only_its_own(partitions, names, data):
    newcomer = data.draw(st.sampled_from(sorted(names)))
    before = shares(partitions, dict.fromkeys(names - {newcomer}, GroupMember()))
    after = shares(partitions, dict.fromkeys(names, GroupMember()))
    assert all(after[name] <= before[name] for name in before)
    assert sum(before[name] - after[name] for name in before) == after[newcomer]
