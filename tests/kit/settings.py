"""Settings from plain data, as programs of tests get it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.settings import Settings
from penstock.settings.reading import groups_of

__all__ = ["QUICK_TOPICS", "settings_of"]

QUICK_TOPICS = {"lease_ttl_s": 1.5, "balance_s": 0.05, "janitor_s": 0.1}


def settings_of(orders: Mapping[str, Any]) -> Settings:
    """`url`, `namespace`, `home` and groups of settings by their names; the rest is ignored."""
    plain = {name: orders[name] for name in ("url", "namespace", "home") if name in orders}
    groups = {
        name: group(**orders[name]) for name, group in groups_of(Settings).items() if name in orders
    }
    return Settings(**plain, **groups)
