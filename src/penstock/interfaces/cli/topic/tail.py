"""`penstock topic tail`: messages as they come."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

import click

from penstock.interfaces.cli.administer import administer
from penstock.interfaces.cli.main import pass_settings
from penstock.interfaces.cli.output import json_option, reader_left, say, say_json
from penstock.interfaces.cli.values import position
from penstock.interfaces.cli.wording import message_line
from penstock.settings import Settings
from penstock.topics.admin.topic_admin import TopicAdmin
from penstock.topics.admin.views import MessageView
from penstock.topics.storage.large_payloads import SHOWN_BYTES

__all__ = ["tail"]

_WHOLE = 2**40
"""More bytes than a payload can have."""


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "start",
    type=position,
    metavar="WHERE",
    default="latest",
    help="earliest, latest, a time such as 2026-07-01T08:00:00Z, or the id to start after.",
)
@click.option("--limit", type=click.IntRange(1), help="Maximum number of messages; then exit.")
@click.option("--partition", type=int, help="Show only this partition.")
@click.option("--no-follow", is_flag=True, help="Exit at the current end of the topic.")
@json_option
@pass_settings
def tail(
    settings: Settings,
    topic: str,
    start: str,
    limit: int | None,
    partition: int | None,
    no_follow: bool,
    as_json: bool,
) -> None:
    """Show messages as they are stored, until Ctrl-C.

    Example: penstock topic tail orders --from earliest --limit 10

    Joins no group and changes nothing. With --json, one object per line, with complete payloads.
    """
    max_bytes = _WHOLE if as_json else SHOWN_BYTES

    async def follow(admin: TopicAdmin) -> None:
        shown = 0
        pages = admin.follow(topic, partition, start=start, max_bytes=max_bytes)
        async with aclosing(cast("AsyncGenerator[list[MessageView]]", pages)):
            async for page in pages:
                for view in page:
                    is_read = (
                        say_json(view, indent=0)
                        if as_json
                        else say(message_line(view), is_data=True)
                    )
                    shown += view.barrier is None
                    if not is_read or shown == limit:
                        return
                if not page and (no_follow or reader_left()):
                    return

    administer(settings, follow)
