"""What one process has done so far, by stages."""

from __future__ import annotations

from collections import Counter

import msgspec

__all__ = ["Metrics", "MetricsView"]


class MetricsView(msgspec.Struct, frozen=True, kw_only=True):
    """Totals since the process began."""

    documents: int
    failed: int
    retried: int
    chunks: int
    embedded: int
    reused: int
    """Vectors taken over from the former version of a document."""
    cached: int
    tokens: int
    seconds: dict[str, float]
    """Spent in each stage, over all documents: parse, embed, upsert, job."""


class Metrics:
    """Counts. Used from one event loop, so without locks."""

    def __init__(self) -> None:
        self.documents = self.failures = self.retries = 0
        self.chunks = self.embedded = self.reused = self.cached = self.tokens = 0
        self._seconds: Counter[str] = Counter()

    def spent(self, stage: str, seconds: float) -> None:
        self._seconds[stage] += seconds  # pyright: ignore[reportArgumentType]  a counter of floats

    def done(self, seconds: float) -> None:
        self.documents += 1
        self.spent("job", seconds)

    def failed(self, *, final: bool) -> None:
        if final:
            self.failures += 1
        else:
            self.retries += 1

    def view(self) -> MetricsView:
        return MetricsView(
            documents=self.documents,
            failed=self.failures,
            retried=self.retries,
            chunks=self.chunks,
            embedded=self.embedded,
            reused=self.reused,
            cached=self.cached,
            tokens=self.tokens,
            seconds={stage: round(spent, 6) for stage, spent in self._seconds.items()},
        )
