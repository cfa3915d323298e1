"""`penstock topic`: create, list, change and delete topics; send, follow and consume."""

from __future__ import annotations

import click

from penstock.errors import TopicMissing
from penstock.interfaces.cli.administer import administer
from penstock.interfaces.cli.main import pass_settings
from penstock.interfaces.cli.output import json_option, say, say_json
from penstock.interfaces.cli.topic.consume import consume
from penstock.interfaces.cli.topic.send import send
from penstock.interfaces.cli.topic.tail import tail
from penstock.interfaces.cli.values import (
    confirm,
    duration,
    partitioner_of,
    partitioner_option,
    size,
    yes_option,
)
from penstock.interfaces.cli.wording import age, moment, plural, table
from penstock.interfaces.cli.wording import size as in_bytes
from penstock.settings import Settings
from penstock.topics.admin.views import TopicView
from penstock.topics.storage.metadata import Retention

__all__ = ["topic"]


@click.group()
def topic() -> None:
    """Create, list, change and delete topics; send, follow and consume messages."""


@topic.command()
@click.argument("topic")
@click.option("--partitions", type=int, help="Number of partitions (default: topics.partitions).")
@click.option(
    "--max-length", type=click.IntRange(1), help="Maximum number of messages per partition."
)
@click.option("--max-age", type=duration, metavar="TIME", help="Maximum age of messages, as in 7d.")
@click.option(
    "--max-bytes", type=size, metavar="SIZE", help="Maximum bytes per partition, as in 1g."
)
@click.option(
    "--hard-length",
    type=click.IntRange(1),
    help="Messages per partition above which even unread ones are dropped.",
)
@click.option(
    "--forever", is_flag=True, help="Keep all messages: topics.retention_s does not apply."
)
@json_option
@pass_settings
def create(
    settings: Settings,
    topic: str,
    partitions: int | None,
    max_length: int | None,
    max_age: float | None,
    max_bytes: int | None,
    hard_length: int | None,
    forever: bool,
    as_json: bool,
) -> None:
    """Create a topic, or change the retention of an existing one.

    Example: penstock topic create orders --partitions 8 --max-age 7d

    Without --hard-length no message that a group still needs is dropped. Without any limit,
    messages that every group has handled are dropped after topics.retention_s; a topic without
    groups keeps all. Exits 1 if the topic exists with another number of partitions.
    """
    retention = None
    if any((max_length, max_age, max_bytes, hard_length, forever)):
        try:
            retention = Retention(
                max_length=max_length or 0,
                max_age_s=max_age or 0,
                max_bytes=max_bytes or 0,
                hard_length=hard_length or 0,
                forever=forever,
            )
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    made = administer(settings, lambda admin: admin.create(topic, partitions, retention))
    if as_json:
        say_json({"topic": topic, "partitions": made.partitions, "created": made.created})
    else:
        what = "made" if made.created else "was there"
        say(f"topic {topic} {what}, with {plural(made.partitions, 'partition')}")


@topic.command("list")
@json_option
@pass_settings
def list_topics(settings: Settings, as_json: bool) -> None:
    """List all topics with their partitions.

    Example: penstock topic list
    """
    found = administer(settings, lambda admin: admin.list())
    if as_json:
        say_json(found)
    elif not found:
        say("no topics")
    else:
        rows = [
            (
                line.partitions,
                moment(line.created_ms),
                f"growing to {line.growing_to}"
                if line.growing_to
                else ""
                if line.partitions
                else "half made or deleted",
                line.name,
            )
            for line in found
        ]
        table(("PARTITIONS", "CREATED", "STATE", "TOPIC"), rows)


@topic.command()
@click.argument("topic")
@json_option
@pass_settings
def show(settings: Settings, topic: str, as_json: bool) -> None:
    """Show a topic: sizes, groups, retention, partitions.

    Example: penstock topic show orders
    """
    view = administer(settings, lambda admin: admin.describe(topic))
    if as_json:
        say_json(view)
        return
    say(view.name, bold=True)
    growing = f", growing to {view.growing_to}" if view.growing_to else ""
    say(f"  partitions    {len(view.partitions):,} (generation {view.generation}{growing})")
    say(f"  messages      {view.length:,} ({in_bytes(view.bytes)})")
    say(f"  delayed       {view.delayed:,}")
    say(f"  dead letters  {view.dead_letters:,}")
    say(f"  lost          {view.lost:,}")
    say(f"  groups        {', '.join(view.groups) or 'none'}")
    say(f"  retention     {_retention(view.options.retention, settings.topics.retention_s)}")
    say(f"  created       {moment(view.created_ms)}")
    _partitions(view)


def _retention(kept: Retention, default_s: float) -> str:
    if default_s and not kept.is_set and not kept.forever:
        return f"{age(default_s * 1000)} after every group is past them (topics.retention_s)"
    limits = [
        f"{plural(kept.max_length, 'message')}" if kept.max_length else "",
        age(kept.max_age_s * 1000) if kept.max_age_s else "",
        in_bytes(kept.max_bytes) if kept.max_bytes else "",
    ]
    text = " or ".join(filter(None, limits))
    text = f"{text} per partition, what groups need stays" if text else "for ever"
    hard = f"; never more than {plural(kept.hard_length, 'message')}" if kept.hard_length else ""
    return text + hard


def _partitions(view: TopicView) -> None:
    rows = [
        (
            part.index,
            part.length,
            in_bytes(part.bytes),
            part.delayed,
            part.lost,
            "missing" if part.is_missing else part.last_id or "-",
        )
        for part in view.partitions
    ]
    table(("PARTITION", "MESSAGES", "BYTES", "DELAYED", "LOST", "LAST ID"), rows)


@topic.command()
@click.argument("topic")
@yes_option
@json_option
@pass_settings
def delete(settings: Settings, topic: str, yes: bool, as_json: bool) -> None:
    """Delete a topic with its messages, groups and dead letters; exits 1 if it does not exist.

    Example: penstock topic delete orders
    """

    def question() -> str:
        try:
            view = administer(settings, lambda admin: admin.describe(topic))
        except TopicMissing:  # perhaps half of it is left
            return f"Delete what is left of topic {topic}?"
        return (
            f"Delete topic {topic} with {plural(view.length, 'message')}, "
            f"{plural(len(view.groups), 'group')} and {plural(view.dead_letters, 'dead letter')}?"
        )

    confirm(yes, question)
    if not administer(settings, lambda admin: admin.delete(topic)):
        raise TopicMissing(topic)
    if as_json:
        say_json({"topic": topic, "deleted": True})
    else:
        say(f"topic {topic} deleted")


@topic.command()
@click.argument("topic")
@click.argument("partitions", type=int)
@click.option("--force", is_flag=True, help="Grow even while Java consumers read the topic.")
@json_option
@pass_settings
def grow(settings: Settings, topic: str, partitions: int, force: bool, as_json: bool) -> None:
    """Give a topic more partitions while it is in use; the order of each key is kept.

    Example: penstock topic grow orders 16

    Producers pause for a moment (three times topics.refresh_s). If the command fails half-way,
    repeat it. Consumers of the Java library would get a message without payload from each
    partition, so growing is refused while there are any, unless --force.
    """
    administer(settings, lambda admin: admin.grow(topic, partitions, force=force))
    if as_json:
        say_json({"topic": topic, "partitions": partitions})
    else:
        say(f"topic {topic} has {plural(partitions, 'partition')} now")


@topic.command()
@click.argument("topic")
@click.option(
    "--max-length", type=click.IntRange(1), help="Number of messages to keep per partition."
)
@click.option(
    "--max-age", type=duration, metavar="TIME", help="Drop messages older than this, as in 7d."
)
@click.option(
    "--max-bytes", type=size, metavar="SIZE", help="Bytes to keep per partition, as in 1g."
)
@click.option("--hard", is_flag=True, help="Let --max-length drop messages that groups still need.")
@yes_option
@json_option
@pass_settings
def trim(
    settings: Settings,
    topic: str,
    max_length: int | None,
    max_age: float | None,
    max_bytes: int | None,
    hard: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Drop old messages now, by the given limits or the topic's retention.

    Example: penstock topic trim orders --max-age 2d

    Messages that a group still needs stay, unless --hard is given, which asks first.
    """
    if hard:
        if not max_length:
            raise click.UsageError("--hard needs --max-length")
        confirm(yes, lambda: f"Drop messages of topic {topic} that groups have not handled yet?")
    done = administer(
        settings,
        lambda admin: admin.trim(
            topic, max_length=max_length, max_age_s=max_age, max_bytes=max_bytes, hard=hard
        ),
    )
    if as_json:
        say_json(done)
    else:
        lost = f", of which {done.lost:,} were still needed" if done.lost else ""
        freed = f", and {plural(done.freed, 'large payload')} freed" if done.freed else ""
        say(f"{plural(done.dropped, 'message')} dropped{lost}{freed}")


@topic.command()
@click.argument("topic")
@click.option(
    "--partitions", type=int, help="Partitions of the new topic (default: topics.partitions)."
)
@partitioner_option
@json_option
@pass_settings
def adopt(
    settings: Settings, topic: str, partitions: int | None, partitioner: str, as_json: bool
) -> None:
    """Turn a plain stream of the topic's name into a topic, in order, with its groups.

    Example: penstock topic adopt orders --partitions 8

    Stop producers and consumers of the old stream first; it is deleted at the end. If the command
    fails half-way, repeat it: nothing is lost or moved twice.
    """
    place = partitioner_of(partitioner)
    done = administer(settings, lambda admin: admin.adopt(topic, partitions, place))
    if as_json:
        say_json(done)
    else:
        groups = f"; groups {', '.join(done.groups)}" if done.groups else ""
        say(
            f"{plural(done.moved + done.repeated, 'message')} moved, "
            f"{done.settled:,} dropped that every group had settled{groups}"
        )


for command in (send, tail, consume):
    topic.add_command(command)
