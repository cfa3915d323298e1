"""`penstock queue push`: one job, or one for each line of standard input."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from penstock.app import Penstock
from penstock.errors import CodecError, InvalidJob, PenstockError, QueueFull, SendBatchFailed
from penstock.interfaces.cli.lines import LongLine, read_lines
from penstock.interfaces.cli.main import pass_settings, run
from penstock.interfaces.cli.output import ExitCode, exit_code, json_option, say, say_json
from penstock.interfaces.cli.sending import check_json
from penstock.interfaces.cli.values import duration
from penstock.interfaces.cli.wording import plural
from penstock.queues.options import Side
from penstock.queues.producer.results import QueueAddResult
from penstock.queues.queue import Queue
from penstock.queues.storage.keys import PRIORITIES
from penstock.redis.codec import Codec
from penstock.settings import Settings

__all__ = ["job_options", "push"]

_AT_ONCE = 500
"""Jobs of one call."""
_OWN_FAULT = CodecError | InvalidJob
"""Errors about one job; others can be added."""


def job_options(command: Any) -> Any:
    """Options for time and lane of a job."""
    for option in (
        click.option(
            "--expires",
            type=duration,
            metavar="TIME",
            help="Do not start the job after this time, as in 10m.",
        ),
        click.option(
            "--unique-for",
            type=duration,
            metavar="TIME",
            help="Hold the --unique key for this long, as in 1h.",
        ),
        click.option("--unique", help="Do not add the job while one with this key is unfinished."),
        click.option(
            "--delay", type=duration, metavar="TIME", help="Run the job after this time, as in 90s."
        ),
        click.option("--group", help="Group: a fair lane of its own; groups take turns."),
        click.option(
            "--priority",
            type=click.Choice(PRIORITIES),
            help="Priority: high before normal before low.",
        ),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("queue")
@click.argument("job", metavar="JOB")
@job_options
@click.option("--job-id", help="Id of the job.")
@click.option(
    "--side",
    type=click.Choice(["right", "left"]),
    help="End of the list to push to, for a new queue (default: right).",
)
@click.option("--text", "is_text", is_flag=True, help="Jobs are plain text, not JSON.")
@json_option
@pass_settings
def push(
    settings: Settings,
    queue: str,
    job: str,
    job_id: str | None,
    side: Side | None,
    is_text: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Push JOB, which is JSON, to a queue; - pushes each line of standard input.

    Example: penstock queue push detection_queue '{"camera_id": "front_door"}'

    The bytes are stored unchanged. A line that is no valid job is reported with its number, the
    others are added, and the command exits 1. It also exits 1 if the queue is full.
    """
    if options["unique_for"] is not None and options["unique"] is None:
        raise click.UsageError("--unique-for needs --unique")
    if job == "-" and (job_id is not None or options["unique"] is not None):
        raise click.UsageError("--job-id and --unique are for one job, not for lines")
    chosen = {name: value for name, value in options.items() if value is not None}
    if job_id is not None:
        chosen["job_id"] = job_id

    async def push_all() -> ExitCode:
        async with Penstock(settings=settings) as app:
            target = app.queue(queue, push=side, type=bytes)
            if job != "-":
                data = job.encode(errors="surrogateescape")
                if not is_text:
                    check_json(app.codec, data)
                _show(await target.push(data, **chosen), as_json, is_due=not chosen.get("delay"))
                return ExitCode.OK
            lines = _Lines(target, app.codec, chosen, is_text)
            async for batch in read_lines(settings.codec.max_inflated):
                if not await lines.push(batch):
                    break
            return lines.end(as_json)

    sys.exit(run(push_all()))


def _show(done: QueueAddResult, as_json: bool, *, is_due: bool) -> None:
    if as_json:
        say_json({**asdict(done), "had_backpressure": done.had_backpressure})
        return
    what = f"job {done.job_id}" if done.job_id else "1 job"
    if not done.created:
        say(f"{what} was there")
        return
    verb = ("waits" if done.queue_length == 1 else "wait") if is_due else "not yet due"
    say(f"{what} added, {plural(done.queue_length, 'job')} {verb}")
    if done.warning:
        say(f"penstock: {done.warning}", err=True)


class _Lines:
    """Adds the jobs of many lines, and keeps account of them."""

    def __init__(self, queue: Queue, codec: Codec, options: dict[str, Any], is_text: bool) -> None:
        self._queue, self._codec, self._options, self._is_text = queue, codec, options, is_text
        self._line = self._pushed = self._failed = self._stopped_at = 0
        self._moved = self._dropped = 0
        self._length = 0
        self._code = ExitCode.OK

    async def push(self, lines: Sequence[bytes | LongLine]) -> bool:
        """Add lines; False if the following ones would fail as well."""
        ready: list[tuple[int, bytes]] = []
        for data in lines:
            self._line += 1
            if isinstance(data, LongLine):
                self._fail(self._line, self._line, "longer than codec.max_inflated allows")
            elif data and self._may_be(data):
                ready.append((self._line, data))
            if len(ready) == _AT_ONCE:
                if not await self._push(ready):
                    return False
                ready = []
        return not ready or await self._push(ready)

    def _may_be(self, data: bytes) -> bool:
        try:
            if not self._is_text:
                check_json(self._codec, data)
        except PenstockError as error:
            self._fail(self._line, self._line, str(error))
            return False
        return True

    async def _push(self, ready: list[tuple[int, bytes]]) -> bool:
        failures: list[tuple[tuple[int, bytes], PenstockError]] = []
        try:
            done = await self._queue.push_many([data for _, data in ready], **self._options)
        except SendBatchFailed as failed:
            ends = zip(ready, failed.outcomes, strict=True)
            failures = [(one, end) for one, end in ends if isinstance(end, PenstockError)]
        except PenstockError as error:
            failures = [(one, error) for one in ready]
        else:
            self._moved += done.moved_to_dlq_count
            self._dropped += done.dropped_count
            self._length = done.queue_length
        self._pushed += len(ready) - len(failures)
        if not failures:
            return True
        if len(ready) > 1 and all(
            isinstance(error, _OWN_FAULT | QueueFull) for _, error in failures
        ):
            # A job that cannot be added failed the batch: add the others one by one.
            for one, _ in failures:
                if not await self._push([one]):
                    return False
            return True
        first, error = failures[0]
        last = failures[-1][0][0]
        self._fail(first[0], last, str(error), max(exit_code(error), ExitCode.FOUND), len(failures))
        if isinstance(error, _OWN_FAULT):
            return True
        self._stopped_at = last
        return False

    def _fail(
        self,
        first: int,
        last: int,
        reason: str,
        code: ExitCode = ExitCode.FOUND,
        count: int = 1,
    ) -> None:
        self._failed += count
        self._code = max(self._code, code)
        place = f"line {first}" if first == last else f"lines {first} to {last}"
        say(f"penstock: {place}: {reason}", err=True)

    def end(self, as_json: bool) -> ExitCode:
        if as_json:
            totals = {
                "pushed": self._pushed,
                "failed": self._failed,
                "stopped": self._stopped_at,
                "queue_length": self._length,
                "moved_to_dlq_count": self._moved,
                "dropped_count": self._dropped,
            }
            say_json(totals)
            return self._code
        failed = f", {self._failed:,} not" if self._failed else ""
        stop = f"; nothing after line {self._stopped_at} was tried" if self._stopped_at else ""
        aside = f"; {self._moved:,} moved aside" if self._moved else ""
        dropped = f"; {self._dropped:,} dropped" if self._dropped else ""
        say(f"{plural(self._pushed, 'job')} added{failed}{stop}{aside}{dropped}")
        return self._code
