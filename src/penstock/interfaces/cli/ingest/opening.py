"""Opening the document pipeline, an extra, for `penstock ingest` and `penstock rag`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import update_wrapper
from importlib.util import find_spec
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import click

from penstock.app import Penstock
from penstock.errors import ConfigError, PenstockError
from penstock.interfaces.cli.main import pass_settings, run
from penstock.interfaces.cli.output import ExitCode, exit_code
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.pipelines.documents.admin.health import DocumentsHealth
    from penstock.pipelines.documents.service import Documents

__all__ = [
    "INSTALL",
    "ask_health",
    "client_option",
    "documents_extra",
    "have_documents",
    "output_option",
    "pass_place",
    "rag_option",
    "servers_of",
    "with_documents",
]

INSTALL = "pip install 'penstock[documents]'"
_PACKAGES = ("qdrant_edge", "pypdfium2", "yaml", "watchfiles")
"""Some of the extra's, each used by another part of the pipeline."""

T = TypeVar("T")
P = ParamSpec("P")

client_option = click.option(
    "--client",
    metavar="FILE",
    help="client.yaml to use (default: documents.config, or the data directory's).",
)
rag_option = click.option("--rag", "rag_id", required=True, metavar="RAG", help="Id of the RAG.")
output_option = click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Output format; json is the same as --json.",
)


def have_documents() -> bool:
    """Whether the extra is installed; imports nothing."""
    return all(find_spec(package) is not None for package in _PACKAGES)


@contextmanager
def documents_extra() -> Generator[None]:
    """Say how to get a package of the extra that is missed within the block."""
    try:
        yield
    except ImportError as missing:
        if (missing.name or "penstock").partition(".")[0] == "penstock":
            raise  # a mistake of ours, which no package mends
        raise ConfigError(f"documents need packages of their own: {INSTALL} ({missing})") from None


def pass_place(command: Callable[Concatenate[Settings, P], T]) -> Callable[P, T]:
    """As `pass_settings`, with the `--client` of the group."""

    @pass_settings
    def placed(settings: Settings, *args: P.args, **kwargs: P.kwargs) -> T:
        context = click.get_current_context().parent
        client: str | None = context.params.get("client") if context is not None else None
        if client is not None:
            settings = replace(settings, documents=replace(settings.documents, config=client))
        with documents_extra():
            return command(settings, *args, **kwargs)

    return update_wrapper(placed, command)


def servers_of(settings: Settings) -> Settings:
    """Settings with the servers that `client.yaml` names."""
    # An extra: help and other commands go without it.
    from penstock.pipelines.documents.config.reading import (
        effective_settings,
        read_configuration,
    )

    return effective_settings(settings, read_configuration(settings))


def ask_health(settings: Settings) -> DocumentsHealth:
    """Ask how all parts of the pipeline are, those as well that cannot be reached."""
    from penstock.pipelines.documents.service import Documents

    async def ask() -> DocumentsHealth:
        app = Penstock(settings=servers_of(settings))
        documents = Documents(app)
        try:
            try:
                await app.open()
            except (PenstockError, OSError) as error:
                if exit_code(error) is not ExitCode.CONNECTION:
                    raise
            return await documents.health()
        finally:
            await documents.close()
            await app.close()

    return run(ask())


def with_documents(settings: Settings, act: Callable[[Documents], Awaitable[T]]) -> T:
    """Open the pipeline, run `act`, and return what it returns."""
    from penstock.pipelines.documents.service import Documents

    async def ask() -> T:
        app = Penstock(settings=servers_of(settings))
        async with app, Documents(app) as documents:
            return await act(documents)

    return run(ask())
