"""The scripts by which topics are looked after."""

from __future__ import annotations

from penstock.redis.script import ScriptCaller

__all__ = ["TopicAdminScripts"]


class TopicAdminScripts(ScriptCaller):
    """Scripts by which people change topics, groups and dead letters, as calls."""
