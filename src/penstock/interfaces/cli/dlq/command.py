"""`penstock dlq`: the dead letters of a topic or a queue."""

from __future__ import annotations

import sys
from typing import Any, Literal

import click

from penstock.delivery.payloads import SHOWN_BYTES
from penstock.interfaces.cli.administer import server_ms
from penstock.interfaces.cli.dlq.show import (
    show_acts,
    show_kinds,
    show_letter,
    show_page,
    show_sent,
)
from penstock.interfaces.cli.dlq.source import LetterOwner, filter_options, filters_of, letters_of
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
from penstock.queues.dead_letters.dead_letters import QueueDeadLetters
from penstock.queues.dead_letters.filters import MOST_AT_ONCE, LetterFilters
from penstock.redis.codec import Codec
from penstock.settings import Settings

__all__ = ["dlq"]

_WHOLE = 2**40


@click.group()
def dlq() -> None:
    """List, show, edit, replay and delete dead letters.

    NAME is a topic or a queue; if there is one of each, give --topic or --queue.
    """


# --- looking


@dlq.command("list")
@letters_of
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=100, help="Maximum number of letters."
)
@click.option("--cursor", help="Continue an earlier page: the cursor it printed.")
@filter_options
@click.option("--newest", is_flag=True, help="List the newest letters first.")
@json_option
@pass_settings
def list_letters(
    settings: Settings,
    source: LetterOwner,
    limit: int,
    cursor: str | None,
    newest: bool,
    as_json: bool,
    **options: str | None,
) -> None:
    """List dead letters, the oldest first.

    Example: penstock dlq list mail --error Timeout
    """
    filters = filters_of(options)
    max_bytes = _WHOLE if as_json else SHOWN_BYTES
    page = source.ask(
        settings,
        topic=lambda letters: letters.list(
            limit, cursor, reverse=newest, max_bytes=max_bytes, **filters.of_topic()
        ),
        queue=lambda letters: letters.list(
            _place(cursor),
            min(limit, MOST_AT_ONCE),
            reverse=newest,
            max_bytes=max_bytes,
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
def show(settings: Settings, source: LetterOwner, id_: str, as_json: bool) -> None:
    """Show a dead letter: payload, attempts, last error.

    Example: penstock dlq show mail ID
    """
    max_bytes = _WHOLE if as_json else SHOWN_BYTES
    letter = source.ask(
        settings,
        topic=lambda letters: letters.show(id_, max_bytes=max_bytes),
        queue=lambda letters: letters.get(id_, max_bytes=max_bytes),
    )
    if as_json:
        say_json(letter)
    else:
        show_letter(letter)


@dlq.command()
@letters_of
@json_option
@pass_settings
def groups(settings: Settings, source: LetterOwner, as_json: bool) -> None:
    """Count dead letters by cause, the most frequent first.

    Example: penstock dlq groups mail
    """
    found = source.ask(
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
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=100, help="Maximum number of letters."
)
@json_option
@pass_settings
def audit(settings: Settings, source: LetterOwner, limit: int, as_json: bool) -> None:
    """Show administrative actions on dead letters, groups and jobs, the newest first.

    Example: penstock dlq audit mail
    """
    acts = source.ask(
        settings,
        topic=lambda letters: letters.audit(limit),
        queue=lambda letters: letters.audit(limit),
    )
    if as_json:
        say_json(acts)
    else:
        show_acts(acts)


# --- acting


@dlq.command()
@letters_of
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option(
    "--all", "everything", is_flag=True, help="Replay all letters that match the options."
)
@filter_options
@click.option(
    "--to",
    type=click.Choice(["group", "all"]),
    default="group",
    help="Topics: replay to the group that failed (default) or to all groups.",
)
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Maximum number of letters per second."
)
@click.option("--limit", type=click.IntRange(1), help="Maximum number of letters.")
@click.option("--dry-run", is_flag=True, help="Show what would be replayed, and replay nothing.")
@partitioner_option
@yes_option
@json_option
@pass_settings
def replay(
    settings: Settings,
    source: LetterOwner,
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
    """Replay dead letters, the oldest first, and remove them.

    Example: penstock dlq replay mail --all --error Timeout --rate 10

    Give ids or --all. If the command is interrupted, repeat it: no letter is sent twice. Exits 1
    if some could not be replayed or do not exist; these are listed.
    """
    if bool(ids) == everything:
        raise click.UsageError("give ids of letters, or --all")
    filters = filters_of(options)
    chosen = list(ids) or None

    def send(*, dry: bool) -> Any:
        return source.ask(
            settings,
            topic=lambda letters: letters.replay(
                chosen, to=to, rate=rate, limit=limit, dry_run=dry, **filters.of_topic()
            ),
            queue=lambda letters: letters.replay(
                chosen, rate=rate, limit=limit, dry_run=dry, **filters.of_queue()
            ),
            partitioner=partitioner,
        )

    if everything and not dry_run:
        confirm(
            yes,
            lambda: f"Send {plural(send(dry=True).matched, 'dead letter')} of {source.name} again?",
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
@click.option(
    "--older-than", type=duration, metavar="TIME", help="Delete letters older than this, as in 30d."
)
@click.option("--all", "everything", is_flag=True, help="Delete all letters.")
@click.option("--dry-run", is_flag=True, help="Show how many would be deleted, and delete nothing.")
@yes_option
@json_option
@pass_settings
def purge(
    settings: Settings,
    source: LetterOwner,
    ids: tuple[str, ...],
    older_than: float | None,
    everything: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete dead letters: by id, by age, or all.

    Example: penstock dlq purge mail --older-than 30d
    """
    if bool(ids) + (older_than is not None) + everything != 1:
        raise click.UsageError("give ids of letters, --older-than or --all")
    chosen = list(ids) or None

    def drop(*, dry: bool) -> int:
        before: LetterFilters = {}
        if older_than is not None:
            before = {"before_ms": server_ms(settings, older_than)}
        return source.ask(
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
            lambda: f"Delete {plural(drop(dry=True), 'dead letter')} of {source.name} for good?",
        )
    done = drop(dry=dry_run)
    if as_json:
        say_json({"purged": 0 if dry_run else done, "matched": done})
    else:
        say(f"{plural(done, 'dead letter')} {'would be ' if dry_run else ''}deleted")


@dlq.command()
@letters_of
@click.argument("id_", metavar="ID")
@click.option("--payload", help="New payload or job, as JSON; - reads standard input.")
@click.option("--text", "is_text", is_flag=True, help="The payload is plain text, not JSON.")
@header_option
@json_option
@pass_settings
def edit(
    settings: Settings,
    source: LetterOwner,
    id_: str,
    payload: str | None,
    is_text: bool,
    headers: tuple[str, ...],
    as_json: bool,
) -> None:
    """Replace the payload of a letter or, for topics, its headers; prints the new id.

    Example: penstock dlq edit mail ID --payload '{"to": "anna@example.org"}'
    """
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

    new = source.ask(settings, topic=lambda letters: letters.edit(id_, **changes), queue=edit_job)
    if as_json:
        say_json({"id": new})
    else:
        say(new)
