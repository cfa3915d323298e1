"""Parsers of arguments and options that commands share."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Literal, cast

import click

from penstock.delivery.times import resolve_position, wait_s
from penstock.interfaces.cli.output import ExitCode, fail
from penstock.redis.codec.escaping import unescaped
from penstock.runtime.logs import cleaned
from penstock.topics.partitioners import Crc32, JavaHash, Partitioner
from penstock.topics.producer.durability import Durability, replicated

__all__ = [
    "confirm",
    "durability",
    "duration",
    "header_option",
    "headers_of",
    "instant",
    "names",
    "partitioner_of",
    "partitioner_option",
    "position",
    "raw_bytes",
    "size",
    "yes_option",
]

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|min|m|h|d)?")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmg]?)(?:i?b)?", re.IGNORECASE)
_SIZES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_MOST_BYTES = 2**53


def duration(given: str) -> float:
    """Seconds, or a number with `ms`, `s`, `m`, `h` or `d`; in seconds."""
    found = _DURATION.fullmatch(given.strip())
    if not found:
        raise _unfit(given, "seconds, or as in 500ms, 90s, 5m, 2h, 7d")
    try:
        return wait_s(float(found[1]) * _SECONDS[found[2] or "s"])
    except ValueError:
        raise _unfit(given, "at most ten years") from None


def size(given: str) -> int:
    """Bytes, or a number with `k`, `m` or `g` (powers of 1024); in bytes."""
    found = _SIZE.fullmatch(given.strip())
    amount = float(found[1]) * _SIZES[found[2].lower()] if found else 0
    if not 1 <= amount <= _MOST_BYTES:
        raise _unfit(given, "bytes, or as in 64k, 10m, 2g")
    return int(amount)


def instant(given: str) -> datetime | timedelta:
    """A time such as `2026-07-01T08:00:00Z`, or how long ago, as in `2h`."""
    if _DURATION.fullmatch(given.strip()):
        return timedelta(seconds=duration(given))
    try:
        moment = datetime.fromisoformat(given.strip())
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise _unfit(given, "a time such as 2026-07-01T08:00:00Z, or as in 2h")
    return moment


def names(given: str) -> list[str]:
    """Read names with commas between them, each once."""
    found = [name.strip() for name in given.split(",")]
    if not all(found):
        raise _unfit(given, "names with commas between them")
    return list(dict.fromkeys(found))


def position(given: str) -> str:
    """A place in a topic, as `resolve_position` returns it."""
    try:
        return resolve_position(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def raw_bytes(given: str) -> bytes:
    r"""Bytes as commands show them: printable text, `\xHH` and doubled backslashes."""
    try:
        return unescaped(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def durability(given: str) -> Durability:
    if given in {"accepted", "synced"}:
        return cast("Literal['accepted', 'synced']", given)
    found = re.fullmatch(r"replicated:([1-9][0-9]{0,3})", given)
    if not found:
        raise _unfit(given, "accepted, synced or replicated:N")
    return replicated(int(found[1]))


def _unfit(given: str, expected: str) -> click.BadParameter:
    return click.BadParameter(f"{given[:60]!r}: expected {expected}")


yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
header_option = click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="Header of the message; repeatable.",
)
partitioner_option = click.option(
    "--partitioner",
    type=click.Choice(["crc32", "java"]),
    default="crc32",
    help="Partitioner of the topic's producers: crc32 (default) or java.",
)


def headers_of(given: tuple[str, ...]) -> dict[str, str]:
    """Read what `--header` was given."""
    headers: dict[str, str] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not name or not sign:
            raise click.BadParameter(f"{text[:60]!r}: expected NAME=VALUE", param_hint="--header")
        headers[name] = value
    return headers


def partitioner_of(name: str) -> Partitioner:
    kinds: Mapping[str, Callable[[], Partitioner]] = {"crc32": Crc32, "java": JavaHash}
    return kinds[name]()


def confirm(yes: bool, question: Callable[[], str]) -> None:
    """Ask a person before something is lost; scripts pass `--yes`.

    The question is computed only if it is asked.
    """
    if yes:
        return
    if not (sys.stdin and sys.stdin.isatty()):
        raise click.UsageError("no terminal to ask for confirmation: give --yes")
    if not click.confirm(cleaned(question()), err=True):
        fail("nothing was changed", ExitCode.FOUND)
