"""`penstock ingest work`: the worker of the pipeline of documents."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace

import click

from penstock.app import Penstock
from penstock.interfaces.cli.ingest_opening import pass_place, servers_of
from penstock.interfaces.cli.worker import stop_when_input_ends
from penstock.runtime import configure, run_process
from penstock.settings import Settings

__all__ = ["work"]


@click.command()
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1_000),
    help="Documents at a time (default: documents.concurrency).",
)
@click.option("--no-watch", is_flag=True, help="Leave the incoming/ folders to others.")
@click.option(
    "--stop-on-eof",
    is_flag=True,
    help="Stop when standard input ends, so that no supervisor can leave the worker behind.",
)
@click.option("--json", "as_json", is_flag=True, help="Log JSON, one object per line.")
@pass_place
def work(
    settings: Settings, concurrency: int | None, no_watch: bool, stop_on_eof: bool, as_json: bool
) -> None:
    """Take documents in until told to stop, and watch the incoming/ folders.

    As many of them as you like may run, on as many machines as share the folders.
    """
    # An extra, which not everybody has.
    from penstock.pipelines.documents.sending import QUEUE
    from penstock.pipelines.documents.service import Documents

    configure(replace(settings.log, format="json") if as_json else settings.log)
    # It reports every change in the folders, which the watcher has to say more about.
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    settings = servers_of(settings)

    async def serve() -> int:
        app = Penstock(settings=settings)
        async with app, Documents(app) as documents:
            services = documents.attend(watch=not no_watch)
            runner = app.worker(queues=[QUEUE], concurrency=concurrency, services=services)
            if stop_on_eof:
                stop_when_input_ends(runner)
            return await runner.run(handle_signals=True)

    sys.exit(run_process(serve))
