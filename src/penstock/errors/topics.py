"""What topics, groups and messages refuse."""

from __future__ import annotations

from penstock.errors.base import PenstockError

__all__ = [
    "GroupMissing",
    "InvalidMessage",
    "LeaseLost",
    "TopicError",
    "TopicMismatch",
    "TopicMissing",
]


class TopicError(PenstockError):
    """The call does not fit the state of a topic or group. Nothing was written."""


class TopicMissing(TopicError):
    """There is no such topic (any more)."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return f"there is no topic {self.topic!r}"


class TopicMismatch(TopicError):
    """The topic has another number of partitions than expected."""

    def __init__(self, topic: str, found: int, wanted: int) -> None:
        super().__init__(topic, found, wanted)
        self.topic, self.found, self.wanted = topic, found, wanted

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} has {self.found} partitions, not {self.wanted}; "
            "leave the number out, or grow the topic"
        )


class GroupMissing(TopicError):
    """The topic has no such group."""

    def __init__(self, topic: str, group: str) -> None:
        super().__init__(topic, group)
        self.topic, self.group = topic, group

    def __str__(self) -> str:
        return f"topic {self.topic!r} has no group {self.group!r}"


class LeaseLost(TopicError):
    """A partition has passed to another consumer; nothing was written."""

    def __init__(self, topic: str, group: str, partition: int, epoch: int) -> None:
        super().__init__(topic, group, partition, epoch)
        self.topic, self.group, self.partition, self.epoch = topic, group, partition, epoch

    def __str__(self) -> str:
        return (
            f"partition {self.partition} of topic {self.topic!r} has passed to another consumer of "
            f"group {self.group!r}: epoch {self.epoch} is over"
        )


class InvalidMessage(TopicError):
    """A key, header, time or position that no message can have."""
