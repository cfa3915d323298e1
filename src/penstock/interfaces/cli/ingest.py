"""`penstock ingest`: documents for retrieval, from files to answers."""

from __future__ import annotations

import click

from penstock.interfaces.cli.ingest_jobs import cancel, forget, retry
from penstock.interfaces.cli.ingest_look import explain, health, list_documents, status
from penstock.interfaces.cli.ingest_opening import client_option
from penstock.interfaces.cli.ingest_search import search
from penstock.interfaces.cli.ingest_submit import reindex, submit, sync
from penstock.interfaces.cli.ingest_work import work

__all__ = ["ingest"]


@click.group()
@client_option
def ingest(client: str | None) -> None:
    """Take documents in, see how they are, and ask them questions."""


for command in (
    submit,
    status,
    search,
    list_documents,
    sync,
    forget,
    reindex,
    cancel,
    retry,
    explain,
    health,
    work,
):
    ingest.add_command(command)
