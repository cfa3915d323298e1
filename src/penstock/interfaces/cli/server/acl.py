"""`penstock acl`: the rights that a user of the server needs."""

from __future__ import annotations

from typing import TextIO, cast

import click

from penstock.inspector.rights import ROLES, SERVERS, Role, Server, acl_user
from penstock.interfaces.cli.main import pass_settings
from penstock.interfaces.cli.output import json_option, say, say_json
from penstock.settings import Settings

__all__ = ["acl"]


@click.command()
@click.option(
    "--role",
    type=click.Choice(ROLES),
    required=True,
    help="What the user does: producer, worker, operator or reader.",
)
@click.option(
    "--namespace", help="Allow the keys of this namespace (default: that of the settings)."
)
@click.option("--user", default="", help="Name of the user (default: penstock- and the role).")
@click.option(
    "--password-file",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="Print the SHA-256 of the password in this file; - for standard input.",
)
@click.option(
    "--server",
    type=click.Choice(SERVERS),
    default="7.2",
    help="Version of Redis: 6.2, 7.0, or 7.2 (default) for newer ones and Valkey.",
)
@click.option("--file", "for_file", is_flag=True, help="Print a line for the server's ACL file.")
@json_option
@pass_settings
def acl(
    settings: Settings,
    role: str,
    namespace: str | None,
    user: str,
    password_file: TextIO | None,
    server: str,
    for_file: bool,
    as_json: bool,
) -> None:
    """Print the access list (ACL) of a user with the least rights of a role.

    Example: penstock acl --role worker --namespace shop --password-file secret | redis-cli

    Connects to nothing. `producer` sends messages and jobs, reads their results and uses limits,
    caches and the like; `worker` does all that an application and its workers do; `operator` may
    run every command, `penstock repair` included; `reader` lists and shows, and is refused writes.
    """
    made = acl_user(
        cast("Role", role),
        settings.namespace if namespace is None else namespace,
        name=user,
        password=None if password_file is None else _password(password_file),
        server=cast("Server", server),
    )
    if as_json:
        say_json({"user": made.name, "rules": made.rules})
        return
    say(made.file_line if for_file else made.command, is_data=True)
    if "~*" in made.rules:
        say(
            f"penstock: {made.name} may use every key of the server, as there is no namespace; "
            "--namespace names one",
            err=True,
        )
    if not made.has_password:
        say(
            f"penstock: a new user {made.name} cannot log in, as it has no password yet; "
            "--password-file adds one",
            err=True,
        )


def _password(file: TextIO) -> str:
    try:
        password = file.read().removesuffix("\n")  # as the setting password_file is read
    except UnicodeDecodeError:
        password = ""
    if not password:
        raise click.BadParameter("expected a text that is not empty", param_hint="--password-file")
    return password
