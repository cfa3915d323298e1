"""Files on their way in: checked, copied to where they belong, queued as one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from penstock.errors import DocumentError, DocumentRefused, FileRefused
from penstock.pipelines.documents.case import SUBMITTED, Case, check_extension
from penstock.pipelines.documents.configuration import TYPES, RagConfig
from penstock.pipelines.documents.ids import new_batch_id, new_job_id
from penstock.pipelines.documents.message import JobMessage, JobOptions, text_of
from penstock.pipelines.documents.sending import Sent, send
from penstock.pipelines.documents.storing import drop_copy
from penstock.pipelines.documents.workshop import Workshop
from penstock.redis.keys.queues import Priority
from penstock.stores.files.folder import Folder
from penstock.stores.files.naming import escaped

__all__ = ["Given", "Refusal", "Submission", "SubmitWords", "Submitting"]


_TOGETHER, _COPIERS = 32, 4


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """A file to take in."""

    path: Path
    name: str
    """The path that it has below its folder, from which its document is named."""
    place: Literal["incoming", "processed", ""] = ""
    """The folder of the RAG in which it is already."""
    document: str = ""
    """Its id, where that is not its name."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was not taken."""

    path: str
    error: str
    error_code: str
    suggestions: tuple[str, ...] = ()


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a call of `submit`."""

    rag_id: str
    batch_id: str
    jobs: tuple[Sent, ...]
    refused: tuple[Refusal, ...] = ()
    dry_run: bool = False


class SubmitWords(msgspec.Struct, frozen=True, kw_only=True):
    """What can be said about files that are submitted."""

    reindex: bool = False
    skip_validation: bool = False
    preserve_metadata: bool = True
    metadata: Mapping[str, Any] = {}
    priority: Priority | None = None
    submitted_by: str = "cli"
    source: str = ""
    max_retries: int = 3


class Submitting:
    """Brings files into `incoming/` and jobs into the queue."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    def given(
        self, rag: RagConfig, paths: Iterable[str | Path]
    ) -> tuple[list[Given], list[Refusal]]:
        """The files that paths stand for: of a folder all that the RAG takes."""
        incoming = self._workshop.folders(rag).incoming
        found: list[Given] = []
        refused: list[Refusal] = []
        for path in map(Path, paths):
            try:
                found += _files(rag, incoming, path)
            except DocumentError as error:
                refused.append(refusal(str(path), error))
        return list({one.name: one for one in found}.values()), refused

    async def submit(
        self, rag: RagConfig, files: Sequence[Given], words: SubmitWords, *, dry_run: bool = False
    ) -> Submission:
        """Queue one job for each file, as a batch. What cannot be taken is told beside."""
        batch_id = new_batch_id(rag.rag_id)
        # By the server's clock: whoever submits later, anywhere, has the later time.
        now = text_of(await self._workshop.queue.server_ms())
        sent: list[Sent] = []
        refused: list[Refusal] = []

        async def submit_some(some: Sequence[Given]) -> None:
            prepared = await asyncio.to_thread(
                self._prepare, rag, some, words, batch_id, now, dry_run
            )
            refused.extend(one for one in prepared if isinstance(one, Refusal))
            messages = [one for one in prepared if isinstance(one, JobMessage)]
            if dry_run:
                sent.extend(
                    Sent(job_id="", document=one.document, created=False) for one in messages
                )
            elif messages:
                sent.extend(await self._send(rag, batch_id, messages, words.priority))

        # Workers have the first before the last is copied, and the disk syncs some at a time.
        at_once = asyncio.Semaphore(_COPIERS)

        async def in_turn(first: int) -> None:
            async with at_once:
                await submit_some(files[first : first + _TOGETHER])

        try:
            async with asyncio.TaskGroup() as group:
                for first in range(0, len(files), _TOGETHER):
                    group.create_task(in_turn(first))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        order = {file.document or Folder.label(file.name): at for at, file in enumerate(files)}
        return Submission(
            rag_id=rag.rag_id,
            batch_id=batch_id,
            jobs=tuple(sorted(sent, key=lambda job: order[job.document])),
            refused=tuple(refused),
            dry_run=dry_run,
        )

    async def _send(
        self,
        rag: RagConfig,
        batch_id: str,
        messages: Sequence[JobMessage],
        priority: Priority | None,
    ) -> list[Sent]:
        sent = await send(self._workshop.queue, messages, priority)
        if not all(job.created for job in sent):
            await asyncio.to_thread(self._drop_copies, rag, messages, sent)
        jobs = [(job.job_id, job.document) for job in sent]
        await self._workshop.ledger.jobs.enter(rag.rag_id, batch_id, jobs)
        return sent

    def _drop_copies(
        self, rag: RagConfig, messages: Sequence[JobMessage], sent: Sequence[Sent]
    ) -> None:
        """Remove copies whose jobs were not needed: others have the same files in hand."""
        for message, job in zip(messages, sent, strict=True):
            if not job.created:
                drop_copy(Case(self._workshop, message, rag, None))

    def _prepare(
        self,
        rag: RagConfig,
        files: Sequence[Given],
        words: SubmitWords,
        batch_id: str,
        now: str,
        dry_run: bool,
    ) -> list[JobMessage | Refusal]:
        prepared: list[JobMessage | Refusal] = []
        for file in files:
            try:
                prepared.append(self._message(rag, file, words, batch_id, now, dry_run))
            except DocumentError as error:
                prepared.append(refusal(str(file.path), error))
        return prepared

    def _message(
        self,
        rag: RagConfig,
        file: Given,
        words: SubmitWords,
        batch_id: str,
        now: str,
        dry_run: bool,
    ) -> JobMessage:
        folders = self._workshop.folders(rag)
        if not words.skip_validation:
            check_extension(rag, file.name)
        place, name = folders.incoming, file.name
        if file.place == "processed":
            place = folders.processed
        elif not file.place and dry_run:
            place, name = _place_of(file.path)
        elif not file.place:
            name = f"{SUBMITTED}/{batch_id}/{file.name}"
            _check_content(file.path, words)
            place.copy_in(file.path, name, max_bytes=rag.max_bytes)
        with place.open(name, max_bytes=rag.max_bytes) as opened:
            digest, size = opened.digest(), opened.size
        extension = Path(file.name).suffix.lower()
        return JobMessage(
            job_id=new_job_id(rag.rag_id),
            rag_id=rag.rag_id,
            source_path=self._workshop.path_of(rag, name, file.place or "incoming"),
            source_type=TYPES.get(extension, escaped(extension.lstrip("."))),
            filename=escaped(file.name.rpartition("/")[2]),
            submitted_at=now,
            submitted_by=words.submitted_by,
            options=JobOptions(
                reindex=words.reindex,
                skip_validation=words.skip_validation,
                preserve_metadata=words.preserve_metadata,
            ),
            max_retries=words.max_retries,
            document=file.document or Folder.label(file.name),
            digest=digest,
            size=size,
            batch_id=batch_id,
            source=words.source,
            metadata=dict(words.metadata),
        )


def _check_content(path: Path, words: SubmitWords) -> None:
    if not words.skip_validation and path.is_file() and not path.stat().st_size:
        raise DocumentRefused(f"file {path.name!r} is empty", "ERR_EMPTY_FILE")


def refusal(path: str, error: DocumentError) -> Refusal:
    return Refusal(
        path=escaped(path),
        error=str(error),
        error_code=error.error_code,
        suggestions=error.suggestions,
    )


def _files(rag: RagConfig, incoming: Folder, path: Path) -> list[Given]:
    try:
        inside: str | None = incoming.relative(path.absolute())
    except FileRefused:
        inside = None
    place: Literal["incoming", ""] = "" if inside is None else "incoming"
    if path.is_dir():
        prefix = f"{inside}/" if inside else ""
        return [
            Given(path=path / name, name=prefix + name, place=place)
            for name in sorted(Folder(path).walk())
            if Path(name).suffix.lower() in rag.sources.extensions
        ]
    return [Given(path=path, name=inside or path.name, place=place)]


def _place_of(path: Path) -> tuple[Folder, str]:
    """Where a file is that stays where it is; the caller's own path may be a link."""
    real = path.resolve()
    return Folder(real.parent), real.name
