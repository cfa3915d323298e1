"""`penstock topic consume`: a member of a group that prints messages or runs a command on each."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from tempfile import TemporaryFile
from typing import cast

import click
import msgspec

from penstock.app import Penstock
from penstock.delivery import failure_log
from penstock.delivery.retries import RetryPolicy
from penstock.delivery.times import LATEST
from penstock.errors import TopicMissing
from penstock.interfaces.cli.main import log_settings_notes, pass_settings
from penstock.interfaces.cli.output import json_option, reader_left, say, say_json
from penstock.interfaces.cli.values import duration, position
from penstock.interfaces.cli.wording import message_line
from penstock.redis.codec import Codec
from penstock.runtime import Worker, configure, run_process
from penstock.runtime.heartbeat import Heartbeat
from penstock.runtime.heartbeat_thread import HeartbeatThread
from penstock.runtime.logs import log_what_python_prints
from penstock.settings import Settings
from penstock.topics.admin.topic_admin import TopicAdmin
from penstock.topics.admin.views import MessageView
from penstock.topics.consumer.consumer import Consumer
from penstock.topics.delayed.mover import Mover
from penstock.topics.message import Message
from penstock.topics.storage.large_payloads import show_payload
from penstock.topics.subscription import Subscription

__all__ = ["consume"]

_WHOLE = 2**40
_LOOK_S = 0.005


class _Delivery(MessageView, frozen=True, kw_only=True):
    """A message as `--json` prints it."""

    attempt: int


class CommandFailed(Exception):
    """The command did not end with 0. Its name stands in the failures of the message."""


@click.command()
@click.argument("topic")
@click.option("--group", required=True, help="Group to join; created if it does not exist.")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of attempts; then exit.")
@click.option(
    "--exec",
    "command",
    metavar="COMMAND",
    help="Command to run for each message, with the payload as standard input.",
)
@click.option(
    "--start",
    type=position,
    default="earliest",
    metavar="WHERE",
    help="Position of a new group: earliest (default), latest, a time, or the id to start after.",
)
@click.option(
    "--max-attempts",
    type=click.IntRange(1),
    default=5,
    help="Attempts before a message becomes a dead letter (default: 5).",
)
@click.option(
    "--timeout", type=duration, metavar="TIME", help="Kill the command after this time, as in 30s."
)
@json_option
@pass_settings
def consume(
    settings: Settings,
    topic: str,
    group: str,
    limit: int | None,
    command: str | None,
    start: str,
    max_attempts: int,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Print messages, or run a command for each, as a member of a group, until Ctrl-C.

    Example: penstock topic consume orders --group audit --exec ./store.sh

    A message is acknowledged when it has been printed, or when the command has exited with 0;
    otherwise it is retried later, and becomes a dead letter after the last attempt.
    """
    arguments = _split_command(command)
    subscription = Subscription(
        group=group,
        concurrency=1,
        start="latest" if start == LATEST else start,
        retry=RetryPolicy(max_attempts=max_attempts),
        timeout_s=timeout or None,
    )
    log = replace(settings.log, format="json") if as_json else settings.log
    configure(replace(log, level="warning") if log.level == "info" else log)
    log_what_python_prints()
    log_settings_notes()
    # This command prints one line for a failed attempt and for the error that ends the worker.
    logging.getLogger(Worker.__module__).setLevel(logging.CRITICAL)
    failure_log.logger.setLevel(logging.ERROR)

    async def work() -> int:
        async with Penstock(settings=settings) as app:
            if not await TopicAdmin(app.redis, app.codec).exists(topic):
                raise TopicMissing(topic)
            handling = _Handling(app.codec, arguments, limit, as_json=as_json)
            consumer = Consumer(app.topic(topic, type=bytes), handling.handle, subscription)
            consumer.restartable = False  # a person is looking, and can start it again
            mover, heartbeats = Mover(app.redis), HeartbeatThread(app.redis)
            consumer.when_known, consumer.heartbeats = mover.watch, heartbeats
            worker = Worker(
                work=[consumer],
                support=[
                    Heartbeat(app.redis, lambda: worker.readiness()),  # noqa: PLW0108
                    heartbeats,
                    mover,
                ],
                settings=settings.worker,
            )
            handling.begin(worker, consumer)
            code = await worker.run(handle_signals=True)
            for failure in worker.failures:
                raise _cause(failure)
            return code

    sys.exit(run_process(work))


def _cause(failure: Exception) -> Exception:
    while isinstance(failure, ExceptionGroup):
        failure = cast("ExceptionGroup[Exception]", failure).exceptions[0]
    return failure


def _split_command(command: str | None) -> list[str]:
    if command is None:
        return []
    try:
        arguments = shlex.split(command)
    except ValueError as error:
        raise click.BadParameter(f"{command[:60]!r}: {error}", param_hint="--exec") from None
    if not arguments or shutil.which(arguments[0]) is None:
        raise click.BadParameter(f"{command[:60]!r}: no such command", param_hint="--exec")
    return arguments


class _Handling:
    """Handles one message after the other until there were enough."""

    def __init__(
        self, codec: Codec, command: list[str], limit: int | None, *, as_json: bool
    ) -> None:
        self._codec, self._command, self._as_json = codec, command, as_json
        self._left = limit

    def begin(self, worker: Worker, consumer: Consumer) -> None:
        self._worker, self._consumer = worker, consumer

    async def handle(self, payload: bytes, message: Message) -> None:
        try:
            if self._command:
                await self._run(payload, message)
            elif reader_left() or not self._print(payload, message):
                self._left = 0
                raise CommandFailed("the reader has closed the output")
        finally:
            if self._left is not None:
                self._left -= 1
                if self._left <= 0:
                    await self._stop()

    async def _stop(self) -> None:
        """Ask for the end, and wait until no further message will be begun."""
        self._worker.ask_to_stop()
        while self._consumer.partitions:  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(_LOOK_S)

    def _print(self, payload: bytes, message: Message) -> bool:
        view = _Delivery(
            partition=message.partition,
            id=message.id,
            sent_ms=message.sent_ms,
            payload=show_payload(self._codec, payload, _WHOLE),
            key=message.key,
            headers=message.headers,
            attempt=message.attempt,
        )
        return say_json(view, indent=0) if self._as_json else say(message_line(view), is_data=True)

    async def _run(self, payload: bytes, message: Message) -> None:
        with TemporaryFile() as payload_file:  # a command need not read all of it, or any
            payload_file.write(payload)
            payload_file.seek(0)
            # In a session of its own: Ctrl-C is for us, the command may finish.
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=payload_file,
                stdout=sys.stderr if self._as_json else None,
                env=os.environ | _environment(message),
                start_new_session=True,
            )
        try:
            await process.wait()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if self._as_json:
            about = {"partition": message.partition, "id": message.id}
            about |= {"attempt": message.attempt, "exit_code": process.returncode}
            say_json(about, indent=0)
        if process.returncode:
            failed = CommandFailed(f"{self._command[0]} ended with {process.returncode}")
            if not self._as_json:
                say(f"penstock: {message.id}, attempt {message.attempt}: {failed}", err=True)
            raise failed


def _environment(message: Message) -> dict[str, str]:
    about = {
        "MESSAGE_TOPIC": message.topic,
        "MESSAGE_PARTITION": str(message.partition),
        "MESSAGE_ID": message.id,
        "MESSAGE_ATTEMPT": str(message.attempt),
        "MESSAGE_HEADERS": msgspec.json.encode(message.headers).decode(),
    }
    if message.key is not None:
        about["MESSAGE_KEY"] = message.key
    return {name: value.replace("\0", "\\0") for name, value in about.items()}
