"""`penstock up`: server and workers on one machine."""

from __future__ import annotations

import asyncio
import shutil
import sys
from contextlib import suppress
from typing import NamedTuple

import click

from penstock.app import Penstock
from penstock.errors import ConfigurationWrong, EmbeddedError
from penstock.interfaces.cli.ingest.opening import INSTALL, have_documents
from penstock.interfaces.cli.main import pass_settings
from penstock.interfaces.cli.output import say, say_json
from penstock.interfaces.cli.worker.running import (
    child_environ,
    command_of,
    configure_logs,
    run_worker,
    supervisor,
)
from penstock.redis.embedded.server import Embedded
from penstock.redis.health import Health
from penstock.runtime import run_process
from penstock.runtime.supervised_process import SupervisedProcess
from penstock.settings import Settings

__all__ = ["up"]

_STOP_TIMEOUT_S = 5.0


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print and log JSON, one object per line.")
@pass_settings
def up(settings: Settings, as_json: bool) -> None:
    """Run the server (embedded, unless --url is given) and workers until Ctrl-C.

    Example: penstock up

    If the extra `documents` is installed, a worker for documents runs, too.
    """
    configure_logs(settings, as_json=as_json)
    commands: dict[str, tuple[str, ...]] = {"worker": ("worker",)}
    if with_documents := have_documents():
        commands["documents"] = ("ingest", "work")
    json = ["--json"] if as_json else []
    environ = child_environ()

    async def serve() -> int:
        async with Penstock(settings=settings) as app:
            workers = [
                SupervisedProcess(name, command_of(*command, "--stop-on-eof", *json), environ)
                for name, command in commands.items()
            ]
            runner = supervisor(workers, settings)
            place = await asyncio.to_thread(_incoming, settings) if with_documents else None
            _greet(await app.health(), place, as_json)
            return await run_worker(runner)

    code = run_process(serve)
    if settings.url is None:
        _stop_server(Embedded(settings.home_path, settings.embedded))
    if not as_json:
        say("Penstock is down.")
    sys.exit(code)


class _Place(NamedTuple):
    """The folder that is watched for documents, or the reason why there is none."""

    rag_id: str = ""
    incoming: str = ""
    problem: str = ""


def _incoming(settings: Settings) -> _Place:
    """A RAG that watches its folder; the folders are created before any worker starts."""
    # Imported here, as the extra `documents` may be missing.
    from penstock.pipelines.documents.config.reading import read_configuration
    from penstock.pipelines.documents.config.writing import ensure_default_rag

    try:
        config = ensure_default_rag(read_configuration(settings))
    except (ConfigurationWrong, OSError) as error:
        return _Place(problem=str(error))
    watched = [rag for _, rag in sorted(config.rags.items()) if rag.sources.watch]
    if not watched:
        return _Place(problem="no RAG watches a folder: see penstock rag check")
    rag = next((rag for rag in watched if rag.rag_id == "default"), watched[0])
    return _Place(rag.rag_id, str(config.folder_of(rag) / "incoming"))


def _greet(health: Health, place: _Place | None, as_json: bool) -> None:
    if as_json:
        incoming = {"incoming": place.incoming or None} if place else {}
        say_json({"address": health.address, "status": health.status, **incoming}, indent=0)
        return
    program = "penstock" if shutil.which("penstock") else f"{sys.executable} -P -m penstock"
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
    """Stop the server at once, unless other processes use it."""
    if not embedded.status().pinned:
        with suppress(EmbeddedError, TimeoutError):
            embedded.stop(timeout_s=_STOP_TIMEOUT_S)
