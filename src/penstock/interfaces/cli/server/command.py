"""`penstock server`: start, stop and show the embedded server."""

from __future__ import annotations

import sys

import click

from penstock.errors import EmbeddedError
from penstock.interfaces.cli.main import pass_settings
from penstock.interfaces.cli.output import ExitCode, fail, json_option, say, say_json
from penstock.redis.embedded.server import Embedded, EmbeddedStatus
from penstock.settings import Settings

__all__ = ["server"]


@click.group()
def server() -> None:
    """Start, stop or show the embedded server of the data directory.

    Usually not needed: programs start it on demand, and it ends after its last user. A server that
    was started here runs until it is stopped.
    """


@server.command()
@json_option
@pass_settings
def start(settings: Settings, as_json: bool) -> None:
    """Start the server and keep it running.

    Example: penstock server start
    """
    embedded = _embedded(settings)
    embedded.attach()
    embedded.pin()
    embedded.detach()
    _show(embedded.status(), as_json)


@server.command()
@click.option("--force", is_flag=True, help="Stop the server even while other processes use it.")
@json_option
@pass_settings
def stop(settings: Settings, force: bool, as_json: bool) -> None:
    """Save all data and stop the server; exits 1 if it is in use.

    Example: penstock server stop --force

    Processes that use it start it again when they need it.
    """
    try:
        stopped = _embedded(settings).stop(force=force)
    except EmbeddedError as error:
        fail(f"{error} (--force stops it)", ExitCode.FOUND)
    if as_json:
        say_json({"stopped": stopped})
    else:
        say("stopped" if stopped else "it was not running")


@server.command()
@click.option(
    "--show-url",
    is_flag=True,
    help="Print only the address of the TCP port, with its password; exits 1 without a port.",
)
@json_option
@pass_settings
def status(settings: Settings, show_url: bool, as_json: bool) -> None:
    """Show whether the server runs; exits 1 if not.

    Example: penstock server status
    """
    embedded = _embedded(settings)
    found = embedded.status()
    if show_url:
        if not found.port:
            fail("no server with a TCP port runs (setting embedded.port)", ExitCode.FOUND)
        click.echo(embedded.url(found.port))  # `say` would remove the password
        return
    _show(found, as_json)
    sys.exit(ExitCode.OK if found.running else ExitCode.FOUND)


def _embedded(settings: Settings) -> Embedded:
    return Embedded(settings.home_path, settings.embedded)


def _show(found: EmbeddedStatus, as_json: bool) -> None:
    if as_json:
        say_json(found)
        return
    say("running" if found.running else "not running", bold=True)
    say(f"  data    {found.home}")
    say(f"  socket  {found.socket}")
    if found.port:
        say(f"  port    {found.port} of 127.0.0.1")
    if found.running:
        say(f"  in use  {'yes' if found.in_use else 'no'}")
        say(f"  memory  {found.allocator or 'unknown'}")
        say(f"  stays   {'until it is stopped' if found.pinned else 'until its last user leaves'}")
