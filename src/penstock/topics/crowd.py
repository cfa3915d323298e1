"""The consumers of a process: the more they are, the less often each one looks for changes."""

from __future__ import annotations

from weakref import WeakKeyDictionary, WeakSet

from penstock.redis.client import Client

__all__ = ["Crowd", "crowd_of"]


class Crowd:
    """The consumers that run now with one client."""

    def __init__(self) -> None:
        self._members: WeakSet[object] = WeakSet()

    def add(self, consumer: object) -> None:
        self._members.add(consumer)

    def discard(self, consumer: object) -> None:
        self._members.discard(consumer)

    def interval_s(self, least_s: float, each_s: float) -> float:
        """Return how often each of them does something, so that all together do it seldom enough.

        One that is alone does it every `least_s`; of many, one after the other every `each_s`.
        """
        return max(least_s, len(self._members) * each_s)


_crowds: WeakKeyDictionary[Client, Crowd] = WeakKeyDictionary()


def crowd_of(client: Client) -> Crowd:
    """Return the consumers that share this client."""
    if client not in _crowds:
        _crowds[client] = Crowd()
    return _crowds[client]
