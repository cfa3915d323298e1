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
from penstock.topics.admin.topic_admin import TopicAdmin
from penstock.topics.producer.durability import Durability

__all__ = ["send"]


@click.command()
@click.argument("topic")
@click.argument("payload", required=False)
@click.option("--key", help="Key of the message: messages of one key stay in order.")
@header_option
@click.option("--delay", type=duration, metavar="TIME", help="Deliver it later, as in 90s or 2h.")
@click.option("--idempotency-key", help="Do not store the message twice; needs PAYLOAD.")
@click.option("--text", "is_text", is_flag=True, help="Payloads are plain text, not JSON.")
@click.option(
    "--envelope",
    "in_envelopes",
    is_flag=True,
    help="Lines are JSON objects with payload and optional key, headers, delay, idempotency_key.",
)
@click.option(
    "--durability",
    "level",
    type=durability,
    metavar="LEVEL",
    default="accepted",
    help="When a message counts as sent: accepted (default), synced or replicated:N.",
)
@click.option("--interop", is_flag=True, help="Write messages in the format of the Java library.")
@click.option("--quiet", is_flag=True, help="Print the number of messages instead of their ids.")
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
    """Send PAYLOAD, or each line of standard input, as a JSON message; prints the ids.

    Example: penstock topic send orders '{"id": 7}' --key customer-7

    A line that cannot be sent is reported with its number, the others are sent, and the command
    exits 1. If the server fails, the last line sent is reported.
    """
    if idempotency_key is not None and payload is None:
        raise click.UsageError("--idempotency-key needs PAYLOAD; for lines, use --envelope")
    if in_envelopes and is_text:
        raise click.UsageError("--envelope and --text exclude each other")
    options = Given(key, headers_of(headers), delay, idempotency_key, is_text, in_envelopes)

    async def send_all() -> ExitCode:
        async with Penstock(settings=settings) as app:
            if not await TopicAdmin(app.redis, app.codec).exists(topic):
                raise TopicMissing(topic)
            # The bytes go as they came: a number keeps its spelling.
            target = app.topic(topic, type=bytes, durability=level, interop=interop)
            sending = Sending(target, app.codec, options, Report(quiet=quiet, as_json=as_json))
            if payload is not None:
                return await sending.send_one(payload.encode(errors="surrogateescape"))
            longest = settings.codec.max_inflated
            async for lines in read_lines(longest):
                if not await sending.send_lines(lines):
                    break
            return sending.report.end()

    sys.exit(run(send_all()))
