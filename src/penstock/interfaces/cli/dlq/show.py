"""Dead letters of topics and queues as text."""

from __future__ import annotations

from penstock.delivery.audit import Act
from penstock.delivery.payloads import SHOWN_BYTES
from penstock.interfaces.cli.output import say
from penstock.interfaces.cli.wording import moment, payload_line, plural, table
from penstock.queues.dead_letters.views import (
    QueueLetterKinds,
    QueueLetterPage,
    QueueLetterView,
    QueueReplayed,
)
from penstock.redaction import redacted
from penstock.topics.admin.views import LetterKinds, LetterPage, LetterView, Replayed

__all__ = ["show_acts", "show_kinds", "show_letter", "show_page", "show_sent"]

_CAUSE = 32
"""Characters of an error in a list."""
_DATA = frozenset({"fields", "headers", "job", "job id", "key", "message", "payload"})
"""Facts that are the user's data; others may describe errors."""


def show_page(page: LetterPage | QueueLetterPage, *, chosen: bool) -> None:
    """Print a page of letters and the cursor of the next; `chosen` if filters were given."""
    if isinstance(page, LetterPage):
        titles = ("ID", "GROUP", "ATTEMPTS", "REASON", "ERROR")
        rows = [
            (one.id, one.group or "-", one.attempts, one.reason or "-", _cause(one))
            for one in page.letters
        ]
        more = page.cursor
    else:
        titles = ("ID", "TASK", "ATTEMPTS", "REASON", "ERROR")
        rows = [
            (one.id, one.task or "-", one.attempts, one.reason or "-", _cause(one))
            for one in page.letters
        ]
        more = page.next
    if rows:
        table(titles, rows)
    elif more is None:
        say("no such dead letters" if chosen else "no dead letters")
    if more is not None:
        say(f"more: --cursor {more}")


def show_letter(letter: LetterView | QueueLetterView) -> None:
    if isinstance(letter, LetterView):
        say(f"dead letter {letter.id} of topic {letter.topic}", bold=True)
        _say_facts(_of_topic(letter))
    else:
        say(f"dead letter {letter.id} of queue {letter.queue or '-'}", bold=True)
        _say_facts(_of_queue(letter))
        for trouble in letter.history[:-1]:
            cause = ": ".join(filter(None, (trouble.error_class, trouble.message)))
            say(f"  {f'attempt {trouble.attempt}':11}  {moment(trouble.at_ms)}  {cause}")
        for suggestion in letter.suggestions:
            say(f"  {'try':11}  {suggestion}")
    for line in redacted(letter.stack or "").splitlines():
        say(f"    {line}")


def _of_topic(letter: LetterView) -> dict[str, str | None]:
    return {
        "buried": moment(letter.buried_ms),
        "message": letter.message_id,
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


def _of_queue(letter: QueueLetterView) -> dict[str, str | None]:
    most = f" of {letter.max_attempts:,}" if letter.max_attempts else ""
    return {
        "buried": moment(letter.buried_ms) if letter.buried_ms else "",
        "job id": letter.job_id,
        "task": letter.task,
        "lane": letter.lane,
        "group": letter.group,
        "reason": letter.reason,
        "attempts": f"{letter.attempts:,}{most}",
        "replays": f"{letter.replays:,}" if letter.replays else "",
        "failed": letter.first_failed_at,
        "last failed": letter.last_failed_at,
        "error": ": ".join(filter(None, (letter.error_type, letter.error))),
        "error code": letter.error_code,
        "fingerprint": letter.fingerprint,
        "fault": letter.fault,
        "job": payload_line(letter.job, SHOWN_BYTES),
    }


def _say_facts(facts: dict[str, str | None]) -> None:
    for name, value in facts.items():
        if value:
            say(f"  {name:11}  {value}", is_data=name in _DATA)


def show_kinds(found: LetterKinds | QueueLetterKinds) -> None:
    """Causes, the most frequent first."""
    if not found.kinds:
        say("no dead letters")
        return
    if isinstance(found, LetterKinds):
        titles = ("LETTERS", "GROUPS", "FINGERPRINT", "ERROR")
        rows = [
            (
                kind.count,
                ", ".join(kind.groups) or "-",
                kind.fingerprint or "-",
                _cause(kind.sample),
            )
            for kind in found.kinds
        ]
    else:
        titles = ("LETTERS", "TASKS", "FINGERPRINT", "ERROR")
        rows = [
            (kind.count, ", ".join(kind.tasks) or "-", kind.fingerprint or "-", _cause(kind.sample))
            for kind in found.kinds
        ]
    table(titles, rows)
    if not found.complete:
        say(f"of the newest {found.examined:,} letters; there are older ones")


def show_sent(done: Replayed | QueueReplayed, *, dry_run: bool) -> None:
    """Print the outcome of a replay."""
    sent = done.matched - len(done.skipped) if dry_run else done.replayed
    say(f"{plural(sent, 'dead letter')} {'would be sent' if dry_run else 'sent'}")
    if isinstance(done, Replayed) and done.repeated:
        say(f"{done.repeated:,} had been sent before")
    if done.missing:
        say(f"{done.missing:,} not there (any more)")
    if isinstance(done, QueueReplayed) and not done.complete:
        say("there are more: type it again")
    for id_, reason in done.skipped.items():
        say(f"  {id_} stays: {reason}")


def show_acts(acts: list[Act]) -> None:
    if not acts:
        say("nothing was done yet")
        return
    rows = [(moment(act.at_ms), act.count, act.what, act.who, act.detail) for act in acts]
    table(("WHEN", "COUNT", "WHAT", "WHO", "DETAIL"), rows)


def _cause(letter: LetterView | QueueLetterView) -> str:
    if isinstance(letter, LetterView):
        kind, message = letter.error_class or "", letter.error_message
    else:
        kind, message = letter.error_type, letter.error or letter.fault
    cause = redacted(": ".join(filter(None, (kind.rpartition(".")[2], message))))
    return cause if len(cause) <= _CAUSE else f"{cause[:_CAUSE]}…"
