"""Which consumers a process runs, as far as they share a client."""

from __future__ import annotations

from weakref import WeakKeyDictionary, WeakSet

from penstock.redis.client import Client

__all__ = ["crowd_of"]

_crowds: WeakKeyDictionary[Client, WeakSet[object]] = WeakKeyDictionary()


def crowd_of(client: Client) -> WeakSet[object]:
    """The consumers that run now with this client."""
    if client not in _crowds:
        _crowds[client] = WeakSet()
    return _crowds[client]
