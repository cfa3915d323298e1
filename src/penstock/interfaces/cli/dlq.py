"""`penstock dlq`: the dead letters of a topic or a queue."""

from __future__ import annotations

import sys
from typing import Any, Literal

import click

from penstock.delivery.payloads import SHOWN_BYTES
from penstock.interfaces.cli.administer import server_ms
from penstock.interfaces.cli.dlq_place import Place, filter_options, filters_of, letters_of
from penstock.interfaces.cli.dlq_show import (
    show_acts,
    show_kinds,
    show_letter,
    show_page,
    show_sent,
)
from penstock.interfaces.cli.main import pass_settings
from penstock.interfaces.cli.output import ExitCode, json_option, say, say_json
from penstock.interfaces.cli.sending import check_json
from penstock.interfaces.cli.values import (
    confirm,
    duration,
    header_option,
    headers_of,
    partitioner_option,
    yes_option,
)
from penstock.interfaces.cli.wording import plural
from penstock.queues.choice import MOST_AT_ONCE, LetterFilters
from penstock.queues.dead_letters import QueueDeadLetters
from penstock.redis.codec import Codec
from penstock.settings import Settings

__all__ = ["dlq"]

_WHOLE = 2**40
_ALIASES = {"kinds": "groups", "requeue": "replay"}
"""The words of queues for what topics had first."""


class _Verbs(click.Group):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, _ALIASES.get(cmd_name, cmd_name))


@click.group(cls=_Verbs)
def dlq() -> None:
    """Look at dead letters, mend them, send them again, throw them away.

    NAME is a topic or a queue; if there is one of each, --topic or --queue says which. kinds is
    another word for groups, requeue for replay.
    """


# --- looking


@dlq.command("list")
@letters_of
@click.option("--count", type=click.IntRange(1, 10_000), default=100, help="At most so many.")
@click.option("--cursor", help="Go on where an earlier page ended.")
@filter_options
@click.option("--newest", is_flag=True, help="The newest first, not the oldest.")
@json_option
@pass_settings
def list_letters(
    settings: Settings,
    place: Place,
    count: int,
    cursor: str | None,
    newest: bool,
    as_json: bool,
    **options: str | None,
) -> None:
    """List dead letters, the oldest first."""
    filters = filters_of(options)
    most_bytes = _WHOLE if as_json else SHOWN_BYTES
    page = place.ask(
        settings,
        topic=lambda letters: letters.list(
            count, cursor, reverse=newest, most_bytes=most_bytes, **filters.of_topic()
        ),
        queue=lambda letters: letters.list(
            _place(cursor),
            min(count, MOST_AT_ONCE),
            reverse=newest,
            most_bytes=most_bytes,
            **filters.of_queue(),
        ),
    )
    if as_json:
        say_json(page)
    else:
        show_page(page, chosen=bool(filters))


def _place(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not (cursor.isdecimal() and cursor.isascii()):
        raise click.BadParameter(f"{cursor[:60]!r}: expected a place", param_hint="--cursor")
    return int(cursor[:18])


@dlq.command()
@letters_of
@click.argument("id_", metavar="ID")
@json_option
@pass_settings
def show(settings: Settings, place: Place, id_: str, as_json: bool) -> None:
    """Show one dead letter with its payload and the last error."""
    most_bytes = _WHOLE if as_json else SHOWN_BYTES
    letter = place.ask(
        settings,
        topic=lambda letters: letters.show(id_, most_bytes=most_bytes),
        queue=lambda letters: letters.get(id_, most_bytes=most_bytes),
    )
    if as_json:
        say_json(letter)
    else:
        show_letter(letter)


@dlq.command()
@letters_of
@json_option
@pass_settings
def groups(settings: Settings, place: Place, as_json: bool) -> None:
    """Count dead letters by cause, the most frequent first."""
    found = place.ask(
        settings,
        topic=lambda letters: letters.groups(),
        queue=lambda letters: letters.kinds(),
    )
    if as_json:
        say_json(found)
    else:
        show_kinds(found)


@dlq.command()
@letters_of
@click.option("--count", type=click.IntRange(1, 10_000), default=100, help="At most so many.")
@json_option
@pass_settings
def audit(settings: Settings, place: Place, count: int, as_json: bool) -> None:
    """Show what people did to dead letters, groups and jobs, the newest first."""
    acts = place.ask(
        settings,
        topic=lambda letters: letters.audit(count),
        queue=lambda letters: letters.audit(count),
    )
    if as_json:
        say_json(acts)
    else:
        show_acts(acts)


# --- acting


@dlq.command()
@letters_of
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="All letters that the options leave.")
@filter_options
@click.option(
    "--to",
    type=click.Choice(["group", "all"]),
    default="group",
    help="Of a topic: the group that failed (the default), or all groups.",
)
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Letters per second.")
@click.option("--limit", type=click.IntRange(1), help="At most so many.")
@click.option("--dry-run", is_flag=True, help="Only say what would be sent.")
@partitioner_option
@yes_option
@json_option
@pass_settings
def replay(
    settings: Settings,
    place: Place,
    ids: tuple[str, ...],
    everything: bool,
    to: Literal["group", "all"],
    rate: float | None,
    limit: int | None,
    dry_run: bool,
    partitioner: str,
    yes: bool,
    as_json: bool,
    **options: str | None,
) -> None:
    """Send dead letters again, the oldest first, and take them away.

    Name them, or say --all. If it is interrupted type it again: none is sent twice. Exits 1 if
    some could not be sent or are not there; these are listed.
    """
    if bool(ids) == everything:
        raise click.UsageError("name the letters, or say --all")
    filters = filters_of(options)
    chosen = list(ids) or None

    def send(*, dry: bool) -> Any:
        return place.ask(
            settings,
            topic=lambda letters: letters.replay(
                chosen, to=to, rate=rate, limit=limit, dry_run=dry, **filters.of_topic()
            ),
            queue=lambda letters: letters.requeue(
                chosen, rate=rate, most=limit, dry_run=dry, **filters.of_queue()
            ),
            partitioner=partitioner,
        )

    if everything and not dry_run:
        confirm(
            yes,
            lambda: f"Send {plural(send(dry=True).matched, 'dead letter')} of {place.name} again?",
        )
    done = send(dry=dry_run)
    if as_json:
        say_json(done)
    else:
        show_sent(done, dry_run=dry_run)
    sys.exit(ExitCode.FOUND if done.skipped or done.missing else ExitCode.OK)


@dlq.command()
@letters_of
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--older-than", type=duration, metavar="TIME", help="All of this age, as in 30d.")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.option("--dry-run", is_flag=True, help="Only say how many there are.")
@yes_option
@json_option
@pass_settings
def purge(
    settings: Settings,
    place: Place,
    ids: tuple[str, ...],
    older_than: float | None,
    everything: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Throw dead letters away for good: name them, or say --older-than or --all."""
    if bool(ids) + (older_than is not None) + everything != 1:
        raise click.UsageError("name the letters, or say --older-than or --all")
    chosen = list(ids) or None

    def drop(*, dry: bool) -> int:
        before: LetterFilters = {}
        if older_than is not None:
            before = {"before_ms": server_ms(settings, older_than)}
        return place.ask(
            settings,
            topic=lambda letters: letters.purge(
                chosen, older_than=older_than, everything=everything, dry_run=dry
            ),
            queue=lambda letters: letters.purge(
                chosen, everything=everything, dry_run=dry, **before
            ),
        )

    if not dry_run:
        confirm(
            yes,
            lambda: f"Throw {plural(drop(dry=True), 'dead letter')} of {place.name} away for good?",
        )
    done = drop(dry=dry_run)
    if as_json:
        say_json({"purged": 0 if dry_run else done, "matched": done})
    else:
        say(f"{plural(done, 'dead letter')} {'would be ' if dry_run else ''}thrown away")


@dlq.command()
@letters_of
@click.argument("id_", metavar="ID")
@click.option("--payload", help="The new payload or job, as JSON; - reads it from standard input.")
@click.option("--text", "is_text", is_flag=True, help="The payload is plain text, not JSON.")
@header_option
@json_option
@pass_settings
def edit(
    settings: Settings,
    place: Place,
    id_: str,
    payload: str | None,
    is_text: bool,
    headers: tuple[str, ...],
    as_json: bool,
) -> None:
    """Replace a letter's payload or, of a topic, its headers; its new id is printed."""
    if payload is None and not headers:
        raise click.UsageError("nothing to change: give --payload or --header")
    changes: dict[str, Any] = {}
    if payload is not None:
        data = payload.encode(errors="surrogateescape")
        if payload == "-":
            data = sys.stdin.buffer.read() if sys.stdin else b""  # or it was closed
        if not is_text:
            check_json(Codec(settings.codec), data)
        changes["payload"] = data
    if headers:
        changes["headers"] = headers_of(headers)

    async def edit_job(letters: QueueDeadLetters) -> str:
        if headers or payload is None:
            raise click.UsageError("a job in a queue's letter is changed by --payload alone")
        return await letters.edit(id_, changes["payload"])

    new = place.ask(settings, topic=lambda letters: letters.edit(id_, **changes), queue=edit_job)
    if as_json:
        say_json({"id": new})
    else:
        say(new)
