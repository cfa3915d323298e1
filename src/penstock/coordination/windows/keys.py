"""Keys of windows."""

from __future__ import annotations

from typing import Self

from penstock.coordination.stored_names import BATCH_ITEMS, BATCH_KEY
from penstock.redis.keys.family import FamilyKeys
from penstock.redis.keys.names import check_name, encode_id
from penstock.redis.keys.space import KeySpace

__all__ = ["BatchKeys", "WindowIndexKeys", "WindowKeys", "WindowsKeys"]


class WindowsKeys(FamilyKeys):
    """Keys of all aggregation windows together."""

    __slots__ = ()

    @classmethod
    def of(cls, keys: KeySpace) -> Self:
        return cls(keys.prefix, keys.tag("windows"))

    @property
    def registry(self) -> str:
        """HASH: from a window's name to how it is set, as JSON."""
        return f"{self.root}penstock:{self.home}:registry"


class WindowKeys(FamilyKeys):
    """Keys of one aggregation window.

    On a cluster they are in the hash slot of the queue or partition that gets its batches.
    """

    __slots__ = ()

    @classmethod
    def of(cls, keys: KeySpace, beside: str, window: str) -> Self:
        """`beside` gets its batches: a queue, or a topic and a partition number."""
        return cls(keys.prefix, keys.beside(beside, encode_id("window", window)))

    @classmethod
    def prefix(cls, keys: KeySpace, beside: str) -> str:
        """What these keys begin with; the encoded name of the window follows."""
        return f"{keys.prefix}batch:{keys.beside(beside, '')}"

    @property
    def current(self) -> str:
        """STRING: the id of the open batch."""
        return f"{self.root}batch:{self.home}:current"

    @property
    def seen(self) -> str:
        """ZSET: ids of items by the time they were added."""
        return f"{self.root}batch:{self.home}:seen"


class BatchKeys(FamilyKeys):
    """Keys of one batch; on a cluster in the slot of its window."""

    __slots__ = ()

    @classmethod
    def of(cls, keys: KeySpace, beside: str, batch: str) -> Self:
        """On a single server the id of a batch alone names its keys."""
        return cls(keys.prefix, keys.beside(beside, encode_id("batch", batch)))

    @classmethod
    def prefix(cls, keys: KeySpace, beside: str) -> str:
        """What these keys begin with; the encoded id of the batch follows."""
        return f"{keys.prefix}batch:{keys.beside(beside, '')}"

    @property
    def key(self) -> str:
        """STRING: the caller's key of the batch."""
        return f"{self.root}batch:{self.home}:{BATCH_KEY}"

    @property
    def items(self) -> str:
        """LIST: the items in order of arrival."""
        return f"{self.root}batch:{self.home}:{BATCH_ITEMS}"

    @property
    def started_at(self) -> str:
        """STRING: the time of the first item."""
        return f"{self.root}batch:{self.home}:started_at"

    @property
    def last_activity(self) -> str:
        """STRING: the time of the latest item."""
        return f"{self.root}batch:{self.home}:last_activity"

    @property
    def bytes(self) -> str:
        """STRING: the bytes of its items."""
        return f"{self.root}batch:{self.home}:bytes"


class WindowIndexKeys(FamilyKeys):
    """Keys of all windows of one name that close into the same queue or partition."""

    __slots__ = ()

    @classmethod
    def of(cls, keys: KeySpace, beside: str, name: str) -> Self:
        name = check_name("window", name)
        if keys.cluster:
            return cls(keys.prefix, keys.beside(beside, name))
        return cls(keys.prefix, f"{encode_id('target', beside)}:{name}")

    @property
    def due(self) -> str:
        """ZSET: windows with an open batch by the time it is due to close, in server ms."""
        return f"{self.root}penstock:window:{self.home}:due"

    @property
    def events(self) -> str:
        """STREAM: what opened, grew and closed, capped."""
        return f"{self.root}penstock:window:{self.home}:events"

    @property
    def state(self) -> str:
        """HASH: the number of the latest event, and counts."""
        return f"{self.root}penstock:window:{self.home}:state"
