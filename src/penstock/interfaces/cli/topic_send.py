"""`penstock topic send`: one message, or one for each line of standard input."""

from __future__ import annotations

import sys

import click

from penstock.app import Penstock
from penstock.errors import TopicMissing
from penstock.interfaces.cli.lines import read_lines
from penstock.interfaces.cli.main import pass_settings, run
from penstock.interfaces.cli.output import ExitCode, json_option
from penstock.interfaces.cli.sending import Given, Report, Sending
from penstock.interfaces.cli.values import durability, duration, header_option, headers_of
from penstock.settings import Settings
from penstock.topics.admin import TopicAdmin
from penstock.topics.durability import Durability

__all__ = ["send"]


@click.command()
@click.argument("topic")
@click.argument("payload", required=False)
@click.option("--key", help="Messages of one key stay in order.")
@header_option
@click.option("--delay", type=duration, metavar="TIME", help="Hand it out later, as in 90s or 2h.")
@click.option("--idempotency-key", help="Do not store it twice; needs PAYLOAD.")
@click.option("--text", "is_text", is_flag=True, help="Payloads are plain text, not JSON.")
@click.option(
    "--envelope",
    "in_envelopes",
    is_flag=True,
    help="Lines are objects: payload, and if wanted key, headers, delay, idempotency_key.",
)
@click.option(
    "--durability",
    "level",
    type=durability,
    metavar="LEVEL",
    default="accepted",
    help="When a message counts as sent: accepted (the default), synced, replicated:N.",
)
@click.option("--interop", is_flag=True, help="Write messages as the Java library does.")
@click.option("--quiet", is_flag=True, help="Do not print ids, only how many.")
@json_option
@pass_settings
def send(
    settings: Settings,
    topic: str,
    payload: str | None,
    key: str | None,
    headers: tuple[str, ...],
    delay: float | None,
    idempotency_key: str | None,
    is_text: bool,
    in_envelopes: bool,
    level: Durability,
    interop: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Send PAYLOAD, or each line of standard input, as one message of JSON.

    Prints the ids. A line that cannot be sent is reported with its number, the others are sent all
    the same; then it exits 1. If the server fails it says how far it came.
    """
    if idempotency_key is not None and payload is None:
        raise click.UsageError("--idempotency-key needs PAYLOAD; for lines, use --envelope")
    if in_envelopes and is_text:
        raise click.UsageError("--envelope and --text exclude each other")
    told = Given(key, headers_of(headers), delay, idempotency_key, is_text, in_envelopes)

    async def send_all() -> ExitCode:
        async with Penstock(settings=settings) as app:
            if not await TopicAdmin(app.redis, app.codec).exists(topic):
                raise TopicMissing(topic)
            # The bytes go as they came: a number keeps its spelling.
            target = app.topic(topic, type=bytes, durability=level, interop=interop)
            sending = Sending(target, app.codec, told, Report(quiet=quiet, as_json=as_json))
            if payload is not None:
                return await sending.send_one(payload.encode(errors="surrogateescape"))
            longest = settings.codec.max_inflated
            async for lines in read_lines(longest):
                if not await sending.send_lines(lines):
                    break
            return sending.report.end()

    sys.exit(run(send_all()))
