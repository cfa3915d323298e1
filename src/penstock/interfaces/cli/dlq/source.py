"""The topic or queue whose dead letters a command is about, and the filters among them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, TypeVar

import click

from penstock.app import Penstock
from penstock.errors import TopicError
from penstock.inspector.names import Kind, kinds_of
from penstock.interfaces.cli.administer import with_app
from penstock.interfaces.cli.values import partitioner_of
from penstock.queues.dead_letters.dead_letters import QueueDeadLetters
from penstock.settings import Settings
from penstock.topics.dead_letters.dead_letters import DeadLetters

__all__ = ["Filters", "LetterOwner", "filter_options", "filters_of", "letters_of"]

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class LetterOwner:
    """The topic or queue that a command names."""

    name: str
    is_topic: bool
    is_queue: bool
    overflow: bool

    def ask(
        self,
        settings: Settings,
        *,
        topic: Callable[[DeadLetters], Awaitable[T]],
        queue: Callable[[QueueDeadLetters], Awaitable[U]],
        partitioner: str = "crc32",
    ) -> T | U:
        """Connect, determine whether it is a topic or a queue, and call that function."""

        async def act(app: Penstock) -> T | U:
            if await self._kind(app) == "queue":
                letters = QueueDeadLetters(app.redis, app.codec, self.name, overflow=self.overflow)
                return await queue(letters)
            return await topic(app.topics.dead_letters(self.name, partitioner_of(partitioner)))

        return with_app(settings, act)

    async def _kind(self, app: Penstock) -> Kind:
        if self.is_queue or self.overflow:
            return "queue"
        if self.is_topic:
            return "topic"
        kinds = await kinds_of(app.redis, self.name)
        if not kinds:
            raise TopicError(f"there is no topic {self.name!r}, and no such queue")
        if len(kinds) > 1:
            raise click.UsageError(f"{self.name} is a topic and a queue: say --topic or --queue")
        return kinds[0]


def letters_of(command: Callable[..., T]) -> Callable[..., T]:
    """Add the argument and options for a topic or queue; the command gets a `LetterOwner`."""

    def with_source(
        *args: Any, name: str, is_topic: bool, is_queue: bool, overflow: bool, **options: Any
    ) -> T:
        if is_topic and (is_queue or overflow):
            raise click.UsageError("--topic excludes --queue and --overflow")
        return command(*args, source=LetterOwner(name, is_topic, is_queue, overflow), **options)

    decorated = update_wrapper(with_source, command)
    for add in (
        click.option(
            "--overflow",
            is_flag=True,
            help="Jobs that were moved to the overflow list of a full queue.",
        ),
        click.option("--queue", "is_queue", is_flag=True, help="NAME is a queue."),
        click.option("--topic", "is_topic", is_flag=True, help="NAME is a topic."),
        click.argument("name"),
    ):
        decorated = add(decorated)
    return decorated


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters that were given as options."""

    given: dict[str, str]

    def __bool__(self) -> bool:
        return bool(self.given)

    def of_topic(self) -> dict[str, Any]:
        """Arguments for the letters of a topic."""
        if others := sorted(self.given.keys() - {"group", "fingerprint"}):
            raise click.UsageError(f"--{others[0]} is for the letters of queues")
        return dict(self.given)

    def of_queue(self) -> Any:
        """Arguments for the letters of a queue."""
        return dict(self.given)


def filters_of(options: dict[str, str | None]) -> Filters:
    return Filters({name: value for name, value in options.items() if value is not None})


def filter_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add the options that choose among letters."""
    for add in (
        click.option("--error", help="Queues: only letters whose error contains this text."),
        click.option("--task", help="Queues: only letters of this task."),
        click.option("--reason", help="Queues: only letters with this reason."),
        click.option(
            "--fingerprint", help="Only letters with this cause: see penstock dlq groups."
        ),
        click.option("--group", help="Only letters of this group."),
    ):
        command = add(command)
    return command
