"""What is told of batches and of items that were added to them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Added", "OpenBatch"]


@dataclass(frozen=True, slots=True)
class Added:
    """What became of an item."""

    batch_id: str
    """The batch that has it; empty for a repeat whose batch was closed meanwhile."""
    size: int
    """Items in that batch by then."""
    closed: str | None = None
    """A batch that was closed on this occasion: its own, if that was full, else the one before."""
    is_new: bool = True
    """False if an item of the same id was there, be it by this call itself, whose answer got lost
    and which was repeated: nothing was stored then."""
    fast: bool = False
    """Whether it went to the high lane at once, as a batch of its own."""


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch that still takes items; times are the server's."""

    batch_id: str
    key: str
    count: int
    bytes: int
    started_ms: int
    last_ms: int
    due_ms: int
    """When it will be closed unless another item comes."""
