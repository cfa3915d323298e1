"""The connection to Redis or Valkey: knows the server, not the work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from penstock.redis.client import Client
    from penstock.redis.codec import Codec
    from penstock.redis.health import Health, NodeHealth
    from penstock.redis.node import Role
    from penstock.redis.retry import with_retry
    from penstock.redis.shared import close_redis, get_redis, get_redis_optional, init_redis
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "client": "Client",
            "codec": "Codec",
            "health": "Health NodeHealth",
            "node": "Role",
            "retry": "with_retry",
            "shared": "close_redis get_redis get_redis_optional init_redis",
        },
    )

__all__ = [
    # connections
    "Client",
    "Role",
    "with_retry",
    # payloads
    "Codec",
    # the process's one client
    "init_redis",
    "close_redis",
    "get_redis",
    "get_redis_optional",
    # health
    "Health",
    "NodeHealth",
]
