"""`penstock ingest`: documents for retrieval, from files to answers."""

from __future__ import annotations

import click

from penstock.interfaces.cli.ingest.jobs import cancel, forget, replay
from penstock.interfaces.cli.ingest.opening import client_option
from penstock.interfaces.cli.ingest.search import search
from penstock.interfaces.cli.ingest.status import explain, health, list_documents, status
from penstock.interfaces.cli.ingest.submit import reindex, submit, sync
from penstock.interfaces.cli.ingest.work import work

__all__ = ["ingest"]


@click.group()
@client_option
def ingest(client: str | None) -> None:
    """Submit documents, watch their jobs, and search their text."""


for command in (
    submit,
    status,
    search,
    list_documents,
    sync,
    forget,
    reindex,
    cancel,
    replay,
    explain,
    health,
    work,
):
    ingest.add_command(command)
