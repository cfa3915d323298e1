"""Returning the jobs of dead workers."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from penstock.delivery.failure_log import FailedAttempt, FailureLog
from penstock.delivery.queries import text
from penstock.delivery.retries import DeathReason, RetryPolicy
from penstock.errors import CommandRefused, InvalidName, ScriptFailed
from penstock.queues.storage.keys import QueueKeyring
from penstock.queues.storage.pages import MOST_AT_ONCE, job_pages
from penstock.queues.storage.scripts import QueueScripts
from penstock.queues.storage.stored_job import Item, new_id, read_item
from penstock.queues.worker.attempts import (
    AfterCrash,
    after_crash,
    limit_of,
    unread_after_crash,
    unreadable_after_crash,
)
from penstock.queues.worker.claimed_jobs import WorkerCounts, claim_number
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.codec.off_loop import LARGE, off_loop
from penstock.redis.wire import Argument
from penstock.throttled_log import RateLimitedLog

__all__ = ["Reaper"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

_MOST_DEATHS = 3
"""So many workers may die while they read one job of a dead worker; then it is buried unread."""
_MOST_LOOKED_AT = 100
"""Workers of which one is sure to notice a dead one, if there are more."""
REFUSED = (CommandRefused, ScriptFailed)
"""What stays so when it is tried again: one job or worker has it, the others may not."""


class _Verdict(NamedTuple):
    """What becomes of a dead worker's job: for the script, and for the log."""

    arguments: Sequence[Argument]
    outcome: AfterCrash
    attempt: FailedAttempt | None = None
    """None for a job that was not read: nothing is known of it."""


class Reaper:
    """Gives up the silent workers of a queue and returns their jobs to the front.

    Any number may do so at the same time: a job leaves the dead worker's claims in the same step in
    which it is queued or buried, so each is returned once, and one that stops half-way leaves the
    rest to the others.
    """

    def __init__(
        self,
        client: Client,
        codec: Codec,
        keys: QueueKeyring,
        policy_of: Callable[[Item], RetryPolicy],
        counts: WorkerCounts,
    ) -> None:
        self._failure_log = FailureLog("queue", keys.queue, client.settings)
        self._client, self._codec, self._keys = client, codec, keys
        self._policy_of, self._counts = policy_of, counts
        queues = client.settings.queues
        self._silence_ms = round(queues.silence_s * 1000)
        self._keep_ms = round(queues.keep_s * 1000)
        self._grace_s = queues.silence_s
        # Without claimed jobs a worker may beat that much more rarely: see `Membership.beat`.
        self._missing_ms = 2_000 * queues.beat_s
        self._idle_ms = 500 * queues.silence_s + 1_000 * queues.beat_s
        self._found_dead: dict[bytes, float] = {}
        """When dead workers were first seen here, by the monotonic clock."""

    async def reap(self, now_ms: int, worker: str = "", *, paused_ms: int = 0) -> int:
        """Look for dead workers and return their jobs: how many. One round trip if none is dead.

        `worker` is the one that looks, `paused_ms` how long it was paused itself at most since its
        last heartbeat: if it was silent for longer than that, the server may have been away.
        What cannot be returned (a key of another type is in the way) stays where it is, holds up
        nothing else, and is raised in the end.
        """
        return await self.return_jobs(await self.find_dead(worker, paused_ms), now_ms, worker)

    async def find_dead(self, worker: str, paused_ms: int) -> list[bytes]:
        """Look for dead workers whose jobs are to be returned. One round trip."""
        names = await QueueScripts.of(self._client).find_dead(
            keys=self._keys, silence_ms=self._silence_ms, worker=worker, paused_ms=paused_ms
        )
        now = time.monotonic()
        self._found_dead = {name: self._found_dead.get(name, now) for name in names}
        return names

    async def alone_can_notice(self, worker: str, now_ms: int) -> bool:
        """Whether others with claims miss heartbeats, which only this worker can notice.

        Two round trips.
        """
        claims, own = self._keys.claims.encode(), worker.encode()
        reply = await self._client.call(
            "ZRANGE", self._keys.workers, 0, _MOST_LOOKED_AT, "WITHSCORES"
        )
        beats = dict(zip(reply[::2], map(float, reply[1::2]), strict=True))
        beats.pop(own, None)
        if not beats or len(beats) >= _MOST_LOOKED_AT:
            return False
        held = await self._client.pipeline([("EXISTS", claims + name) for name in beats])
        misses = False
        for at_ms, has_jobs in zip(beats.values(), held, strict=True):
            silent_ms, got_time = now_ms - at_ms, at_ms % 1 != 0  # see silence.lua
            if has_jobs == 1 and (got_time or silent_ms > self._missing_ms):
                misses = True
            elif silent_ms <= self._idle_ms and not got_time:
                return False
        return misses

    async def return_jobs(self, dead: Sequence[bytes], now_ms: int, worker: str) -> int:
        """Return the jobs of these: how many."""
        returned, refused = 0, None
        for name in dead:
            try:
                returned += await self._give_up(name, now_ms, reader=worker)
            except REFUSED as error:
                refused = error
        self._counts.reaped += returned
        if dead and worker:  # it has survived what it read
            await self._client.call("HDEL", self._keys.suspects, worker)
        if refused is not None:
            raise refused
        return returned

    async def _give_up(self, name: bytes, now_ms: int, *, reader: str) -> int:
        """Return all jobs of one dead worker."""
        queue = self._keys.queue
        try:
            dead = name.decode()
            self._keys.claimed(dead)
        except (UnicodeDecodeError, InvalidName):
            logger.warning("queue %s: %r is no name of a worker; removed", queue, name[:80])
            await self._client.call("ZREM", self._keys.dead_workers, name)
            return 0
        is_certain = time.monotonic() - self._found_dead[name] >= self._grace_s
        moved = await self._return_claims(dead, now_ms, reader=reader, is_certain=is_certain)
        level = logging.WARNING if moved else logging.DEBUG
        logger.log(level, "queue %s: worker %s is dead, jobs returned: %d", queue, dead, moved)
        return moved

    async def _return_claims(
        self, worker: str, now_ms: int, *, reader: str, is_certain: bool
    ) -> int:
        """From the last claimed to the first, so that the first ends up in front.

        A worker that was only frozen gives back what it has, not charged, when it wakes up. It gets
        a while for that before a job is buried because of its death.

        If another reader has died meanwhile, it may have died of one of these jobs: each is read by
        itself then, and one of which readers die again and again is buried unread.
        """
        deaths, trial, claims = await self._claims_of(worker, reader)
        at_once = 1 if deaths else MOST_AT_ONCE
        moved, refused = 0, None
        async for some in self._pages(worker, claims, at_once):
            unread = 0
            if deaths and some:
                opened = await QueueScripts.of(self._client).open_claims(
                    keys=self._keys, reader=reader, worker=worker, claim=some[0]
                )
                unread = opened.deaths
            if unread >= _MOST_DEATHS:
                verdicts = [self._unread(worker, some[0], unread, now_ms)]
            else:
                verdicts = await self._read(worker, some, trial, now_ms)
            if not is_certain:
                verdicts = [
                    one for one in verdicts if one.outcome.reason is not DeathReason.CRASHED
                ]
            try:
                moved += await self._return(worker, verdicts)
            except REFUSED:
                for verdict in reversed(verdicts):  # one by one, so that each stands for itself
                    try:
                        moved += await self._return(worker, [verdict])
                    except REFUSED as error:
                        refused = error
        if refused is not None:
            raise refused
        return moved

    async def _claims_of(self, worker: str, reader: str) -> tuple[int, bytes, list[bytes]]:
        """How many died while they read its claims, the one on trial, all from the last on."""
        names, cursor = set[bytes](), b"0"
        while True:
            opened = await QueueScripts.of(self._client).open_claims(
                keys=self._keys, reader=reader, worker=worker, cursor=cursor
            )
            names.update(opened.claims)
            cursor = opened.cursor
            if cursor == b"0":
                claims = sorted(names, key=claim_number, reverse=True)
                return opened.deaths, opened.trial, claims

    async def _pages(
        self, worker: str, claims: Sequence[bytes], at_once: int
    ) -> AsyncIterator[list[bytes]]:
        """Claims to be read back together, bounded in number and in bytes; none in one page."""
        if not claims:
            yield []
        async for page in job_pages(self._client, self._keys.claimed(worker), claims, at_once):
            yield page[::-1]

    async def _read(
        self, worker: str, claims: Sequence[bytes], trial: bytes, now_ms: int
    ) -> list[_Verdict]:
        """What becomes of jobs; large ones are read and written in a thread."""
        verdicts: list[_Verdict] = []
        if not claims:
            return verdicts
        items = await self._client.call("HMGET", self._keys.claimed(worker), *claims)
        for claim, data in zip(claims, items, strict=True):
            if data is None:
                continue
            decide = partial(self._verdict, worker, claim, data, now_ms, alone=claim == trial)
            verdicts.append(await off_loop(decide) if len(data) > LARGE else decide())
        return verdicts

    async def _return(self, worker: str, verdicts: Sequence[_Verdict]) -> int:
        moved = await QueueScripts.of(self._client).reap_claims(
            keys=self._keys,
            worker=worker,
            keep_ms=self._keep_ms,
            jobs=[part for verdict in verdicts for part in verdict.arguments],
        )
        if moved:  # else another reaper was faster, and has logged them
            for verdict in verdicts:
                self._log(verdict)
        return moved

    def _unread(self, worker: str, claim: bytes, deaths: int, now_ms: int) -> _Verdict:
        """Bury a job as it stands in the claims; the server finds its record by itself."""
        lane = text(claim.partition(b":")[2])
        outcome = unread_after_crash(
            deaths, worker, queue=self._keys.queue, lane=lane, now_ms=now_ms
        )
        fields = msgspec.json.encode(outcome.record_fields)
        arguments = (claim, "", "", "unread", outcome.stored, fields)
        return _Verdict(arguments, outcome)

    def _log(self, verdict: _Verdict) -> None:
        attempt, (_, _, failure, reason, _) = verdict.attempt, verdict.outcome
        if attempt is None:
            why = failure and failure.message
            logger.error("queue %s: a job is now a dead letter, unread: %s", self._keys.queue, why)
            return
        if failure is not None:
            self._failure_log.failed(attempt, failure, None, next_s=None if reason else 0)
        if reason:
            self._failure_log.buried(attempt, reason, failure, letter_id=attempt.id)

    def _verdict(
        self, worker: str, claim: bytes, data: bytes, now_ms: int, *, alone: bool
    ) -> _Verdict:
        """What becomes of one job. One on which Penstock itself fails is buried as it is."""
        queue, lane = self._keys.queue, text(claim.partition(b":")[2])
        try:
            item = read_item(data, self._codec)
            policy = self._policy_of(item)
            outcome = after_crash(
                *(item, policy, self._codec),
                queue=queue,
                lane=lane,
                worker=worker,
                now_ms=now_ms,
                alone=alone,
            )
            unique = self._keys.unique(item.meta.unique) if item.meta.unique else ""
            limit, task = limit_of(item, policy), item.task
        except Exception as error:  # noqa: BLE001  one job must not hold up the others
            quiet.error(
                f"{queue} {type(error).__name__}",
                "queue %s: a job of dead worker %s cannot be returned and is buried",
                queue,
                worker,
                exc_info=error,
            )
            item = Item(data, id=new_id(), body=data)
            outcome = unreadable_after_crash(
                item, error, queue=queue, lane=lane, attempt=1, now_ms=now_ms
            )
            unique, limit, task = "", 1, ""
        fields = outcome.record_fields
        arguments = (
            *(claim, self._keys.record_name(outcome.job_id), unique),
            *("bury" if outcome.reason else "suspect" if outcome.is_suspect else "back",),
            outcome.stored,
            msgspec.json.encode(fields) if fields else "",
        )
        attempt = FailedAttempt(outcome.job_id, item.meta.attempts + 1, limit, task=task)
        return _Verdict(arguments, outcome, attempt)
