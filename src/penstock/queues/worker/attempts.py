"""Attempts of a job: how many it may have, which of them count, and what follows a crash.

A claimed job counts as begun: so a job that kills its worker is charged, although no process is
left to report it. A worker claims ahead of what it runs, and jobs that never ran would be charged,
too. That
happens to a job once at most: from its first crash on (and from the start, if it has a single
attempt) each attempt is noted in the claim when it really begins.

Some jobs kill a worker before they begin: their mere size, or what decodes them. One worker
after the other dies with it. From the third on it is a suspect, which a worker claims
alone: if that one dies before the job has begun, the attempt counts.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from penstock.delivery.failures import Failure
from penstock.delivery.retries import MOST_ATTEMPTS, DeathReason, RetryPolicy
from penstock.queues.dead_letters.letter import build_letter, unread_letter_end
from penstock.queues.storage.stored_job import Item, Meta, Trouble, new_id, write_item
from penstock.redis.codec import Codec

__all__ = [
    "AfterCrash",
    "after_crash",
    "after_failure",
    "begun_item",
    "is_exact",
    "limit_of",
    "unread_after_crash",
    "unreadable_after_crash",
]

_TOLD: Final = 10
"""Failures that travel with a job."""
_LONGEST_MESSAGE: Final = 300
_SUSPECT_AFTER: Final = 3
"""Workers that died with a job claimed and not begun, before it is claimed alone."""


def limit_of(item: Item, policy: RetryPolicy) -> int:
    """How many attempts a job may have. A foreign job may ask for fewer than the policy allows."""
    if item.meta.max_attempts:
        return item.meta.max_attempts
    if item.asked_attempts:
        return min(item.asked_attempts, policy.max_attempts)
    return policy.max_attempts


def is_exact(meta: Meta, limit: int) -> bool:
    """Whether an attempt counts only once it is noted as begun."""
    return meta.crashes > 0 or limit == 1


def begun_item(item: Item, job_id: str, codec: Codec) -> bytes:
    """The job as it stands in the claims while its attempt is under way."""
    meta = msgspec.structs.replace(item.meta, id=job_id, begun=True)
    return write_item(item, meta, codec)


def after_failure(meta: Meta, job_id: str, failure: Failure) -> Meta:
    """What to remember about a job whose attempt has failed."""
    trouble = Trouble(
        attempt=failure.attempt,
        at_ms=failure.at_ms,
        error_class=failure.error_class,
        message=failure.message[:_LONGEST_MESSAGE],
        fingerprint=failure.fingerprint,
    )
    return _charged(meta, job_id, trouble)


def _charged(
    meta: Meta, job_id: str, trouble: Trouble, *, crashes: int = 0, unbegun: int = 0
) -> Meta:
    """What to remember after an attempt that ended so."""
    return msgspec.structs.replace(
        meta,
        id=job_id,
        attempts=min(trouble.attempt, MOST_ATTEMPTS),
        crashes=min(meta.crashes + crashes, MOST_ATTEMPTS),
        unbegun=unbegun,
        begun=False,
        parked_ms=0,  # a worker knew what to do with it
        first_failed_ms=meta.first_failed_ms or trouble.at_ms,
        history=(*meta.history, trouble)[-_TOLD:],
    )


class AfterCrash(NamedTuple):
    """What becomes of a dead worker's job."""

    job_id: str
    stored: bytes
    """The job as it is queued again, or its dead letter."""
    failure: Failure | None = None
    """None if the attempt had not begun."""
    reason: DeathReason | None = None
    """Why it is a dead letter; None if it is queued again."""
    is_suspect: bool = False
    """Whether it is to be claimed alone."""

    @property
    def record_fields(self) -> list[str]:
        """Names and values for the record of the job: nothing of an earlier attempt is left."""
        failure = self.failure
        if failure is None:
            return []
        fields = ["error", failure.message or failure.error_class]
        fields += ("error_type", failure.error_class or "Crashed", "traceback", failure.stack)
        fields += ("error_code", "", "suggestions", "")
        if self.reason is not None:
            return [*fields, "reason", str(self.reason)]
        return [*fields, "retry_count", str(failure.attempt)]


def _crash_of(attempt: int, worker: str, now_ms: int) -> Failure:
    """An attempt that ended with its process."""
    return Failure(
        error_class="",
        message=f"attempt {attempt} ended without an outcome: worker {worker} died",
        stack="",
        fingerprint=DeathReason.CRASHED,
        at_ms=now_ms,
        attempt=attempt,
    )


def after_crash(
    item: Item,
    policy: RetryPolicy,
    codec: Codec,
    *,
    queue: str,
    lane: str,
    worker: str,
    now_ms: int,
    alone: bool = False,
) -> AfterCrash:
    """What becomes of a dead worker's job: it is queued again or buried, charged or not.

    With `alone` it was claimed as a suspect, and the worker died before it began.
    """
    meta, limit = item.meta, limit_of(item, policy)
    job_id = item.id or new_id()
    attempt = min(meta.attempts + 1, MOST_ATTEMPTS)
    if item.fault is not None:
        named = msgspec.structs.replace(item, id=job_id)
        return unreadable_after_crash(
            named, item.fault, queue=queue, lane=lane, attempt=attempt, now_ms=now_ms
        )
    if is_exact(meta, limit) and not meta.begun and not alone:
        unbegun = min(meta.unbegun + 1, MOST_ATTEMPTS)
        kept = msgspec.structs.replace(meta, id=job_id, unbegun=unbegun)
        stored = write_item(item, kept, codec)
        return AfterCrash(job_id, stored, is_suspect=unbegun >= _SUSPECT_AFTER)
    failure = _crash_of(attempt, worker, now_ms)
    trouble = Trouble(attempt=attempt, at_ms=now_ms, message=failure.message)
    unbegun = meta.unbegun if alone else 0
    kept = _charged(meta, job_id, trouble, crashes=1, unbegun=unbegun)
    if attempt < limit:
        return AfterCrash(job_id, write_item(item, kept, codec), failure, is_suspect=alone)
    shown = msgspec.structs.replace(kept, history=meta.history)  # the letter adds the failure
    named = msgspec.structs.replace(item, id=job_id, meta=shown)
    letter = _letter(named, DeathReason.CRASHED, failure, limit, queue=queue, lane=lane)
    return AfterCrash(job_id, letter, failure, DeathReason.CRASHED)


def unreadable_after_crash(
    item: Item, error: Exception, *, queue: str, lane: str, attempt: int, now_ms: int
) -> AfterCrash:
    """Bury a dead worker's job that cannot be read, with its bytes as they are."""
    failure = Failure.of(error, attempt, now_ms)
    letter = _letter(item, DeathReason.UNDECODABLE, failure, attempt, queue=queue, lane=lane)
    return AfterCrash(item.id, letter, failure, DeathReason.UNDECODABLE)


def unread_after_crash(
    deaths: int, worker: str, *, queue: str, lane: str, now_ms: int
) -> AfterCrash:
    """Bury a dead worker's job that no worker survived to read."""
    failure = msgspec.structs.replace(
        _crash_of(1, worker, now_ms),
        message=f"worker {worker} died with this job, and then {deaths} that read it to return it",
    )
    reason = DeathReason.CRASHED
    end = unread_letter_end(
        queue=queue,
        lane=lane,
        reason=reason,
        error=failure.message,
        attempts=failure.attempt,
        now_ms=now_ms,
    )
    return AfterCrash("", end, failure, reason)


def _letter(
    item: Item, reason: DeathReason, failure: Failure, limit: int, *, queue: str, lane: str
) -> bytes:
    """The letter of a job whose last attempt ended so."""
    return build_letter(
        item,
        queue=queue,
        lane=lane,
        reason=reason,
        attempts=failure.attempt,
        max_attempts=limit,
        failures=(failure,),
        now_ms=failure.at_ms,
    )
