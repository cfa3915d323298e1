"""Dead letters of one topic: read, edit, replay and purge them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from penstock.delivery.audit import Act, default_who, read_acts
from penstock.delivery.message_sizes import MessageSizes
from penstock.delivery.queries import ask, ask_typed, now_ms
from penstock.delivery.times import wait_s
from penstock.errors import InvalidMessage, ServerError, TopicError, TopicMissing
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.wire import Command
from penstock.topics.admin.views import (
    LetterKind,
    LetterKinds,
    LetterPage,
    LetterView,
    Replayed,
)
from penstock.topics.dead_letters.letter import Letter
from penstock.topics.dead_letters.replay import Replay
from penstock.topics.java.payload_sweep import free_letter_payloads
from penstock.topics.message import KEY, encode_headers
from penstock.topics.partitioners import Crc32, Partitioner
from penstock.topics.storage.admin_scripts import TopicAdminScripts
from penstock.topics.storage.keys import TopicKeys
from penstock.topics.storage.large_payloads import (
    SHOWN_BYTES,
    fetch_shown,
    only_reference,
    without_reference,
)
from penstock.topics.storage.message_signatures import MessageSignatures

__all__ = ["DeadLetters"]

_PAGE = 100
_SEARCHED = 10_000
"""Letters that one search reads."""
_DROPPED = 500
"""Letters that one script drops, so that the server is not held up."""

_UNCHANGED: Any = object()
_is_id = re.compile(r"[0-9]{1,20}-[0-9]{1,20}").fullmatch


class DeadLetters:
    """Dead letters of a topic, our own and those of the Java library. Each act is on record.

    `who` names the person in the record; without it, that is this process's user and host.
    """

    def __init__(
        self, client: Client, codec: Codec, topic: str, partitioner: Partitioner | None = None
    ) -> None:
        self.topic = topic
        self._client = client
        self._codec = codec
        self._keys = TopicKeys.of(client.keys, topic)
        self._partitioner = partitioner or Crc32()
        self._signatures = MessageSignatures.of(client, topic)

    # --- reading

    async def count(self) -> int:
        """How many letters there are. One round trip."""
        replies = await self._client.pipeline(
            [("XLEN", self._keys.dlq), ("EXISTS", self._keys.meta)]
        )
        for reply in replies:
            if isinstance(reply, ServerError):
                raise reply
        length, is_known = replies
        if not length and not is_known:
            raise TopicMissing(self.topic)
        return length

    async def list(
        self,
        limit: int = _PAGE,
        cursor: str | None = None,
        *,
        group: str | None = None,
        fingerprint: str | None = None,
        reverse: bool = False,
        max_bytes: int = SHOWN_BYTES,
    ) -> LetterPage:
        """List letters, the oldest first or, with `reverse`, the newest.

        A round trip per 100 letters read, 10,000 at most: where few match, a page is short
        and its cursor continues. Two more if the Java library stored payloads outside its letters.
        """
        await self.count()
        views: list[LetterView] = []
        letters: list[Letter] = []
        examined = size = 0
        async for letter in self._scan(cursor, reverse=reverse):
            examined += 1
            cursor = letter.id
            if _matches(letter, group, fingerprint):
                letters.append(letter)
                size += letter.size
            if size >= self._client.settings.topics.fetch_bytes:
                views += await self._views(letters, max_bytes)
                letters, size = [], 0
            if len(views) + len(letters) >= limit or examined >= _SEARCHED:
                break
        else:
            cursor = None
        views += await self._views(letters, max_bytes)
        return LetterPage(letters=views, cursor=cursor)

    async def show(self, id_: str, *, max_bytes: int = SHOWN_BYTES) -> LetterView:
        """Return one letter, or raise `TopicError` if it is not there. One to three round trips."""
        (view,) = await self._views([await self._letter(id_)], max_bytes)
        return view

    async def groups(self, *, limit: int = _SEARCHED) -> LetterKinds:
        """Count the newest `limit` letters by fingerprint. A round trip per 100 of them."""
        await self.count()
        kinds: dict[str | None, _Kind] = {}
        examined = 0
        complete = True
        async for letter in self._scan(None, reverse=True):
            if examined >= limit:
                complete = False
                break
            examined += 1
            name = letter.text("fingerprint")
            if name not in kinds:
                kinds[name] = _Kind(letter)
            kinds[name].add(letter)
        views = [kind.view(self._codec) for kind in kinds.values()]
        views.sort(key=lambda kind: -kind.count)
        return LetterKinds(kinds=views, examined=examined, complete=complete)

    async def audit(self, limit: int = 100) -> list[Act]:
        """Return what was done last to letters and groups, the newest first. Two round trips."""
        await self.count()
        return await read_acts(
            self._client, TopicKeys.of(self._client.keys, self.topic).audit, limit
        )

    # --- acting

    async def edit(
        self,
        id_: str,
        *,
        payload: Any = _UNCHANGED,
        headers: Mapping[str, str] | None = None,
        who: str | None = None,
    ) -> str:
        """Replace a letter's payload or headers; it gets a new id, which is returned.

        A payload that is text or bytes is stored as it is, anything else as JSON. Where messages
        are signed, the letter is signed with its key; of one without a valid signature the payload
        has to be given, and headers that are not given are dropped. Raises `TopicError` if the
        letter is not there, also if it is being edited elsewhere. Two round trips; one more to
        verify a payload that is stored outside the letter.
        """
        letter = await self._letter(id_)
        fields = dict(letter.raw)
        body = None if self._signatures is None else await self._payload_of(letter)
        if self._signatures is not None and not _is_signed(letter, body, self._signatures):
            if payload is _UNCHANGED:
                raise InvalidMessage(
                    f"dead letter {id_} has no valid signature: its edit has to give the payload"
                )
            headers = headers or {}
        if payload is not _UNCHANGED:
            fields[b"payload"] = self._codec.encode(payload)
            fields.pop(b"fields", None)
            fields[b"headers"] = encode_headers(without_reference(letter.headers))
        if headers is not None:
            kept = only_reference(letter.headers) if payload is _UNCHANGED else {}
            fields[b"headers"] = encode_headers({**headers, **kept})
        if self._signatures is not None:
            edited = Letter(id_.encode(), [part for item in fields.items() for part in item])
            # A payload that stays is signed as it was verified: outside the letter it may have been
            # exchanged since.
            signed = body if payload is _UNCHANGED else edited.payload
            headers = self._signatures.signed(signed or b"", letter.raw.get(KEY), edited.headers)
            fields[b"headers"] = encode_headers(headers)
        new = await TopicAdminScripts.of(self._client).edit_letter(
            dlq=self._keys.dlq,
            dlq_index=self._keys.dlq_index,
            audit=self._keys.audit,
            id_=id_,
            who=who or default_who(),
            index_field=letter.index_field,
            fields=[part for item in fields.items() for part in item],
        )
        if new is None:
            raise self._missing(id_)
        return new.decode()

    async def replay(
        self,
        ids: Sequence[str] | None = None,
        *,
        group: str | None = None,
        fingerprint: str | None = None,
        to: Literal["group", "all"] = "group",
        rate: float | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        who: str | None = None,
    ) -> Replayed:
        """Send letters again, the oldest first, and remove them; all of them without a selection.

        Each goes to the group that failed (`to="group"`) or to every group, into its partition or,
        if the topic has grown since, where its key belongs now. A letter that names no group goes
        to all. Letters that come in meanwhile are left for the next replay.

        Repeating it after a crash is safe: for a day, a letter that was sent but not yet taken away
        is recognised. `rate` is letters per second. `dry_run` counts and sends nothing. Costs two
        round trips per 100 letters, and one for each letter, to all partitions at once.
        """
        if to not in ("group", "all"):
            raise ValueError(f'to = {to!r}: expected "group" or "all"')
        replay = Replay(
            self._client, self.topic, self._partitioner, to_group=to == "group", rate=rate
        )
        await replay.prepare()
        chunk: list[Letter] = []
        size, most = 0, self._client.settings.topics.fetch_bytes
        async for letter in self._chosen(ids, group, fingerprint, limit, replay):
            chunk.append(letter)
            size += letter.size
            if len(chunk) >= replay.chunk or size >= most:
                await self._send(replay, chunk, dry_run=dry_run, who=who)
                chunk, size = [], 0
        if chunk:
            await self._send(replay, chunk, dry_run=dry_run, who=who)
        return replay.result()

    async def purge(
        self,
        ids: Sequence[str] | None = None,
        *,
        older_than: float | timedelta | None = None,
        everything: bool = False,
        dry_run: bool = False,
        who: str | None = None,
    ) -> int:
        """Throw letters away for good: those of `ids`, of an age in seconds, or all of them.

        Exactly one of the three. Returns how many. Two round trips per 100 ids, or one per 500
        letters.
        With `dry_run` they are counted and stay.
        """
        if (ids is not None) + (older_than is not None) + everything != 1:
            raise ValueError("purge: give ids, older_than or everything=True, one of them")
        there = await self.count()
        who = who or default_who()
        if dry_run:
            return there if everything else await self._count_chosen(ids, older_than)
        if ids is None:
            age_ms = -1 if older_than is None else int(wait_s(older_than, "older_than") * 1000)
            length = 0 if everything else -1
            return await self._drop(length, age_ms, who=who, what="purge")
        removed = 0
        async for letters in self._by_ids(ids):
            removed += await self._remove(letters, who=who, what="purge", detail="by id")
        return removed

    async def trim(self, *, max_length: int | None = None, max_age_s: float | None = None) -> int:
        """Apply a retention to the letters themselves; how many were dropped.

        A round trip per 500 letters dropped. It is automatic, so it is not put on record.
        """
        if max_length is not None and max_length < 0:
            raise ValueError(f"max_length = {max_length!r}: expected 0 or more")
        age_ms = -1 if max_age_s is None else int(wait_s(max_age_s, "max_age_s") * 1000)
        length = -1 if max_length is None else max_length
        return await self._drop(length, age_ms, who="", what="trim")

    # --- inside

    async def _letter(self, id_: str) -> Letter:
        entries = await self._client.call("XRANGE", self._keys.dlq, _checked(id_), id_)
        if not entries:
            raise self._missing(id_)
        return Letter(*entries[0])

    async def _payload_of(self, letter: Letter) -> bytes | None:
        if (payload := letter.payload) is not None:
            return payload
        if (key := letter.body_key(self._client, self.topic)) is None:
            return None
        (body,) = await ask_typed(self._client, [("GET", key)])
        return body and letter.unquoted(body, key)

    async def _views(self, letters: Sequence[Letter], max_bytes: int) -> list[LetterView]:
        keys = [letter.body_key(self._client, self.topic) for letter in letters]
        views: list[LetterView] = []
        async for body in fetch_shown(self._client, keys, max_bytes):
            views.append(letters[len(views)].view(self._codec, max_bytes, body))
        return views

    def _missing(self, id_: str) -> TopicError:
        return TopicError(f"topic {self.topic!r} has no dead letter {id_!r} (any more)")

    async def _scan(
        self, cursor: str | None, *, reverse: bool = False, end: str = "+"
    ) -> AsyncIterator[Letter]:
        """Every letter after the cursor, 100 with each round trip unless they are large."""
        sizes = MessageSizes(self._client.settings.topics.fetch_bytes, first=4)
        while True:
            start = f"({_checked(cursor)}" if cursor else None
            count = min(_PAGE, sizes.fitting())
            if reverse:
                command = ("XREVRANGE", self._keys.dlq, start or "+", "-", "COUNT", count)
            else:
                command = ("XRANGE", self._keys.dlq, start or "-", end, "COUNT", count)
            entries = await self._client.call(*command)
            sizes.note_entries(entries)
            for id_, fields in entries:
                yield Letter(id_, fields)
            if len(entries) < count:
                return
            cursor = entries[-1][0].decode()

    async def _by_ids(self, ids: Sequence[str]) -> AsyncIterator[list[Letter]]:
        """Those of the letters that are there, 100 with each round trip unless they are large."""
        left = [_checked(id_) for id_ in ids]
        sizes = MessageSizes(self._client.settings.topics.fetch_bytes, first=4)
        while left:
            count = min(_PAGE, sizes.fitting())
            commands: list[Command] = [("XRANGE", self._keys.dlq, id_, id_) for id_ in left[:count]]
            left = left[count:]
            read = [entry for entries in await ask(self._client, commands) for entry in entries]
            sizes.note_entries(read)
            yield [Letter(*entry) for entry in read]

    async def _chosen(
        self,
        ids: Sequence[str] | None,
        group: str | None,
        fingerprint: str | None,
        limit: int | None,
        replay: Replay,
    ) -> AsyncIterator[Letter]:
        """Letters to replay; those of `ids` that are not there are counted."""
        chosen = 0
        async for letter in self._asked_for(ids, replay):
            if limit is not None and chosen >= limit:
                return
            if _matches(letter, group, fingerprint):
                chosen += 1
                yield letter

    async def _asked_for(self, ids: Sequence[str] | None, replay: Replay) -> AsyncIterator[Letter]:
        if ids is None:
            newest = await self._client.call("XREVRANGE", self._keys.dlq, "+", "-", "COUNT", 1)
            if newest:
                # What fails again while we replay would otherwise be replayed for ever.
                async for letter in self._scan(None, end=newest[0][0].decode()):
                    yield letter
            return
        for id_ in sorted(dict.fromkeys(map(_checked, ids)), key=_order):
            entries = await self._client.call("XRANGE", self._keys.dlq, id_, id_)
            if entries:
                yield Letter(*entries[0])
            else:
                replay.missing += 1

    async def _count_chosen(
        self, ids: Sequence[str] | None, older_than: float | timedelta | None
    ) -> int:
        """How many letters `purge` would throw away."""
        if ids is not None:
            return sum([len(letters) async for letters in self._by_ids(list(dict.fromkeys(ids)))])
        age_ms = int(wait_s(older_than or 0, "older_than") * 1000)
        oldest_ms = now_ms(await self._client.call("TIME")) - age_ms
        return sum([1 async for _ in self._scan(None, end=str(max(0, oldest_ms)))])

    async def _send(
        self, replay: Replay, letters: Sequence[Letter], *, dry_run: bool, who: str | None
    ) -> None:
        if dry_run:
            await replay.examine(letters)
            return
        sent = set(await replay.send(letters))
        if sent:
            letters = [letter for letter in letters if letter.id in sent]
            await self._remove(
                letters, who=who or default_who(), what="replay", detail=replay.detail
            )

    async def _remove(self, letters: Sequence[Letter], *, who: str, what: str, detail: str) -> int:
        removed = await TopicAdminScripts.of(self._client).remove_letters(
            dlq=self._keys.dlq,
            dlq_index=self._keys.dlq_index,
            audit=self._keys.audit,
            who=who,
            what=what,
            detail=detail,
            ids=[letter.id for letter in letters],
        )
        bodies = [letter.java_body_key(self._client, self.topic) for letter in letters]
        await free_letter_payloads(self._client, self.topic, [key for key in bodies if key])
        return removed

    async def _drop(self, max_length: int, max_age_ms: int, *, who: str, what: str) -> int:
        total = 0
        while True:
            dropped = await TopicAdminScripts.of(self._client).trim_letters(
                dlq=self._keys.dlq,
                dlq_index=self._keys.dlq_index,
                audit=self._keys.audit,
                max_length=max_length,
                max_age_ms=max_age_ms,
                count=_DROPPED,
                who=who,
                what=what,
            )
            total += dropped
            if not dropped:
                return total


class _Kind:
    """Letters of one fingerprint, counted from the newest on."""

    def __init__(self, newest: Letter) -> None:
        self._newest = newest
        self._first_ms = 0
        self._count = 0
        self._groups: set[str] = set()

    def add(self, letter: Letter) -> None:
        self._count += 1
        self._first_ms = letter.buried_ms
        if letter.group:
            self._groups.add(letter.group)

    def view(self, codec: Codec) -> LetterKind:
        return LetterKind(
            fingerprint=self._newest.text("fingerprint"),
            count=self._count,
            first_ms=self._first_ms,
            last_ms=self._newest.buried_ms,
            groups=sorted(self._groups),
            sample=self._newest.view(codec),
        )


def _is_signed(letter: Letter, body: bytes | None, signatures: MessageSignatures) -> bool:
    headers, key = letter.stored_headers, letter.raw.get(KEY)
    return body is not None and signatures.refusal(letter.id, body, key, headers) is None


def _matches(letter: Letter, group: str | None, fingerprint: str | None) -> bool:
    return (group is None or letter.group == group) and (
        fingerprint is None or letter.text("fingerprint") == fingerprint
    )


def _checked(id_: str) -> str:
    if not _is_id(id_):
        raise InvalidMessage(f"dead letter {id_[:60]!r}: expected an id such as '1700000000000-0'")
    return id_


def _order(id_: str) -> tuple[int, int]:
    ms, _, sequence = id_.partition("-")
    return int(ms), int(sequence)
