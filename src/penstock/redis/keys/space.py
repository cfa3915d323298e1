"""`KeySpace`: what all keys of one system have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.redis.keys.names import check_name
from penstock.settings.redis import RESERVED_WORDS

__all__ = ["KeySpace"]


@dataclass(frozen=True, slots=True)
class KeySpace:
    """The namespace of a system, and the layout of its keys: for one server, or for a cluster.

    PartitionKeys.of(KeySpace(), "orders", 3).stream                stream:topic:orders:p:3
    PartitionKeys.of(KeySpace("hsi", cluster=True), "orders", 3).stream
                                                                    hsi:stream:topic:{orders:3}
    """

    namespace: str = ""
    cluster: bool = False
    prefix: str = field(init=False, repr=False, compare=False)
    """What every key begins with: namespace and colon, or nothing."""

    def __post_init__(self) -> None:
        prefix = ""
        if self.namespace != "":
            # A reserved word would make these keys look like those of a system without namespace.
            prefix = f"{check_name('namespace', self.namespace, RESERVED_WORDS)}:"
        object.__setattr__(self, "prefix", prefix)

    def tag(self, home: str) -> str:
        """Wrap what must stay together in braces, where they decide the hash slot."""
        return f"{{{home}}}" if self.cluster else home

    def beside(self, target: str, home: str) -> str:
        """Put keys into the hash slot of `target` (a queue, a partition) on a cluster."""
        return f"{{{target}}}:{home}" if self.cluster else home
