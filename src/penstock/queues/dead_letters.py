"""The dead letters of one queue: look at them, mend them, queue them again, throw them away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, Unpack

from penstock.delivery.audit import Act, default_who, read_acts
from penstock.delivery.payloads import SHOWN_BYTES
from penstock.delivery.throttle import Throttle
from penstock.errors import InvalidJob, QueueError
from penstock.queues.choice import MOST_AT_ONCE, Choice, LetterFilters, checked_id, whole
from penstock.queues.items import LONGEST_ID, read_item
from penstock.queues.letter_search import (
    LetterPicks,
    can_search,
    newest_letter,
    oldest_letters,
)
from penstock.queues.letter_walk import LetterWalk
from penstock.queues.letters import QueueLetter, read_letter
from penstock.queues.page_size import PageSize
from penstock.queues.requeue import AT_ONCE, Requeue
from penstock.queues.revival import edited_letter
from penstock.queues.showing import show_letter
from penstock.queues.views import (
    QueueLetterKind,
    QueueLetterKinds,
    QueueLetterPage,
    QueueLetterView,
    Requeued,
)
from penstock.redis.client import Client
from penstock.redis.codec import Codec, Form
from penstock.redis.keys import QueueKeyring

__all__ = ["MOST_REQUEUED", "QueueDeadLetters"]

MOST_REQUEUED: Final = 10_000
"""Letters that one requeue takes, unless more are asked for."""
_PAGE = 100
_SEARCHED = 10_000
"""Letters that one search looks at."""
_DROPPED = 1_000


class QueueDeadLetters:
    """Dead letters of a queue or, with `overflow`, jobs moved aside when it was full.

    Ours, those of the old programs, and whatever else stands on the list. Each act is on record;
    `who` names the person there; without it, that is this process's user and host.
    """

    def __init__(self, client: Client, codec: Codec, queue: str, *, overflow: bool = False) -> None:
        self.queue, self.is_overflow = queue, overflow
        self._client, self._codec = client, codec
        self._keys = QueueKeyring.of(client.keys, queue)
        self._list = self._keys.overflow if overflow else self._keys.dead_letters

    # --- looking

    async def count(self) -> int:
        """How many letters there are. One round trip."""
        return await self._client.call("LLEN", self._list)

    async def list(
        self,
        start: int = 0,
        count: int = _PAGE,
        *,
        reverse: bool = False,
        most_bytes: int = SHOWN_BYTES,
        **filters: Unpack[LetterFilters],
    ) -> QueueLetterPage:
        """List letters from a place on, the oldest first or, with `reverse`, the newest.

        At most 1,000. A round trip per 100 letters looked at, 10,000 at most: where few match, a
        page is short and says where to go on. Places shift when somebody takes letters away.
        """
        place = whole("start", start, 0)
        whole("count", count, 1, MOST_AT_ONCE)
        choice = _choice(filters)
        total = await self.count()
        letters: list[QueueLetterView] = []
        end, size = min(total, place + _SEARCHED), PageSize()
        while place < end and len(letters) < count:
            page = await self.page(place, min(size.count, end - place), reverse=reverse)
            size.note(letter.data for letter in page)
            if not page:
                break
            for letter in page:
                place += 1
                if choice.matches(letter):
                    letters.append(show_letter(letter, self._codec, most_bytes))
                    if len(letters) == count:
                        break
            else:
                continue
            break
        return QueueLetterPage(letters=letters, total=total, next=place if place < total else None)

    async def page(self, start: int, count: int, *, reverse: bool = False) -> list[QueueLetter]:
        """Letters from a place on, as they are stored. One round trip, O(start)."""
        first, last = (-start - count, -start - 1) if reverse else (start, start + count - 1)
        found = await self._client.call("LRANGE", self._list, first, last)
        letters = [read_letter(data) for data in found]
        return letters[::-1] if reverse else letters

    async def find(self, data: bytes, within: int) -> int | None:
        """The place of a letter, given byte by byte, among the first so many. One round trip."""
        return await self._client.call("LPOS", self._list, data, "MAXLEN", within)

    async def get(self, id_: str, *, most_bytes: int = SHOWN_BYTES) -> QueueLetterView:
        """Return the newest letter of a job; `QueueError` if there is none.

        The server looks through the letters, the newest first: a round trip per 1,000 of them, in
        which only those that hold the id are sent.
        """
        _, letter = await self._letter(id_)
        return show_letter(letter, self._codec, most_bytes)

    async def kinds(self, *, most: int = _SEARCHED) -> QueueLetterKinds:
        """Count the newest `most` letters by fingerprint. A round trip per 100 of them."""
        whole("most", most, 1)
        total = await self.count()
        kinds: dict[str, list[QueueLetter]] = {}
        counts: dict[str, int] = {}
        tasks: dict[str, set[str]] = {}
        examined = 0
        async for letter in self._scan(min(total, most), reverse=True):
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
        return QueueLetterKinds(kinds=views, examined=examined, complete=total <= most)

    async def audit(self, count: int = 100) -> list[Act]:
        """Return what was done last to the queue, the newest first. One round trip."""
        return await read_acts(self._client, self._keys.audit, count)

    # --- acting

    async def requeue(
        self,
        ids: Sequence[str] | None = None,
        *,
        rate: float | None = None,
        most: int | None = MOST_REQUEUED,
        dry_run: bool = False,
        who: str | None = None,
        **filters: Unpack[LetterFilters],
    ) -> Requeued:
        """Queue letters again, the oldest first: those of `ids`, those that match, or all.

        Each goes to the back of its lane as if it had never been tried; how often it came back and
        what went wrong travel with it. It leaves the letters and enters the queue in one step, so
        whatever happens in between, a letter is in one place; two calls at once queue it once.
        Letters that come in meanwhile are left for the next call. The queue's size is no limit.

        `rate` is letters per second, `most` how many at all (10,000; None for any number). With
        `dry_run` they are counted and stay. A round trip per 100 letters looked at and one per 50
        queued, for which the server walks to where they are.
        """
        if most is not None:
            whole("most", most, 1)
        throttle = Throttle(rate, AT_ONCE)
        choice = _choice(filters)
        wanted = None if ids is None else _checked(ids)
        detail = str(choice) if ids is None else "by id"
        requeue = Requeue(
            self._client, self._codec, self._keys, self._list, who or default_who(), detail
        )
        walk = await self._walk(choice, wanted)
        while not walk.is_over:
            room = throttle.chunk if most is None else min(throttle.chunk, most - requeue.matched)
            if room <= 0:
                requeue.complete = False
                break
            found = await walk.next(room)
            if dry_run:
                requeue.examine(found)
                walk.stayed(len(found))
            elif found:
                await throttle.wait(requeue.requeued)
                walk.stayed(await requeue.send(found))
        return requeue.result(missing=len(wanted or ()))

    async def edit(
        self, id_: str, job: bytes | str | dict[str, object], *, who: str | None = None
    ) -> str:
        """Put another job into the newest letter of a job; the letter's id from then on.

        Text and bytes are stored as they are, anything else as JSON. `QueueError` if there is no
        such letter, also if somebody else changes it at this moment. Found as by `get`.
        """
        body = job if isinstance(job, bytes) else self._codec.encode(job, Form.TEXT)
        if body.startswith(b"Z:"):
            body = read_item(body, self._codec).body
        place, letter = await self._letter(id_)
        most = self._client.settings.queues.max_job_bytes
        if len(body) > most:
            raise InvalidJob(f"the job takes {len(body)} bytes, queues.max_job_bytes allows {most}")
        new = edited_letter(letter, body, self._codec)
        done = await self._client.scripts.edit_queue_letter(
            keys=self._keys,
            letters=self._list,
            who=who or default_who(),
            detail=id_,
            letter=letter.data,
            place=place,
            new=new,
        )
        if not done:
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
        """Throw letters away for good: those of `ids`, those that match, or all of them.

        Exactly one of the three. Returns how many. A round trip per 1,000 letters for all; else one
        per 100 looked at and one per 50. With `dry_run` they are counted and stay.
        """
        choice = _choice(filters)
        if (ids is not None) + (not choice.is_everything) + everything != 1:
            raise InvalidJob("purge: give ids, filters or everything=True, one of them")
        total, who = await self.count(), who or default_who()
        if everything:
            return total if dry_run else await self._drop_oldest(total, who)
        wanted = None if ids is None else _checked(ids)
        detail = "by id" if ids is not None else str(choice)
        walk, removed = await self._walk(choice, wanted), 0
        while not walk.is_over:
            found = await walk.next(AT_ONCE)
            if dry_run:
                removed += len(found)
                walk.stayed(len(found))
            elif found:
                removed += await self._client.scripts.remove_queue_letters(
                    keys=self._keys,
                    letters=self._list,
                    who=who,
                    detail=detail,
                    oldest=0,
                    exactly=[part for place, letter in found for part in (letter.data, place)],
                )
                walk.stayed(0)
        return removed

    # --- inside

    async def _walk(self, choice: Choice, wanted: set[str] | None) -> LetterWalk | LetterPicks:
        """Go to the letters that were chosen; ids that are found leave `wanted`."""
        total = await self.count()
        if wanted is None or not can_search(wanted):
            return LetterWalk(self, total, choice, wanted)
        found = await oldest_letters(self._client, self._list, wanted, choice)
        wanted.difference_update(letter.id for _, letter in found)
        return LetterPicks(found)

    async def _drop_oldest(self, count: int, who: str) -> int:
        removed = 0
        while removed < count:
            done = await self._client.scripts.remove_queue_letters(
                keys=self._keys,
                letters=self._list,
                who=who,
                detail="all",
                oldest=min(_DROPPED, count - removed),
                exactly=(),
            )
            removed += done
            if not done:
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


def _choice(filters: LetterFilters) -> Choice:
    return Choice(**filters)


def _checked(ids: Sequence[str]) -> set[str]:
    if isinstance(ids, str):
        raise InvalidJob(f"ids = {ids[:LONGEST_ID]!r}: expected a list of ids")
    return {checked_id(id_) for id_ in ids}
