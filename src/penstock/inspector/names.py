"""What a name stands for on the server."""

from __future__ import annotations

from typing import Literal

from penstock.errors import InvalidName, ServerError
from penstock.redis.client import Client
from penstock.redis.wire import Command

__all__ = ["Kind", "kinds_of"]

Kind = Literal["topic", "queue"]


async def kinds_of(client: Client, name: str) -> list[Kind]:
    """Say whether there is a topic of this name, a queue, both or neither. One round trip.

    What is registered counts, and so does anything that is there: a queue that only other programs
    have used is not registered. Raises `InvalidName` if neither could have this name.
    """
    commands: list[tuple[Kind, Command]] = []
    wrong: InvalidName | None = None
    try:
        topic = client.keys.topic(name)
        commands.extend(("topic", ("EXISTS", key)) for key in (topic.meta, topic.dlq))
    except InvalidName as error:
        wrong = error
    try:
        queue = client.keys.queue(name)
        commands.append(("queue", ("SISMEMBER", client.keys.queues().registry, name)))
        own = (queue.waiting, queue.state, queue.dead_letters, queue.overflow)
        commands.extend(("queue", ("EXISTS", key)) for key in own)
    except InvalidName:
        if wrong:
            raise wrong from None
    replies = await client.pipeline([command for _, command in commands])
    found: dict[Kind, None] = {}
    for (kind, _), reply in zip(commands, replies, strict=True):
        if isinstance(reply, ServerError):
            raise reply  # could not look: that is not the same as nothing there
        if reply:
            found[kind] = None
    return list(found)
