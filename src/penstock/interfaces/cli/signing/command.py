"""`penstock signing`: keys that sign jobs and messages."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from penstock.delivery.signing import add_key
from penstock.errors import PenstockError
from penstock.interfaces.cli.output import exit_code, fail, json_option, say, say_json

__all__ = ["signing"]


@click.group()
def signing() -> None:
    """Make keys that sign jobs and messages."""


@signing.command()
@click.argument("file")
@click.option("--id", "id_", help="Id of the key (default: k and today's date).")
@json_option
def new_key(file: str, id_: str | None, as_json: bool) -> None:
    """Make a key and add it to FILE, which its owner alone may read; prints the key's id.

    Example: penstock signing new-key signing.keys --id shop-2

    The file is created if there is none. It signs once signing.sign_with names the key.
    """
    id_ = id_ or f"k{datetime.now(UTC):%Y%m%d}"
    try:
        add_key(file, id_)
    except PenstockError as error:
        fail(str(error), exit_code(error))
    if as_json:
        say_json({"id": id_, "file": file})
    else:
        say(id_)
