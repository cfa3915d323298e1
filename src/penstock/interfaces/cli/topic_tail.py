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
from penstock.topics.admin import TopicAdmin
from penstock.topics.bodies import SHOWN_BYTES
from penstock.topics.views import MessageView

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
    help="earliest, latest, a time such as 2026-07-01T08:00:00Z, or the id before.",
)
@click.option("--count", type=click.IntRange(1), help="End after so many messages.")
@click.option("--partition", type=int, help="Only this one.")
@click.option("--no-follow", is_flag=True, help="End where the topic ends now.")
@json_option
@pass_settings
def tail(
    settings: Settings,
    topic: str,
    start: str,
    count: int | None,
    partition: int | None,
    no_follow: bool,
    as_json: bool,
) -> None:
    """Show messages as they come, until Ctrl-C.

    It joins no group and changes nothing. With --json, one object per line, payloads in full.
    """
    most_bytes = _WHOLE if as_json else SHOWN_BYTES

    async def follow(admin: TopicAdmin) -> None:
        shown = 0
        pages = admin.follow(topic, partition, start=start, most_bytes=most_bytes)
        async with aclosing(cast("AsyncGenerator[list[MessageView]]", pages)):
            async for page in pages:
                for view in page:
                    told = say_json(view, indent=0) if as_json else say(message_line(view))
                    shown += view.barrier is None
                    if not told or shown == count:
                        return
                if not page and (no_follow or reader_left()):
                    return

    administer(settings, follow)
