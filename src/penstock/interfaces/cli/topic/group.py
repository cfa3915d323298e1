"""`penstock group`: lag, pending messages and positions of the groups of a topic."""

from __future__ import annotations

import click

from penstock.delivery.times import EARLIEST, LATEST
from penstock.interfaces.cli.administer import administer
from penstock.interfaces.cli.main import pass_settings
from penstock.interfaces.cli.output import json_option, say, say_json
from penstock.interfaces.cli.values import confirm, position, yes_option
from penstock.interfaces.cli.wording import age, plural, table
from penstock.settings import Settings
from penstock.topics.admin.views import GroupView

__all__ = ["group"]


@click.group()
def group() -> None:
    """Show the groups of a topic, reset their positions, delete them."""


@group.command("list")
@click.argument("topic")
@json_option
@pass_settings
def list_groups(settings: Settings, topic: str, as_json: bool) -> None:
    """List the groups of a topic with their lag.

    Example: penstock group list orders
    """
    found = administer(settings, lambda admin: admin.groups(topic))
    if as_json:
        say_json(found)
    elif not found:
        say(f"topic {topic} has no groups")
    else:
        rows = [
            (
                _lag(view.lag, approximate=view.approximate),
                view.pending,
                age(view.oldest_pending_ms),
                _owned(view),
                sum(member.alive for member in view.members),
                view.name,
            )
            for view in found
        ]
        table(("LAG", "PENDING", "OLDEST", "OWNED", "CONSUMERS", "GROUP"), rows)


def _owned(view: GroupView) -> str:
    owned = sum(part.owner is not None for part in view.partitions)
    return f"{owned} of {len(view.partitions)}"


@group.command()
@click.argument("topic")
@click.argument("group")
@json_option
@pass_settings
def lag(settings: Settings, topic: str, group: str, as_json: bool) -> None:
    """Show a group's lag and owner per partition.

    Example: penstock group lag orders billing
    """
    view = administer(settings, lambda admin: admin.lag(topic, group))
    if as_json:
        say_json(view)
        return
    oldest = f", the oldest for {age(view.oldest_pending_ms)}" if view.pending else ""
    behind = _lag(view.lag, approximate=view.approximate)
    say(f"{view.name}: {behind} to be delivered, {view.pending:,} pending{oldest}", bold=True)
    _partitions(view)
    for member in view.members:
        state = "alive" if member.alive else "dead "
        say(f"  {state}  last beat {age(member.silent_ms)} ago  {member.name}")


def _partitions(view: GroupView) -> None:
    rows = [
        (
            part.partition,
            _lag(part.lag, approximate=part.approximate),
            part.pending,
            age(part.oldest_pending_ms),
            "not known here" if part.is_missing else part.last_delivered_id or "-",
            part.owner or "-",
        )
        for part in view.partitions
    ]
    table(("PARTITION", "LAG", "PENDING", "OLDEST", "DELIVERED TO", "OWNER"), rows)


def _lag(messages: int, *, approximate: bool) -> str | int:
    return f"about {messages:,}" if approximate else messages


@group.command()
@click.argument("topic")
@click.argument("group")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=100,
    help="Maximum number of messages (default: 100).",
)
@click.option("--cursor", help="Continue an earlier page: the cursor it printed.")
@json_option
@pass_settings
def pending(
    settings: Settings, topic: str, group: str, limit: int, cursor: str | None, as_json: bool
) -> None:
    """List messages that were delivered to a group and are not acknowledged.

    Example: penstock group pending orders billing --limit 20
    """
    page = administer(settings, lambda admin: admin.pending(topic, group, cursor, limit))
    if as_json:
        say_json(page)
        return
    if not page.pending:
        say("nothing is pending")
        return
    rows = [
        (
            view.id,
            view.attempts,
            age(view.idle_ms),
            age(view.due_in_ms),
            "gone from the stream" if view.is_gone else view.last_failure or "-",
        )
        for view in page.pending
    ]
    table(("ID", "ATTEMPTS", "IDLE", "AGAIN IN", "LAST FAILURE"), rows)
    if page.cursor:
        say(f"more: --cursor {page.cursor}")


@group.command()
@click.argument("topic")
@click.argument("group")
@click.option(
    "--to",
    "where",
    type=position,
    required=True,
    metavar="WHERE",
    help="earliest, latest, a time such as 2026-07-01T08:00:00Z, or the id to start after.",
)
@yes_option
@json_option
@pass_settings
def reset(settings: Settings, topic: str, group: str, where: str, yes: bool, as_json: bool) -> None:
    """Set a group's position; its pending messages are dropped.

    Example: penstock group reset orders billing --to 2026-07-01T08:00:00Z
    """
    confirm(yes, lambda: f"Move {_described(settings, topic, group)} to {_place(where)}?")
    administer(settings, lambda admin: admin.reset_group(topic, group, where))
    if as_json:
        say_json({"topic": topic, "group": group, "position": where})
    else:
        say(f"group {group} of topic {topic} continues from {_place(where)}")


@group.command()
@click.argument("topic")
@click.argument("group")
@click.option("--force", is_flag=True, help="Delete it even if it has live consumers.")
@yes_option
@json_option
@pass_settings
def delete(
    settings: Settings, topic: str, group: str, force: bool, yes: bool, as_json: bool
) -> None:
    """Delete a group with its pending messages; exits 1 if it has live consumers.

    Example: penstock group delete orders billing
    """
    confirm(yes, lambda: f"Delete {_described(settings, topic, group)}?")
    administer(settings, lambda admin: admin.delete_group(topic, group, force=force))
    if as_json:
        say_json({"topic": topic, "group": group, "deleted": True})
    else:
        say(f"group {group} of topic {topic} deleted")


def _place(where: str) -> str:
    return {EARLIEST: "its beginning", LATEST: "its end"}.get(where, f"after {where}")


def _described(settings: Settings, topic: str, group: str) -> str:
    view = administer(settings, lambda admin: admin.lag(topic, group))
    return f"group {group} of topic {topic}, with {plural(view.pending, 'pending message')}"
