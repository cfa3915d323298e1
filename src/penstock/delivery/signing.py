"""Signatures of jobs and messages: keys, and the HMAC-SHA256 of what they cover.

A signature is the text `1:<key id>:<base64>`. It covers its parts with the length of each before
it, so that no part can lend bytes to the next. Any of the keys verifies, one of them signs.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import stat
from base64 import b64decode, b64encode
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import IO, Final
from weakref import WeakKeyDictionary

from penstock.errors import BadSignature, SettingError
from penstock.redis.client import Client
from penstock.settings import SigningSettings

__all__ = ["Signer", "SigningKeys", "add_key", "read_keys"]

_FILE: Final = "signing.keys_file"
_VERSION: Final = "1"
_SECRET_BYTES: Final = 32
_LARGEST_FILE: Final = 64 * 1024
_LONGEST_SHOWN: Final = 64
_is_key_id = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class SigningKeys:
    """The keys of a process: all of them verify, one signs."""

    def __init__(self, keys: Mapping[str, bytes], sign_with: str) -> None:
        if sign_with not in keys:
            raise SettingError("signing.sign_with", sign_with, "the id of one of the signing keys")
        self._keys, self._sign_with = keys, sign_with
        self._head = f"{_VERSION}:{sign_with}:"
        self._secret = keys[sign_with]

    def __repr__(self) -> str:
        return f"SigningKeys({', '.join(self._keys)})"

    @classmethod
    def of(cls, client: Client) -> SigningKeys:
        """The keys in a client's settings; the file is read once for each client."""
        keys = _read.get(client)
        if keys is None:
            keys = _read[client] = cls.read(client.settings.signing)
        return keys

    @classmethod
    def read(cls, settings: SigningSettings) -> SigningKeys:
        """Read keys and file; `SettingError` without their content if they cannot be used."""
        keys: dict[str, bytes] = {}
        if settings.keys_file is not None:
            keys = read_keys(settings.keys_file)
        if settings.keys is not None:
            own = _parsed(settings.keys.replace(",", "\n"), "signing.keys")
            for id_ in keys.keys() & own.keys():
                if keys[id_] != own[id_]:
                    raise SettingError("signing.keys", "…", f"the {id_!r} of signing.keys_file")
            keys |= own
        return cls(keys, settings.sign_with or "")

    def sign(self, covered: bytes) -> str:
        return self._head + _mac(self._secret, covered).decode()

    def verify(self, signature: str, covered: bytes, what: str) -> None:
        """Raise `BadSignature` unless one of the keys has signed exactly this."""
        if not signature:
            raise BadSignature("unsigned", f"{what} is not signed")
        version, _, rest = signature.partition(":")
        id_, _, mac = rest.partition(":")
        if version != _VERSION or not _is_key_id(id_):
            raise BadSignature("altered", f"the signature of {what} has an unknown form")
        secret = self._keys.get(id_)
        if secret is None:
            raise BadSignature(
                "unknown_key",
                f"{what} is signed with key {id_!r}, which is none of the signing keys here",
            )
        if not hmac.compare_digest(_mac(secret, covered), mac.encode(errors="replace")):
            raise BadSignature(
                "altered",
                f"the signature of {what} is not valid: it was altered, or signed as another one, "
                "for another name or namespace",
            )


_read: WeakKeyDictionary[Client, SigningKeys] = WeakKeyDictionary()


class Signer:
    """Signs and verifies what belongs to one queue or topic."""

    def __init__(self, client: Client, kind: str, name: str) -> None:
        self._keys = SigningKeys.of(client)
        self._noun = "job" if kind == "queue" else "message"
        self._home = f"{kind} {name!r}"
        purpose = f"penstock {self._noun} {_VERSION}"
        self._head = b"".join(map(_part, map(str.encode, (purpose, client.keys.namespace, name))))

    def sign(self, *parts: bytes) -> str:
        """Return the signature of these parts of a job or message."""
        return self._keys.sign(self._covered(parts))

    def verify(self, id_: str, signature: str, *parts: bytes) -> None:
        """Raise `BadSignature` unless these parts were signed so."""
        shown = id_ if len(id_) <= _LONGEST_SHOWN else f"{id_[:_LONGEST_SHOWN]}…"
        what = (
            f"{self._noun} {shown!r} of {self._home}" if id_ else f"a {self._noun} of {self._home}"
        )
        self._keys.verify(signature, self._covered(parts), what)

    def _covered(self, parts: tuple[bytes, ...]) -> bytes:
        return self._head + b"".join([b"%d:%b" % (len(part), part) for part in parts])


def read_keys(path: str) -> dict[str, bytes]:
    """Read a file of keys by their ids; `SettingError` if others may read or exchange it."""
    with _opened(path, "rb") as file:
        return _keys_in(file, path)


@contextmanager
def _opened(path: str, mode: str) -> Generator[IO[bytes]]:
    try:
        with open(path, mode, opener=_without_waiting) as file:
            yield file
    except OSError as error:
        raise SettingError(_FILE, path, f"a readable file ({error.strerror or error})") from None


def _keys_in(file: IO[bytes], path: str) -> dict[str, bytes]:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_FILE:
        raise SettingError(_FILE, path, f"a regular file of at most {_LARGEST_FILE} bytes")
    if status.st_uid not in {0, os.geteuid()}:
        raise SettingError(_FILE, path, "a file of this user")
    if status.st_mode & _OTHERS:
        raise SettingError(_FILE, path, f"a file for its owner alone: chmod 600 {path}")
    try:
        return _parsed(file.read(_LARGEST_FILE).decode(), _FILE)
    except UnicodeDecodeError:
        raise SettingError(_FILE, path, "a text file") from None


def _without_waiting(path: str, flags: int) -> int:
    """Opens a pipe without a writer, too."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def add_key(path: str, id_: str) -> None:
    """Make a key and add it to a file of keys, which is created for its owner alone.

    `SettingError` for an invalid id, one that is there, and a file that others may read.
    """
    if not _is_key_id(id_):
        raise SettingError("key id", id_, "1 to 64 letters, digits, '_' and '-'")
    line = f"{id_} = {b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()}\n"
    try:
        with open(path, "x", opener=partial(os.open, mode=0o600)) as file:
            file.write(line)
            return
    except FileExistsError:
        pass
    except OSError as error:
        raise SettingError(_FILE, path, f"a file that can be made ({error.strerror})") from None
    with _opened(path, "r+b") as file:  # once: what is written to is what was checked
        if id_ in _keys_in(file, path):
            raise SettingError("key id", id_, f"an id that is not in {path} yet")
        file.write(f"\n{line}".encode())  # the last line may have no end


def _parsed(text: str, setting: str) -> dict[str, bytes]:
    """Read lines `id = secret`. Errors name the line, and show nothing of it."""
    keys: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not (line := line.strip()) or line.startswith("#"):
            continue
        id_, _, stored = (part.strip() for part in line.partition("="))
        try:
            secret = b64decode(stored, validate=True)
        except ValueError:
            secret = b""
        if not _is_key_id(id_) or len(secret) < _SECRET_BYTES:
            expected = f"`id = secret`, the secret {_SECRET_BYTES} bytes or more as base64"
            raise SettingError(setting, "…", f"in entry {number} {expected}")
        if keys.setdefault(id_, secret) != secret:
            raise SettingError(setting, "…", f"key ids that differ: entry {number} repeats one")
    return keys


def _mac(secret: bytes, covered: bytes) -> bytes:
    return b64encode(hmac.digest(secret, covered, "sha256"))


def _part(part: bytes) -> bytes:
    return b"%d:%b" % (len(part), part)
