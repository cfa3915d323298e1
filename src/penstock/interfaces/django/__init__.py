"""Penstock as a backend of `django.tasks` (Django 6) or of the package `django-tasks`.

# settings.py
TASKS = {
    "default": {
        "BACKEND": "penstock.interfaces.django.PenstockBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"url": "redis://localhost"},
    }
}

# shop/work.py, for `penstock worker shop.work:app`
import django

django.setup()
app = worker_app()
"""

from penstock.interfaces.django.backend import PenstockBackend
from penstock.interfaces.django.running import register, worker_app

__all__ = ["PenstockBackend", "register", "worker_app"]
