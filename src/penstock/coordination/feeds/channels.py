"""Channels on which other programs expect copies of events.

    await feed.publish("progress", progress, mirror=upload_progress("abc123"), mirror_as="data")
    await feed.publish("event", event, mirror=SECURITY_EVENTS)

Whoever subscribes gets what is published from then on, and no more: a channel keeps nothing.
"""

from __future__ import annotations

from typing import Final, Literal

from penstock.redis.keys.names import encode_id

__all__ = ["SECURITY_EVENTS", "SYSTEM_STATUS", "MirrorAs", "upload_progress"]

MirrorAs = Literal["event", "data"]
"""What is sent to a channel: `{"type": …, "data": …}`, or the data alone."""

SECURITY_EVENTS: Final = "security_events"
"""`{"type": "event", "data": …}` for each security event."""
SYSTEM_STATUS: Final = "system_status"
"""`{"type": "status", "data": …}` every now and then."""


def upload_progress(upload_id: str) -> str:
    """Channel of an upload's progress; its messages are the data alone."""
    return f"upload:progress:{encode_id('upload', upload_id)}"
