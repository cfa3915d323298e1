"""Fair shares of partitions: equal, as far as caps and pins allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from penstock.delivery.stored import read_json

__all__ = ["GroupMember", "candidates", "quota", "read_member"]


class GroupMember(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A consumer as the other members of its group see it, stored with its heartbeat."""

    host: str = ""
    pid: int = 0
    cap: int = 0
    """Most partitions it takes; 0 for any number."""
    pin: tuple[int, int] | None = None
    """It takes exactly the partitions whose number leaves this remainder."""
    versions: bool = False
    """Whether it makes a new version of the list of members when it comes and goes."""


def read_member(about: bytes) -> GroupMember:
    """Decode another member, perhaps of another version; defaults if it cannot be read."""
    member: GroupMember | None = read_json(about, GroupMember)
    return GroupMember() if member is None or (member.pin and member.pin[0] < 1) else member


def candidates(partitions: int, me: GroupMember, members: Mapping[str, GroupMember]) -> list[int]:
    """Partitions that a consumer may take: those it is pinned to, else those without a pin."""
    if me.pin is not None:
        return [index for index in range(partitions) if _is_pinned(index, me.pin)]
    pins = [member.pin for member in members.values() if member.pin is not None]
    return [index for index in range(partitions) if not any(_is_pinned(index, pin) for pin in pins)]


def quota(name: str, open_partitions: Sequence[int], members: Mapping[str, GroupMember]) -> int:
    """How many of the open partitions are the fair share of one consumer.

    Every consumer computes the same for all, so the shares add up. What a cap leaves over goes to
    the others.
    """
    me = members[name]
    if me.pin is not None:
        return len(open_partitions)
    shares = {member: 0 for member in sorted(members) if members[member].pin is None}
    left = len(open_partitions)
    while left:
        hungry = [one for one in shares if _has_room(shares[one], members[one])]
        if not hungry:
            break
        lowest = min(shares[one] for one in hungry)
        for one in hungry:
            if left and shares[one] == lowest:
                shares[one] += 1
                left -= 1
    return shares[name]


def _has_room(share: int, member: GroupMember) -> bool:
    return not member.cap or share < member.cap


def _is_pinned(index: int, pin: tuple[int, int]) -> bool:
    modulo, remainder = pin
    return index % modulo == remainder
