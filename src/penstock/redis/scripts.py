"""The Lua scripts: one file each under `lua/`, one typed method each on `Scripts`.

A file opens with a header that names every KEYS, ARGV and what comes back; a test holds header and
body together.
"""

from __future__ import annotations

from penstock.redis.cache_scripts import CacheScripts
from penstock.redis.feed_scripts import FeedScripts
from penstock.redis.hourly_scripts import HourlyScripts
from penstock.redis.limit_scripts import LimitScripts
from penstock.redis.once_scripts import OnceScripts
from penstock.redis.queue_admin_scripts import QueueAdminScripts
from penstock.redis.queue_scripts import QueueScripts
from penstock.redis.registry_scripts import RegistryScripts
from penstock.redis.run_scripts import RunScripts
from penstock.redis.schedule_scripts import ScheduleScripts
from penstock.redis.script import Script, load_script
from penstock.redis.slot_scripts import SlotScripts
from penstock.redis.topic_admin_scripts import TopicAdminScripts
from penstock.redis.topic_scripts import TopicScripts
from penstock.redis.window_scripts import WindowScripts
from penstock.redis.worker_scripts import WorkerScripts

__all__ = ["Script", "Scripts", "load_script"]


class Scripts(
    WorkerScripts,
    RegistryScripts,
    TopicScripts,
    TopicAdminScripts,
    QueueScripts,
    QueueAdminScripts,
    ScheduleScripts,
    HourlyScripts,
    LimitScripts,
    OnceScripts,
    CacheScripts,
    SlotScripts,
    RunScripts,
    WindowScripts,
    FeedScripts,
):
    """Every script as a call. Keys come from `redis/keys.py`; times are the server's."""
