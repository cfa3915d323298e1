"""Penstock: the object a user holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.doctor import Diagnosis, diagnose
from penstock.redis.health import Health, check_health
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.runtime.service import Service
    from penstock.runtime.worker import Worker
    from penstock.topics.admin import TopicAdmin
    from penstock.topics.durability import Durability
    from penstock.topics.facts import Retention
    from penstock.topics.partitioners import Partitioner
    from penstock.topics.subscription import SubscriptionOptions
    from penstock.topics.topic import Topic

__all__ = ["Penstock"]

Handle = TypeVar("Handle", bound=Callable[..., Any])


class Penstock:
    """One system on one server.

        app = Penstock()                       # the embedded server
        app = Penstock("redis://localhost")    # or yours

        async with app:
            print(await app.health())

    Settings come from `penstock.toml` and the environment; `url` wins over both. Whoever passes
    `settings` decides all of them.
    """

    def __init__(self, url: str | None = None, *, settings: Settings | None = None) -> None:
        self.settings = settings or Settings.load({"url": url})
        self.redis = Client(self.settings)
        self.codec = Codec(self.settings.codec)
        self._topics: list[Topic] = []

    def __repr__(self) -> str:
        return f"Penstock({str(self.redis.address)!r})"

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect; without an address, start the embedded server unless it runs."""
        await self.redis.open()

    async def close(self) -> None:
        """End every connection. May come twice, or before any open."""
        try:
            for topic in self._topics:
                await topic.close()
        finally:
            await self.redis.close()

    async def health(self) -> Health:
        """Probe the server with a real write; never raises, never hangs. Needs no open."""
        return await check_health(self.redis)

    async def doctor(self) -> Diagnosis:
        """Judge how the server is set up."""
        return await diagnose(self.redis)

    def topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        type: Any = Any,  # noqa: A002  it is what the caller means
        partitioner: Partitioner | None = None,
        durability: Durability = "accepted",
        retention: Retention | None = None,
        dead_letter_retention: Retention | None = None,
        interop: bool = False,
    ) -> Topic:
        """Return a topic to send to and to subscribe to; it is created with its first use.

        - `partitions`: how many a new topic gets; `TopicMismatch` if it has another number.
        - `type`: of the payloads, unless a handler's annotation says so.
        - `durability`: when a send counts as done: "accepted", "synced" or `replicated(n)`.
        - `retention`, `dead_letter_retention`: how long messages and dead letters stay.
        - `interop`: write entries as the Java library does, field by field.
        """
        # Programs that have no topics do not pay for importing them.
        from penstock.topics.topic import Topic  # noqa: PLC0415

        topic = Topic(
            self.redis,
            self.codec,
            name,
            partitions=partitions,
            type=type,
            partitioner=partitioner,
            durability=durability,
            retention=retention,
            dead_letter_retention=dead_letter_retention,
            interop=interop,
        )
        self._topics.append(topic)
        return topic

    @property
    def topics(self) -> TopicAdmin:
        """Look at topics and groups, and change them: what `penstock topic` and `group` do."""
        from penstock.topics.admin import TopicAdmin  # noqa: PLC0415

        return TopicAdmin(self.redis, self.codec)

    def subscribe(
        self, topic: str, group: str, **options: Unpack[SubscriptionOptions]
    ) -> Callable[[Handle], Handle]:
        """Register a handler for a topic; `worker()` runs it. As `Topic.subscribe`."""
        return self.topic(topic).subscribe(group, **options)

    def worker(self) -> Worker:
        """A worker for this process; `await worker.run()` returns its exit code.

        It runs a consumer for each subscription, and moves delayed messages of their topics.
        """
        # Most programs that import penstock only send work.
        from penstock.runtime.heartbeat import Heartbeat  # noqa: PLC0415
        from penstock.runtime.worker import Worker  # noqa: PLC0415

        consumers = [consumer for topic in self._topics for consumer in topic.consumers()]
        support: list[Service] = [Heartbeat(self.redis, lambda: worker.readiness())]  # noqa: PLW0108
        if consumers:
            from penstock.topics.delayed import Mover  # noqa: PLC0415

            mover = Mover(self.redis)
            for consumer in consumers:
                consumer.when_known = mover.watch
            support.append(mover)
        worker = Worker(work=consumers, support=support, settings=self.settings.worker)
        return worker
