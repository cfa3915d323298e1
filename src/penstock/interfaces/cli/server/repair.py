"""`penstock repair`: list unusable entries and keys, and remove those that are named."""

from __future__ import annotations

from typing import cast

import click

from penstock.app import Penstock
from penstock.delivery.foreign_keys import ForeignKey
from penstock.inspector.registries import KINDS, Kind
from penstock.inspector.repairs import OddEntry
from penstock.interfaces.cli.administer import with_app
from penstock.interfaces.cli.main import pass_settings
from penstock.interfaces.cli.output import ExitCode, fail, json_option, say, say_json
from penstock.interfaces.cli.values import confirm, raw_bytes, yes_option
from penstock.interfaces.cli.wording import plural
from penstock.redis.codec.escaping import escaped
from penstock.settings import Settings

__all__ = ["repair"]

_MOST = 100_000


@click.command()
@click.argument("kind", type=click.Choice(KINDS), required=False, metavar="[KIND]")
@click.option(
    "--remove",
    type=raw_bytes,
    multiple=True,
    metavar="ENTRY",
    help="Remove an unusable entry from the registry of KIND; repeatable.",
)
@click.option("--rename", nargs=2, metavar="KEY NEW", help="Rename a key of the wrong type.")
@click.option("--delete", metavar="KEY", help="Delete a key of the wrong type with its contents.")
@click.option(
    "--rename-namespace",
    is_flag=True,
    help="Rename keys of an earlier version, NAMESPACE:…, to NAMESPACE::…",
)
@click.option(
    "--limit",
    type=click.IntRange(1, _MOST),
    default=1_000,
    help="Maximum number shown (default: 1000).",
)
@yes_option
@json_option
@pass_settings
def repair(
    settings: Settings,
    kind: str | None,
    remove: tuple[bytes, ...],
    rename: tuple[str, str] | None,
    delete: str | None,
    rename_namespace: bool,
    limit: int,
    yes: bool,
    as_json: bool,
) -> None:
    r"""Find registry entries and keys that are unusable; exits 1 if there are any.

    KIND is queues, topics, runs, windows, limits, slots, workers, feeds, once or cache; without it,
    all of them.

    Other programs may have stored an entry with an invalid name, an unreadable value, or a string
    where a hash belongs. Penstock ignores them. Only what is named here is removed, and nothing
    that works. Bytes that are not printable are written \xHH. Example:
    penstock repair runs --remove '\xff\xfe'
    """
    chosen = cast("Kind | None", kind)
    if sum(map(bool, (remove, rename, delete, rename_namespace))) > 1:
        raise click.UsageError("give one of --remove, --rename, --delete and --rename-namespace")
    if remove:
        _remove(settings, chosen, remove, yes)
    elif delete:
        confirm(yes, lambda: f"Delete {delete} with all that it holds?")
        with_app(settings, lambda app: app.repairs.delete_key(delete))
    elif rename:
        with_app(settings, lambda app: app.repairs.rename_key(*rename))
    elif rename_namespace:
        with_app(settings, lambda app: app.repairs.rename_namespace())
    entries, keys = with_app(settings, lambda app: _look(app, chosen, limit))
    if as_json:
        say_json({"entries": entries, "keys": keys})
    for odd in () if as_json else (*entries, *keys):
        say(str(odd))
    if entries or keys:
        found = f"{len(entries):,} odd entries, {plural(len(keys), 'key')} of another type"
        fail(found, ExitCode.FOUND)
    if not as_json:
        say(f"{kind or 'all'}: every entry and key is in order")


def _remove(settings: Settings, kind: Kind | None, entries: tuple[bytes, ...], yes: bool) -> None:
    if kind is None:
        raise click.UsageError("from which registry? Name its kind, as in: repair runs --remove …")
    shown = ", ".join(map(escaped, entries))
    confirm(yes, lambda: f"Remove {shown} from the registry of {kind}?")

    async def act(app: Penstock) -> None:
        for entry in entries:
            await app.repairs.remove_entry(kind, entry)

    with_app(settings, act)


async def _look(
    app: Penstock, kind: Kind | None, limit: int
) -> tuple[list[OddEntry], list[ForeignKey]]:
    entries: list[OddEntry] = []
    for one in KINDS if kind is None else (kind,):
        entries += await app.repairs.entries(one, limit)
    return entries[:limit], await app.repairs.keys(kind, limit)
