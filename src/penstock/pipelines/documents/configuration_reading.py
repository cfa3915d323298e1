"""Reads `client.yaml` and one YAML file for each RAG, checks all of it, and tells when to reread.

    config = read_configuration(settings)
    rag = config.rag("faq")

Penstock's own settings win over `RAG_…` variables, these over `client.yaml`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from penstock.errors.documents import ConfigurationWrong
from penstock.pipelines.documents.configuration import ClientConfig, DocumentsConfig
from penstock.pipelines.documents.configuration_checking import check_client, variable_of
from penstock.pipelines.documents.configuration_files import changed, reread_rags, stamp_of
from penstock.pipelines.documents.configuration_writing import (
    ensure_default_rag,
    make_folders,
    write_rag,
)
from penstock.pipelines.documents.yaml_reading import NotRead, read_yaml
from penstock.redis.address import parse_address
from penstock.settings import Settings, VectorSettings

__all__ = [
    "changed",
    "effective_settings",
    "ensure_default_rag",
    "make_folders",
    "read_configuration",
    "write_rag",
]

FOLDER: Final = "documents"
"""Within the data directory: all of the pipeline that is not told to be elsewhere."""


def read_configuration(
    settings: Settings, environ: Mapping[str, str] | None = None
) -> DocumentsConfig:
    """What is configured. `ConfigurationWrong` for `client.yaml`, with every mistake in it.

    A mistake in the file of a RAG takes down that RAG alone: `config.problems` has it, and
    `config.rag()` raises it. Reads files: call it in a thread where a loop is running.
    """
    environ = os.environ if environ is None else environ
    base = settings.home_path / FOLDER
    named = settings.documents.config
    file = Path(named).expanduser().absolute() if named else base / "client.yaml"
    stamp = stamp_of(file)
    client = _read_client(file, environ, missing=stamp is None, needed=bool(named))
    paths = client.paths
    config = DocumentsConfig(
        client=client,
        rags={},
        sources_root=_place(paths.sources_root, "sources_root", file, environ) or base / "sources",
        rags_dir=_place(paths.rags_config_dir, "rags_config_dir", file, environ) or base / "rags",
        work_dir=base / "work",
        client_file=file,
    )
    return reread_rags(config, stamp)


def effective_settings(settings: Settings, config: DocumentsConfig) -> Settings:
    """Penstock's settings, with the servers of `client.yaml` where they name none."""
    return dataclasses.replace(
        settings,
        vectors=_vectors(settings.vectors, config.client),
        **_server(settings, config.client),
    )


def _vectors(own: VectorSettings, client: ClientConfig) -> VectorSettings:
    qdrant = client.qdrant
    if own.url is not None or qdrant.url is None:
        return own
    unsaid = own.answer_s == VectorSettings().answer_s
    return dataclasses.replace(
        own,
        url=qdrant.url,
        api_key=own.api_key or qdrant.api_key,
        answer_s=qdrant.timeout if qdrant.timeout is not None and unsaid else own.answer_s,
    )


def _server(own: Settings, client: ClientConfig) -> dict[str, Any]:
    redis = client.redis
    if own.url is not None or redis.url is None:
        return {}
    changes: dict[str, Any] = {"url": _with_database(redis.url, redis.db)}
    if own.password is None and own.password_file is None and redis.password is not None:
        changes["password"] = redis.password
    return changes


def _with_database(url: str, database: int | None) -> str:
    """The address with a database, for one that has none; a conflict was refused before."""
    if not database or parse_address(url, Settings()).database == database:
        return url
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"{url}?db={database}"
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{database}"))


def _read_client(
    file: Path, environ: Mapping[str, str], *, missing: bool, needed: bool
) -> ClientConfig:
    if missing and needed:
        raise ConfigurationWrong(str(file), ("there is no such file",))
    try:
        client, problems = check_client({} if missing else read_yaml(file), environ)
    except NotRead as error:
        raise ConfigurationWrong(str(file), (str(error),)) from None
    if problems:
        source = "environment" if missing else str(file)
        raise ConfigurationWrong(source, tuple(problems))
    return client


def _place(said: str | None, key: str, file: Path, environ: Mapping[str, str]) -> Path | None:
    """A directory of `client.yaml`: relative to the file, or to where we are if a variable says it.

    Not resolved: a link that is to be followed later is followed then.
    """
    if said is None:
        return None
    base = Path.cwd() if environ.get(variable_of(f"paths.{key}")) else file.parent
    return Path(os.path.normpath(base / Path(said).expanduser()))
