"""`penstock ingest work`: the worker of the document pipeline."""

from __future__ import annotations

import sys

import click

from penstock.app import Penstock
from penstock.interfaces.cli.ingest.opening import pass_place, servers_of
from penstock.interfaces.cli.worker.running import (
    configure_logs,
    log_json_option,
    run_worker,
    stop_on_eof_option,
)
from penstock.runtime import run_process
from penstock.settings import Settings

__all__ = ["work"]


@click.command()
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1_000),
    help="Documents processed at once (default: documents.concurrency).",
)
@click.option("--no-watch", is_flag=True, help="Do not watch the incoming/ folders.")
@stop_on_eof_option
@log_json_option
@pass_place
def work(
    settings: Settings, concurrency: int | None, no_watch: bool, stop_on_eof: bool, as_json: bool
) -> None:
    """Run a worker that indexes documents and watches the incoming/ folders.

    Any number of them may run, on all machines that share the folders.

    Example: penstock ingest work --concurrency 4
    """
    # Imported here, as the extra `documents` may be missing.
    from penstock.pipelines.documents.service import Documents
    from penstock.pipelines.documents.submit.job_message import QUEUE

    configure_logs(settings, as_json=as_json)
    settings = servers_of(settings)

    async def serve() -> int:
        app = Penstock(settings=settings)
        async with app, Documents(app) as documents:
            services = documents.attend(watch=not no_watch)
            runner = app.worker(queues=[QUEUE], concurrency=concurrency, services=services)
            return await run_worker(runner, stop_on_eof=stop_on_eof)

    sys.exit(run_process(serve))
