"""Checks of `doctor` for what grows without a bound, with the command that bounds it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from penstock.coordination.windows.records import WindowRecord, read_records
from penstock.coordination.windows.window import Window
from penstock.delivery.queries import ask
from penstock.errors import CommandRefused, ConfigError, InvalidName, ServerError, TopicError
from penstock.inspector.doctor import Finding
from penstock.queues.admin.queue_admin import QueueAdmin
from penstock.queues.admin.views import QueueLine
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.topics.admin.topic_admin import TopicAdmin
from penstock.topics.admin.views import GroupView, TopicView
from penstock.topics.storage.metadata import Retention

__all__ = ["MANY", "find_growth"]

MANY = 10_000
"""Entries above which something that has no bound is reported."""
_CHECK = "growth"


async def find_growth(client: Client, codec: Codec) -> list[Finding]:
    """Report topics, queues, dead letters and windows that have grown large and have no bound.

    Feeds, records and the events of windows and runs have one. A few round trips for each topic
    and window, and two for all queues.
    """
    findings: list[Finding] = []
    try:
        for line in await QueueAdmin(client, codec).list():
            findings += _judge_queue(line)
        topics = TopicAdmin(client, codec)
        for name in [line.name for line in await topics.list() if line.partitions]:
            findings += await _judge_topic(topics, name, client.settings.topics.retention_s)
        for record in await read_records(client):
            findings += await _judge_window(client, codec, record)
    except ServerError as error:
        return [_warning(f"not all topics and queues could be read: {error}", "")]
    if not findings:
        message = "topics, queues, dead letters and windows are small, or have a bound"
        return [Finding(check=_CHECK, level="ok", message=message)]
    return findings


async def _judge_topic(topics: TopicAdmin, name: str, default_s: float) -> list[Finding]:
    try:
        view = await topics.describe(name)
        groups = await topics.groups(name) if view.length > MANY and view.groups else []
    except TopicError:
        return []  # it was deleted meanwhile
    return [*_judge_letters(view), *_judge_messages(view, default_s), *_judge_groups(view, groups)]


def _judge_letters(view: TopicView) -> Iterator[Finding]:
    if view.dead_letters > MANY and not view.options.dead_letters.is_set:
        yield _warning(
            f"topic {view.name} has {view.dead_letters:,} dead letters, and no "
            "dead_letter_retention that drops old ones",
            f"penstock dlq purge {shlex.quote(view.name)} --topic --older-than 30d",
        )


def _judge_messages(view: TopicView, default_s: float) -> Iterator[Finding]:
    if view.length <= MANY:
        return
    bound = f"penstock topic create {shlex.quote(view.name)} --max-age 7d"
    kept = view.options.retention
    if kept.is_set:
        return
    if not view.groups:
        yield _warning(
            f"topic {view.name} has {view.length:,} messages and no group, so all of them are kept",
            bound,
        )
    elif _keeps_all(kept, default_s):
        yield _warning(f"topic {view.name} keeps all of its {view.length:,} messages", bound)


def _keeps_all(kept: Retention, default_s: float) -> bool:
    return kept.forever or not default_s


def _judge_groups(view: TopicView, groups: list[GroupView]) -> Iterator[Finding]:
    for group in groups:
        left = group.lag + group.pending
        if left > MANY and not any(member.alive for member in group.members):
            yield _warning(
                f"group {group.name} of topic {view.name} has no consumer, and keeps {left:,} "
                "messages that it has not handled",
                f"penstock group delete {shlex.quote(view.name)} {shlex.quote(group.name)}",
            )


def _judge_queue(line: QueueLine) -> Iterator[Finding]:
    name = shlex.quote(line.name)
    if line.dead_letters > MANY:
        yield _warning(
            f"queue {line.name} has {line.dead_letters:,} dead letters; they stay until they are "
            "replayed or purged",
            f"penstock dlq purge {name} --queue --older-than 30d",
        )
    waiting = line.waiting + line.delayed
    if waiting > MANY and not line.workers:
        yield _warning(
            f"queue {line.name} has {waiting:,} jobs and no worker; run one, or drop the jobs",
            f"penstock queue purge {name} --delayed",
        )


async def _judge_window(client: Client, codec: Codec, record: WindowRecord) -> list[Finding]:
    try:
        places = await Window.registered(client, codec, record).target.stores()
        open_in = await ask(client, [("ZCARD", place.index.due) for place in places])
    except (CommandRefused, ConfigError, InvalidName, TopicError):
        return []  # `penstock window list` shows the problem
    if sum(open_in) <= MANY:
        return []
    message = f"window {record.name} has {sum(open_in):,} open batches"
    return [_warning(message, f"penstock window close {shlex.quote(record.name)} --all")]


def _warning(message: str, fix: str) -> Finding:
    return Finding(check=_CHECK, level="warning", message=message, fix=fix)
