"""Attempts of a job: how many it may have, which of them count, and what follows a crash.

A job in hand counts as begun: so a job that kills its worker is charged, although nobody lives to
say so. A worker claims ahead of what it runs, and jobs that never ran would be charged, too. That
happens to a job once at most: from its first crash on (and from the start, if it has a single
attempt) each attempt is noted in the claim when it really begins.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.delivery.failures import Failure
from penstock.delivery.retries import MOST_ATTEMPTS, DeathReason, RetryPolicy
from penstock.queues.context import JobContext
from penstock.queues.items import Item, Meta, Trouble, new_id, write_item
from penstock.queues.letters import build_letter
from penstock.redis.codec import Codec

__all__ = [
    "after_crash",
    "after_failure",
    "begun_item",
    "crash_of",
    "is_exact",
    "limit_of",
    "undecodable_letter",
]

_TOLD: Final = 10
"""Failures that travel with a job."""
_LONGEST_MESSAGE: Final = 300


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


def begun_item(job: JobContext) -> bytes:
    """The job as it stands in the claims while its attempt is under way."""
    meta = msgspec.structs.replace(job.item.meta, id=job.id, begun=True)
    return write_item(job.item, meta, job.hand.codec)


def after_failure(job: JobContext, failure: Failure) -> Meta:
    """What to remember about a job whose attempt has failed."""
    meta = job.item.meta
    trouble = Trouble(
        attempt=failure.attempt,
        at_ms=failure.at_ms,
        error_class=failure.error_class,
        message=failure.message[:_LONGEST_MESSAGE],
        fingerprint=failure.fingerprint,
    )
    return _charged(meta, job.id, trouble)


def _charged(meta: Meta, job_id: str, trouble: Trouble, *, crashes: int = 0) -> Meta:
    """What to remember after an attempt that ended so."""
    return msgspec.structs.replace(
        meta,
        id=job_id,
        attempts=min(trouble.attempt, MOST_ATTEMPTS),
        crashes=min(meta.crashes + crashes, MOST_ATTEMPTS),
        begun=False,
        first_failed_ms=meta.first_failed_ms or trouble.at_ms,
        history=(*meta.history, trouble)[-_TOLD:],
    )


def crash_of(attempt: int, worker: str, now_ms: int) -> Failure:
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
) -> tuple[str, str, bytes, str]:
    """What becomes of a dead worker's job: its id, 'back' or 'bury', the job or letter, and why."""
    meta, limit = item.meta, limit_of(item, policy)
    job_id = item.id or new_id()
    if item.fault is not None:
        named = msgspec.structs.replace(item, id=job_id)
        letter, why = undecodable_letter(
            named, item.fault, queue=queue, lane=lane, attempts=meta.attempts + 1, now_ms=now_ms
        )
        return job_id, "bury", letter, why
    if is_exact(meta, limit) and not meta.begun:
        return job_id, "back", item.data, ""
    attempt = min(meta.attempts + 1, MOST_ATTEMPTS)
    failure = crash_of(attempt, worker, now_ms)
    trouble = Trouble(attempt=attempt, at_ms=now_ms, message=failure.message)
    kept = _charged(meta, job_id, trouble, crashes=1)
    if attempt < limit:
        return job_id, "back", write_item(item, kept, codec), ""
    told = msgspec.structs.replace(kept, history=meta.history)  # the letter adds the failure itself
    named = msgspec.structs.replace(item, id=job_id, meta=told)
    letter = _letter(named, DeathReason.CRASHED, failure, limit, queue=queue, lane=lane)
    return job_id, "bury", letter, failure.message


def undecodable_letter(
    item: Item, error: Exception, *, queue: str, lane: str, attempts: int, now_ms: int
) -> tuple[bytes, str]:
    """The letter of a job that cannot be read, with its bytes as they are; and why."""
    failure = Failure.of(error, attempts, now_ms)
    letter = _letter(item, DeathReason.UNDECODABLE, failure, attempts, queue=queue, lane=lane)
    return letter, failure.message or failure.error_class


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
