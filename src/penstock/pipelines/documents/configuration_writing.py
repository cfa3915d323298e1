"""Writes the file of a RAG as a person would, and makes its folders."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from penstock.errors.documents import ConfigurationWrong
from penstock.pipelines.documents.configuration import DocumentsConfig, RagConfig
from penstock.pipelines.documents.configuration_checking import check_rag, clashes
from penstock.pipelines.documents.configuration_files import reread_rags
from penstock.pipelines.documents.yaml_reading import NotRead, read_yaml

__all__ = ["DEFAULT_RAG", "FOLDERS", "ensure_default_rag", "make_folders", "text_of", "write_rag"]

DEFAULT_RAG: Final = "default"
FOLDERS: Final = ("incoming", "processed", "failed")

_SAID: Final = {
    "embeddings.provider": "or http, sentence-transformers, python",
    "chunking.strategy": "or recursive: by size alone",
    "chunking.size": "most characters of a chunk",
    "chunking.overlap": "characters that neighbours share",
    "sources.extensions": "what is taken from incoming/",
    "sources.max_mb": "largest file",
    "sources.watch": "take files by themselves",
}
"""Fields that are written even if they have their defaults, and what is said beside them."""


_COMMENT_AT: Final = 32


def ensure_default_rag(config: DocumentsConfig) -> DocumentsConfig:
    """With a first RAG, if there is no file of one at all, and with all folders made."""
    _make_home(config)
    if not config.files and not config.problems:
        rag = RagConfig(rag_id=DEFAULT_RAG, description="Made by Penstock; change it as you like.")
        with suppress(FileExistsError):  # another process was quicker
            _create(config.rags_dir / f"{DEFAULT_RAG}.yaml", text_of(rag))
        config = reread_rags(config)
    make_folders(config)
    return config


def make_folders(config: DocumentsConfig) -> None:
    """Make the folders of every RAG that can be used.

    The umask alone says who may put files there (0755 as a rule, 0775 where groups share): a
    folder of this user alone would keep out those who are to use it. Parts of documents that are
    being read are for nobody else.
    """
    _make_home(config)
    config.work_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    for rag in config.rags.values():
        for name in FOLDERS:
            (config.folder_of(rag) / name).mkdir(parents=True, exist_ok=True)


def write_rag(config: DocumentsConfig, rag: RagConfig) -> Path:
    """Write the file of a new RAG, whole or not at all; its path.

    `ConfigurationWrong` if there is one already, or if it could not be read back as it is.
    """
    if wrong := check_rag({"rag_id": rag.rag_id}, config.sources_root)[1]:
        raise ConfigurationWrong("a new RAG", tuple(wrong))
    path = config.rags_dir / f"{rag.rag_id}.yaml"
    if rag.rag_id in config.files:
        taken = config.files[rag.rag_id]
        raise ConfigurationWrong(
            str(path), (f"rag_id = {rag.rag_id!r}: expected a new one; {taken} has it",)
        )
    others = {config.files[known]: each for known, each in config.rags.items()}
    claimed = clashes({**others, path.name: rag}, config.sources_root).get(path.name, [])

    def check(draft: Path) -> None:
        found, mistakes = _read_back(draft, config.sources_root)
        if mistakes or claimed:
            raise ConfigurationWrong(str(path), (*mistakes, *claimed))
        if found != rag:  # characters that YAML cannot hold
            raise ConfigurationWrong(str(path), ("it would be read as something else",))

    try:
        _create(path, text_of(rag), check)
    except FileExistsError:
        raise ConfigurationWrong(str(path), ("there is such a file already",)) from None
    return path


def text_of(rag: RagConfig) -> str:
    """The file of a RAG: what differs from the defaults, and what people change most."""
    lines = ["# A RAG of Penstock. All fields: docs/reference/documents-configuration.md"]
    defaults: dict[str, Any] = msgspec.to_builtins(RagConfig(rag_id=""))
    said: dict[str, Any] = msgspec.to_builtins(rag)
    for name, value in said.items():
        if not isinstance(value, dict):
            if value != defaults[name]:
                lines.append(f"{name}: {_scalar(value)}")
            continue
        entries = {
            key: entry
            for key, entry in cast("dict[str, Any]", value).items()
            if entry != defaults[name][key] or f"{name}.{key}" in _SAID
        }
        if entries:
            lines += ["", f"{name}:"]
            lines += [_line(name, key, entry) for key, entry in entries.items()]
    return "\n".join(lines) + "\n"


def _make_home(config: DocumentsConfig) -> None:
    # Other stores are there as well: whoever comes first makes it as the embedded server would.
    config.work_dir.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)


def _line(section: str, key: str, value: Any) -> str:
    line = f"  {key}: {_scalar(value)}"
    comment = _SAID.get(f"{section}.{key}")
    if comment is None:
        return line
    return (
        f"{line:<{_COMMENT_AT}}  # {comment}"
        if len(line) <= _COMMENT_AT
        else (f"  # {comment}\n{line}")
    )


def _scalar(value: Any) -> str:
    # JSON is YAML; no escapes beyond need, as YAML has no pairs of surrogates.
    return json.dumps(value, ensure_ascii=False)


def _create(path: Path, text: str, check: Callable[[Path], None] | None = None) -> None:
    """Make a file with this text; `FileExistsError` if there is one, which stays as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A dotfile is no RAG's, so nobody reads it half-written.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with draft.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if check is not None:
            check(draft)
        path.hardlink_to(draft)  # unlike a renaming it replaces nothing
    finally:
        draft.unlink(missing_ok=True)


def _read_back(draft: Path, sources_root: Path) -> tuple[RagConfig | None, list[str]]:
    try:
        return check_rag(read_yaml(draft), sources_root)
    except NotRead as error:
        return None, [str(error)]
