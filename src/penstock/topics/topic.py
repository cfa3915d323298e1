"""A topic: send messages to it, subscribe handlers to it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar, Unpack

from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.topics.consumer.consumer import Consumer
from penstock.topics.consumer.handler import as_handler
from penstock.topics.dead_letters.dead_letters import DeadLetters
from penstock.topics.delayed.mover import Mover
from penstock.topics.partitioners import Crc32, JavaHash, Partitioner
from penstock.topics.producer.batches import send_batch
from penstock.topics.producer.durability import Durability
from penstock.topics.producer.metadata_cache import MetadataCache
from penstock.topics.producer.sender import Sender
from penstock.topics.storage.keys import TopicKeys
from penstock.topics.storage.metadata import Options, Retention, TopicMetadata
from penstock.topics.subscription import Subscription, SubscriptionOptions

__all__ = ["Topic"]

Handle = TypeVar("Handle", bound=Callable[..., Any])


class Topic:
    """An ordered, partitioned log of messages. Made by `app.topic(name, …)`.

        orders = app.topic("orders", partitions=8, type=Order)
        await orders.send(order, key=order.customer)

    The topic is created with the first use, unless it is there; its options are stored with it.
    """

    def __init__(
        self,
        client: Client,
        codec: Codec,
        name: str,
        *,
        partitions: int | None = None,
        type: Any = Any,  # noqa: A002  it is what the caller means
        partitioner: Partitioner | None = None,
        durability: Durability = "accepted",
        retention: Retention | None = None,
        dead_letter_retention: Retention | None = None,
        interop: bool = False,
        mover: Mover | None = None,
    ) -> None:
        TopicKeys.of(client.keys, name)  # an invalid name is refused here, not at the first message
        self.client, self.codec = client, codec
        self.name = name
        self.type = type
        self.interop = interop
        self._partitioner = partitioner or (JavaHash() if interop else Crc32())
        self.subscriptions: list[tuple[Callable[..., Any], Subscription]] = []
        options = None
        if retention is not None or dead_letter_retention is not None:
            options = Options(
                retention=retention or Retention(),
                dead_letters=dead_letter_retention or Retention(),
            )
        self._known = MetadataCache(client, name, partitions=partitions, options=options)
        self._sender = Sender(
            client,
            codec,
            name,
            self._known,
            type_=type,
            partitioner=self._partitioner,
            durability=durability,
            interop=interop,
            mover=mover,
        )

    def __repr__(self) -> str:
        return f"Topic({self.name!r})"

    def send(
        self,
        payload: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: float | timedelta | None = None,
        at: datetime | float | None = None,
        idempotency_key: str | None = None,
    ) -> Coroutine[Any, Any, str]:
        """Store one message and return its id: awaited, it is as safe as `durability` promises.

        The id is `message.id` in every handler, and unique in the topic.

        - Messages with the same `key` stay in order. The header `x-force-partition-id` names the
          partition instead.
        - `delay` (seconds or a timedelta) or `at` (an aware datetime or epoch seconds) delivers it
          later, under the id that is returned.
        - `idempotency_key`: a second message under the same key is not stored within
          `topics.remember_s`; the id of the first is returned. If the answer gets lost the send is
          repeated automatically. The partition must be the same, so keep key and partitioner.

        Raises `Rejected` if nothing was stored, `OutcomeUnknown` if that is not known,
        `EncodeError` or `InvalidMessage` before anything is sent.
        """
        return self._sender.send(payload, key, headers, delay, at, idempotency_key)

    async def send_batch(
        self, messages: Iterable[Any], *, key: Callable[[Any], str | None] | None = None
    ) -> list[str]:
        """Store many messages and return their ids, in the same order.

        A message is a payload, or an `Outgoing` with key and headers. `key` returns the key of a
        payload that has none. Messages of one key are stored in order.

        The batch is no transaction. If a message fails no further chunk is sent, and
        `SendBatchFailed` has the outcome of each message.
        """
        return await send_batch(self._sender, list(messages), key)

    def subscribe(
        self, group: str, **options: Unpack[SubscriptionOptions]
    ) -> Callable[[Handle], Handle]:
        """Register a handler; `app.worker()` runs it. See `Subscription` for the options.

            @orders.subscribe(group="billing", ordering="key")
            async def bill(order: Order) -> None: ...

        The function itself is returned unchanged, so it can be called and tested as it is.
        """
        subscription = Subscription(group=group, **options)

        def register(handler: Handle) -> Handle:
            as_handler(handler, batch=subscription.batch is not None, default_type=self.type)
            self.subscriptions.append((handler, subscription))
            return handler

        return register

    def consumers(self) -> list[Consumer]:
        """Make a consumer of each subscription; they run in the caller's event loop."""
        return [
            Consumer(self, handler, subscription) for handler, subscription in self.subscriptions
        ]

    @property
    def partitioner(self) -> Partitioner:
        """What places messages by their keys."""
        return self._partitioner

    @property
    def dead_letters(self) -> DeadLetters:
        """Messages that handlers could not handle: read, edit, replay them."""
        return DeadLetters(self.client, self.codec, self.name, self._partitioner)

    async def metadata(self) -> TopicMetadata:
        """Return partitions, generation and options, at most `topics.refresh_s` old."""
        return await self._known.get()

    async def close(self) -> None:
        """End background tasks. Repeatable."""
        await self._sender.close()
