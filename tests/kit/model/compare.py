"""The invariants: what is stored is what has to be, each message in exactly one place."""

from __future__ import annotations

from penstock.topics.dead_letters.letter import index_field

from .seen import Seen, SeenPartition, SeenShare
from .truth import IN_THE_STREAM, Partition, Place, Share, Truth, spelled


def check(truth: Truth, seen: Seen) -> None:
    assert seen.misfits == []
    for index, (partition, stored) in enumerate(
        zip(truth.partitions, seen.partitions, strict=True)
    ):
        _check_messages(partition, stored)
        _check_bodies(partition, stored, seen.keys)
        assert set(stored.shares) == set(partition.shares)
        for group, share in partition.shares.items():
            _check_share(share, stored.shares[group])
            _check_places(truth, seen, index, group)
    _check_letters(truth, seen)


def _check_messages(partition: Partition, stored: SeenPartition) -> None:
    expected = {id_: partition.messages[id_].fields for id_ in partition.stored()}
    assert list(stored.stored.items()) == list(expected.items())
    assert stored.delayed == {name: one.due_ms for name, one in partition.delayed.items()}
    # First comes the name of the large body.
    assert stored.delayed_bodies == {
        name: [one.body, *one.fields] for name, one in partition.delayed.items()
    }
    assert stored.remembered == partition.remembered
    assert stored.remembered_times == set(partition.remembered)
    assert stored.lost == partition.lost


def _check_bodies(partition: Partition, stored: SeenPartition, keys: set[str]) -> None:
    """No body is missing that a group needs, none is left that nobody knows of."""
    expected = {one.body for one in partition.delayed.values() if one.body}
    expected |= {
        f"{message.body} {spelled(id_)}"
        for id_, message in partition.messages.items()
        if message.body and message.body not in partition.freed
    }
    assert stored.body_index == expected
    beside = {key.rpartition(":")[2] for key in keys if ":payload:" in key}
    for message in partition.messages.values():
        if message.body:
            assert (message.body in beside) == (message.body not in partition.freed)
    for one in partition.delayed.values():
        assert not one.body or one.body in beside


def _check_share(share: Share, stored: SeenShare) -> None:
    assert stored.pending == share.attempts
    assert stored.waiting == share.waiting
    assert stored.failed == share.failed
    assert stored.epoch == share.epoch
    assert stored.owner == share.owner
    assert stored.position == share.position
    if stored.settled_up_to is not None:
        unfinished = [id_ for id_ in share.attempts if id_ <= stored.settled_up_to]
        assert unfinished == [], "a group that is lost would go on after these"
        assert stored.settled_up_to <= share.position


def _check_places(truth: Truth, seen: Seen, index: int, group: str) -> None:
    """Each message is where it has to be, and nowhere else."""
    share, stored = truth.partitions[index].shares[group], seen.partitions[index]
    for id_ in truth.partitions[index].messages:
        expected = share.place(id_)
        places = stored.shares[group].places(id_, set(stored.stored))
        if expected in IN_THE_STREAM:
            assert places == [expected]
        else:
            assert places == []
        has_letter = index_field(group, index, spelled(id_)) in seen.letters
        if (group, index, id_) in truth.revived:
            continue
        if expected is Place.DEAD:
            assert has_letter
        elif expected in {Place.SETTLED, Place.PURGED}:
            assert not has_letter


def _check_letters(truth: Truth, seen: Seen) -> None:
    assert seen.letters == {
        index_field(group, index, spelled(id_)): letter
        for (group, index, id_), letter in truth.letters.items()
    }
    assert seen.letter_ids == set(truth.letters.values())
