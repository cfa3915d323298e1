"""Whether a name is that of a topic or a queue."""

from __future__ import annotations

from typing import Literal

from penstock.errors import InvalidName, ServerError
from penstock.queues.storage.keys import QueueKeys, QueuesKeys
from penstock.redis.client import Client
from penstock.redis.wire import Command
from penstock.topics.storage.keys import TopicKeys

__all__ = ["Kind", "kinds_of"]

Kind = Literal["topic", "queue"]


async def kinds_of(client: Client, name: str) -> list[Kind]:
    """Whether there is a topic of this name, a queue, both or neither. One round trip.

    A queue exists if it is registered or has keys: one that only other programs use is not
    registered. Raises `InvalidName` if neither could have this name.
    """
    commands: list[tuple[Kind, Command]] = []
    wrong: InvalidName | None = None
    try:
        topic = TopicKeys.of(client.keys, name)
        commands.extend(("topic", ("EXISTS", key)) for key in (topic.meta, topic.dlq))
    except InvalidName as error:
        wrong = error
    try:
        queue = QueueKeys.of(client.keys, name)
        commands.append(("queue", ("SISMEMBER", QueuesKeys.of(client.keys).registry, name)))
        own = (queue.waiting, queue.state, queue.dead_letters, queue.overflow)
        commands.extend(("queue", ("EXISTS", key)) for key in own)
    except InvalidName:
        if wrong:
            raise wrong from None
    replies = await client.pipeline([command for _, command in commands])
    kinds: dict[Kind, None] = {}
    for (kind, _), reply in zip(commands, replies, strict=True):
        if isinstance(reply, ServerError):
            raise reply  # a failed read does not mean that it is missing
        if reply:
            kinds[kind] = None
    return list(kinds)
