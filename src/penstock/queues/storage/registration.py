"""Registration of a queue's name, bounded by `queues.max_queues`."""

from __future__ import annotations

from penstock.errors import TooMany
from penstock.queues.storage.keys import QueuesKeys
from penstock.queues.storage.scripts import QueueScripts
from penstock.redis.client import Client

__all__ = ["register_queue"]


async def register_queue(client: Client, queue: str) -> None:
    """Note a queue's name; TooMany if it is new and the namespace has as many as it may."""
    most = client.settings.queues.max_queues
    registry = QueuesKeys.of(client.keys).registry
    if not await QueueScripts.of(client).register_queue(registry=registry, queue=queue, most=most):
        raise TooMany("queues", most, "queues.max_queues")
