"""The files of the RAGs: what they say, and whether they still say it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from penstock.errors.documents import ConfigurationWrong
from penstock.pipelines.documents.configuration import DocumentsConfig, RagConfig, Stamp
from penstock.pipelines.documents.configuration_checking import check_rag, clashes
from penstock.pipelines.documents.yaml_reading import NotRead, read_yaml

__all__ = ["changed", "reread_rags", "stamp_of"]

SUFFIXES: Final = (".yaml", ".yml")


def reread_rags(config: DocumentsConfig, client_stamp: Stamp | None = None) -> DocumentsConfig:
    """The same with the files of the RAGs as they are now."""
    if client_stamp is None and config.client_file is not None:
        path = str(config.client_file)
        client_stamp = next((stamp for stamp in config.stamps if stamp.name == path), None)
    stamps = _stamps_in(config.rags_dir)  # before the reading: what changes meanwhile is seen
    good: dict[str, RagConfig] = {}
    problems: dict[str, tuple[str, ...]] = {}
    files: dict[str, str] = {}
    for stamp in stamps:
        name = Path(stamp.name).name
        try:
            rag, mistakes = check_rag(read_yaml(Path(stamp.name)), config.sources_root)
        except NotRead as error:
            problems[name] = (str(error),)
            continue
        if rag.rag_id:
            files[rag.rag_id] = name
        if mistakes:
            problems[name] = tuple(mistakes)
        else:
            good[name] = rag
    files |= {rag.rag_id: name for name, rag in good.items()}  # before a broken one of that id
    for name, told in clashes(good, config.sources_root).items():
        problems[name] = tuple(told)
    return replace(
        config,
        rags={rag.rag_id: rag for name, rag in good.items() if name not in problems},
        problems=problems,
        files=files,
        stamps=((client_stamp,) if client_stamp else ()) + stamps,
    )


def changed(config: DocumentsConfig) -> bool:
    """Whether a file was added, changed or removed since; costs one look at each file's facts."""
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
        return Stamp(str(file), -1, 0, 0)  # whoever reads it will be told why that cannot be
    return Stamp(str(file), facts.st_size, facts.st_mtime_ns, facts.st_ino)
