"""The dead letters of one queue: list, edit, replay and purge them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, Unpack

from penstock.delivery.audit import Act, default_who, read_acts
from penstock.delivery.payloads import SHOWN_BYTES
from penstock.delivery.throttle import Throttle
from penstock.errors import InvalidJob, QueueError
from penstock.queues.dead_letters.filters import (
    MOST_AT_ONCE,
    LetterFilters,
    LetterMatcher,
    checked_id,
    whole,
)
from penstock.queues.dead_letters.letter import QueueLetter, read_letter
from penstock.queues.dead_letters.reader import (
    LetterPicks,
    LetterWalk,
    can_search,
    newest_letter,
    oldest_letters,
)
from penstock.queues.dead_letters.replay import LETTERS_PER_CALL, LetterReplay, edited_letter
from penstock.queues.dead_letters.views import (
    QueueLetterKind,
    QueueLetterKinds,
    QueueLetterPage,
    QueueLetterView,
    QueueReplayed,
    show_letter,
)
from penstock.queues.storage.admin_scripts import QueueAdminScripts
from penstock.queues.storage.job_signatures import JobSignatures
from penstock.queues.storage.keys import QueueKeyring
from penstock.queues.storage.pages import PageSize
from penstock.queues.storage.stored_job import LONGEST_ID, read_item
from penstock.redis.client import Client
from penstock.redis.codec import Codec, Form

__all__ = ["REPLAY_LIMIT", "QueueDeadLetters"]

REPLAY_LIMIT: Final = 10_000
"""Default `limit` of one replay."""
_PAGE = 100
_SEARCHED = 10_000
"""Letters that one search examines."""
_DROPPED = 1_000


class QueueDeadLetters:
    """Dead letters of a queue or, with `overflow`, jobs moved aside when it was full.

    Handles Penstock's letters, those of other programs, and any other text on the list. Each change
    is written to the audit log under `who`, by default this process's user and host.
    """

    def __init__(self, client: Client, codec: Codec, queue: str, *, overflow: bool = False) -> None:
        self.queue, self.is_overflow = queue, overflow
        self._client, self._codec = client, codec
        self._keys = QueueKeyring.of(client.keys, queue)
        self._signatures = JobSignatures.of(client, queue)
        self._list = self._keys.overflow if overflow else self._keys.dead_letters

    # --- reading

    async def count(self) -> int:
        """Number of letters. One round trip."""
        return await self._client.call("LLEN", self._list)

    async def list(
        self,
        start: int = 0,
        limit: int = _PAGE,
        *,
        reverse: bool = False,
        max_bytes: int = SHOWN_BYTES,
        **filters: Unpack[LetterFilters],
    ) -> QueueLetterPage:
        """List letters from index `start` on, the oldest first or, with `reverse`, the newest.

        `limit` is 1,000 at most. One round trip per 100 letters examined, up to 10,000: where few
        match, a page is short and `next` continues it. Indexes shift when letters are removed.
        """
        place = whole("start", start, 0)
        whole("limit", limit, 1, MOST_AT_ONCE)
        matcher = LetterMatcher(**filters)
        total = await self.count()
        letters: list[QueueLetterView] = []
        end, size = min(total, place + _SEARCHED), PageSize()
        while place < end and len(letters) < limit:
            page = await self.page(place, min(size.count, end - place), reverse=reverse)
            size.note(letter.data for letter in page)
            if not page:
                break
            for letter in page:
                place += 1
                if matcher.matches(letter):
                    letters.append(show_letter(letter, self._codec, max_bytes))
                    if len(letters) == limit:
                        break
            else:
                continue
            break
        return QueueLetterPage(letters=letters, total=total, next=place if place < total else None)

    async def page(self, start: int, count: int, *, reverse: bool = False) -> list[QueueLetter]:
        """Letters from index `start` on, as they are stored. One round trip, O(start)."""
        first, last = (-start - count, -start - 1) if reverse else (start, start + count - 1)
        stored = await self._client.call("LRANGE", self._list, first, last)
        letters = [read_letter(data) for data in stored]
        return letters[::-1] if reverse else letters

    async def find(self, data: bytes, within: int) -> int | None:
        """Index of a letter, given by its bytes, among the first `within`. One round trip."""
        return await self._client.call("LPOS", self._list, data, "MAXLEN", within)

    async def get(self, id_: str, *, max_bytes: int = SHOWN_BYTES) -> QueueLetterView:
        """Return the newest letter of a job; `QueueError` if there is none.

        The server searches from the newest on: one round trip per 1,000 letters, which returns only
        those that contain the id.
        """
        _, letter = await self._letter(id_)
        return show_letter(letter, self._codec, max_bytes)

    async def kinds(self, *, limit: int = _SEARCHED) -> QueueLetterKinds:
        """Count the newest `limit` letters by fingerprint. One round trip per 100 of them."""
        whole("limit", limit, 1)
        total = await self.count()
        kinds: dict[str, list[QueueLetter]] = {}
        counts: dict[str, int] = {}
        tasks: dict[str, set[str]] = {}
        examined = 0
        async for letter in self._scan(min(total, limit), reverse=True):
            examined += 1
            name = letter.fingerprint
            newest = kinds.setdefault(name, [letter])[0]
            kinds[name] = [newest, letter]
            counts[name] = counts.get(name, 0) + 1
            tasks.setdefault(name, set()).add(letter.task)
        views = [
            QueueLetterKind(
                fingerprint=name,
                count=counts[name],
                first_ms=oldest.buried_ms,
                last_ms=newest.buried_ms,
                tasks=sorted(filter(None, tasks[name])),
                sample=show_letter(newest, self._codec),
            )
            for name, (newest, oldest) in kinds.items()
        ]
        views.sort(key=lambda kind: -kind.count)
        return QueueLetterKinds(kinds=views, examined=examined, complete=total <= limit)

    async def audit(self, limit: int = 100) -> list[Act]:
        """Audit log of the queue, the newest entries first. One round trip."""
        return await read_acts(self._client, self._keys.audit, limit)

    # --- changing

    async def replay(
        self,
        ids: Sequence[str] | None = None,
        *,
        rate: float | None = None,
        limit: int | None = REPLAY_LIMIT,
        dry_run: bool = False,
        who: str | None = None,
        **filters: Unpack[LetterFilters],
    ) -> QueueReplayed:
        """Move letters back to the queue, the oldest first: those of `ids`, matching ones, or all.

        Each job goes to the back of its lane with no attempts counted; the number of its replays
        and the history of its errors travel with it. It leaves the letters and enters the queue in
        one atomic step, so a crash loses and doubles nothing, and concurrent replays queue it once.
        Letters that arrive meanwhile are left for the next call. The queue's `max_size` does not
        apply.

        `rate` is letters per second; `limit=None` replays any number. With `dry_run` letters are
        counted and stay. One round trip per 100 letters examined and one per 50 replayed.
        """
        if limit is not None:
            whole("limit", limit, 1)
        throttle = Throttle(rate, LETTERS_PER_CALL)
        matcher = LetterMatcher(**filters)
        wanted = None if ids is None else _checked(ids)
        detail = str(matcher) if ids is None else "by id"
        replay = LetterReplay(
            self._client, self._codec, self._keys, self._list, who or default_who(), detail
        )
        walk = await self._walk(matcher, wanted)
        while not walk.is_over:
            room = throttle.chunk if limit is None else min(throttle.chunk, limit - replay.matched)
            if room <= 0:
                replay.complete = False
                break
            letters = await walk.next(room)
            if dry_run:
                replay.examine(letters)
                walk.stayed(len(letters))
            elif letters:
                await throttle.wait(replay.replayed)
                walk.stayed(await replay.send(letters))
        return replay.result(missing=len(wanted or ()))

    async def edit(
        self, id_: str, job: bytes | str | dict[str, object], *, who: str | None = None
    ) -> str:
        """Replace the job in the newest letter of a job; returns the letter's new id.

        Text and bytes are stored unchanged, anything else as JSON. `QueueError` if there is no such
        letter, also if another call changes it at the same moment. Searches as `get` does.
        """
        body = job if isinstance(job, bytes) else self._codec.encode(job, Form.TEXT)
        if body.startswith(b"Z:"):
            body = read_item(body, self._codec).body
        place, letter = await self._letter(id_)
        max_bytes = self._client.settings.queues.max_job_bytes
        if len(body) > max_bytes:
            raise InvalidJob(
                f"the job takes {len(body)} bytes, queues.max_job_bytes allows {max_bytes}"
            )
        new = edited_letter(letter, body, self._codec, self._signatures)
        is_replaced = await QueueAdminScripts.of(self._client).edit_queue_letter(
            keys=self._keys,
            letters=self._list,
            who=who or default_who(),
            detail=id_,
            letter=letter.data,
            place=place,
            new=new,
        )
        if not is_replaced:
            raise self._missing(id_)
        return read_letter(new).id

    async def purge(
        self,
        ids: Sequence[str] | None = None,
        *,
        everything: bool = False,
        dry_run: bool = False,
        who: str | None = None,
        **filters: Unpack[LetterFilters],
    ) -> int:
        """Delete letters: those of `ids`, matching ones, or all with `everything`; exactly one.

        Returns how many. With `dry_run` they are counted and stay. One round trip per 1,000 letters
        for all; else one per 100 examined and one per 50 deleted.
        """
        matcher = LetterMatcher(**filters)
        if (ids is not None) + (not matcher.is_everything) + everything != 1:
            raise InvalidJob("purge: give ids, filters or everything=True, one of them")
        total, who = await self.count(), who or default_who()
        if everything:
            return total if dry_run else await self._drop_oldest(total, who)
        wanted = None if ids is None else _checked(ids)
        detail = "by id" if ids is not None else str(matcher)
        walk, removed = await self._walk(matcher, wanted), 0
        while not walk.is_over:
            letters = await walk.next(LETTERS_PER_CALL)
            if dry_run:
                removed += len(letters)
                walk.stayed(len(letters))
            elif letters:
                removed += await QueueAdminScripts.of(self._client).remove_queue_letters(
                    keys=self._keys,
                    letters=self._list,
                    who=who,
                    detail=detail,
                    oldest=0,
                    exactly=[part for place, letter in letters for part in (letter.data, place)],
                )
                walk.stayed(0)
        return removed

    async def _walk(
        self, matcher: LetterMatcher, wanted: set[str] | None
    ) -> LetterWalk | LetterPicks:
        """Select letters; ids that are found leave `wanted`."""
        total = await self.count()
        if wanted is None or not can_search(wanted):
            return LetterWalk(self, total, matcher, wanted)
        found = await oldest_letters(self._client, self._list, wanted, matcher)
        wanted.difference_update(letter.id for _, letter in found)
        return LetterPicks(found)

    async def _drop_oldest(self, count: int, who: str) -> int:
        removed = 0
        while removed < count:
            dropped = await QueueAdminScripts.of(self._client).remove_queue_letters(
                keys=self._keys,
                letters=self._list,
                who=who,
                detail="all",
                oldest=min(_DROPPED, count - removed),
                exactly=(),
            )
            removed += dropped
            if not dropped:
                break
        return removed

    async def _scan(self, count: int, *, reverse: bool = False) -> AsyncIterator[QueueLetter]:
        start, size = 0, PageSize()
        while start < count:
            page = await self.page(start, min(size.count, count - start), reverse=reverse)
            if not page:
                return
            size.note(letter.data for letter in page)
            start += len(page)
            for letter in page:
                yield letter

    async def _letter(self, id_: str) -> tuple[int, QueueLetter]:
        found = await newest_letter(self._client, self._list, checked_id(id_))
        if found is None:
            raise self._missing(id_)
        return found

    def _missing(self, id_: str) -> QueueError:
        return QueueError(f"queue {self.queue!r} has no dead letter {id_!r} (any more)")


def _checked(ids: Sequence[str]) -> set[str]:
    if isinstance(ids, str):
        raise InvalidJob(f"ids = {ids[:LONGEST_ID]!r}: expected a list of ids")
    return {checked_id(id_) for id_ in ids}
