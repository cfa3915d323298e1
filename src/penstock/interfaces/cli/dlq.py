"""`penstock dlq`: the dead letters of a topic."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

import click

from penstock.interfaces.cli.administer import administer
from penstock.interfaces.cli.main import pass_settings
from penstock.interfaces.cli.output import ExitCode, json_option, say, say_json
from penstock.interfaces.cli.sending import check_json
from penstock.interfaces.cli.values import (
    confirm,
    duration,
    header_option,
    headers_of,
    partitioner_of,
    partitioner_option,
    yes_option,
)
from penstock.interfaces.cli.wording import moment, payload_line, plural, table
from penstock.redis.codec import Codec
from penstock.settings import Settings
from penstock.topics.bodies import SHOWN_BYTES
from penstock.topics.dead_letters import DeadLetters
from penstock.topics.views import LetterView, Replayed

__all__ = ["dlq"]

T = TypeVar("T")

_WHOLE = 2**40
_CAUSE = 32
"""Characters of an error in a list."""


@click.group()
def dlq() -> None:
    """Look at a topic's dead letters, mend them, send them again, throw them away."""


def _letters(
    settings: Settings,
    topic: str,
    act: Callable[[DeadLetters], Awaitable[T]],
    partitioner: str = "crc32",
) -> T:
    place = partitioner_of(partitioner)
    return administer(settings, lambda admin: act(admin.dead_letters(topic, place)))


# --- looking


@dlq.command("list")
@click.argument("topic")
@click.option("--count", type=click.IntRange(1, 10_000), default=100, help="At most so many.")
@click.option("--cursor", help="Go on where an earlier page ended.")
@click.option("--group", help="Only letters of this group.")
@click.option("--fingerprint", help="Only letters of this cause; see dlq groups.")
@click.option("--newest", is_flag=True, help="The newest first, not the oldest.")
@json_option
@pass_settings
def list_letters(
    settings: Settings,
    topic: str,
    count: int,
    cursor: str | None,
    group: str | None,
    fingerprint: str | None,
    newest: bool,
    as_json: bool,
) -> None:
    """List dead letters, the oldest first."""
    page = _letters(
        settings,
        topic,
        lambda letters: letters.list(
            count,
            cursor,
            group=group,
            fingerprint=fingerprint,
            reverse=newest,
            most_bytes=_WHOLE if as_json else SHOWN_BYTES,
        ),
    )
    if as_json:
        say_json(page)
        return
    if page.letters:
        rows = [
            (one.id, one.group or "-", one.attempts, one.reason or "-", _cause(one))
            for one in page.letters
        ]
        table(("ID", "GROUP", "ATTEMPTS", "REASON", "ERROR"), rows)
    elif not page.cursor:
        say("no dead letters" if group is None and fingerprint is None else "no such dead letters")
    if page.cursor:
        say(f"more: --cursor {page.cursor}")


def _cause(letter: LetterView) -> str:
    kind = (letter.error_class or "").rpartition(".")[2]
    words = ": ".join(filter(None, (kind, letter.error_message)))
    return words if len(words) <= _CAUSE else f"{words[:_CAUSE]}…"


@dlq.command()
@click.argument("topic")
@click.argument("id_", metavar="ID")
@json_option
@pass_settings
def show(settings: Settings, topic: str, id_: str, as_json: bool) -> None:
    """Show one dead letter with its payload and the last error."""
    most_bytes = _WHOLE if as_json else SHOWN_BYTES
    letter = _letters(settings, topic, lambda letters: letters.show(id_, most_bytes=most_bytes))
    if as_json:
        say_json(letter)
        return
    say(f"dead letter {letter.id} of topic {letter.topic}", bold=True)
    facts = {
        "buried": moment(letter.buried_ms),
        "message": f"{letter.partition}/{letter.message_id or '-'}",
        "key": letter.key,
        "headers": "  ".join(f"{name}={value}" for name, value in letter.headers.items()),
        "group": letter.group,
        "reason": letter.reason,
        "attempts": f"{letter.attempts:,}",
        "failed": moment(letter.first_failure_ms) if letter.first_failure_ms else "",
        "last failed": moment(letter.last_failure_ms) if letter.last_failure_ms else "",
        "error": ": ".join(filter(None, (letter.error_class, letter.error_message))),
        "fingerprint": letter.fingerprint,
        "payload": payload_line(letter.payload, SHOWN_BYTES),
        "fields": "  ".join(f"{name}={value}" for name, value in (letter.fields or {}).items()),
    }
    for name, value in facts.items():
        if value:
            say(f"  {name:11}  {value}")
    for line in (letter.stack or "").splitlines():
        say(f"    {line}")


@dlq.command()
@click.argument("topic")
@json_option
@pass_settings
def groups(settings: Settings, topic: str, as_json: bool) -> None:
    """Count dead letters by cause, the most frequent first."""
    found = _letters(settings, topic, lambda letters: letters.groups())
    if as_json:
        say_json(found)
        return
    if not found.kinds:
        say("no dead letters")
        return
    rows = [
        (
            kind.count,
            ", ".join(kind.groups) or "-",
            kind.fingerprint or "-",
            _cause(kind.sample),
        )
        for kind in found.kinds
    ]
    table(("LETTERS", "GROUPS", "FINGERPRINT", "ERROR"), rows)
    if not found.complete:
        say(f"of the newest {found.examined:,} letters; there are older ones")


@dlq.command()
@click.argument("topic")
@click.option("--count", type=click.IntRange(1, 10_000), default=100, help="At most so many.")
@json_option
@pass_settings
def audit(settings: Settings, topic: str, count: int, as_json: bool) -> None:
    """Show what people did to dead letters and groups, the newest first."""
    acts = _letters(settings, topic, lambda letters: letters.audit(count))
    if as_json:
        say_json(acts)
    elif not acts:
        say("nothing was done yet")
    else:
        rows = [(moment(act.at_ms), act.count, act.what, act.who, act.detail) for act in acts]
        table(("WHEN", "COUNT", "WHAT", "WHO", "DETAIL"), rows)


# --- acting


@dlq.command()
@click.argument("topic")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="All letters that the options leave.")
@click.option("--group", help="Only letters of this group.")
@click.option("--fingerprint", help="Only letters of this cause; see dlq groups.")
@click.option(
    "--to",
    type=click.Choice(["group", "all"]),
    default="group",
    help="The group that failed (the default), or all groups.",
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
    topic: str,
    ids: tuple[str, ...],
    everything: bool,
    group: str | None,
    fingerprint: str | None,
    to: Literal["group", "all"],
    rate: float | None,
    limit: int | None,
    dry_run: bool,
    partitioner: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Send dead letters again, the oldest first, and take them away.

    Name them, or say --all. If it is interrupted type it again: none is sent twice. Exits 1 if
    some could not be sent or are not there; these are listed.
    """
    if bool(ids) == everything:
        raise click.UsageError("name the letters, or say --all")

    def send(*, dry: bool) -> Replayed:
        return _letters(
            settings,
            topic,
            lambda letters: letters.replay(
                list(ids) or None,
                group=group,
                fingerprint=fingerprint,
                to=to,
                rate=rate,
                limit=limit,
                dry_run=dry,
            ),
            partitioner,
        )

    if everything and not dry_run:
        confirm(
            yes, lambda: f"Send {plural(send(dry=True).matched, 'dead letter')} of {topic} again?"
        )
    _show_replayed(send(dry=dry_run), dry_run, as_json)


def _show_replayed(done: Replayed, dry_run: bool, as_json: bool) -> None:
    if as_json:
        say_json(done)
    else:
        sent = done.matched - len(done.skipped) if dry_run else done.replayed
        verb = "would be sent" if dry_run else "sent"
        say(f"{plural(sent, 'dead letter')} {verb}")
        if done.repeated:
            say(f"{done.repeated:,} had been sent before")
        if done.missing:
            say(f"{done.missing:,} not there (any more)")
        for id_, reason in done.skipped.items():
            say(f"  {id_} stays: {reason}")
    sys.exit(ExitCode.FOUND if done.skipped or done.missing else ExitCode.OK)


@dlq.command()
@click.argument("topic")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--older-than", type=duration, metavar="TIME", help="All of this age, as in 30d.")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.option("--dry-run", is_flag=True, help="Only say how many there are.")
@yes_option
@json_option
@pass_settings
def purge(
    settings: Settings,
    topic: str,
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

    def drop(*, dry: bool) -> int:
        return _letters(
            settings,
            topic,
            lambda letters: letters.purge(
                list(ids) or None, older_than=older_than, everything=everything, dry_run=dry
            ),
        )

    if not dry_run:
        confirm(
            yes, lambda: f"Throw {plural(drop(dry=True), 'dead letter')} of {topic} away for good?"
        )
    done = drop(dry=dry_run)
    if as_json:
        say_json({"purged": 0 if dry_run else done, "matched": done})
    else:
        say(f"{plural(done, 'dead letter')} {'would be ' if dry_run else ''}thrown away")


@dlq.command()
@click.argument("topic")
@click.argument("id_", metavar="ID")
@click.option("--payload", help="The new payload, as JSON; - reads it from standard input.")
@click.option("--text", "is_text", is_flag=True, help="The payload is plain text, not JSON.")
@header_option
@json_option
@pass_settings
def edit(
    settings: Settings,
    topic: str,
    id_: str,
    payload: str | None,
    is_text: bool,
    headers: tuple[str, ...],
    as_json: bool,
) -> None:
    """Replace a letter's payload, or all its headers; it gets a new id, which is printed."""
    if payload is None and not headers:
        raise click.UsageError("nothing to change: give --payload or --header")
    changes: dict[str, Any] = {}
    if payload is not None:
        data = payload.encode(errors="surrogateescape")
        if payload == "-":
            data = sys.stdin.buffer.read()
        if not is_text:
            check_json(Codec(settings.codec), data)
        changes["payload"] = data
    if headers:
        changes["headers"] = headers_of(headers)
    new = _letters(settings, topic, lambda letters: letters.edit(id_, **changes))
    if as_json:
        say_json({"id": new})
    else:
        say(new)
