"""Topics for code that does not await: see `penstock.sync`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cached_property
from typing import Any, TypeVar, Unpack

from penstock import app as asynchronous
from penstock.sync.portal import Blocking
from penstock.sync.sibling import Application, NamedSibling, Sibling, one_by_one
from penstock.topics import topic as asynchronous_topic
from penstock.topics.admin import topic_admin as asynchronous_admin
from penstock.topics.admin.views import MessageView
from penstock.topics.dead_letters import dead_letters as asynchronous_letters
from penstock.topics.partitioners import Partitioner
from penstock.topics.storage.large_payloads import SHOWN_BYTES
from penstock.topics.subscription import SubscriptionOptions

__all__ = ["DeadLetters", "Topic", "TopicAdmin"]

Handle = TypeVar("Handle", bound=Callable[..., Any])


class Topic(NamedSibling[asynchronous_topic.Topic]):
    """`penstock.Topic`, blocking. Made by `Penstock.topic`."""

    def on(self, app: asynchronous.Penstock) -> asynchronous_topic.Topic:
        """Return this topic in an asynchronous application."""
        return self.declared if app is self._app.twin else self._make(app)

    send = Blocking(asynchronous_topic.Topic.send)
    send_batch = Blocking(asynchronous_topic.Topic.send_batch)
    metadata = Blocking(asynchronous_topic.Topic.metadata)

    def subscribe(
        self, group: str, **options: Unpack[SubscriptionOptions]
    ) -> Callable[[Handle], Handle]:
        """Register a handler, as `penstock.Topic.subscribe`; `app.worker()` runs it."""
        return self.declared.subscribe(group, **options)

    @property
    def partitioner(self) -> Partitioner:
        """Chooses a message's partition by its key."""
        return self.declared.partitioner

    @cached_property
    def dead_letters(self) -> DeadLetters:
        """Messages that handlers could not process: list, show, edit and replay them."""
        return DeadLetters(self._app, lambda app: self.on(app).dead_letters)


class DeadLetters(Sibling[asynchronous_letters.DeadLetters]):
    """`topics.DeadLetters`, blocking. Made by `Topic.dead_letters`."""

    list = Blocking(asynchronous_letters.DeadLetters.list)
    show = Blocking(asynchronous_letters.DeadLetters.show)
    count = Blocking(asynchronous_letters.DeadLetters.count)
    groups = Blocking(asynchronous_letters.DeadLetters.groups)
    edit = Blocking(asynchronous_letters.DeadLetters.edit)
    replay = Blocking(asynchronous_letters.DeadLetters.replay)
    purge = Blocking(asynchronous_letters.DeadLetters.purge)
    trim = Blocking(asynchronous_letters.DeadLetters.trim)
    audit = Blocking(asynchronous_letters.DeadLetters.audit)


class TopicAdmin(Sibling[asynchronous_admin.TopicAdmin]):
    """`topics.TopicAdmin`, blocking: `Penstock.topics`."""

    def __init__(self, app: Application) -> None:
        super().__init__(app, lambda app: app.topics)

    create = Blocking(asynchronous_admin.TopicAdmin.create)
    list = Blocking(asynchronous_admin.TopicAdmin.list)
    exists = Blocking(asynchronous_admin.TopicAdmin.exists)
    describe = Blocking(asynchronous_admin.TopicAdmin.describe)
    delete = Blocking(asynchronous_admin.TopicAdmin.delete)
    set_retention = Blocking(asynchronous_admin.TopicAdmin.set_retention)
    trim = Blocking(asynchronous_admin.TopicAdmin.trim)
    grow = Blocking(asynchronous_admin.TopicAdmin.grow)
    adopt = Blocking(asynchronous_admin.TopicAdmin.adopt)
    browse = Blocking(asynchronous_admin.TopicAdmin.browse)
    recent = Blocking(asynchronous_admin.TopicAdmin.recent)
    groups = Blocking(asynchronous_admin.TopicAdmin.groups)
    lag = Blocking(asynchronous_admin.TopicAdmin.lag)
    owners = Blocking(asynchronous_admin.TopicAdmin.owners)
    pending = Blocking(asynchronous_admin.TopicAdmin.pending)
    reset_group = Blocking(asynchronous_admin.TopicAdmin.reset_group)
    delete_group = Blocking(asynchronous_admin.TopicAdmin.delete_group)

    def dead_letters(self, topic: str, partitioner: Partitioner | None = None) -> DeadLetters:
        """Return the dead letters of a topic, as `topics.TopicAdmin.dead_letters`."""
        return DeadLetters(self._app, lambda app: app.topics.dead_letters(topic, partitioner))

    def follow(
        self,
        topic: str,
        partition: int | None = None,
        *,
        start: str | datetime = "$",
        max_bytes: int = SHOWN_BYTES,
    ) -> Iterator[Page]:
        """Yield messages as they are stored, as `topics.TopicAdmin.follow`; endless."""
        portal, admin = self.reach()
        return one_by_one(portal, admin.follow(topic, partition, start=start, max_bytes=max_bytes))


# Inside the class `list` is a method.
Page = list[MessageView]
