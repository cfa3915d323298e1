"""`KeySpace`: what all keys of one system have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.redis.keys.names import check_name
from penstock.settings.redis import RESERVED_WORDS

__all__ = ["NAMESPACE_END", "KeySpace", "former_prefix", "namespace_prefix"]

NAMESPACE_END: Final = "::"
"""Stands after the name of a namespace, and nowhere else, as no part of a key is empty.

One colon would not do: without a namespace `mail:bulk` is the lane `bulk` of the queue `mail`.
"""


def namespace_prefix(namespace: str) -> str:
    """What every key of a namespace begins with, or nothing."""
    return f"{namespace}{NAMESPACE_END}" if namespace else ""


def former_prefix(namespace: str) -> str:
    """What keys of a namespace began with in versions that ended it with one colon."""
    return f"{namespace}:" if namespace else ""


@dataclass(frozen=True, slots=True)
class KeySpace:
    """The namespace of a system, and the layout of its keys: for one server, or for a cluster.

    PartitionKeys.of(KeySpace(), "orders", 3).stream                stream:topic:orders:p:3
    PartitionKeys.of(KeySpace("hsi", cluster=True), "orders", 3).stream
                                                                    hsi::stream:topic:{orders:3}
    """

    namespace: str = ""
    cluster: bool = False
    prefix: str = field(init=False, repr=False, compare=False)
    """What every key and channel begins with."""

    def __post_init__(self) -> None:
        if self.namespace != "":
            # Not a word that keys begin with: a reader would take it for one of those.
            check_name("namespace", self.namespace, RESERVED_WORDS)
        object.__setattr__(self, "prefix", namespace_prefix(self.namespace))

    def tag(self, home: str) -> str:
        """Wrap what must stay together in braces, where they decide the hash slot."""
        return f"{{{home}}}" if self.cluster else home

    def beside(self, target: str, home: str) -> str:
        """Put keys into the hash slot of `target` (a queue, a partition) on a cluster."""
        return f"{{{target}}}:{home}" if self.cluster else home
