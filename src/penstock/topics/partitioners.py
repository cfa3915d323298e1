"""Which partition of a topic a message goes to.

    Crc32            the default: equal keys meet in one partition, in any language
    ConsistentRing   the same, and growing the topic moves few keys
    JavaHash         as the Java library places them, so that both may write to one topic
    RoundRobin       keys are ignored, partitions take turns
    Random           keys are ignored, partitions are drawn

A partitioner of your own is any object with such a `partition` method. Every program that writes to
a topic needs the same one, or messages of one key end up in two partitions and lose their order.
"""

from __future__ import annotations

import random
import sys
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from itertools import count
from typing import Protocol
from zlib import crc32

from penstock.errors import ConfigError, EncodeError, InvalidMessage, SettingError

__all__ = [
    "ConsistentRing",
    "Crc32",
    "JavaHash",
    "Partitioner",
    "Random",
    "RoundRobin",
    "check_key",
    "check_partition",
]

LONGEST_KEY = 1024
"""Bytes of UTF-8."""


class Partitioner(Protocol):
    """Places messages. It is called once per message, from the event loop: it must not wait."""

    def partition(self, key: str | None, partitions: int) -> int:
        """Return a number from 0 to `partitions` - 1 (`partitions` is at least 1)."""
        ...


def check_key(key: object) -> bytes:
    """Return a message's key as it is stored, or raise `InvalidMessage`."""
    if not isinstance(key, str):
        raise InvalidMessage(f"key {key!r}: expected a text (a str) or None")
    try:
        data = key.encode()
    except UnicodeEncodeError:
        raise InvalidMessage(f"key {key[:60]!r}: half of a surrogate pair is no text") from None
    if len(data) > LONGEST_KEY:
        raise InvalidMessage(
            f"key {key[:60]!r}…: has {len(data)} bytes, at most {LONGEST_KEY} are allowed"
        )
    return data


def check_partition(value: object, partitions: int) -> int:
    """Return what a partitioner answered, or raise ConfigError if it names no partition."""
    # Exactly int: True is one too to isinstance, and no partition.
    if type(value) is int and 0 <= value < partitions:
        return value
    raise ConfigError(
        f"the partitioner returned {value!r}: expected a whole number from 0 to {partitions - 1}"
    )


def _turns() -> Callable[[], int]:
    """Count up from anywhere; safe to call from several threads.

    If all began at 0, programs that send one message and end would fill partition 0 alone.
    """
    start = random.randrange(1 << 16)  # noqa: S311  spreads load, keeps no secret
    return count(start).__next__


class _Alike:
    """Equal to every other one of its class: they place keys alike."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))


def _unwritable(key: str) -> EncodeError:
    return EncodeError(f"key {key[:60]!r} holds half of a surrogate pair, which UTF-8 cannot write")


class Crc32(_Alike):
    """CRC-32 of the key in UTF-8, unsigned, modulo the number of partitions.

    It is the checksum of zip and PNG, so every language has it. Messages without a key take turns.
    """

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        self._turn = _turns()

    def partition(self, key: str | None, partitions: int) -> int:
        if key is None:
            return self._turn() % partitions
        try:
            return crc32(key.encode()) % partitions
        except UnicodeEncodeError:
            raise _unwritable(key) from None

    def __repr__(self) -> str:
        return "Crc32()"


class RoundRobin(_Alike):
    """The partitions take turns, whatever the key is. It keeps count, so give each topic its own.

    Two topics that share one, and are sent to alternately, would each use every other partition.
    """

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        self._turn = _turns()

    def partition(self, key: str | None, partitions: int) -> int:  # noqa: ARG002  keys do not count
        return self._turn() % partitions

    def __repr__(self) -> str:
        return "RoundRobin()"


class Random:
    """A partition is drawn for each message, whatever its key is.

    `generator` makes the draws repeatable: `Random(random.Random(7))`.
    """

    __slots__ = ("_generator",)

    def __init__(self, generator: random.Random | None = None) -> None:
        self._generator = generator or random.Random()  # noqa: S311  spreads load, keeps no secret

    def partition(self, key: str | None, partitions: int) -> int:  # noqa: ARG002  keys do not count
        return int(self._generator.random() * partitions)

    def __repr__(self) -> str:
        return "Random()"


_POINT_BYTES = 8
_POINTS_PER_DIGEST = 8
_MOST_VIRTUAL_NODES = 4096
_RINGS_KEPT = 32


@dataclass(frozen=True, slots=True)
class ConsistentRing:
    """A ring of 64-bit points: growing from P to Q partitions moves about (Q-P)/Q of the keys.

    Keys move to the new partitions only, never between the old ones. All hashes are BLAKE2b-512,
    read big-endian, so the places are the same in every process, Python version and language:

    - a key lies at the first 8 bytes of the digest of its UTF-8 form;
    - partition p lies at `virtual_nodes` points: the digests of the texts "p/0", "p/1", …, each
      cut into eight points of 8 bytes, as many as are needed;
    - a key belongs to the partition of the first point at or after it, and past the last point to
      that of the first. Should two partitions ever share a point, it is the lower one's.

    More virtual nodes even out the load and cost memory: 128 of them put a partition's share of
    the keys within some 10 % (one standard deviation) of the mean. Messages without a key take
    turns.
    """

    virtual_nodes: int = 128
    _turn: Callable[[], int] = field(default_factory=_turns, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        nodes = self.virtual_nodes
        if type(nodes) is not int or not 1 <= nodes <= _MOST_VIRTUAL_NODES:
            expected = f"a whole number from 1 to {_MOST_VIRTUAL_NODES}"
            raise SettingError("ConsistentRing.virtual_nodes", nodes, expected)

    def partition(self, key: str | None, partitions: int) -> int:
        if key is None:
            return self._turn() % partitions
        try:
            data = key.encode()
        except UnicodeEncodeError:
            raise _unwritable(key) from None
        points, owners = _ring(partitions, self.virtual_nodes)
        place = int.from_bytes(blake2b(data).digest()[:_POINT_BYTES], "big")
        return owners[bisect_left(points, place)]


@lru_cache(_RINGS_KEPT)
def _ring(partitions: int, virtual_nodes: int) -> tuple[list[int], list[int]]:
    """Give the points in order and the owner of each, with the first owner once more at the end."""
    owner_of: dict[int, int] = {}
    for partition in range(partitions):
        for point in _points(partition, virtual_nodes):
            owner_of.setdefault(point, partition)
    points = sorted(owner_of)
    owners = [owner_of[point] for point in points]
    return points, [*owners, owners[0]]


def _points(partition: int, virtual_nodes: int) -> list[int]:
    digests = -(-virtual_nodes // _POINTS_PER_DIGEST)
    data = b"".join(blake2b(b"%d/%d" % (partition, n)).digest() for n in range(digests))
    ends = range(_POINT_BYTES, virtual_nodes * _POINT_BYTES + 1, _POINT_BYTES)
    return [int.from_bytes(data[end - _POINT_BYTES : end], "big") for end in ends]


_NATIVE_UTF_16 = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"
_BITS_32 = 0xFFFF_FFFF
_SIGN_BIT = 0x8000_0000


class JavaHash(_Alike):
    """Java's `String.hashCode()` of the key, modulo the number of partitions, never negative.

    So does the redis-streaming library for Java. As there, messages without a key go anywhere.
    """

    __slots__ = ("_anywhere",)

    def __init__(self) -> None:
        self._anywhere = Random()

    def partition(self, key: str | None, partitions: int) -> int:
        if key is None:
            return self._anywhere.partition(None, partitions)
        # Python's % has the sign of the divisor: that is Java's floorMod.
        return _java_hash(key) % partitions

    def __repr__(self) -> str:
        return "JavaHash()"


def _java_hash(text: str) -> int:
    """A signed 32-bit number made of the text's UTF-16 units: an emoji counts as two."""
    try:
        units = memoryview(text.encode(_NATIVE_UTF_16)).cast("H")
    except UnicodeEncodeError:
        raise _unwritable(text) from None
    value = 0
    for unit in units:
        value = (31 * value + unit) & _BITS_32
    return value - 2 * (value & _SIGN_BIT)
