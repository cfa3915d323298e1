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
from penstock.pipelines.documents.config.models import DocumentsConfig, RagConfig
from penstock.pipelines.documents.config.reading import reread_rags
from penstock.pipelines.documents.config.validation import check_rag, clashes
from penstock.pipelines.documents.config.yaml_reading import ConfigFileUnreadable, read_yaml
from penstock.processes.home import make_home

__all__ = ["DEFAULT_RAG", "FOLDERS", "ensure_default_rag", "make_folders", "text_of", "write_rag"]

DEFAULT_RAG: Final = "default"
FOLDERS: Final = ("incoming", "processed", "failed")

_COMMENTS: Final = {
    "embeddings.provider": "or http, sentence-transformers, python",
    "chunking.strategy": "or recursive: by size alone",
    "chunking.size": "most characters of a chunk",
    "chunking.overlap": "characters that neighbours share",
    "sources.extensions": "what is taken from incoming/",
    "sources.max_mb": "largest file",
    "sources.watch": "take files by themselves",
}
"""Fields that are written even with their defaults, and the comments beside them."""
_COMMENT_AT: Final = 32


def ensure_default_rag(config: DocumentsConfig) -> DocumentsConfig:
    """Create a first RAG if there is no file of one, and all folders."""
    _make_home(config)
    if not config.files and not config.problems:
        rag = RagConfig(rag_id=DEFAULT_RAG, description="Made by Penstock; change it as you like.")
        with suppress(FileExistsError):  # another process was quicker
            _create(config.rags_dir / f"{DEFAULT_RAG}.yaml", text_of(rag))
        config = reread_rags(config)
    make_folders(config)
    return config


def make_folders(config: DocumentsConfig) -> None:
    """Create the folders of all usable RAGs.

    Their permissions follow the umask, as other users may put files there. Only the spool is
    private.
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
    """The file of a RAG: fields that differ from the defaults, and those changed most often."""
    lines = ["# A RAG of Penstock. All fields: docs/reference/documents-configuration.md"]
    defaults: dict[str, Any] = msgspec.to_builtins(RagConfig(rag_id=""))
    fields: dict[str, Any] = msgspec.to_builtins(rag)
    for name, value in fields.items():
        if not isinstance(value, dict):
            if value != defaults[name]:
                lines.append(f"{name}: {_scalar(value)}")
            continue
        entries = {
            key: entry
            for key, entry in cast("dict[str, Any]", value).items()
            if entry != defaults[name][key] or f"{name}.{key}" in _COMMENTS
        }
        if entries:
            lines += ["", f"{name}:"]
            lines += [_line(name, key, entry) for key, entry in entries.items()]
    return "\n".join(lines) + "\n"


def _make_home(config: DocumentsConfig) -> None:
    make_home(config.work_dir.parent.parent)


def _line(section: str, key: str, value: Any) -> str:
    line = f"  {key}: {_scalar(value)}"
    comment = _COMMENTS.get(f"{section}.{key}")
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
    """Create a file with this text; FileExistsError if it exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Dotfiles are not read as files of RAGs, so it is never read half-written.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with draft.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if check is not None:
            check(draft)
        path.hardlink_to(draft)  # unlike a rename it replaces no file
    finally:
        draft.unlink(missing_ok=True)


def _read_back(draft: Path, sources_root: Path) -> tuple[RagConfig | None, list[str]]:
    try:
        return check_rag(read_yaml(draft), sources_root)
    except ConfigFileUnreadable as error:
        return None, [str(error)]
