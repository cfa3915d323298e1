"""`penstock up`: everything, on one machine, with one command."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import click

from penstock.app import Penstock
from penstock.errors import ConfigurationWrong, EmbeddedError
from penstock.interfaces.cli.ingest_opening import INSTALL, have_documents
from penstock.interfaces.cli.main import given, pass_settings
from penstock.interfaces.cli.output import say, say_json
from penstock.redis.embedded import Embedded
from penstock.redis.health import Health
from penstock.runtime import Worker, configure, run_process
from penstock.runtime.child import ChildProcess
from penstock.settings import Settings

__all__ = ["up"]

# The workers have their grace period, and then this long to be gone before they are killed.
_MARGIN_S = 2.0
_LONGEST_GRACE_S = 86_400
_STOP_TIMEOUT_S = 5.0


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Greet and log in JSON, one object per line.")
@pass_settings
def up(settings: Settings, as_json: bool) -> None:
    """Run the server (embedded, unless --url names another) and workers until Ctrl-C.

    One is for documents, if the extra `documents` is installed.
    """
    configure(replace(settings.log, format="json") if as_json else settings.log)
    commands: dict[str, tuple[str, ...]] = {"worker": ("worker",)}
    if with_documents := have_documents():
        commands["documents"] = ("ingest", "work")
    json = ["--json"] if as_json else []
    # By the environment: an address may hold a password, and everybody can read a command line.
    environ = os.environ | {f"PENSTOCK_{name.upper()}": value for name, value in given().items()}

    async def serve() -> int:
        async with Penstock(settings=settings) as app:
            workers = [
                ChildProcess(
                    name,
                    [sys.executable, "-m", "penstock", *command, "--stop-on-eof", *json],
                    environ,
                )
                for name, command in commands.items()
            ]
            grace_s = min(settings.worker.grace_s + _MARGIN_S, _LONGEST_GRACE_S)
            runner = Worker(work=workers, settings=replace(settings.worker, grace_s=grace_s))
            place = await asyncio.to_thread(_incoming, settings) if with_documents else None
            _greet(await app.health(), place, as_json)
            return await runner.run(handle_signals=True)

    code = run_process(serve)
    if settings.url is None:
        _stop_server(Embedded(settings.home_path, settings.embedded))
    if not as_json:
        say("Penstock is down.")
    sys.exit(code)


class _Place(NamedTuple):
    """Where documents can be dropped, or why nowhere."""

    rag_id: str = ""
    incoming: str = ""
    problem: str = ""


def _incoming(settings: Settings) -> _Place:
    """A RAG that takes files; its folders are made, so that nobody has to wait for a worker."""
    # An extra, which not everybody has.
    from penstock.pipelines.documents.configuration_reading import (
        ensure_default_rag,
        read_configuration,
    )

    try:
        config = ensure_default_rag(read_configuration(settings))
    except (ConfigurationWrong, OSError) as error:
        return _Place(problem=str(error))
    watched = [rag for _, rag in sorted(config.rags.items()) if rag.sources.watch]
    if not watched:
        return _Place(problem="no RAG takes files by itself: see penstock rag check")
    rag = next((rag for rag in watched if rag.rag_id == "default"), watched[0])
    return _Place(rag.rag_id, str(config.folder_of(rag) / "incoming"))


def _greet(health: Health, place: _Place | None, as_json: bool) -> None:
    if as_json:
        incoming = {"incoming": place.incoming or None} if place else {}
        say_json({"address": health.address, "status": health.status, **incoming}, indent=0)
        return
    program = "penstock" if shutil.which("penstock") else f"{sys.executable} -m penstock"
    say(f"Penstock is up on {health.address} ({health.status})", bold=True)
    if place is None:
        say(f"For documents: {INSTALL}")
    elif place.problem:
        say(f"Documents are not taken in: {place.problem}")
    else:
        say(f"Drop a file into {place.incoming}/ and ask:")
        say(f"  {program} ingest search --rag {place.rag_id} 'your question'")
    say("From another terminal:")
    for command, purpose in (
        ("worker shop:app", "run the tasks of `app` in your shop.py"),
        ("workers", "list the workers"),
        ("doctor", "check how the server is set up"),
    ):
        say(f"  {program} {command:15}  {purpose}")
    say("Ctrl-C stops it.")


def _stop_server(embedded: Embedded) -> None:
    """Do not let the server linger when nobody else uses it."""
    if not embedded.status().pinned:
        with suppress(EmbeddedError, TimeoutError):
            embedded.stop(timeout_s=_STOP_TIMEOUT_S)
