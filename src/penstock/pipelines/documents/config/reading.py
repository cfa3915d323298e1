"""Reads and validates `client.yaml` and the YAML files of RAGs, and detects changes.

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

from msgspec.structs import replace

from penstock.app import Penstock
from penstock.errors.documents import ConfigurationWrong
from penstock.pipelines.documents.config.models import (
    ClientConfig,
    DocumentsConfig,
    RagConfig,
    Stamp,
)
from penstock.pipelines.documents.config.validation import (
    check_client,
    check_rag,
    clashes,
    variable_of,
)
from penstock.pipelines.documents.config.yaml_reading import ConfigFileUnreadable, read_yaml
from penstock.settings import Settings, VectorSettings

__all__ = ["changed", "effective_settings", "read_configuration", "reread_rags", "stamp_of"]

FOLDER: Final = "documents"
"""Default place of the pipeline's files, below the data directory."""


def read_configuration(
    settings: Settings, environ: Mapping[str, str] | None = None
) -> DocumentsConfig:
    """Read the configuration; ConfigurationWrong with all mistakes of `client.yaml`.

    A mistake in the file of a RAG disables that RAG only: it is in `config.problems`, and
    `config.rag()` raises it. Reads files, so use a thread where a loop is running.
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
    """Penstock's settings, with servers of `client.yaml` that they do not set."""
    return dataclasses.replace(
        settings,
        vectors=_vectors(settings.vectors, config.client),
        **_server(settings, config.client),
    )


def _vectors(own: VectorSettings, client: ClientConfig) -> VectorSettings:
    qdrant = client.qdrant
    if own.url is not None or qdrant.url is None:
        return own
    is_default = own.answer_s == VectorSettings().answer_s
    return dataclasses.replace(
        own,
        url=qdrant.url,
        api_key=own.api_key or qdrant.api_key,
        answer_s=qdrant.timeout if qdrant.timeout is not None and is_default else own.answer_s,
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
    """The address with a database, unless it has one; conflicts are refused before."""
    if not database or Penstock(settings=Settings(url=url)).redis.address.database == database:
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
    except ConfigFileUnreadable as error:
        raise ConfigurationWrong(str(file), (str(error),)) from None
    if problems:
        source = "environment" if missing else str(file)
        raise ConfigurationWrong(source, tuple(problems))
    return client


def _place(path: str | None, key: str, file: Path, environ: Mapping[str, str]) -> Path | None:
    """A directory of `client.yaml`, relative to the file; of a variable, to the working directory.

    Links are not resolved, as they may change.
    """
    if path is None:
        return None
    base = Path.cwd() if environ.get(variable_of(f"paths.{key}")) else file.parent
    return Path(os.path.normpath(base / Path(path).expanduser()))


SUFFIXES: Final = (".yaml", ".yml")


def reread_rags(config: DocumentsConfig, client_stamp: Stamp | None = None) -> DocumentsConfig:
    """The configuration with the present files of the RAGs."""
    if client_stamp is None and config.client_file is not None:
        path = str(config.client_file)
        client_stamp = next((stamp for stamp in config.stamps if stamp.name == path), None)
    stamps = _stamps_in(config.rags_dir)  # first, so that changes while reading are detected
    good: dict[str, RagConfig] = {}
    problems: dict[str, tuple[str, ...]] = {}
    files: dict[str, str] = {}
    for stamp in stamps:
        name = Path(stamp.name).name
        try:
            rag, mistakes = check_rag(read_yaml(Path(stamp.name)), config.sources_root)
        except ConfigFileUnreadable as error:
            problems[name] = (str(error),)
            continue
        if rag.rag_id:
            files[rag.rag_id] = name
        if mistakes:
            problems[name] = tuple(mistakes)
        else:
            good[name] = rag
    files |= {
        rag.rag_id: name for name, rag in good.items()
    }  # rather than an invalid file of that id
    for name, mistakes in clashes(good, config.sources_root).items():
        problems[name] = tuple(mistakes)
    return replace(
        config,
        rags={rag.rag_id: rag for name, rag in good.items() if name not in problems},
        problems=problems,
        files=files,
        stamps=((client_stamp,) if client_stamp else ()) + stamps,
    )


def changed(config: DocumentsConfig) -> bool:
    """Whether a file was added, changed or removed since; costs one `stat` of each file."""
    client = stamp_of(config.client_file) if config.client_file else None
    return config.stamps != ((client,) if client else ()) + _stamps_in(config.rags_dir)


def _stamps_in(folder: Path) -> tuple[Stamp, ...]:
    try:
        names = sorted(
            name
            for name in os.listdir(folder)  # noqa: PTH208  names are all we need
            if name.endswith(SUFFIXES) and not name.startswith(".")
        )
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise ConfigurationWrong(str(folder), (error.strerror or str(error),)) from None
    stamps = (stamp_of(folder / name) for name in names)
    return tuple(stamp for stamp in stamps if stamp is not None)


def stamp_of(file: Path) -> Stamp | None:
    """None if there is no such file, or a link to none."""
    try:
        facts = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return Stamp(str(file), -1, 0, 0)  # reading it will raise the reason
    return Stamp(str(file), facts.st_size, facts.st_mtime_ns, facts.st_ino)
