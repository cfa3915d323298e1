"""A topic in the hands of a program."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar, Unpack

from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.topics.batches import send_batch
from penstock.topics.consumer import Consumer
from penstock.topics.dead_letters import DeadLetters
from penstock.topics.delayed import Mover
from penstock.topics.durability import Durability
from penstock.topics.facts import Facts, Options, Retention
from penstock.topics.handlers import as_handler
from penstock.topics.known import Known
from penstock.topics.partitioners import Crc32, JavaHash, Partitioner
from penstock.topics.sender import Sender
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
        client.keys.topic(name)  # a name that cannot be is told here, not at the first message
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
        self._known = Known(client, name, partitions=partitions, options=options)
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
        """Store one message and return its id: awaited, it is as safe as `durability` says.

        The id is `message.id` in every handler, and unique in the topic.

        - Messages with the same `key` stay in order. The header `x-force-partition-id` names the
          partition instead.
        - `delay` (seconds or a timedelta) or `at` (an aware datetime or epoch seconds) hands it to
          consumers later, under the id that is returned.
        - `idempotency_key`: a second message under the same key is not stored within
          `topics.remember_s`; the id of the first is returned. If the answer gets lost the send is
          repeated by itself. The partition must be the same, so keep key and partitioner.

        Raises `Rejected` if nothing was stored, `OutcomeUnknown` if that is not known,
        `EncodeError` or `InvalidMessage` before anything is sent.
        """
        return self._sender.send(payload, key, headers, delay, at, idempotency_key)

    async def send_batch(
        self, messages: Iterable[Any], *, key: Callable[[Any], str | None] | None = None
    ) -> list[str]:
        """Store many messages and return their ids, in the same order.

        A message is a payload, or an `Outgoing` with key and headers. `key` tells the key of a
        payload that has none. Messages of one key are stored in order.

        The batch is no transaction. If a message fails no further chunk is sent, and
        `SendBatchFailed` tells of each message how it ended.
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
        return [Consumer(self, handler, told) for handler, told in self.subscriptions]

    @property
    def partitioner(self) -> Partitioner:
        """What places messages by their keys."""
        return self._partitioner

    @property
    def dead_letters(self) -> DeadLetters:
        """What handlers could not deal with: look at it, mend it, send it again."""
        return DeadLetters(self.client, self.codec, self.name, self._partitioner)

    async def facts(self) -> Facts:
        """Return partitions, generation and options, at most `topics.refresh_s` old."""
        return await self._known.get()

    async def close(self) -> None:
        """End what goes on in the background. May come twice."""
        await self._sender.close()
