"""Names in stored keys and fields that are shared with the programs of existing deployments.

They are data: keys are built with them, and scripts get them as arguments.
"""

from __future__ import annotations

from typing import Final

from penstock.redis.keys.names import encode_id

__all__ = [
    "AREA",
    "BATCH_ITEMS",
    "BATCH_KEY",
    "RUN_ID",
    "RUN_PROCESSED",
    "RUN_RECORD",
    "SECURITY_EVENTS",
    "SHARED_WINDOW",
    "SYSTEM_STATUS",
    "WINDOW_FIELDS",
    "upload_progress",
]

AREA: Final = "courtlistener"
"""First word of the keys of hourly counters, and of those of runs that other programs read."""
RUN_RECORD: Final = "pipeline"
"""Word before a run's id in the key of its record."""
RUN_ID: Final = "dag_run_id"
"""Field of a run's record that has its id."""
RUN_PROCESSED: Final = "dockets_processed"
"""Field with the ids of processed items in the view that other programs expect."""

BATCH_KEY: Final = "camera_id"
"""Last word of the key of a batch that has the caller's key."""
BATCH_ITEMS: Final = "detections"
"""Last word of the key of a batch that has its items."""
SHARED_WINDOW: Final = "batch"
"""The window whose keys do not contain its name: other programs use them, too."""
WINDOW_FIELDS: Final = {SHARED_WINDOW: ("camera_id", "detection_ids")}
"""Default names of a job's fields for key and items, by the name of the window."""

SECURITY_EVENTS: Final = "security_events"
"""Pub/sub channel of `{"type": "event", "data": …}`, a copy of each event."""
SYSTEM_STATUS: Final = "system_status"
"""Pub/sub channel of `{"type": "status", "data": …}`."""


def upload_progress(upload_id: str) -> str:
    """Pub/sub channel of an upload's progress; its messages are the data alone."""
    return f"upload:progress:{encode_id('upload', upload_id)}"
