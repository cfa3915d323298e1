"""Topics: keyed, partitioned streams of messages, read by groups of consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from penstock.topics.admin.topic_admin import TopicAdmin
    from penstock.topics.consumer.consumer import Consumer
    from penstock.topics.dead_letters.dead_letters import DeadLetters
    from penstock.topics.message import Message, Outgoing
    from penstock.topics.partitioners import (
        ConsistentRing,
        Crc32,
        JavaHash,
        Partitioner,
        Random,
        RoundRobin,
    )
    from penstock.topics.producer.durability import replicated
    from penstock.topics.storage.metadata import Retention
    from penstock.topics.subscription import Subscription
    from penstock.topics.topic import Topic
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "admin.topic_admin": "TopicAdmin",
            "consumer.consumer": "Consumer",
            "dead_letters.dead_letters": "DeadLetters",
            "message": "Message Outgoing",
            "partitioners": "ConsistentRing Crc32 JavaHash Partitioner Random RoundRobin",
            "producer.durability": "replicated",
            "storage.metadata": "Retention",
            "subscription": "Subscription",
            "topic": "Topic",
        },
    )

__all__ = [
    # sending and subscribing
    "Topic",
    "Message",
    "Outgoing",
    "Retention",
    "replicated",
    "Subscription",
    "Consumer",
    # administration
    "TopicAdmin",
    "DeadLetters",
    # from key to partition
    "Partitioner",
    "Crc32",
    "RoundRobin",
    "Random",
    "ConsistentRing",
    "JavaHash",
]
