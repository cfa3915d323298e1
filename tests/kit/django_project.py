"""The one Django project of a test run: its settings can be made only once."""

from __future__ import annotations

import django
from django.conf import settings

__all__ = ["BACKEND", "configure"]

BACKEND = "penstock.interfaces.django.PenstockBackend"


def configure() -> None:
    """Set Django up, unless another module of the run has."""
    if not settings.configured:
        settings.configure(
            USE_TZ=True,
            DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
            TASKS={"default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"]}},
        )
        django.setup()
