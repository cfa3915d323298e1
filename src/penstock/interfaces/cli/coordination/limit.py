"""`penstock limit`: show, change, test and reset rate limits."""

from __future__ import annotations

from typing import Any, cast

import click

from penstock.coordination.limits.admin import (
    LimitLine,
    LimitView,
    edit_limit,
    list_limits,
    release_limit,
    reset_limit,
    show_limit,
    try_limit,
)
from penstock.coordination.limits.limit import EVERYONE
from penstock.coordination.limits.rates import MOST, Rate, parse_rate
from penstock.coordination.limits.result import LimitResult
from penstock.coordination.limits.setting import ALGORITHMS, Algorithm
from penstock.errors import SettingError
from penstock.interfaces.cli.administer import with_app
from penstock.interfaces.cli.main import pass_settings
from penstock.interfaces.cli.output import json_option, say, say_json
from penstock.interfaces.cli.values import duration
from penstock.interfaces.cli.wording import age, plural, table
from penstock.settings import Settings

__all__ = ["limit"]

_MOST_TRIES = 1_000
_WHY_NOT = {
    "limit": "the limit is reached",
    "line": "others wait for it",
    "penalty": "a penalty",
    "away": "the server is away",
}

key_option = click.option(
    "--key", help="Key of the limit, if calls are counted per key (default: all).", default=EVERYONE
)


@click.group()
def limit() -> None:
    """Show, change, test and reset rate limits."""


def rate(given: str) -> Rate:
    """Read `5/min`."""
    try:
        return parse_rate(given)
    except SettingError as error:
        raise click.BadParameter(f"{given[:60]!r}: expected {error.expected}") from None


# --- looking


@limit.command()
@click.argument("name", required=False)
@click.option("--key", help="Key of the limit, if calls are counted per key (default: all).")
@json_option
@pass_settings
def show(settings: Settings, name: str | None, key: str | None, as_json: bool) -> None:
    """Show the settings of all limits, or of one with its remaining calls.

    Example: penstock limit show case-law

    Exits 1 if there is no such limit.
    """
    if name is None:
        if key is not None:
            raise click.UsageError("--key needs the name of a limit")
        found = with_app(settings, list_limits)
        if as_json:
            say_json(found)
        elif not found:
            say("no limits")
        else:
            _show_all(found)
        return
    view = with_app(settings, lambda app: show_limit(app, name, EVERYONE if key is None else key))
    if as_json:
        say_json(view)
    else:
        _show(view)


def _show_all(found: list[LimitLine]) -> None:
    rows = [
        (" ".join(line.rates), _manner(line), _decided(line), line.name or "-") for line in found
    ]
    table(("WINDOWS", "ALGORITHM", "SET BY", "LIMIT"), rows)


def _show(view: LimitView) -> None:
    say(f"{view.name}: {', '.join(view.rates)}", bold=True)
    say(f"  algorithm  {_manner(view)}")
    say(f"  set by     {_decided(view)}")
    say(f"  key        {view.key}")
    if view.unreadable:
        say(f"  stored     {view.unreadable}")
        say("             penstock limit reset removes it")
        return
    say(f"  penalty    {_penalty(view)}")
    say(f"  waiting    {view.waiting:,}")
    rows = [
        (window.remaining, window.limit, age(window.reset_s * 1000), rate)
        for window, rate in zip(view.windows, view.rates, strict=True)
    ]
    table(("LEFT", "OF", "ALL FREE IN", "WINDOW"), rows)


def _penalty(view: LimitView) -> str:
    if not view.penalty_s:
        return "none"
    text = f"{age(view.penalty_s * 1000)} more, until {view.penalty_until}"
    note = view.penalty_for
    if note is None:
        return text
    asked = f" and asked for {age(note.asked_s * 1000)}" if note.asked_s else ""
    return f"{text}: {note.host} answered {note.status}{asked}"


def _manner(line: LimitLine) -> str:
    burst = f", burst {line.burst:,}" if line.burst is not None else ""
    buffer = f", {line.buffer:g} never used" if line.buffer else ""
    margin = f", margin {age(line.margin_s * 1000)}" if line.margin_s else ""
    return f"{line.algorithm}{burst}{buffer}{margin}"


def _decided(line: LimitLine) -> str:
    return "an edit" if line.edited else "code"


# --- setting


@limit.command("set")
@click.argument("name")
@click.argument("rates", nargs=-1, type=rate, metavar="[RATE]...")
@click.option(
    "--algorithm",
    type=click.Choice(ALGORITHMS),
    help="exact, compact or gcra (default: the present one, or exact).",
)
@click.option(
    "--burst", type=click.IntRange(1, MOST), help="gcra: maximum number of calls at once."
)
@click.option(
    "--buffer", type=float, help="Calls of each window that are never used; below 1, a fraction."
)
@click.option(
    "--margin",
    "margin_s",
    type=duration,
    metavar="TIME",
    help="Extend each period by this much, as in 200ms.",
)
@click.option("--release", is_flag=True, help="Use the settings of the code again.")
@json_option
@pass_settings
def set_limit(
    settings: Settings,
    name: str,
    rates: tuple[Rate, ...],
    release: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Change a limit for all processes, or let the code decide again.

    Example: penstock limit set case-law 5/min 50/hour --buffer 0.1

    All processes use it within a second (limits.refresh_s). Calls that were counted stay counted.
    Options that are not given keep their value.
    """
    if release:
        if rates or any(value is not None for value in options.values()):
            raise click.UsageError("--release takes nothing else: code decides")
        _release(settings, name, as_json)
        return
    if not rates:
        raise click.UsageError("which rates? As in 5/min 50/hour, or --release")
    options["algorithm"] = cast("Algorithm | None", options["algorithm"])
    try:
        now, was_known = with_app(settings, lambda app: edit_limit(app, name, rates, **options))
    except SettingError as error:
        if not error.name.startswith("limit"):
            raise
        raise click.UsageError(str(error).removeprefix("setting ")) from None
    if as_json:
        say_json(now)
    else:
        unused = "" if was_known else "; not used yet"
        say(f"limit {name} is {', '.join(now.rates)} ({_manner(now)}) for all processes{unused}")


def _release(settings: Settings, name: str, as_json: bool) -> None:
    changed = with_app(settings, lambda app: release_limit(app, name))
    if as_json:
        say_json({"name": name, "released": changed})
    elif changed:
        say(f"limit {name} is set by code again, with its next use")
    else:
        say(f"limit {name} was set by code")


@limit.command()
@click.argument("name")
@key_option
@json_option
@pass_settings
def reset(settings: Settings, name: str, key: str, as_json: bool) -> None:
    """Reset the count and the penalty of a key, also if what is stored is unreadable.

    Example: penstock limit reset case-law

    The provider does not forget the calls that were made: it may refuse further ones.
    """
    with_app(settings, lambda app: reset_limit(app, name, key))
    if as_json:
        say_json({"name": name, "key": key, "reset": True})
    else:
        say(f"limit {name} is reset{_of(key)}")


# --- trying


@limit.command()
@click.argument("name")
@key_option
@click.option(
    "--cost", type=click.IntRange(1, MOST), default=1, help="Cost of each call (default: 1)."
)
@click.option(
    "--count",
    type=click.IntRange(1, _MOST_TRIES),
    default=1,
    help="Number of calls to ask for (default: 1).",
)
@click.option("--use", is_flag=True, help="Keep the permits instead of giving them back.")
@json_option
@pass_settings
def test(
    settings: Settings, name: str, key: str, cost: int, count: int, use: bool, as_json: bool
) -> None:
    """Ask a limit for permits, show the answers, and give the permits back.

    Example: penstock limit test case-law --count 3
    """
    answers = with_app(
        settings, lambda app: try_limit(app, name, key=key, cost=cost, count=count, use=use)
    )
    if as_json:
        say_json([_answer_view(answer) for answer in answers])
        return
    rows = [
        (number, "allowed" if answer else "refused", answer.remaining, _why_not(answer))
        for number, answer in enumerate(answers, 1)
    ]
    table(("CALL", "ANSWER", "LEFT", "WHY"), rows)
    granted = sum(answer.granted for answer in answers)
    say(f"{plural(granted, 'permit')} {'used' if use else 'given back'}{_of(key)}")


def _answer_view(answer: LimitResult) -> dict[str, Any]:
    return {
        "allowed": answer.allowed,
        "granted": answer.granted,
        "remaining": answer.remaining,
        "retry_after_s": answer.retry_after_s,  # null if there will never be enough
        "reason": answer.reason,
        "windows": answer.windows,
    }


def _why_not(answer: LimitResult) -> str:
    if answer.allowed:
        return ""
    if answer.retry_after_s == float("inf"):
        return "the cost is above the limit"
    return f"{_WHY_NOT[answer.reason]}; again in {age(answer.retry_after_s * 1000)}"


def _of(key: str) -> str:
    return "" if key == EVERYONE else f" for {key}"
