"""The root of the tree, and errors of no engine: configuration, names, values, embedded server."""

from __future__ import annotations

__all__ = [
    "AddressError",
    "BadSignature",
    "BinaryMissing",
    "CodecError",
    "ConfigError",
    "DecodeError",
    "EmbeddedError",
    "EncodeError",
    "InflationRefused",
    "InvalidName",
    "NotOpen",
    "PenstockError",
    "SendBatchFailed",
    "SettingError",
    "StartFailed",
    "TooMany",
    "UnprotectedServer",
]

_SHOWN_NAME = 60
_SHOWN_VALUE = 200


def shown(value: object, most: int = _SHOWN_VALUE) -> str:
    """A value for an error message: truncated, and safe if its repr fails."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  an int of 5,000 digits, a list within itself, its own __repr__
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


class PenstockError(Exception):
    """Anything Penstock raises on purpose."""


class ConfigError(PenstockError):
    """The configuration is invalid; nothing was sent."""


class SettingError(ConfigError):
    """A setting has an unknown name or a value outside its range."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(name, value, expected)
        self.name, self.value, self.expected = name, value, expected

    def __str__(self) -> str:
        return f"setting {self.name} = {shown(self.value)}: expected {self.expected}"


class AddressError(ConfigError):
    """A server address is invalid. The message never repeats a password."""


class UnprotectedServer(AddressError):
    """The server is on a network and lets everybody in; nothing was sent but a greeting."""


class InvalidName(PenstockError, ValueError):
    """A name that comes from a user is not allowed."""

    def __init__(self, kind: str, name: object, reason: str) -> None:
        super().__init__(kind, name, reason)
        self.kind, self.name, self.reason = kind, name, reason

    def __str__(self) -> str:
        return f"{self.kind} name {shown(self.name, _SHOWN_NAME)}: {self.reason}"


class CodecError(PenstockError, ValueError):
    """A value could not be turned into bytes, or bytes into a value."""


class EncodeError(CodecError):
    """A value cannot be stored; nothing was sent."""


class DecodeError(CodecError):
    """Stored bytes cannot be decoded. `raw` has them, for the dead letter."""

    def __init__(self, reason: str, raw: bytes = b"") -> None:
        super().__init__(reason, raw)
        self.reason, self.raw = reason, raw

    def __str__(self) -> str:
        return self.reason

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.reason!r}, {len(self.raw)} bytes)"


class InflationRefused(DecodeError):
    """Compressed bytes would decompress to more than is allowed."""


class BadSignature(PenstockError):
    """A job or message is not signed, or not as it was signed. It never ran.

    `error_code` is "unsigned", "unknown_key" or "altered".
    """

    def __init__(self, error_code: str, reason: str) -> None:
        super().__init__(error_code, reason)
        self.error_code, self.reason = error_code, reason

    def __str__(self) -> str:
        return self.reason


class EmbeddedError(PenstockError):
    """The embedded server cannot be used."""


class BinaryMissing(EmbeddedError):
    """There is no server binary for this platform."""


class StartFailed(EmbeddedError):
    """The embedded server did not become ready in the time given."""


class SendBatchFailed(PenstockError):
    """Not every message of a batch is confirmed.

    `outcomes` has one entry per message, in order: its id if it was stored, otherwise the error
    (`Rejected` or `OutcomeUnknown`).
    """

    def __init__(self, outcomes: list[str | PenstockError]) -> None:
        super().__init__(outcomes)
        self.outcomes = outcomes

    def __str__(self) -> str:
        failed = [outcome for outcome in self.outcomes if not isinstance(outcome, str)]
        first = f"; the first of the others: {failed[0]}" if failed else ""
        stored = len(self.outcomes) - len(failed)
        return f"{stored} of {len(self.outcomes)} messages are confirmed{first}"


class TooMany(PenstockError):
    """A setting allows no more of them: no new one was made, existing ones work on.

    `what` names what is counted, `limit` is the maximum and `setting` what sets it.
    """

    def __init__(self, what: str, limit: int, setting: str) -> None:
        super().__init__(what, limit, setting)
        self.what, self.limit, self.setting = what, limit, setting

    def __str__(self) -> str:
        return (
            f"at most {self.limit} {self.what} are allowed: end or delete some, "
            f"or raise the setting {self.setting}"
        )


class NotOpen(PenstockError):
    """Used before it was opened, after it was closed, or in a forked child."""
