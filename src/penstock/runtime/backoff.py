"""How long a loop waits after its n-th failure in a row."""

from __future__ import annotations

from penstock.redis.retry import backoff_s

__all__ = ["LEAST_S", "LONGEST_S", "retry_delay_s"]

LEAST_S = 0.5
"""Never more than two tries a second, however short the loop's own rhythm is."""
LONGEST_S = 5.0


def retry_delay_s(failures: int, longest_s: float = LONGEST_S) -> float:
    """Doubles from `LEAST_S`, with jitter: workers that lost one server must not return in step."""
    return backoff_s(failures, base_s=LEAST_S, max_s=max(longest_s, LEAST_S))
