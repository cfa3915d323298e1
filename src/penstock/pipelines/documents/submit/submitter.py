"""Submitting files: checked, copied into `incoming/` where needed, queued as one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec

from penstock.errors import DocumentError, DocumentRefused, FileRefused, UnsupportedFile
from penstock.pipelines.documents.config.models import TYPES, RagConfig
from penstock.pipelines.documents.resources import DocumentResources
from penstock.pipelines.documents.submit.job_message import (
    DocumentJob,
    JobMessage,
    JobOptions,
    new_batch_id,
    new_job_id,
    send,
    text_of,
)
from penstock.queues.options import Priority
from penstock.stores.files.folder import Folder
from penstock.stores.files.naming import escaped

__all__ = ["SUBMITTED", "RefusedFile", "SourceFile", "SubmitOptions", "SubmitResult"]
__all__ += ["Submitter", "check_extension", "is_copy", "remove_copy", "remove_empty_folders"]
__all__ += ["without_batch"]

SUBMITTED = ".submitted"
"""Folder below `incoming/` with copies of files from elsewhere, a subfolder for each batch.
Watchers skip it: the submitter queues the jobs of these files."""
_TOGETHER, _COPIERS = 32, 4


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to submit."""

    path: Path
    name: str
    """Path below its folder; the document is named after it."""
    place: Literal["incoming", "processed", ""] = ""
    """The folder of the RAG that has the file already; empty: the file is copied first."""
    document: str = ""
    """Document id, if not the name."""


class RefusedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was not submitted, and why."""

    path: str
    error: str
    error_code: str
    suggestions: tuple[str, ...] = ()


class SubmitResult(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs and refused files of one call of `submit`."""

    rag_id: str
    batch_id: str
    jobs: tuple[DocumentJob, ...]
    refused: tuple[RefusedFile, ...] = ()
    dry_run: bool = False


class SubmitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a submission; see `Documents.submit`."""

    reindex: bool = False
    skip_validation: bool = False
    preserve_metadata: bool = True
    require_fences: bool = False
    metadata: Mapping[str, Any] = {}
    priority: Priority | None = None
    submitted_by: str = "cli"
    source: str = ""
    max_retries: int = 3


class _Batch(msgspec.Struct, frozen=True):
    """What all messages of one call have in common."""

    rag: RagConfig
    options: SubmitOptions
    batch_id: str
    now: str
    dry_run: bool


class Submitter:
    """Copies files into `incoming/` and queues their jobs."""

    def __init__(self, resources: DocumentResources) -> None:
        self._resources = resources

    def find_files(
        self, rag: RagConfig, paths: Iterable[str | Path]
    ) -> tuple[list[SourceFile], list[RefusedFile]]:
        """The files at these paths; of a folder, those with extensions that the RAG accepts."""
        incoming = self._resources.folders(rag).incoming
        files: list[SourceFile] = []
        refused: list[RefusedFile] = []
        for path in map(Path, paths):
            try:
                files += _files_at(rag, incoming, path)
            except DocumentError as error:
                refused.append(_refused(str(path), error))
        return list({file.name: file for file in files}.values()), refused

    async def submit(
        self,
        rag: RagConfig,
        files: Sequence[SourceFile],
        options: SubmitOptions,
        *,
        dry_run: bool = False,
    ) -> SubmitResult:
        """Queue one job per file, as a batch. Files that cannot be submitted are in `refused`."""
        # Server time, so that submissions from all machines are in one order.
        now = text_of(await self._resources.queue.server_ms())
        batch = _Batch(rag, options, new_batch_id(rag.rag_id), now, dry_run)
        jobs: list[DocumentJob] = []
        refused: list[RefusedFile] = []
        # Workers start on the first files while later ones are copied; copies share disk syncs.
        at_once = asyncio.Semaphore(_COPIERS)

        async def submit_some(some: Sequence[SourceFile]) -> None:
            async with at_once:
                prepared = await asyncio.to_thread(self._prepare, batch, some)
                refused.extend(one for one in prepared if isinstance(one, RefusedFile))
                messages = [one for one in prepared if isinstance(one, JobMessage)]
                if messages:
                    jobs.extend(await self._send(batch, messages))

        try:
            async with asyncio.TaskGroup() as group:
                for first in range(0, len(files), _TOGETHER):
                    group.create_task(submit_some(files[first : first + _TOGETHER]))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        order = {file.document or Folder.label(file.name): at for at, file in enumerate(files)}
        return SubmitResult(
            rag_id=rag.rag_id,
            batch_id=batch.batch_id,
            jobs=tuple(sorted(jobs, key=lambda job: order[job.document])),
            refused=tuple(refused),
            dry_run=dry_run,
        )

    async def _send(self, batch: _Batch, messages: Sequence[JobMessage]) -> list[DocumentJob]:
        if batch.dry_run:
            return [DocumentJob(job_id="", document=m.document, created=False) for m in messages]
        resources, rag = self._resources, batch.rag
        jobs = await send(resources.queue, messages, batch.options.priority)
        # A job that was not created: another one has the same file already.
        unneeded = [m.source_path for m, job in zip(messages, jobs, strict=True) if not job.created]
        if unneeded:
            await asyncio.to_thread(self._remove_copies, rag, unneeded)
        entries = [(job.job_id, job.document) for job in jobs]
        await resources.ledger.jobs.enter(rag.rag_id, batch.batch_id, entries)
        return jobs

    def _remove_copies(self, rag: RagConfig, source_paths: Iterable[str]) -> None:
        for source_path in source_paths:
            place, name = self._resources.place_of(rag, source_path)
            if is_copy(name):
                remove_copy(place, name)

    def _prepare(
        self, batch: _Batch, files: Sequence[SourceFile]
    ) -> list[JobMessage | RefusedFile]:
        prepared: list[JobMessage | RefusedFile] = []
        for file in files:
            try:
                prepared.append(self._message(batch, file))
            except DocumentError as error:
                prepared.append(_refused(str(file.path), error))
        return prepared

    def _message(self, batch: _Batch, file: SourceFile) -> JobMessage:
        rag, options = batch.rag, batch.options
        folders = self._resources.folders(rag)
        if not options.skip_validation:
            check_extension(rag, file.name)
        place, name = folders.incoming, file.name
        if file.place == "processed":
            place = folders.processed
        elif not file.place and batch.dry_run:
            # The file stays where it is; its path may be a link.
            real = file.path.resolve()
            place, name = Folder(real.parent), real.name
        elif not file.place:
            name = f"{SUBMITTED}/{batch.batch_id}/{file.name}"
            if not options.skip_validation:
                _refuse_empty(file.path)
            place.copy_in(file.path, name, max_bytes=folders.max_bytes)
        with place.open(name, max_bytes=folders.max_bytes) as opened:
            digest, size = opened.digest(), opened.size
        extension = Path(file.name).suffix.lower()
        return JobMessage(
            job_id=new_job_id(rag.rag_id),
            rag_id=rag.rag_id,
            source_path=self._resources.path_of(rag, name, file.place or "incoming"),
            source_type=TYPES.get(extension, escaped(extension.lstrip("."))),
            filename=escaped(file.name.rpartition("/")[2]),
            submitted_at=batch.now,
            submitted_by=options.submitted_by,
            options=JobOptions(
                reindex=options.reindex,
                skip_validation=options.skip_validation,
                preserve_metadata=options.preserve_metadata,
                require_fences=options.require_fences,
            ),
            max_retries=options.max_retries,
            document=file.document or Folder.label(file.name),
            digest=digest,
            size=size,
            batch_id=batch.batch_id,
            source=options.source,
            metadata=dict(options.metadata),
        )


def check_extension(rag: RagConfig, name: str) -> None:
    """UnsupportedFile if the RAG does not accept files with this extension."""
    extension = PurePosixPath(name).suffix.lower()
    if extension not in rag.sources.extensions:
        raise UnsupportedFile(
            f"{name!r}: RAG {rag.rag_id!r} takes no {extension or 'files without extension'}",
            "ERR_UNSUPPORTED_TYPE",
            (f"It takes {', '.join(rag.sources.extensions)}: see sources.extensions",),
        )


# ---- copies below `incoming/.submitted/<batch>/`


def is_copy(name: str) -> bool:
    """Whether a path below `incoming/` is of a copy that was made for one job."""
    return name.startswith(f"{SUBMITTED}/")


def without_batch(name: str) -> str:
    """Path of a file below `incoming/` without the folders of its copy."""
    parts = name.split("/", 2)
    return parts[2] if parts[0] == SUBMITTED and len(parts) > 2 else name  # noqa: PLR2004


def remove_copy(incoming: Folder, name: str) -> None:
    """Remove a copy, and the folders that it leaves empty."""
    incoming.remove(name)
    remove_empty_folders(incoming, name)


def remove_empty_folders(incoming: Folder, name: str) -> None:
    """Remove the folders of a copy as far as they are empty; `.submitted` stays."""
    parents = [incoming.root / parent for parent in PurePosixPath(name).parents]
    with suppress(OSError):
        for folder in parents[:-2]:
            folder.rmdir()


def _refuse_empty(path: Path) -> None:
    if path.is_file() and not path.stat().st_size:
        raise DocumentRefused(f"file {path.name!r} is empty", "ERR_EMPTY_FILE")


def _refused(path: str, error: DocumentError) -> RefusedFile:
    return RefusedFile(
        path=escaped(path),
        error=str(error),
        error_code=error.error_code,
        suggestions=error.suggestions,
    )


def _files_at(rag: RagConfig, incoming: Folder, path: Path) -> list[SourceFile]:
    try:
        inside: str | None = incoming.relative(path.absolute())
    except FileRefused:
        inside = None
    place: Literal["incoming", ""] = "" if inside is None else "incoming"
    if path.is_dir():
        prefix = f"{inside}/" if inside else ""
        return [
            SourceFile(path=path / name, name=prefix + name, place=place)
            for name in sorted(Folder(path).walk())
            if Path(name).suffix.lower() in rag.sources.extensions
        ]
    return [SourceFile(path=path, name=inside or path.name, place=place)]
