"""Which jobs and messages are signed, and with which keys."""

from __future__ import annotations

from typing import ClassVar

from penstock.errors import SettingError
from penstock.settings.group import Group, Secret

__all__ = ["SigningSettings"]

_ALL = "all"


class SigningSettings(Group):
    """Signatures of jobs and messages; see `docs/how-to/sign-payloads.md`."""

    section: ClassVar[str] = "signing"
    keys: Secret | None = None
    """Keys as `id=secret`, separated by commas; the secret as base64."""
    keys_file: str | None = None
    """File with keys, one `id = secret` per line, that its owner alone may read."""
    sign_with: str | None = None
    """Id of the key that signs; the others only verify."""
    sign: str = ""
    """Names of queues and topics whose jobs and messages are signed, separated by commas, or
    `all`."""
    require: str = ""
    """Names of queues and topics, or `all`: they are signed, and what arrives without a valid
    signature becomes a dead letter."""

    def __post_init__(self) -> None:
        if not (self.sign.strip() or self.require.strip()):
            return
        if self.keys is None and self.keys_file is None:
            raise SettingError(
                "signing.keys_file", None, "a file with keys, or signing.keys, to sign with"
            )
        if self.sign_with is None:
            raise SettingError("signing.sign_with", None, "the id of the key to sign with")

    def signs(self, name: str) -> bool:
        """Whether this process signs what it adds to a queue or topic."""
        return self.requires(name) or _covers(self.sign, name)

    def requires(self, name: str) -> bool:
        """Whether this process refuses what a queue or topic holds without a valid signature."""
        return _covers(self.require, name)


def _covers(names: str, name: str) -> bool:
    if not names:
        return False
    listed = [one.strip() for one in names.split(",")]
    return name in listed or _ALL in listed
