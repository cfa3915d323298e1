"""Log lines of failed attempts and dead letters, the same for queues and topics.

Each failed attempt is a WARNING with its traceback, each dead letter an ERROR with the command that
shows it. Repeats of one bug are counted instead of written: see `Bursts`. Arguments and payloads
are never logged. The logger is `penstock.failures`; the facts of a line stand as a mapping in its
extra `failure`, for logs in JSON.
"""

from __future__ import annotations

import logging
import shlex
import shutil
import sys
from dataclasses import dataclass
from functools import cache, partial
from types import TracebackType
from typing import Any, Literal
from urllib.parse import urlsplit

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.delivery.failures import Failure, handler_part
from penstock.delivery.retries import Retry
from penstock.settings import Settings
from penstock.throttled_log import BURST, EVERY_S, Bursts

__all__ = ["FailedAttempt", "FailureLog", "shell_word"]

logger = logging.getLogger("penstock.failures")

_LONGEST_ERROR = 200


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """An attempt that failed, as log lines name it."""

    id: str
    """Of the job or message."""
    number: int
    limit: int
    task: str = ""
    handler: str = ""
    """Of a topic; a raw job has neither task nor handler."""
    group: str = ""

    @property
    def performer(self) -> str:
        """What was tried, as text."""
        if self.task:
            return f"task {self.task!r}"
        if self.handler:
            return f"handler {self.handler!r} of group {self.group!r}"
        return "the handler of raw jobs"


class FailureLog:
    """Logs the failures of one queue or topic."""

    def __init__(
        self,
        kind: Literal["queue", "topic"],
        name: str,
        settings: Settings,
        *,
        every_s: float = EVERY_S,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._kind, self._name, self._settings = kind, name, settings
        self._item = "job" if kind == "queue" else "message"
        self.redacts = settings.log.redact
        """Whether stored errors are without their secrets, as log lines are."""
        self._bursts = Bursts(burst=BURST, every_s=every_s, clock=clock)
        self._every_s = every_s

    def failed(
        self,
        attempt: FailedAttempt,
        failure: Failure,
        error: BaseException | None,
        *,
        next_s: float | None,
    ) -> None:
        """Log a failed attempt. `next_s` is None if no other attempt follows.

        A `Retry` is what the handler meant to do, so it is no warning as long as it gets its way.
        """
        level, wanted = logging.WARNING, isinstance(error, Retry)
        if wanted and next_s is not None:
            level = logging.INFO
        if not self._admits(level, attempt, failure.fingerprint, failure):
            return
        following = f"next attempt in {_wait(next_s)}" if next_s else "next attempt at once"
        if next_s is None:
            following = "no further attempt"
        self._write(
            level,
            f"{self._subject(attempt)} failed (attempt {attempt.number} of {attempt.limit}), "
            f"{following}{_cause(failure)}",
            self._facts(attempt, failure, next_s=next_s),
            None if wanted else error,
        )

    def buried(
        self, attempt: FailedAttempt, reason: str, failure: Failure | None, *, letter_id: str
    ) -> None:
        """Log a dead letter, once it is stored."""
        fingerprint = reason if failure is None else failure.fingerprint
        if not self._admits(logging.ERROR, attempt, fingerprint, failure):
            return
        command = self._command("show", letter_id)
        self._write(
            logging.ERROR,
            f"{self._subject(attempt)} is now a dead letter ({reason}, attempt {attempt.number} of "
            f"{attempt.limit}){_cause(failure)}; to see it: {command}",
            self._facts(attempt, failure, reason=reason, letter=letter_id, command=command),
            None,
        )

    def flush(self) -> None:
        """Write the counts of what was left out so far."""
        self._bursts.flush()

    # ---- inside

    def _admits(
        self, level: int, attempt: FailedAttempt, fingerprint: str, failure: Failure | None
    ) -> bool:
        if not logger.isEnabledFor(level):
            return False
        summarise = partial(self._summarise, level, attempt, failure)
        cause = (level, attempt.task or attempt.handler, attempt.group, fingerprint)
        return self._bursts.admits(cause, summarise)

    def _summarise(
        self, level: int, attempt: FailedAttempt, failure: Failure | None, count: int
    ) -> None:
        facts = self._facts(attempt, failure, more=count)
        ending = ""
        if level == logging.ERROR:
            noun = "dead letters" if count > 1 else "dead letter"
            facts["command"] = command = self._command("list", failure=failure)
            ending = f"; to see them: {command}"
        else:
            noun = "failed attempts" if count > 1 else "failed attempt"
        self._write(
            level,
            f"{attempt.performer} of {self._kind} {self._name!r}: {count} more {noun} like this "
            f"within {_wait(self._every_s)}, the last one {self._item} {_shown(attempt.id)}"
            f"{_cause(failure)}{ending}",
            facts,
            None,
        )

    def _subject(self, attempt: FailedAttempt) -> str:
        return (
            f"{attempt.performer} of {self._kind} {self._name!r}: {self._item} {_shown(attempt.id)}"
        )

    def _facts(
        self, attempt: FailedAttempt, failure: Failure | None, **others: object
    ) -> dict[str, Any]:
        facts: dict[str, Any] = {
            self._kind: self._name,
            self._item: attempt.id,
            "attempt": attempt.number,
            "max_attempts": attempt.limit,
        }
        names = {"task": attempt.task, "handler": attempt.handler, "group": attempt.group}
        facts |= {name: value for name, value in names.items() if value}
        if failure is not None:
            facts["error"] = failure.error_class
            facts["fingerprint"] = failure.fingerprint
        return facts | others

    def _write(
        self, level: int, text: str, facts: dict[str, Any], error: BaseException | None
    ) -> None:
        logger.log(level, "%s", text, exc_info=_exc_info(error), extra={"failure": facts})

    def _command(self, verb: str, letter_id: str = "", failure: Failure | None = None) -> str:
        """A command that works when it is pasted into a shell, wherever that stands."""
        words = [*_server_words(self._settings), "dlq", verb, self._name]
        words += [letter_id] if letter_id else []
        options = [f"--{self._kind}"]
        options += ["--fingerprint", failure.fingerprint] if failure is not None else []
        if self._name.startswith("-") or letter_id.startswith("-"):
            place = words.index("dlq") + 2
            words = [*words[:place], *options, "--", *words[place:]]
        else:
            words += options
        namespace = self._settings.namespace
        prefix = f"PENSTOCK_NAMESPACE={shell_word(namespace)} " if namespace else ""
        return f"{prefix}{_program()} {' '.join(map(shell_word, words))}"


def shell_word(text: str) -> str:
    """Quote one word for a shell, on one line: control characters as escapes."""
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + text.encode("unicode_escape").decode().replace("'", "\\'") + "'"


@cache
def _program() -> str:
    return (
        "penstock" if shutil.which("penstock") else f"{shell_word(sys.executable)} -P -m penstock"
    )


def _server_words(settings: Settings) -> list[str]:
    """How the command line finds the same server. Secrets are left to its environment."""
    if settings.url is None:
        return ["--home", str(settings.home_path)] if settings.home else []
    has_secret = settings.password or settings.password_file or "@" in urlsplit(settings.url).netloc
    return [] if has_secret else ["--url", settings.url]


def _exc_info(
    error: BaseException | None,
) -> tuple[type[BaseException], BaseException, TracebackType | None] | None:
    return None if error is None else (type(error), error, handler_part(error.__traceback__))


def _cause(failure: Failure | None) -> str:
    if failure is None:
        return ""
    line = ": ".join(filter(None, (failure.error_class, " ".join(failure.message.split()))))
    text = line if len(line) <= _LONGEST_ERROR else f"{line[: _LONGEST_ERROR - 1]}…"
    return f": {_shown(text)}" if text else ""


def _shown(text: str) -> str:
    """`text` on one line: ids and errors may hold anything."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def _wait(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:  # noqa: PLR2004  beyond two minutes seconds do not matter
        return f"{seconds:.3g} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"  # noqa: PLR2004
