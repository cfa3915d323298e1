"""Send lines as messages, and report the outcome of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.errors import (
    CodecError,
    DecodeError,
    EncodeError,
    InvalidMessage,
    PenstockError,
    Rejected,
    SendBatchFailed,
    TopicError,
)
from penstock.interfaces.cli.lines import LongLine
from penstock.interfaces.cli.output import ExitCode, exit_code, say, say_json, say_lines
from penstock.interfaces.cli.wording import plural
from penstock.redis.codec import Codec
from penstock.redis.codec.json_rules import repeats_a_member
from penstock.topics.message import Outgoing
from penstock.topics.topic import Topic

__all__ = ["Given", "Report", "Sending", "check_json"]


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of standard input under `--envelope`."""

    payload: msgspec.Raw
    key: str | None = None
    headers: dict[str, str] = {}
    delay: float | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """Options that apply to every message."""

    key: str | None
    headers: Mapping[str, str]
    delay: float | None
    idempotency_key: str | None
    is_text: bool
    in_envelopes: bool


@dataclass(frozen=True, slots=True)
class _Ready:
    """A message to be sent, and the line that it came from."""

    line: int
    payload: bytes
    key: str | None
    headers: Mapping[str, str]
    delay: float | None
    idempotency_key: str | None

    @property
    def is_plain(self) -> bool:
        """Whether it can be sent in a batch."""
        return self.delay is None and self.idempotency_key is None


_Failure = tuple[int, PenstockError]


class Report:
    """Prints the outcome of each line as soon as it is known."""

    def __init__(self, *, quiet: bool, as_json: bool) -> None:
        self._quiet, self._as_json = quiet, as_json
        self._sent = self._failed = 0
        self._stopped_at = 0
        self._code = ExitCode.OK

    def sent(self, lines: Sequence[tuple[int, str]]) -> None:
        self._sent += len(lines)
        if self._quiet:
            return
        if self._as_json:
            rows = ({"line": line, "id": id_} for line, id_ in lines)
            say_lines(msgspec.json.encode(row).decode() for row in rows)
        else:
            say_lines(id_ for _, id_ in lines)

    def failed(self, failures: Sequence[_Failure]) -> None:
        self._failed += len(failures)
        for _, error in failures:
            self._code = max(self._code, exit_code(error), ExitCode.FOUND)
        if self._as_json and not self._quiet:
            for line, error in failures:
                say_json({"line": line, "error": str(error)}, indent=0)
        else:
            for lines, reason in _together(failures):
                say(f"penstock: {lines}: {reason}", err=True)

    def stop(self, line: int) -> None:
        """Note that nothing after this line is sent."""
        self._stopped_at = line

    def end(self) -> ExitCode:
        """Print totals, unless every line was printed; the exit code."""
        if self._as_json:
            if self._quiet:
                say_json({"sent": self._sent, "failed": self._failed, "stopped": self._stopped_at})
        elif self._quiet or self._failed:
            failed = f", {self._failed:,} not" if self._failed else ""
            stop = f"; nothing after line {self._stopped_at} was tried" if self._stopped_at else ""
            say(f"{plural(self._sent, 'message')} sent{failed}{stop}", err=not self._quiet)
        return self._code


def _together(failures: Sequence[_Failure]) -> Iterator[tuple[str, str]]:
    """Consecutive lines that failed for the same reason, as one entry."""
    first = last = 0
    reason = ""
    for line, error in (*failures, (-1, PenstockError())):
        if first and (str(error) != reason or line != last + 1):
            yield (f"line {first}" if first == last else f"lines {first} to {last}"), reason
            first = 0
        first, last, reason = first or line, line, str(error)


class Sending:
    """Sends lines as messages; those that were read together, in one batch."""

    def __init__(self, topic: Topic, codec: Codec, given: Given, report: Report) -> None:
        self.report = report
        self._topic, self._codec, self._given = topic, codec, given
        self._line = 0

    async def send_one(self, data: bytes) -> ExitCode:
        """Send the payload from the command line, or raise."""
        self.report.sent([(1, await self._send(self._read(data)))])
        return self.report.end()

    async def send_lines(self, lines: Sequence[bytes | LongLine]) -> bool:
        """Send lines; False if the following ones would fail as well."""
        plain: list[_Ready] = []
        for data in lines:
            self._line += 1
            if not data:
                continue
            try:
                ready = self._read(data)
            except (CodecError, TopicError) as error:
                self.report.failed([(self._line, error)])
                continue
            if ready.is_plain:
                plain.append(ready)
                continue
            if not await self._send_batch(plain) or not await self._send_each([ready]):
                return False
            plain = []
        return await self._send_batch(plain)

    def _read(self, data: bytes | LongLine) -> _Ready:
        given = self._given
        if isinstance(data, LongLine):
            raise EncodeError("longer than codec.max_inflated allows")
        key, headers, delay, once = given.key, given.headers, given.delay, given.idempotency_key
        if given.in_envelopes:
            envelope = _opened(data)
            data = bytes(envelope.payload)
            key = key if envelope.key is None else envelope.key
            headers = {**headers, **envelope.headers}
            delay = delay if envelope.delay is None else envelope.delay
            once = once if envelope.idempotency_key is None else envelope.idempotency_key
        if not given.is_text:
            check_json(self._codec, data)
        return _Ready(self._line, data, key, headers, delay, once)

    async def _send(self, ready: _Ready) -> str:
        return await self._topic.send(
            ready.payload,
            key=ready.key,
            headers=ready.headers or None,
            delay=ready.delay,
            idempotency_key=ready.idempotency_key,
        )

    async def _send_each(self, messages: Sequence[_Ready]) -> bool:
        for ready in messages:
            try:
                self.report.sent([(ready.line, await self._send(ready))])
            except PenstockError as error:
                self.report.failed([(ready.line, error)])
                if not _is_its_own_fault(error):
                    self.report.stop(ready.line)
                    return False
        return True

    async def _send_batch(self, messages: Sequence[_Ready]) -> bool:
        if not messages:
            return True
        batch = [Outgoing(one.payload, one.key, one.headers or None) for one in messages]
        outcomes: Sequence[str | PenstockError]
        try:
            outcomes = await self._topic.send_batch(batch)
        except SendBatchFailed as failed:
            outcomes = failed.outcomes
        except PenstockError as error:  # nothing was sent
            outcomes = [error] + [_NOT_SENT] * (len(messages) - 1)
        ends = list(zip(messages, outcomes, strict=True))
        self.report.sent([(one.line, id_) for one, id_ in ends if isinstance(id_, str)])
        failures = [(one, error) for one, error in ends if isinstance(error, PenstockError)]
        if all(_is_its_own_fault(error) or type(error) is Rejected for _, error in failures):
            # An unsendable message failed the batch: send the others one by one.
            return await self._send_each([one for one, _ in failures])
        self.report.failed([(one.line, error) for one, error in failures])
        self.report.stop(messages[-1].line)
        return False


_NOT_SENT = Rejected("not sent: an earlier message of the batch failed")


def _is_its_own_fault(error: PenstockError) -> bool:
    """Whether the error is about this message, so that others can be sent."""
    return isinstance(error, CodecError | InvalidMessage)


def check_json(codec: Codec, data: bytes) -> None:
    """Raise `InvalidMessage` unless handlers can read it as JSON."""
    try:
        codec.decode(data, Any)
    except DecodeError as error:
        reason = error.reason.removeprefix("cannot read Any: ")
        raise InvalidMessage(f"not JSON: {reason} (--text sends it as it is)") from None


def _opened(line: bytes) -> _Envelope:
    try:
        opened = msgspec.json.decode(line, type=_Envelope)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidMessage(f"not an envelope: {error}") from None
    if repeats_a_member(line):
        raise InvalidMessage("an object in it has two members of one name")
    return opened
