"""`penstock health` and `penstock doctor`."""

from __future__ import annotations

import shlex
import sys

import click

from penstock.app import Penstock
from penstock.inspector.doctor import Diagnosis, Finding
from penstock.interfaces.cli.main import pass_settings, run
from penstock.interfaces.cli.output import ExitCode, json_option, say, say_json
from penstock.redis.health import Health
from penstock.settings import Settings

__all__ = ["doctor", "health"]

_MARKS = {"ok": "ok     ", "warning": "warning", "failure": "FAILURE"}


@click.command()
@json_option
@pass_settings
def health(settings: Settings, as_json: bool) -> None:
    """Show whether the server can work now.

    Example: penstock --url redis://localhost health

    Exits 0 if healthy, 1 if degraded or unhealthy, 4 if no server answered.
    """

    async def ask() -> Health:
        app = Penstock(settings=settings)
        try:
            return await app.health()
        finally:
            await app.close()

    found = run(ask())
    if as_json:
        say_json(found)
    else:
        say(f"{found.status}  {found.address}", bold=True)
        for reason in found.reasons:
            say(f"  {reason}")
        for node in found.nodes:
            limit = f" of {node.max_memory:,}" if node.max_memory else ""
            say(
                f"  {node.endpoint}: {node.server} {node.version}, {node.role}, "
                f"{node.latency_ms} ms, {node.used_memory:,}{limit} bytes, "
                f"append-only file {'on' if node.aof_enabled else 'off'}"
            )
    if not found.connected:
        sys.exit(ExitCode.CONNECTION)
    sys.exit(ExitCode.OK if found.healthy else ExitCode.FOUND)


@click.command()
@json_option
@pass_settings
def doctor(settings: Settings, as_json: bool) -> None:
    """Check the configuration of the server, and show the command that fixes each problem.

    Example: penstock --url redis://localhost doctor

    Exits 1 if a guarantee is at risk: keys may be evicted, nothing is persisted, memory is full,
    the server is too old, keys are orphaned. Warns of topics, queues, dead letters and windows that
    have grown large and have no bound.
    """

    async def ask() -> Diagnosis:
        async with Penstock(settings=settings) as app:
            return await app.doctor()

    found = run(ask())
    if as_json:
        say_json({"address": found.address, "sound": found.sound, "findings": found.findings})
    else:
        for finding in found.findings:
            place = f" ({finding.endpoint})" if finding.endpoint else ""
            say(f"{_MARKS[finding.level]}  {finding.check}: {finding.message}{place}")
            if finding.fix:
                say(f"         mend it: {_to_type(finding)}")
    sys.exit(ExitCode.OK if found.sound else ExitCode.FOUND)


def _to_type(finding: Finding) -> str:
    """The fix as a person types it; what the server understands goes through redis-cli."""
    if not finding.fix.split()[0].isupper():
        return finding.fix
    host, _, port = finding.endpoint.rpartition(":")
    unix = finding.endpoint.startswith("/")
    reach = f"-s {shlex.quote(finding.endpoint)}" if unix else f"-h {host.strip('[]')} -p {port}"
    return f"redis-cli {reach} {finding.fix}"
